//! The engine's machines under a seeded scheduler, with virtual time and faults.

pub mod hash_card;
pub mod oracle;
mod rng;
