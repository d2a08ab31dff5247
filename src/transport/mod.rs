//! Links: carry residual rows from one stage to the next.
//!
//! A link is a [`LinkSender`] and a [`LinkReceiver`] over a ring of slots: a full ring holds the producer back, each
//! slot carries the number of its batch, and a side that ends, fails or is dropped wakes the other.
//! Invariants: all kinds pass `tests/links.rs`; [`LinkSpec::bytes`] is all that a link allocates.
//! Does not know: what a row means, only how many values it has.

pub mod card;
pub mod local;
pub mod ring;
pub mod staged;
pub mod wait;

use crate::device::batch::BatchId;
use crate::device::{RowsIn, RowsOut};
use crate::model::facts::{LinkKind, StageId};

use ring::{CloseCause, RingFault};
use wait::{Wait, WaitEnded};

/// Two neighbouring stages, in the direction of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LinkEnds {
    /// Who sends.
    pub from: StageId,
    /// Who receives.
    pub to: StageId,
}

impl std::fmt::Display for LinkEnds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "link {}->{}", self.from.0, self.to.0)
    }
}

/// A link as planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LinkSpec {
    /// How rows travel.
    pub kind: LinkKind,
    /// Between which stages.
    pub ends: LinkEnds,
    /// Batches that may be under way, the one being written and the one being read included.
    pub slots: usize,
    /// f32 values of a row.
    pub values_per_row: usize,
    /// The most rows of a batch.
    pub rows_max: usize,
}

impl LinkSpec {
    /// f32 values of a slot.
    pub fn slot_values(&self) -> usize {
        self.rows_max * self.values_per_row
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> u64 {
        (self.slot_values() * size_of::<f32>()) as u64
    }

    /// Bytes in the receiving card's account: the ring, and behind a staged link the one slot that is read from.
    pub fn receiver_bytes(&self) -> u64 {
        (self.slots + self.kind.side_slots()) as u64 * self.slot_bytes()
    }

    /// Bytes in the sending card's account: before a staged link the one slot that is written to.
    pub fn sender_bytes(&self) -> u64 {
        self.kind.side_slots() as u64 * self.slot_bytes()
    }

    /// All that the link allocates for rows.
    pub fn bytes(&self) -> u64 {
        self.receiver_bytes() + self.sender_bytes()
    }

    fn check(&self) -> Result<(), LinkError> {
        if self.slots == 0 || self.slot_values() == 0 {
            let LinkSpec { ends, slots, rows_max, values_per_row, .. } = *self;
            return Err(LinkError::Empty { ends, slots, rows_max, values_per_row });
        }
        Ok(())
    }
}

/// The producer's side of a link.
pub trait LinkSender: Send {
    /// Waits for a free slot and lends it, `rows_max x values_per_row` values of any content, to be written in
    /// place. Asking again before [`LinkSender::post`] lends the same slot.
    fn slot(&mut self, wait: &Wait<'_>) -> Result<RowsOut<'_>, LinkError>;

    /// Hands on the first `values` values of the lent slot (whole rows, at least one) as those of batch `tag`,
    /// which follows all posted before. Does not wait. A slot of cards is posted once the work that fills it is queued:
    /// the card that takes the rows waits for them itself.
    fn post(&mut self, tag: BatchId, values: usize) -> Result<(), LinkError>;

    /// Ends the link and wakes the receiver. Dropping the sender does the same with [`CloseCause::Ended`], or, in
    /// a panic, with a failure that says so.
    fn close(&mut self, cause: CloseCause);
}

/// The consumer's side of a link.
pub trait LinkReceiver: Send {
    /// Waits for the rows of batch `expected` and lends them to be read in place until [`LinkReceiver::release`].
    fn take(&mut self, expected: BatchId, wait: &Wait<'_>) -> Result<RowsIn<'_>, LinkError>;

    /// The rows taken and not yet released; empty where there are none.
    fn rows(&self) -> RowsIn<'_>;

    /// Gives the slot back to the producer.
    fn release(&mut self) -> Result<(), LinkError>;

    /// Ends the link and wakes the sender. Dropping the receiver does the same, as for the sender.
    fn close(&mut self, cause: CloseCause);
}

/// Both sides of an open link.
pub type LinkPair = (Box<dyn LinkSender>, Box<dyn LinkReceiver>);

/// Allocates the slots of a link in host memory and opens it; links between cards are opened by [`card::open`].
pub fn open(spec: &LinkSpec) -> Result<LinkPair, LinkError> {
    spec.check()?;
    let (sender, receiver) = local::open(spec)?;
    Ok(match spec.kind {
        LinkKind::Local => (Box::new(sender), Box::new(receiver)),
        LinkKind::Staged => {
            let (sender, receiver) = staged::open(spec, sender, receiver)?;
            (Box::new(sender), Box::new(receiver))
        }
        LinkKind::Mapped | LinkKind::Peer => {
            return Err(LinkError::NoRing { ends: spec.ends, kind: spec.kind });
        }
    })
}

/// What can go wrong on a link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The other side ended, failed or was dropped.
    #[error("{ends} is closed: {cause}; end the requests under way and open the stages anew")]
    Closed {
        /// Which link.
        ends: LinkEnds,
        /// Why.
        cause: CloseCause,
    },
    /// The cancel flag was raised.
    #[error("{ends}: the wait was cancelled; close the link")]
    Cancelled {
        /// Which link.
        ends: LinkEnds,
    },
    /// The other side did not answer in time.
    #[error("{ends}: no {awaited} before the deadline; stage {} is stuck or slow, end its requests", stage.0)]
    Deadline {
        /// Which link.
        ends: LinkEnds,
        /// Who is late.
        stage: StageId,
        /// A free slot, or rows.
        awaited: &'static str,
    },
    /// Rows of another batch, or a step out of turn: the two stages disagree, and the link is closed.
    #[error("{ends}: {fault}; the stages no longer agree, end the requests under way and report this")]
    Fault {
        /// Which link.
        ends: LinkEnds,
        /// What the ring refused.
        fault: RingFault,
    },
    /// A post of no rows, of part of a row, or of more than a slot holds.
    #[error(
        "{ends}: {values} values are not 1 to {rows_max} rows of {values_per_row}; post whole rows of one batch"
    )]
    NotRows {
        /// Which link.
        ends: LinkEnds,
        /// Posted.
        values: usize,
        /// Values of a row.
        values_per_row: usize,
        /// Rows of a slot.
        rows_max: usize,
    },
    /// A post without a slot, a second take before a release, or a release of nothing.
    #[error("{ends}: {step} out of turn; a sender asks for a slot and posts, a receiver takes and releases")]
    OutOfTurn {
        /// Which link.
        ends: LinkEnds,
        /// Which step.
        step: &'static str,
    },
    /// A link without slots, or of empty slots.
    #[error(
        "{ends}: {slots} slots of {rows_max} rows of {values_per_row} values carry nothing; plan at least one each"
    )]
    Empty {
        /// Which link.
        ends: LinkEnds,
        /// Slots.
        slots: usize,
        /// Rows of a slot.
        rows_max: usize,
        /// Values of a row.
        values_per_row: usize,
    },
    /// A kind whose slots only cards reach, opened without them.
    #[error("{ends}: a {} link needs the cards' own slots; open it with them, or as staged", kind.name())]
    NoRing {
        /// Which link.
        ends: LinkEnds,
        /// Asked for.
        kind: LinkKind,
    },
    /// The system has no memory for the slots.
    #[error("{ends}: the system refused {bytes} B for link slots; lower --chunk or close other programs")]
    SystemMemory {
        /// Which link.
        ends: LinkEnds,
        /// Asked for.
        bytes: u64,
    },
}

impl LinkError {
    fn of_fault(ends: LinkEnds, fault: RingFault) -> LinkError {
        match fault {
            RingFault::Closed(cause) => LinkError::Closed { ends, cause },
            fault => LinkError::Fault { ends, fault },
        }
    }

    fn of_wait(ends: LinkEnds, ended: WaitEnded, stage: StageId, awaited: &'static str) -> LinkError {
        match ended {
            WaitEnded::Cancelled => LinkError::Cancelled { ends },
            WaitEnded::Deadline => LinkError::Deadline { ends, stage, awaited },
        }
    }
}

/// One slot's memory, all of it touched, so that no later batch waits for the system's pages.
fn slot_memory(spec: &LinkSpec) -> Result<Box<[f32]>, LinkError> {
    let mut values = Vec::new();
    let refused = |_| LinkError::SystemMemory { ends: spec.ends, bytes: spec.slot_bytes() };
    values.try_reserve_exact(spec.slot_values()).map_err(refused)?;
    values.resize(spec.slot_values(), 0.0);
    Ok(values.into_boxed_slice())
}
