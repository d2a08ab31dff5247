//! The arithmetic of every op, in the plainest form: safe scalar Rust over slices, one function an idea.
//!
//! It is the reference that every other form of an op (SIMD, device kernels) is compared with, bit for bit.
//! Invariants: the order of every float operation is the one `docs/numerics.md` fixes; `f32::mul_add` is its `fma`.
//! Does not know: programs, batches, cards, threads, speed.

pub mod functions;
pub mod reduce;
