//! The `local` link: both stages see one memory, and the slots' boxes change hands.
//!
//! The producer writes into the very slot that the consumer reads; nothing is copied.
//! Invariants: a slot's box is in exactly one place, the ring or one side; the lock is held for a step of the ring,
//! never while rows are written, read or waited for. Does not know: stages, threads.

use std::sync::Arc;

use parking_lot::Mutex;

use super::ring::{Claim, CloseCause, Ring, RingFault, Take};
use super::wait::{Bell, Wait};
use super::{LinkEnds, LinkError, LinkReceiver, LinkSender, LinkSpec, slot_memory};
use crate::device::batch::BatchId;
use crate::device::{RowsIn, RowsOut};
use crate::model::facts::SlotId;

/// A slot with its header, which travels with the rows.
struct Slot {
    id: SlotId,
    tag: BatchId,
    values: usize,
    memory: Box<[f32]>,
}

struct Slots {
    ring: Ring,
    /// `None` while a side holds the slot.
    places: Vec<Option<Slot>>,
}

impl Slots {
    fn hand_out(&mut self, id: SlotId) -> Slot {
        self.places[id.index()].take().expect("invariant: the ring gives a slot to one side at a time")
    }
}

struct Shared {
    spec: LinkSpec,
    slots: Mutex<Slots>,
    /// Rung when a slot became free, or the link ended.
    for_sender: Arc<Bell>,
    /// Rung when rows became ready, or the link ended.
    for_receiver: Arc<Bell>,
}

impl Shared {
    fn ends(&self) -> LinkEnds {
        self.spec.ends
    }

    fn close(&self, cause: CloseCause) {
        if self.slots.lock().ring.close(cause) {
            self.for_sender.ring();
            self.for_receiver.ring();
        }
    }

    /// A fault is the end of the link for both sides: after it nobody knows which rows are whose.
    fn fail(&self, fault: RingFault) -> LinkError {
        if !matches!(fault, RingFault::Closed(_)) {
            self.close(CloseCause::Failed(fault.to_string()));
        }
        LinkError::of_fault(self.ends(), fault)
    }

    fn close_dropped(&self, stage: u32) {
        self.close(match std::thread::panicking() {
            true => CloseCause::Failed(format!("stage {stage} panicked")),
            false => CloseCause::Ended,
        });
    }
}

/// The producer's side.
pub struct LocalSender {
    shared: Arc<Shared>,
    held: Option<Slot>,
}

/// The consumer's side.
pub struct LocalReceiver {
    shared: Arc<Shared>,
    held: Option<Slot>,
}

/// Allocates the slots and opens the link.
pub fn open(spec: &LinkSpec) -> Result<(LocalSender, LocalReceiver), LinkError> {
    open_with(spec, || slot_memory(spec))
}

/// The same with slots whose memory `memory` gives; for rows that lie elsewhere it is empty, and only turns change hands.
pub(super) fn open_with(
    spec: &LinkSpec,
    memory: impl Fn() -> Result<Box<[f32]>, LinkError>,
) -> Result<(LocalSender, LocalReceiver), LinkError> {
    let slot = |id| Ok(Some(Slot { id: SlotId(id as u32), tag: BatchId(0), values: 0, memory: memory()? }));
    let places = (0..spec.slots).map(slot).collect::<Result<_, LinkError>>()?;
    let slots = Mutex::new(Slots { ring: Ring::new(spec.slots), places });
    let shared = Arc::new(Shared { spec: *spec, slots, for_sender: Bell::new(), for_receiver: Bell::new() });
    Ok((LocalSender { shared: shared.clone(), held: None }, LocalReceiver { shared, held: None }))
}

impl LocalSender {
    /// [`LinkSender::post`], with `write` called on the values to be handed on before they are.
    pub(super) fn post_written(
        &mut self,
        tag: BatchId,
        values: usize,
        write: impl FnOnce(&mut [f32]),
    ) -> Result<(), LinkError> {
        let (ends, LinkSpec { values_per_row, rows_max, .. }) = (self.shared.ends(), self.shared.spec);
        if values == 0 || !values.is_multiple_of(values_per_row) || values > self.shared.spec.slot_values() {
            return Err(LinkError::NotRows { ends, values, values_per_row, rows_max });
        }
        let Some(mut slot) = self.held.take() else {
            return Err(LinkError::OutOfTurn { ends, step: "post" });
        };
        write(&mut slot.memory);
        let posted = {
            let mut slots = self.shared.slots.lock();
            let (id, posted) = (slot.id, slots.ring.post(slot.id, tag));
            slots.places[id.index()] = Some(Slot { tag, values, ..slot });
            posted
        };
        posted.map_err(|fault| self.shared.fail(fault))?;
        self.shared.for_receiver.ring();
        Ok(())
    }
}

impl LocalSender {
    /// [`LinkSender::slot`]: which, and its memory.
    pub(super) fn claimed(&mut self, wait: &Wait<'_>) -> Result<(SlotId, &mut [f32]), LinkError> {
        let slot = match self.held.take() {
            Some(slot) => slot,
            None => claim(&self.shared, wait)?,
        };
        let slot = self.held.insert(slot);
        Ok((slot.id, &mut slot.memory))
    }
}

impl LinkSender for LocalSender {
    fn slot(&mut self, wait: &Wait<'_>) -> Result<RowsOut<'_>, LinkError> {
        Ok(RowsOut::Host(self.claimed(wait)?.1))
    }

    fn post(&mut self, tag: BatchId, values: usize) -> Result<(), LinkError> {
        self.post_written(tag, values, |_| {})
    }

    fn close(&mut self, cause: CloseCause) {
        self.shared.close(cause);
    }
}

impl Drop for LocalSender {
    fn drop(&mut self) {
        self.shared.close_dropped(self.shared.ends().from.0);
    }
}

impl LocalReceiver {
    /// [`LinkReceiver::take`]: which slot.
    pub(super) fn taken(&mut self, expected: BatchId, wait: &Wait<'_>) -> Result<SlotId, LinkError> {
        if self.held.is_some() {
            return Err(LinkError::OutOfTurn { ends: self.shared.ends(), step: "take" });
        }
        let slot = take(&self.shared, expected, wait)?;
        Ok(self.held.insert(slot).id)
    }

    /// The rows taken and not yet released.
    pub(super) fn held(&self) -> &[f32] {
        self.held.as_ref().map_or(&[], |slot| &slot.memory[..slot.values])
    }
}

impl LinkReceiver for LocalReceiver {
    fn take(&mut self, expected: BatchId, wait: &Wait<'_>) -> Result<RowsIn<'_>, LinkError> {
        self.taken(expected, wait)?;
        Ok(self.rows())
    }

    fn rows(&self) -> RowsIn<'_> {
        RowsIn::Host(self.held())
    }

    fn release(&mut self) -> Result<(), LinkError> {
        let Some(slot) = self.held.take() else {
            return Err(LinkError::OutOfTurn { ends: self.shared.ends(), step: "release" });
        };
        let released = {
            let mut slots = self.shared.slots.lock();
            let (id, released) = (slot.id, slots.ring.release(slot.id));
            slots.places[id.index()] = Some(slot);
            released
        };
        released.map_err(|fault| self.shared.fail(fault))?;
        self.shared.for_sender.ring();
        Ok(())
    }

    fn close(&mut self, cause: CloseCause) {
        self.shared.close(cause);
    }
}

impl Drop for LocalReceiver {
    fn drop(&mut self) {
        self.shared.close_dropped(self.shared.ends().to.0);
    }
}

fn claim(shared: &Shared, wait: &Wait<'_>) -> Result<Slot, LinkError> {
    let ends = shared.ends();
    let claimed = wait.until(&shared.for_sender, || {
        let mut slots = shared.slots.lock();
        match slots.ring.claim() {
            Ok(Claim::Full) => None,
            Ok(Claim::Slot(id)) => Some(Ok(slots.hand_out(id))),
            Err(fault) => Some(Err(fault)),
        }
    });
    claimed
        .map_err(|ended| LinkError::of_wait(ends, ended, ends.to, "free slot"))?
        .map_err(|fault| shared.fail(fault))
}

fn take(shared: &Shared, expected: BatchId, wait: &Wait<'_>) -> Result<Slot, LinkError> {
    let ends = shared.ends();
    let taken = wait.until(&shared.for_receiver, || {
        let mut slots = shared.slots.lock();
        match slots.ring.take(expected) {
            Ok(Take::Empty) => None,
            Ok(Take::Slot(id)) => Some(Ok(slots.hand_out(id))),
            Err(fault) => Some(Err(fault)),
        }
    });
    let slot = taken
        .map_err(|ended| LinkError::of_wait(ends, ended, ends.from, "rows"))?
        .map_err(|fault| shared.fail(fault))?;
    if slot.tag != expected {
        let got = slot.tag;
        return Err(shared.fail(RingFault::WrongBatch { expected, got }));
    }
    Ok(slot)
}
