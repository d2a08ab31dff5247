//! Instruction set tiers of the CPU and the kernels that use them: a fence for unsafe code.
//!
//! Invariants: every tier gives the same bits (`docs/numerics.md`); an instruction runs only behind the witness of
//! its tier ([`tier::Tier`]); faces are safe. Does not know: programs, batches, threads.
#![allow(unsafe_code, reason = "vector instructions and unchecked loads from checked slices")]

pub mod attention;
pub mod convert;
pub mod elementwise;
pub mod float_product;
pub mod functions;
pub mod norm;
pub mod products;
pub mod route;
#[cfg(test)]
pub(crate) mod samples;
mod stored;
pub mod tier;
mod vector;
