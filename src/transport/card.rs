//! Links between cards whose slots only the cards reach, `peer` and `mapped`: here only turns change hands.
//!
//! A slot is posted when the work that fills it is queued, and the card that takes it waits for the rows by itself, so no
//! thread stands between two cards. A turn is a slot and a sequence number, which the producing card writes into the slot
//! and the consuming card waits for.
//! Invariants: both sides count the same numbers; a link that ends out of order ends the cards' waits.
//! Does not know: how a card waits, where slots lie.

use std::sync::Arc;

use super::local::{self, LocalReceiver, LocalSender};
use super::ring::CloseCause;
use super::wait::Wait;
use super::{LinkError, LinkReceiver, LinkSender, LinkSpec};
use crate::device::batch::BatchId;
use crate::device::{CardRing, CardSlot, RowsIn, RowsOut};

/// The producer's side.
struct CardSender {
    turns: LocalSender,
    ring: Arc<dyn CardRing>,
    /// Of the next post.
    sequence: u32,
}

/// The consumer's side.
struct CardReceiver {
    turns: LocalReceiver,
    ring: Arc<dyn CardRing>,
    /// Of the next take.
    sequence: u32,
    taken: Option<CardSlot>,
}

/// The first turn's number: a slot that was never written holds 0.
const FIRST: u32 = 1;

/// Opens a link over the slots of `ring`, of which there are as many as in `spec`.
pub fn open(spec: &LinkSpec, ring: Arc<dyn CardRing>) -> Result<super::LinkPair, LinkError> {
    spec.check()?;
    let (sender, receiver) = local::open_with(spec, || Ok(Box::default()))?;
    let sender = CardSender { turns: sender, ring: ring.clone(), sequence: FIRST };
    Ok((Box::new(sender), Box::new(CardReceiver { turns: receiver, ring, sequence: FIRST, taken: None })))
}

/// An orderly end comes behind the last rows; any other one must not leave a card waiting.
fn end(ring: &dyn CardRing, cause: &CloseCause) {
    if *cause != CloseCause::Ended {
        ring.end_waits();
    }
}

impl LinkSender for CardSender {
    fn slot(&mut self, wait: &Wait<'_>) -> Result<RowsOut<'_>, LinkError> {
        let (slot, _) = self.turns.claimed(wait)?;
        Ok(RowsOut::Card(CardSlot { slot, sequence: self.sequence }))
    }

    fn post(&mut self, tag: BatchId, values: usize) -> Result<(), LinkError> {
        self.turns.post(tag, values)?;
        self.sequence = self.sequence.wrapping_add(1);
        Ok(())
    }

    fn close(&mut self, cause: CloseCause) {
        end(&*self.ring, &cause);
        self.turns.close(cause);
    }
}

impl LinkReceiver for CardReceiver {
    fn take(&mut self, expected: BatchId, wait: &Wait<'_>) -> Result<RowsIn<'_>, LinkError> {
        let slot = self.turns.taken(expected, wait)?;
        self.taken = Some(CardSlot { slot, sequence: self.sequence });
        self.sequence = self.sequence.wrapping_add(1);
        Ok(self.rows())
    }

    fn rows(&self) -> RowsIn<'_> {
        self.taken.map_or(RowsIn::Host(&[]), RowsIn::Card)
    }

    fn release(&mut self) -> Result<(), LinkError> {
        self.turns.release()?;
        self.taken = None;
        Ok(())
    }

    fn close(&mut self, cause: CloseCause) {
        end(&*self.ring, &cause);
        self.turns.close(cause);
    }
}

impl Drop for CardSender {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.ring.end_waits();
        }
    }
}

impl Drop for CardReceiver {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.ring.end_waits();
        }
    }
}
