//! A link of the simulation: the ring that real links use, slots of memory, and a second book of who owns a slot.
//!
//! Invariant: the second book knows nothing of the ring; it sees only who touches which slot.
//! Does not know: stages, time.

use crate::device::batch::BatchId;
use crate::model::facts::SlotId;
use crate::transport::ring::{Claim, CloseCause, Ring, RingFault, Take};

/// Whose a slot is, as the touches say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    Producer,
    Link,
    Consumer,
}

/// Slots between two stages.
#[derive(Debug)]
pub(super) struct Wire {
    ring: Ring,
    memory: Vec<Vec<f32>>,
    owners: Vec<Owner>,
    pub violations: Vec<String>,
}

impl Wire {
    pub fn new(ring: Ring) -> Wire {
        let slots = ring.slots();
        Wire {
            ring,
            memory: vec![Vec::new(); slots],
            owners: vec![Owner::Nobody; slots],
            violations: Vec::new(),
        }
    }

    /// `None`: full. Where `twice` is set, a slot that someone has is given out.
    pub fn claim(&mut self, twice: bool) -> Result<Option<SlotId>, RingFault> {
        match self.ring.claim()? {
            Claim::Full => Ok(None),
            Claim::Slot(slot) => {
                self.pass(slot, Owner::Nobody, Owner::Producer);
                if twice {
                    self.pass(slot, Owner::Nobody, Owner::Producer);
                }
                Ok(Some(slot))
            }
        }
    }

    pub fn post(&mut self, slot: SlotId, tag: BatchId, values: Vec<f32>) -> Result<(), RingFault> {
        self.ring.post(slot, tag)?;
        self.pass(slot, Owner::Producer, Owner::Link);
        self.memory[slot.index()] = values;
        Ok(())
    }

    /// The rows vanish.
    pub fn lose(&mut self, slot: SlotId) -> Result<(), RingFault> {
        self.ring.abandon(slot)?;
        self.pass(slot, Owner::Producer, Owner::Nobody);
        Ok(())
    }

    /// `None`: nothing is ready.
    pub fn take(&mut self, expected: BatchId) -> Result<Option<SlotId>, RingFault> {
        match self.ring.take(expected)? {
            Take::Empty => Ok(None),
            Take::Slot(slot) => {
                self.pass(slot, Owner::Link, Owner::Consumer);
                Ok(Some(slot))
            }
        }
    }

    pub fn rows(&self, slot: SlotId) -> &[f32] {
        &self.memory[slot.index()]
    }

    pub fn release(&mut self, slot: SlotId) -> Result<(), RingFault> {
        self.ring.release(slot)?;
        self.pass(slot, Owner::Consumer, Owner::Nobody);
        // Whoever reads a slot that is not its own finds nothing.
        self.memory[slot.index()].clear();
        Ok(())
    }

    pub fn close(&mut self, cause: CloseCause) {
        self.ring.close(cause);
    }

    fn pass(&mut self, slot: SlotId, from: Owner, to: Owner) {
        let owner = &mut self.owners[slot.index()];
        if *owner != from {
            self.violations.push(format!("{slot} passes from {from:?} to {to:?}, but it is {owner:?}'s"));
        }
        *owner = to;
    }
}
