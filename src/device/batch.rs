//! What flows through the stages: rows of (state, position), and the pages that their states own on a card.
//!
//! Invariants: rows of one state have rising, neighbouring positions inside a batch; up to eight rows are a window,
//! more are a chunk. Does not know: sequences, prompts, sampling.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::model::facts::{PageId, StateId, WINDOW_ROWS_MAX};

/// Numbers batches in the order in which they were posted; every stage sees them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct BatchId(pub u64);

/// One token's place in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRow {
    /// Whose state it reads and writes.
    pub state: StateId,
    /// Position in the sequence, from 0.
    pub position: u32,
    /// Token id.
    pub token: u32,
    /// Whether the last stage makes logits for it.
    pub wants_logits: bool,
}

/// Whether anybody still waits for what a batch makes. It is shared with whoever may lose interest; once lost, it
/// stays lost, and every stage may leave the batch's rows as they are and hand them on.
#[derive(Clone, Debug, Default)]
pub struct Interest(Arc<AtomicBool>);

impl Interest {
    /// Nobody waits any more.
    pub fn lose(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the rows may be anything from now on.
    pub fn is_lost(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Rows that run together.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Place in the order of batches.
    pub id: BatchId,
    /// One to `batch_rows_max` rows.
    pub rows: Vec<BatchRow>,
    /// Lost where the one request that they belong to has ended.
    pub interest: Interest,
}

/// The same rows in the same place; interest passes.
impl PartialEq for Batch {
    fn eq(&self, other: &Batch) -> bool {
        self.id == other.id && self.rows == other.rows
    }
}

impl Eq for Batch {}

/// A batch by its number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// One to eight rows.
    Window,
    /// More.
    Chunk,
}

impl Batch {
    /// A batch that is wanted to its end.
    pub fn new(id: BatchId, rows: Vec<BatchRow>) -> Batch {
        Batch { id, rows, interest: Interest::default() }
    }

    /// Window or chunk.
    pub fn kind(&self) -> BatchKind {
        if self.rows.len() <= WINDOW_ROWS_MAX { BatchKind::Window } else { BatchKind::Chunk }
    }

    /// Rows that asked for logits.
    pub fn logits_rows(&self) -> usize {
        self.rows.iter().filter(|r| r.wants_logits).count()
    }
}

/// The pages of every state on one card: page `p` of a state holds its positions `64 p .. 64 p + 63`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageTables {
    /// By state id.
    pub states: Vec<Vec<PageId>>,
}

impl PageTables {
    /// The pages of a state, in position order; empty for a state that owns none.
    pub fn of(&self, state: StateId) -> &[PageId] {
        self.states.get(state.index()).map_or(&[], Vec::as_slice)
    }
}
