//! A card's side of its links: rows into a slot, rows out of one.
//!
//! Invariants: launches follow the head of `kernels/links.cu`; many rows for another card's memory go by its copy engine,
//! few by the kernel that also says that they are there. Does not know: whose turn a slot is.

use std::time::Duration;

use super::super::CudaError;
use super::super::driver::Argument::{I64, Pointer};
use super::super::driver::{Kernel, Span, Stream};
use super::super::kernels::Kernels;
use super::ring::SlotRing;
use crate::device::{CardRing, CardSlot};
use crate::model::facts::LinkKind;
use crate::model::footprint::gpu::SLOT_HEADER_BYTES;

/// Values that a block of a kernel moves at a time.
const BLOCK_VALUES: usize = 4 * 256;

/// Blocks of a kernel: enough to have the rows of a window under way at once.
const BLOCKS_MAX: usize = 128;

/// From so many bytes on the copy engine is used, whose start costs more.
const COPY_BYTES_MIN: usize = 1 << 20;

/// A fault word that stands for rows that did not come in time.
pub const LATE: u32 = 0xffff_fffe;

/// The same for a link that was ended.
pub const ENDED: u32 = 0xffff_ffff;

/// The words of a batch on its card that links read and write.
#[derive(Clone, Copy, Debug)]
pub struct LinkWords {
    /// Slot and sequence number.
    pub turn: Span,
    /// The fault word.
    pub fault: Span,
    /// 0 before and after a post; where rows arrive it is not used.
    pub arrived: Span,
    /// Anything but the next sequence number; where rows leave it is not used.
    pub gate: Span,
}

/// The kernels of links, on one card.
#[derive(Clone, Debug)]
pub struct LinkKernels {
    post: Kernel,
    wait: Kernel,
}

/// As many blocks as have something to move.
fn grid(values: usize) -> [usize; 3] {
    [values.div_ceil(BLOCK_VALUES).clamp(1, BLOCKS_MAX), 1, 1]
}

impl LinkKernels {
    /// Found by name.
    pub fn new(all: &Kernels) -> Result<LinkKernels, CudaError> {
        Ok(LinkKernels { post: all.plain("post_rows")?, wait: all.plain("await_rows")? })
    }

    /// Queues putting `values` values from `rows` on into the slot that the words name.
    pub fn post(
        &self,
        stream: &Stream,
        ring: &SlotRing,
        rows: Span,
        values: usize,
        words: LinkWords,
    ) -> Result<(), CudaError> {
        let slot_bytes = ring.size().slot_bytes() as i64;
        let some = |span| Pointer(Some(span));
        let arguments = [
            some(rows),
            some(words.turn),
            some(ring.slots()),
            I64(slot_bytes),
            some(words.fault),
            some(words.arrived),
            I64(values as i64),
        ];
        stream.launch(&self.post, grid(values), 256, &arguments)
    }

    /// The same for a turn that is known here, the one that the words name, in the way that suits so many values.
    pub fn post_known(
        &self,
        stream: &Stream,
        ring: &SlotRing,
        rows: Span,
        values: usize,
        (words, turn): (LinkWords, CardSlot),
    ) -> Result<(), CudaError> {
        let bytes = 4 * values;
        if ring.kind() != LinkKind::Peer || bytes < COPY_BYTES_MIN || ring.to().is(stream.context()) {
            return self.post(stream, ring, rows, values, words);
        }
        let at = turn.slot.index() as u64 * ring.size().slot_bytes() + SLOT_HEADER_BYTES;
        stream.copy_to(rows.part(0, bytes as u64), ring.to(), ring.slots().part(at, bytes as u64))?;
        self.post(stream, ring, rows, 0, words)
    }

    /// Queues waiting, at most `limit`, for the rows of the slot that the words name, and taking them to `rows`.
    pub fn wait(
        &self,
        stream: &Stream,
        ring: &SlotRing,
        rows: Span,
        values: usize,
        (words, limit): (LinkWords, Duration),
    ) -> Result<(), CudaError> {
        let (slot_bytes, limit_ns) = (ring.size().slot_bytes() as i64, limit.as_nanos());
        let some = |span| Pointer(Some(span));
        let arguments = [
            some(rows),
            some(words.turn),
            some(ring.slots()),
            I64(slot_bytes),
            some(words.fault),
            Pointer((ring.kind() == LinkKind::Mapped).then_some(words.gate)),
            some(ring.ended()),
            some(ring.waited()),
            I64(i64::try_from(limit_ns).unwrap_or(i64::MAX)),
            I64(values as i64),
        ];
        stream.launch(&self.wait, grid(values), 256, &arguments)
    }
}
