//! Cards: memory, lowering of a stage's program, running of batches.
//!
//! A [`Card`] owns its memory and a [`Ledger`] of every allocation; [`Card::lower`] turns a stage's program into a
//! [`StageExec`] that runs batches.
//! Invariants: nothing is allocated that is not booked; a booking beyond the card's budget is an error, not a
//! smaller buffer. Does not know: sequences (only state ids), splits, links, requests.

pub mod batch;
pub mod best;
pub mod cpu;
pub mod cuda;
pub mod hip;
pub mod ledger;
pub mod lower;
pub mod threads;

use crate::gguf;
use crate::model::facts::{Activations, CardFacts, CardId, KvFormat, LinkKind, PageId, SlotId, StageProgram};
use crate::model::footprint::ItemKind;

use batch::{Batch, PageTables};
use ledger::Ledger;

/// What a stage is lowered for; the same values as in the plan.
#[derive(Clone, Copy, Debug)]
pub struct StageSettings {
    /// How products see their inputs.
    pub activations: Activations,
    /// How K and V are kept.
    pub kv: KvFormat,
    /// Pages of K/V on this card.
    pub kv_pages: usize,
    /// The most rows of one batch.
    pub batch_rows_max: usize,
    /// The most rows of one batch that may want something of the stage that heads.
    pub logits_rows_max: usize,
    /// Positions that rope angles are prepared for.
    pub context: usize,
}

/// Told while kernels are compiled and weights arrive.
pub trait LoadProgress: Sync {
    /// Of `all` pieces of kernels for a card, `done` are compiled; first 0. They are kept for later starts. An error
    /// ends loading.
    fn compiled(&self, card: CardId, done: usize, all: usize) -> Result<(), CardError>;
    /// Asked again and again while another process compiles what the card needs. An error ends loading.
    fn waits(&self, card: CardId) -> Result<(), CardError>;
    /// `bytes` more of the file have arrived on a card. An error message of the caller's ends loading (Ctrl-C).
    fn arrived(&self, bytes: u64) -> Result<(), CardError>;
}

/// What happened while a batch ran, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStamp {
    /// Time that the run took.
    pub busy_ns: u64,
    /// Time that the card waited for the rows of another one.
    pub waited_ns: u64,
    /// The card's own stamps, where it has a clock.
    pub card: Option<CardStamps>,
}

/// When a card began and ended a batch, by its own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CardStamps {
    /// Before anything of it.
    pub begun_ns: u64,
    /// Behind everything.
    pub ended_ns: u64,
}

/// A device of the plan.
pub trait Card: Send {
    /// What the planner knows of it.
    fn facts(&self) -> &CardFacts;
    /// Every allocation on the card.
    fn ledger(&self) -> &Ledger;
    /// Books memory that others allocate for the card: the slots of links that end at it.
    fn book(&mut self, item: ItemKind, bytes: u64) -> Result<(), CardError>;
    /// Brings the stage's weights onto the card and prepares running it.
    fn lower(
        &mut self,
        stage: &StageProgram,
        file: &gguf::File,
        settings: &StageSettings,
        progress: &dyn LoadProgress,
    ) -> Result<Box<dyn StageExec>, CardError>;
}

/// A stage's program, ready to run on its card.
pub trait StageExec: Send {
    /// Runs the batch. `input` holds `rows x residual width` values, row after row, and is empty on the stage that
    /// embeds. `output` receives as many, or, on the stage that heads, what each row wants, in row order
    /// ([`batch::RowWants`]). Pages of all positions written must be in `pages`. A batch in which interest is lost may
    /// end early, with any output.
    fn run(
        &mut self,
        batch: &Batch,
        pages: &PageTables,
        input: &[f32],
        output: &mut [f32],
    ) -> Result<RunStamp, CardError>;

    /// Copies the contents of a page (a snapshot that both sides go on writing behind).
    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), CardError>;

    /// The same stage where its card computes beside the thread and reaches the slots of links by itself.
    fn beside(&mut self) -> Option<&mut dyn BesideExec> {
        None
    }
}

/// A stage whose card computes beside the thread that runs it. Once `is_cancelled` says so, rows of other cards are waited
/// for no longer.
pub trait BesideExec {
    /// Queues what [`StageExec::run`] does. Where `output` names a slot, the rows go there, and the batch behind may be
    /// told of them at once.
    fn start(
        &mut self,
        batch: &Batch,
        pages: &PageTables,
        input: RowsIn<'_>,
        output: Option<CardSlot>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), CardError>;

    /// Waits for the end of what was started; `output` receives what does not go to a slot.
    fn finish(
        &mut self,
        batch: &Batch,
        output: &mut [f32],
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<RunStamp, CardError>;
}

/// A turn of a slot that only cards reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardSlot {
    /// Which slot.
    pub slot: SlotId,
    /// What the producing card writes when the rows are there, and the consuming card waits for.
    pub sequence: u32,
}

/// The slots of a link that only cards reach.
pub trait CardRing: Send + Sync {
    /// How rows travel through it.
    fn kind(&self) -> LinkKind;
    /// Ends the waits of cards for rows, now and later.
    fn end_waits(&self);
}

/// Rows that come to a stage.
#[derive(Clone, Copy, Debug)]
pub enum RowsIn<'a> {
    /// Here, row after row.
    Host(&'a [f32]),
    /// In a slot, now or soon.
    Card(CardSlot),
}

impl<'a> RowsIn<'a> {
    /// Those in host memory; none of a slot's.
    pub fn host(self) -> &'a [f32] {
        match self {
            RowsIn::Host(rows) => rows,
            RowsIn::Card(_) => &[],
        }
    }
}

/// A place for the rows that leave a stage.
#[derive(Debug)]
pub enum RowsOut<'a> {
    /// Here, row after row.
    Host(&'a mut [f32]),
    /// A slot.
    Card(CardSlot),
}

impl<'a> RowsOut<'a> {
    /// Those in host memory; none of a slot's.
    pub fn host(self) -> &'a mut [f32] {
        match self {
            RowsOut::Host(rows) => rows,
            RowsOut::Card(_) => &mut [],
        }
    }
}

/// What can go wrong on a card.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CardError {
    /// A booking beyond the budget.
    #[error(
        "{card}: {item} needs {needed_bytes} B, {free_bytes} B of its {budget_bytes} B are free; lower --ctx, \
         --sequences or --chunk, or give the card more with --card-memory"
    )]
    OutOfMemory {
        /// Which card.
        card: CardId,
        /// For what.
        item: String,
        /// Asked for.
        needed_bytes: u64,
        /// Left.
        free_bytes: u64,
        /// In all.
        budget_bytes: u64,
    },
    /// The computer has no memory left.
    #[error("{card}: the system refused {bytes} B for {item}; close other programs or plan smaller cards")]
    SystemMemory {
        /// Which card.
        card: CardId,
        /// For what.
        item: String,
        /// Asked for.
        bytes: u64,
    },
    /// The card's driver or compiler failed.
    #[error("{card}: {what}")]
    Driver {
        /// Which card.
        card: CardId,
        /// What failed, where, and what to do.
        what: String,
    },
    /// The card cannot run this model with these options.
    #[error("{card}: {what}")]
    Unsupported {
        /// Which card.
        card: CardId,
        /// What, and what to do.
        what: String,
    },
    /// Rule 6 of `docs/numerics.md`.
    #[error("{card}: a value is not finite in {op} of layer {layer}; the weights or the prompt are at fault")]
    NotFinite {
        /// Which card.
        card: CardId,
        /// Which op.
        op: &'static str,
        /// Which layer.
        layer: usize,
    },
    /// The rows of another card did not come.
    #[error("{card}: {what}")]
    Rows {
        /// Which card.
        card: CardId,
        /// Why, and what to do.
        what: String,
    },
    /// The file's bytes could not be read.
    #[error("{card}: {what}")]
    File {
        /// Which card.
        card: CardId,
        /// What the reader said.
        what: String,
    },
    /// Loading was cancelled.
    #[error("loading was cancelled")]
    Cancelled,
}
