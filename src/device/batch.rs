//! What flows through the stages: rows of (state, position), and the pages that their states own on a card.
//!
//! Invariants: rows of one state have rising, neighbouring positions inside a batch; up to eight rows are a window,
//! more are a chunk. Does not know: sequences, sampling.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::model::facts::{BEST_MAX, PageId, StateId, WINDOW_ROWS_MAX};

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
    /// What the last stage gives for it.
    pub wants: RowWants,
}

/// What a row wants of the stage that heads. Where more than a window's rows of a batch want something, all of these
/// want all their logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowWants {
    /// Nothing.
    #[default]
    Nothing,
    /// The best tokens with their logits, best first: so many, from one to [`BEST_MAX`] and at most as many as there
    /// are. [`super::best`] reads and writes them.
    Best(usize),
    /// The logits of all tokens.
    Logits,
}

impl RowWants {
    /// Whether it is anything.
    pub fn is_some(self) -> bool {
        self != RowWants::Nothing
    }

    /// How many values that is.
    pub fn values(self, vocab: usize) -> usize {
        match self {
            RowWants::Nothing => 0,
            RowWants::Best(count) => {
                assert!((1..=BEST_MAX.min(vocab)).contains(&count), "the best {count} of {vocab} tokens");
                2 * count
            }
            RowWants::Logits => vocab,
        }
    }
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

/// What a batch does for its sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub enum Phase {
    /// Reads a prompt.
    Prompt,
    /// Makes tokens.
    #[default]
    Decode,
}

/// Rows that run together.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Place in the order of batches.
    pub id: BatchId,
    /// One to `batch_rows_max` rows.
    pub rows: Vec<BatchRow>,
    /// What for: cards do not ask, times are counted by it.
    pub phase: Phase,
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
    /// A batch that makes tokens and is wanted to its end.
    pub fn new(id: BatchId, rows: Vec<BatchRow>) -> Batch {
        Batch { id, rows, phase: Phase::default(), interest: Interest::default() }
    }

    /// Window or chunk.
    pub fn kind(&self) -> BatchKind {
        if self.rows.len() <= WINDOW_ROWS_MAX { BatchKind::Window } else { BatchKind::Chunk }
    }

    /// The rows that follow where all of them stand: of the same states, each as far behind as its state has rows here.
    pub fn behind(&self) -> Batch {
        let behind = |row: &BatchRow| {
            let rows = self.rows.iter().filter(|other| other.state == row.state).count();
            BatchRow { position: row.position + rows as u32, ..*row }
        };
        Batch::new(self.id, self.rows.iter().map(behind).collect())
    }

    /// What its rows want that want something, in row order.
    pub fn wants(&self) -> impl Iterator<Item = RowWants> {
        self.rows.iter().map(|row| row.wants).filter(|wants| wants.is_some())
    }

    /// Values that the stage that heads gives for all rows.
    pub fn wanted_values(&self, vocab: usize) -> usize {
        self.wants().map(|wants| wants.values(vocab)).sum()
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
