//! Key/value pages of one card: which state owns which, and which are free.
//!
//! Invariants: those of [`pages`]. Does not know: the bytes of a page (they lie in the card's arena), ops, other
//! cards, what a sequence is.

pub mod pages;

use crate::model::facts::{CardId, StateId};

use pages::SnapshotId;

/// What can go wrong with pages. The books are as they were before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// The card has too few free pages.
    #[error(
        "{card}: {state} needs {needed} K/V pages more, {free} of {pages} are free; end another sequence, lower \
         --ctx or --sequences, choose a smaller --kv format, or give the card more with --card-memory"
    )]
    NoPage {
        /// Which card.
        card: CardId,
        /// Which state.
        state: StateId,
        /// Pages asked for.
        needed: usize,
        /// Pages free.
        free: usize,
        /// Pages of the card.
        pages: usize,
    },
    /// Rows that do not continue their state.
    #[error(
        "{card}: rows at position {position} do not continue {state} of {length} positions; roll it back first"
    )]
    NotNext {
        /// Which card.
        card: CardId,
        /// Which state.
        state: StateId,
        /// First position of the rows.
        position: u32,
        /// Positions that the state has.
        length: usize,
    },
    /// A rollback to more than there is.
    #[error("{card}: {state} of {length} positions cannot be rolled back to {wanted}; append the rows first")]
    Beyond {
        /// Which card.
        card: CardId,
        /// Which state.
        state: StateId,
        /// Positions asked for.
        wanted: usize,
        /// Positions that the state has.
        length: usize,
    },
    /// A snapshot that was dropped, or never taken on this card.
    #[error("{card}: there is no {snapshot}; take one before restoring or dropping it")]
    NoSnapshot {
        /// Which card.
        card: CardId,
        /// Which snapshot.
        snapshot: SnapshotId,
    },
}
