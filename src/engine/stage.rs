//! A stage as a state machine: what the thread that owns a card does next.
//!
//! Each [`StageMachine::step`] takes what the last action gave and returns the next action; the shell carries it out
//! (a real thread waits in it, the simulation lets virtual time pass).
//! Invariants: commands take effect in the order in which they were posted; a batch runs only with pages for all its
//! rows, its input there and a place for its output; after [`StageAction::End`] there is no step.
//! Does not know: threads, clocks, sequences, what a card computes.

use std::sync::Arc;

use super::timeline::BatchStamps;
use crate::cache::kv::pages::{CopyPage, KvPages};
use crate::device::CardStamps;
use crate::device::batch::{Batch, BatchId, BatchRow, PageTables};
use crate::model::facts::{CardId, StageId, StateId};

/// What the coordinator tells every stage, in one order for all.
#[derive(Clone, Debug, PartialEq)]
pub enum StageCommand {
    /// Run the rows.
    Run(Arc<Batch>),
    /// Give the state pages for its first `positions` positions, without rows.
    Skip {
        /// An empty state.
        state: StateId,
        /// From 0.
        positions: u32,
    },
    /// Forget the positions from `length` on: their tokens were rejected.
    Rollback {
        /// Whose.
        state: StateId,
        /// Positions that stay.
        length: u32,
    },
    /// Forget the state.
    Release {
        /// Which.
        state: StateId,
    },
    /// Nothing follows.
    Stop,
}

/// How a run failed.
#[derive(Clone, Debug, PartialEq)]
pub enum RunFault {
    /// The rows are at fault (not finite); the card is well.
    Rows(String),
    /// The card, or the stage's program.
    Card(String),
}

/// When a run took place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTimes {
    /// After the turn was taken.
    pub start_ns: u64,
    /// Before the turn was given back.
    pub end_ns: u64,
    /// Of these, how long the card waited for the rows of another one.
    pub waited_ns: u64,
    /// The card's own stamps.
    pub card: Option<CardStamps>,
}

/// What the shell tells the machine.
#[derive(Clone, Debug, PartialEq)]
pub enum StageEvent {
    /// The thread has started.
    Started,
    /// The next command.
    Popped(StageCommand),
    /// The page was copied.
    Copied,
    /// The batch's rows are there.
    Taken,
    /// There is a place for the output.
    Reserved,
    /// The batch has run.
    Ran(Result<RunTimes, RunFault>),
    /// The coordinator was told that the rows are at fault.
    Told,
    /// Output posted, input given back.
    HandedOff,
    /// The action could not be carried out: this stage is at its end.
    Failed(String),
    /// The wait was cancelled: the engine ends.
    Cancelled,
}

/// What the shell does next.
#[derive(Clone, Debug, PartialEq)]
pub enum StageAction {
    /// Wait for a command.
    Pop,
    /// Copy a page on the card.
    Copy(CopyPage),
    /// Wait for the rows of this batch.
    Take(BatchId),
    /// Wait for a place for the output of this batch: a slot, or a buffer for logits.
    Reserve(Arc<Batch>),
    /// Run it with [`StageMachine::tables`].
    Run(Arc<Batch>),
    /// Tell the coordinator that the requests of this batch cannot go on. The rows posted are zeros.
    Tell(BatchId, String),
    /// Give back the input, post the output.
    HandOff(Arc<Batch>),
    /// Close the links; with a cause: the stage has died.
    End(Option<StageDeath>),
}

/// The end of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageDeath {
    /// Its card.
    pub card: CardId,
    /// In the words of whoever failed.
    pub cause: String,
}

/// Where a stage stands in the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagePlace {
    /// From 0, which embeds.
    pub stage: StageId,
    /// How many there are.
    pub stage_count: usize,
    /// Whose card.
    pub card: CardId,
}

impl StagePlace {
    /// Whether rows arrive.
    pub fn is_first(&self) -> bool {
        self.stage.0 == 0
    }

    /// Whether logits leave.
    pub fn is_last(&self) -> bool {
        self.stage.index() + 1 == self.stage_count
    }
}

/// A batch on its way through the stage.
#[derive(Debug)]
struct Current {
    batch: Arc<Batch>,
    /// Rows that have their pages.
    paged_rows: usize,
}

/// The state of a stage.
#[derive(Debug)]
pub struct StageMachine {
    place: StagePlace,
    pages: KvPages,
    current: Option<Current>,
    stamps: BatchStamps,
    finished: Option<BatchStamps>,
}

impl StageMachine {
    /// A stage with `kv_pages` free pages.
    pub(super) fn new(place: StagePlace, kv_pages: usize) -> StageMachine {
        StageMachine {
            place,
            pages: KvPages::new(place.card, kv_pages),
            current: None,
            stamps: BatchStamps::default(),
            finished: None,
        }
    }

    /// Where it stands.
    pub fn place(&self) -> StagePlace {
        self.place
    }

    /// The pages of every state, for the run that was asked for.
    pub fn tables(&self) -> &PageTables {
        self.pages.tables()
    }

    /// The page books.
    pub fn pages(&self) -> &KvPages {
        &self.pages
    }

    /// The stamps of the batch handed off last, once.
    pub fn take_stamps(&mut self) -> Option<BatchStamps> {
        self.finished.take()
    }

    /// What to do next, given what the last action gave.
    pub fn step(&mut self, event: StageEvent, now_ns: u64) -> StageAction {
        match event {
            StageEvent::Started => self.pop(now_ns),
            StageEvent::Popped(command) => self.begin(command, now_ns),
            StageEvent::Copied => self.page_rows(),
            StageEvent::Taken => {
                self.stamps.input_ns = Some(now_ns);
                StageAction::Reserve(self.batch())
            }
            StageEvent::Reserved => {
                self.stamps.place_ns = Some(now_ns);
                StageAction::Run(self.batch())
            }
            StageEvent::Ran(Ok(times)) => {
                self.stamps.start_ns = Some(times.start_ns);
                self.stamps.end_ns = Some(times.end_ns);
                self.stamps.waited_ns = times.waited_ns;
                self.stamps.card = times.card;
                StageAction::HandOff(self.batch())
            }
            StageEvent::Ran(Err(RunFault::Rows(cause))) => StageAction::Tell(self.batch().id, cause),
            StageEvent::Ran(Err(RunFault::Card(cause))) => self.die(cause),
            StageEvent::Told => StageAction::HandOff(self.batch()),
            StageEvent::HandedOff => {
                self.stamps.posted_ns = Some(now_ns);
                self.finished = Some(self.stamps);
                self.current = None;
                self.pop(now_ns)
            }
            StageEvent::Failed(cause) => self.die(cause),
            StageEvent::Cancelled => StageAction::End(None),
        }
    }

    fn pop(&mut self, now_ns: u64) -> StageAction {
        self.stamps = BatchStamps { asked_ns: Some(now_ns), ..BatchStamps::default() };
        StageAction::Pop
    }

    fn begin(&mut self, command: StageCommand, now_ns: u64) -> StageAction {
        let done = match command {
            StageCommand::Run(batch) => {
                self.stamps.batch = Some(batch.id);
                self.stamps.phase = batch.phase;
                self.stamps.rows = batch.rows.len();
                self.stamps.popped_ns = Some(now_ns);
                self.current = Some(Current { batch, paged_rows: 0 });
                return self.page_rows();
            }
            StageCommand::Stop => return StageAction::End(None),
            StageCommand::Release { state } => {
                self.pages.release(state);
                Ok(())
            }
            StageCommand::Rollback { state, length } => self.pages.rollback(state, length as usize),
            // An empty state shares no page: there is nothing to copy.
            StageCommand::Skip { state, positions } => {
                self.pages.append(state, 0, positions as usize).map(|_| ())
            }
        };
        match done {
            // The time since the pop was asked for still counts as waiting for the next batch.
            Ok(()) => StageAction::Pop,
            Err(error) => self.die(error.to_string()),
        }
    }

    /// Gets pages for the rows, state by state; goes on to the input when all have theirs.
    fn page_rows(&mut self) -> StageAction {
        let current =
            self.current.as_mut().expect("invariant: pages are given to the rows of a popped batch");
        while let Some((state, position, rows)) = run_of_one_state(&current.batch.rows[current.paged_rows..])
        {
            current.paged_rows += rows;
            match self.pages.append(state, position, rows) {
                Ok(None) => {}
                Ok(Some(copy)) => return StageAction::Copy(copy),
                Err(error) => return self.die(error.to_string()),
            }
        }
        let batch = &current.batch;
        match self.place.is_first() {
            true => StageAction::Reserve(batch.clone()),
            false => StageAction::Take(batch.id),
        }
    }

    fn batch(&self) -> Arc<Batch> {
        self.current
            .as_ref()
            .expect("invariant: only a popped batch is taken, run and handed off")
            .batch
            .clone()
    }

    fn die(&mut self, cause: String) -> StageAction {
        StageAction::End(Some(StageDeath { card: self.place.card, cause }))
    }
}

/// The first rows that belong to one state: which, from where, how many.
fn run_of_one_state(rows: &[BatchRow]) -> Option<(StateId, u32, usize)> {
    let first = rows.first()?;
    let count = rows.iter().take_while(|row| row.state == first.state).count();
    Some((first.state, first.position, count))
}
