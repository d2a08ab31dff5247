//! The engine: coordinator, stages, sequences, sampling.

pub mod coordinator;
pub mod error;
pub mod options;
pub mod request;
pub mod sample;
pub mod schedule;
mod sequence;
pub mod stage;
pub mod timeline;
