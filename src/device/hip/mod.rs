//! AMD cards behind HIP: what differs from CUDA's, the rest of the backend being one (`docs/decisions/0004`).
//!
//! `driver` has HIP's own calls (a fence of unsafe code), `hiprtc` the compiler's names and options, `gfx` the
//! architectures that are served. Does not know: kernels, batches, plans.

pub(in crate::device) mod driver;
pub mod gfx;
pub(in crate::device) mod hiprtc;
