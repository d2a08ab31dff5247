//! What a stage keeps between batches, as books: which place of a card's memory belongs to whom.
//!
//! Invariant: nothing here moves bytes; the stage does what the books say. Does not know: how a card stores a page.

pub mod kv;
