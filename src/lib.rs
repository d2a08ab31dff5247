//! tandem serves one large language model over the cards of one computer, split by layers.
//!
//! A model is a program ([`model`]); a split cuts it ([`split`]); each card runs its piece ([`device`]); links
//! carry the rows ([`transport`]); a coordinator keeps every card busy ([`engine`]). Decoded text never depends
//! on the split, the batch, the window or the backend (`docs/numerics.md`).
//!
//! Imports point one way only: `docs/architecture.md` has the table and `tests/tidy.rs` holds it.
//!
//! Unsafe code is denied here and allowed in few fences, each listed in `tests/tidy.rs`.

pub mod cache;
pub mod cli;
pub mod device;
pub mod engine;
pub mod gguf;
pub mod model;
pub mod split;
pub mod text;
pub mod transport;
