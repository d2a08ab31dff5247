//! The core of every link: which slot of the ring is whose, as a state machine without threads, clocks or I/O.
//!
//! Slots pass free -> filling -> ready -> reading -> free in ring order; four counters say it all.
//! Invariants: released <= taken <= posted <= claimed <= released + slots, so a slot has exactly one owner; tags
//! rise; an illegal step is a fault and changes nothing. Real links and the simulation drive this same type.
//! Does not know: what a slot holds, who waits for it.

use std::fmt;

use crate::device::batch::BatchId;
use crate::model::facts::SlotId;

/// Whose a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Nobody's.
    Free,
    /// The producer's: it writes rows.
    Filling,
    /// Posted; nobody writes, the consumer may take it.
    Ready,
    /// The consumer's: it reads rows.
    Reading,
}

/// Why a link ended. The first cause stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseCause {
    /// One side ended in order; rows posted before are still delivered.
    Ended,
    /// The run was cancelled; nothing more is delivered.
    Cancelled,
    /// One side died or broke the protocol, in its words; nothing more is delivered.
    Failed(String),
}

impl fmt::Display for CloseCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseCause::Ended => f.write_str("one side has ended"),
            CloseCause::Cancelled => f.write_str("cancelled"),
            CloseCause::Failed(cause) => f.write_str(cause),
        }
    }
}

/// Answer to [`Ring::claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The producer may fill this slot.
    Slot(SlotId),
    /// All slots are in use: claim again after a release.
    Full,
}

/// Answer to [`Ring::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// The consumer may read this slot.
    Slot(SlotId),
    /// Nothing is ready: take again after a post.
    Empty,
}

/// A step that the ring refuses. The ring is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// The ring is closed; the only refusal that is no error of the caller.
    #[error("closed: {0}")]
    Closed(CloseCause),
    /// A post or an abandon of another slot than the one whose turn it is.
    #[error("{slot} is {state:?}, it is not its turn to leave the producer")]
    NotFilling {
        /// Which slot.
        slot: SlotId,
        /// What it is instead.
        state: SlotState,
    },
    /// A release of another slot than the one whose turn it is.
    #[error("{slot} is {state:?}, it is not its turn to leave the consumer")]
    NotReading {
        /// Which slot.
        slot: SlotId,
        /// What it is instead.
        state: SlotState,
    },
    /// A post whose number does not follow the one before.
    #[error("batch {} was posted behind batch {}", got.0, last.0)]
    NotRising {
        /// Posted before.
        last: BatchId,
        /// Posted now.
        got: BatchId,
    },
    /// The consumer expects another batch than the next one: one was lost, or repeated.
    #[error("batch {} was expected, batch {} arrived", expected.0, got.0)]
    WrongBatch {
        /// What the consumer would run.
        expected: BatchId,
        /// What is ready.
        got: BatchId,
    },
}

/// One producer, one consumer, a fixed number of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Tag of the last post into each slot.
    tags: Vec<BatchId>,
    claimed: u64,
    posted: u64,
    taken: u64,
    released: u64,
    last: Option<BatchId>,
    closed: Option<CloseCause>,
}

impl Ring {
    /// An open ring of free slots; at least one.
    pub fn new(slots: usize) -> Ring {
        assert!(slots > 0, "ring: a ring has at least one slot");
        Ring {
            tags: vec![BatchId(0); slots],
            claimed: 0,
            posted: 0,
            taken: 0,
            released: 0,
            last: None,
            closed: None,
        }
    }

    /// The producer asks for the next slot. It may hold several, and posts them in the order of its claims.
    pub fn claim(&mut self) -> Result<Claim, RingFault> {
        self.open()?;
        if self.claimed - self.released == self.tags.len() as u64 {
            return Ok(Claim::Full);
        }
        self.claimed += 1;
        Ok(Claim::Slot(self.place(self.claimed - 1)))
    }

    /// The producer hands on its oldest claimed slot under a number that is larger than all before.
    pub fn post(&mut self, slot: SlotId, tag: BatchId) -> Result<(), RingFault> {
        self.open()?;
        if self.posted == self.claimed || self.place(self.posted) != slot {
            return Err(RingFault::NotFilling { slot, state: self.slot(slot) });
        }
        if let Some(last) = self.last.filter(|&last| last >= tag) {
            return Err(RingFault::NotRising { last, got: tag });
        }
        self.tags[slot.index()] = tag;
        self.last = Some(tag);
        self.posted += 1;
        Ok(())
    }

    /// The producer gives back its youngest claimed slot unposted: the batch failed, or its rows are not needed.
    pub fn abandon(&mut self, slot: SlotId) -> Result<(), RingFault> {
        if self.posted == self.claimed || self.place(self.claimed - 1) != slot {
            return Err(RingFault::NotFilling { slot, state: self.slot(slot) });
        }
        self.claimed -= 1;
        Ok(())
    }

    /// The consumer asks for the rows of the batch `expected`, the next one that it will run. It may hold several
    /// slots, and releases them in the order of its takes.
    pub fn take(&mut self, expected: BatchId) -> Result<Take, RingFault> {
        match &self.closed {
            None => {}
            Some(CloseCause::Ended) if self.taken < self.posted => {}
            Some(cause) => return Err(RingFault::Closed(cause.clone())),
        }
        if self.taken == self.posted {
            return Ok(Take::Empty);
        }
        let slot = self.place(self.taken);
        let got = self.tags[slot.index()];
        if got != expected {
            return Err(RingFault::WrongBatch { expected, got });
        }
        self.taken += 1;
        Ok(Take::Slot(slot))
    }

    /// The consumer has read its oldest taken slot. Allowed on a closed ring too.
    pub fn release(&mut self, slot: SlotId) -> Result<(), RingFault> {
        if self.released == self.taken || self.place(self.released) != slot {
            return Err(RingFault::NotReading { slot, state: self.slot(slot) });
        }
        self.released += 1;
        Ok(())
    }

    /// Ends the link, from either side. The first cause stays; true where this was the first.
    pub fn close(&mut self, cause: CloseCause) -> bool {
        let first = self.closed.is_none();
        self.closed.get_or_insert(cause);
        first
    }

    /// Why the ring is closed; `None` while it is open.
    pub fn closed(&self) -> Option<&CloseCause> {
        self.closed.as_ref()
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.tags.len()
    }

    /// Whose a slot is.
    pub fn slot(&self, slot: SlotId) -> SlotState {
        let slots = self.tags.len() as u64;
        assert!(u64::from(slot.0) < slots, "ring: {slot} of {slots}");
        // The one turn of this slot among the `slots` turns from `released` on.
        let turn = self.released + (u64::from(slot.0) + slots - self.released % slots) % slots;
        match turn {
            t if t < self.taken => SlotState::Reading,
            t if t < self.posted => SlotState::Ready,
            t if t < self.claimed => SlotState::Filling,
            _ => SlotState::Free,
        }
    }

    fn open(&self) -> Result<(), RingFault> {
        self.closed.as_ref().map_or(Ok(()), |cause| Err(RingFault::Closed(cause.clone())))
    }

    fn place(&self, turn: u64) -> SlotId {
        SlotId((turn % self.tags.len() as u64) as u32)
    }
}

#[cfg(test)]
mod tests;
