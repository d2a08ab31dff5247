//! The arithmetic of every op, in the plainest form: safe scalar Rust over slices, one function an idea.
//!
//! It is the reference that every other form of an op (SIMD, device kernels) is compared with, bit for bit.
//! Invariants: the order of every float operation is the one `docs/numerics.md` fixes; `f32::mul_add` is its `fma`.
//! Does not know: programs, batches, cards, threads, speed.

pub mod attention;
pub mod conv;
pub mod delta;
pub mod experts;
pub mod functions;
pub mod image;
pub mod norm;
pub mod product;
pub mod reduce;
pub mod rope;
pub mod route;
pub mod stored;

/// A value that is infinite or no number where rule 6 of `docs/numerics.md` looks for one; who knows the op and the
/// layer names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a value is not finite; the weights or the prompt are at fault")]
pub struct NotFinite;
