//! Virtual cards: shares of this computer, computed by its CPUs.

pub mod plain;
pub mod simd;
