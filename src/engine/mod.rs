//! The engine: coordinator, stages, sequences, sampling, on token ids alone.
//!
//! [`coordinator::Coordinator`] and [`stage::StageMachine`] are state machines without threads, clocks or I/O;
//! [`pipeline::Engine`] runs them on threads, [`sim`] under a seeded scheduler. Both get them from [`build`].
//! Invariants: tokens do not depend on what else runs, on the number of stages or on timing; no wait is endless.
//! Does not know: text, HTTP, model families, what a card is made of.

pub mod build;
mod clock;
pub mod coordinator;
mod coordinator_thread;
pub mod error;
pub mod handle;
pub mod linking;
pub mod open;
pub mod options;
pub mod pipeline;
pub mod profile;
mod queue;
pub mod random;
pub mod request;
pub mod sample;
pub mod schedule;
mod sequence;
pub mod sim;
pub mod stage;
mod stage_thread;
pub mod timeline;
pub mod turn;
