//! Links between CUDA cards on the device: rings of slots that only cards reach, and the kernels that fill and empty them.
//!
//! Invariants: a ring is used only after [`pattern::check`] has passed on it; a wait on a card ends by its rows, by
//! [`ring::SlotRing`]'s end or by its own deadline. Does not know: batches, stages, whose turn a slot is.

pub mod measure;
pub mod pattern;
pub mod ring;
pub mod side;
