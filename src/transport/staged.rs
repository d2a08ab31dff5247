//! The `staged` link: rows pass through staging slots in host memory, for cards whose memories are apart.
//!
//! The producer writes a slot of its own card, [`LinkSender::post`] copies it into a staging slot, and
//! [`LinkReceiver::take`] copies it out into a slot of the consumer's card. The staging slots are a `local` link's,
//! held until the release, so back-pressure is the same for both kinds.
//! Invariant: one copy in, one copy out. Does not know: how a card's memory is reached; both sides are host memory
//! here.

use super::local::{LocalReceiver, LocalSender};
use super::ring::CloseCause;
use super::wait::Wait;
use super::{LinkError, LinkReceiver, LinkSender, LinkSpec, slot_memory};
use crate::device::batch::BatchId;
use crate::device::{RowsIn, RowsOut};

/// The producer's side.
pub struct StagedSender {
    staging: LocalSender,
    /// The staging slot is claimed before the producer writes, so that a post does not wait.
    own: Box<[f32]>,
}

/// The consumer's side.
pub struct StagedReceiver {
    staging: LocalReceiver,
    own: Box<[f32]>,
    /// Values of `own` taken and not released.
    values: usize,
}

/// Puts one slot on either card around the staging slots.
pub fn open(
    spec: &LinkSpec,
    sender: LocalSender,
    receiver: LocalReceiver,
) -> Result<(StagedSender, StagedReceiver), LinkError> {
    let sender = StagedSender { staging: sender, own: slot_memory(spec)? };
    Ok((sender, StagedReceiver { staging: receiver, own: slot_memory(spec)?, values: 0 }))
}

impl LinkSender for StagedSender {
    fn slot(&mut self, wait: &Wait<'_>) -> Result<RowsOut<'_>, LinkError> {
        self.staging.slot(wait)?;
        Ok(RowsOut::Host(&mut self.own))
    }

    fn post(&mut self, tag: BatchId, values: usize) -> Result<(), LinkError> {
        let own = &self.own;
        self.staging.post_written(tag, values, |staged| staged[..values].copy_from_slice(&own[..values]))
    }

    fn close(&mut self, cause: CloseCause) {
        self.staging.close(cause);
    }
}

impl LinkReceiver for StagedReceiver {
    fn take(&mut self, expected: BatchId, wait: &Wait<'_>) -> Result<RowsIn<'_>, LinkError> {
        self.staging.taken(expected, wait)?;
        let staged = self.staging.held();
        self.values = staged.len();
        self.own[..self.values].copy_from_slice(staged);
        Ok(self.rows())
    }

    fn rows(&self) -> RowsIn<'_> {
        RowsIn::Host(&self.own[..self.values])
    }

    fn release(&mut self) -> Result<(), LinkError> {
        self.staging.release()?;
        self.values = 0;
        Ok(())
    }

    fn close(&mut self, cause: CloseCause) {
        self.staging.close(cause);
    }
}
