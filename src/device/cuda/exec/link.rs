//! Where the rows of a stage come from and go to: slots that cards reach, or memory of the host.
//!
//! Invariants: rows of a slot are awaited on the card, first of all, and posted on the card, last of all, whatever became
//! of the batch, since the card behind waits for them; a fault word travels with its rows.
//! Does not know: steps, whose turn a slot is.

use std::sync::Arc;
use std::time::Duration;

use super::graphs::Graphs;
use super::host::Turn;
use super::{CudaExec, Run};
use crate::device::batch::BatchKind;
use crate::device::cuda::CudaError;
use crate::device::cuda::driver::Event;
use crate::device::cuda::links::pattern::{Side, WORDS_BYTES};
use crate::device::cuda::links::ring::SlotRing;
use crate::device::cuda::links::side::{self, LinkKernels, LinkWords};
use crate::device::{CardError, CardRing, CardSlot};
use crate::model::facts::CardId;

/// The links of a stage on the device.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) kernels: LinkKernels,
    arriving: Option<Arriving>,
    leaving: Option<Arc<SlotRing>>,
}

/// Where rows arrive.
#[derive(Debug)]
struct Arriving {
    ring: Arc<SlotRing>,
    from: CardId,
    /// The longest wait for rows.
    limit: Duration,
}

impl Links {
    /// Rows pass through the host.
    pub(super) fn new(kernels: LinkKernels) -> Links {
        Links { kernels, arriving: None, leaving: None }
    }

    /// Whether rows arrive through slots.
    pub(super) fn arrive(&self) -> bool {
        self.arriving.is_some()
    }

    /// A batch's rows take the ways that the stage was linked by; its graphs know no others.
    pub(super) fn check(&self, arriving: Option<CardSlot>, leaving: Option<CardSlot>) {
        let linked = (self.arriving.is_some(), self.leaving.is_some());
        assert_eq!(
            linked,
            (arriving.is_some(), leaving.is_some()),
            "slots where rows arrive, and where they leave"
        );
    }
}

impl CudaExec {
    /// The card as one side of a check; no batch may be running.
    pub fn side(&self) -> Side<'_> {
        let rows = self.buffers.rows[self.program.residual.0].at;
        let words = self.buffers.block.part(0, WORDS_BYTES);
        Side { card: self.card, stream: &self.stream, kernels: &self.links.kernels, rows, words }
    }

    /// Rows arrive through this ring, each batch's within `limit` of being asked for.
    pub fn arrive_by(&mut self, ring: Arc<SlotRing>, from: CardId, limit: Duration) {
        self.links.arriving = Some(Arriving { ring, from, limit });
        self.graphs = Graphs::new();
    }

    /// Rows leave through this ring.
    pub fn leave_by(&mut self, ring: Arc<SlotRing>) {
        self.links.leaving = Some(ring);
        self.graphs = Graphs::new();
    }

    /// The turn in which rows leave. That of a link that stops by a forced fault has a number that nobody waits for.
    pub(super) fn leaves(&self, turn: CardSlot) -> CardSlot {
        if self.stream.context().faults().stop_link() { CardSlot { sequence: 0, ..turn } } else { turn }
    }

    /// Queues waiting for the rows of a turn that is in the block.
    pub(super) fn await_rows(&self, values: usize, words: LinkWords) -> Result<(), CudaError> {
        let Arriving { ring, limit, .. } =
            self.links.arriving.as_ref().expect("invariant: slots come with their ring");
        self.links.kernels.wait(&self.stream, ring, self.residual.at, values, (words, *limit))
    }

    /// Queues handing on the rows of the residual in a turn that is in the block, and known where nothing is recorded.
    pub(super) fn post_rows(&self, run: &Run<'_>, turn: CardSlot, values: usize) -> Result<(), CudaError> {
        let ring = self.links.leaving.as_ref().expect("invariant: slots come with their ring");
        let (kernels, rows, words) = (&self.links.kernels, self.residual.at, run.places.link_out());
        match run.batch.kind() {
            BatchKind::Window => kernels.post(&self.stream, ring, rows, values, words),
            BatchKind::Chunk => kernels.post_known(&self.stream, ring, rows, values, (words, turn)),
        }
    }

    /// Waits for `event`, behind which rows may be awaited; a raised flag ends that wait.
    pub(super) fn wait_watched(
        &self,
        event: &Event,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), CudaError> {
        let Some(Arriving { ring, .. }) = &self.links.arriving else { return event.wait() };
        while !event.has_passed()? {
            if is_cancelled() {
                ring.end_waits();
                return event.wait();
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Waits until the batch of a turn has ended, which may await rows; a raised flag ends that wait.
    pub(super) fn wait_given(&self, turn: Turn, is_cancelled: &dyn Fn() -> bool) -> Result<(), CudaError> {
        let arriving = self.links.arriving.as_ref().map(|arriving| &arriving.ring);
        self.ended.wait_for_sign(|| {
            if let Some(ring) = arriving.filter(|_| is_cancelled()) {
                ring.end_waits();
            }
            self.host.has_given(turn)
        })?;
        assert!(self.host.has_given(turn), "a batch ends with its results");
        Ok(())
    }

    /// How long the batch that has ended waited for rows on the card.
    pub(super) fn waited_ns(&self) -> u64 {
        self.links.arriving.as_ref().map_or(0, |arriving| arriving.ring.waited_ns())
    }

    /// The error of a batch whose rows did not come, as its fault word says.
    pub(super) fn no_rows(&self, fault: u32) -> Option<CardError> {
        let end = match fault {
            side::LATE => "did not come in time",
            side::ENDED => "do not come any more: it has failed, or the engine ends",
            _ => return None,
        };
        let arriving = self.links.arriving.as_ref();
        let from = arriving.map_or_else(|| "another card".to_owned(), |arriving| arriving.from.to_string());
        Some(CardError::Rows { card: self.card, what: format!("the rows of {from} {end}; start again") })
    }
}
