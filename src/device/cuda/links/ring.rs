//! A ring's slots: in the memory of the receiving card (`peer`), or in host memory that both cards reach (`mapped`).
//!
//! Invariants: new slots hold sequence number 0; the words beside the slots lie in mapped memory, so that the host can end
//! the cards' waits. Does not know: kernels, turns.

use std::sync::atomic::Ordering;

use super::super::CudaError;
use super::super::driver::{Context, MappedMemory, Span, Stream};
use super::super::memory::Arena;
use crate::device::CardRing;
use crate::model::facts::LinkKind;
use crate::model::footprint::gpu::slot_bytes;

/// Words beside the slots, each on a line of its own.
const ENDED_WORD: usize = 0;
const WAITED_WORD: usize = 32;
const CONTROL_BYTES: u64 = 256;

/// How many slots, and of how many values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize {
    /// Slots.
    pub slots: usize,
    /// f32 values of a slot.
    pub values: usize,
}

impl RingSize {
    /// Bytes of one slot, with its header.
    pub fn slot_bytes(self) -> u64 {
        slot_bytes(self.values)
    }

    /// Bytes of all.
    pub fn bytes(self) -> u64 {
        self.slots as u64 * self.slot_bytes()
    }
}

#[derive(Debug)]
enum Memory {
    /// Kept for as long as the ring.
    OfCard {
        _arena: Arena,
    },
    OfHost(MappedMemory),
}

/// The slots of one link.
#[derive(Debug)]
pub struct SlotRing {
    memory: Memory,
    at: Span,
    control: MappedMemory,
    size: RingSize,
    /// Whose memory or whose rows.
    to: Context,
}

impl SlotRing {
    /// Slots in `memory` of the receiving card, which `stream` works for.
    pub fn peer(stream: &Stream, mut memory: Arena, size: RingSize) -> Result<SlotRing, CudaError> {
        let at = memory.cut(size.bytes() as usize);
        memory.whole();
        let control = MappedMemory::new(stream.context(), CONTROL_BYTES)?;
        let to = stream.context().clone();
        let ring = SlotRing { memory: Memory::OfCard { _arena: memory }, at, control, size, to };
        ring.clear(stream)?;
        Ok(ring)
    }

    /// Slots in host memory.
    pub fn mapped(to: &Context, size: RingSize) -> Result<SlotRing, CudaError> {
        let memory = MappedMemory::new(to, size.bytes())?;
        let (at, control) = (memory.span(), MappedMemory::new(to, CONTROL_BYTES)?);
        Ok(SlotRing { memory: Memory::OfHost(memory), at, control, size, to: to.clone() })
    }

    /// Makes all slots new. Nobody may be using them; `stream` is one of the receiving card.
    pub(super) fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        match &self.memory {
            Memory::OfCard { .. } => {
                stream.bind()?;
                stream.zero(self.at)?;
                stream.wait()
            }
            Memory::OfHost(memory) => {
                let first_word = |slot| slot * self.size.slot_bytes() as usize / 4;
                (0..self.size.slots).for_each(|s| memory.word(first_word(s)).store(0, Ordering::SeqCst));
                Ok(())
            }
        }
    }

    /// Its size.
    pub fn size(&self) -> RingSize {
        self.size
    }

    /// All slots.
    pub(super) fn slots(&self) -> Span {
        self.at
    }

    /// The device that takes rows out.
    pub(super) fn to(&self) -> &Context {
        &self.to
    }

    /// The word that ends waits.
    pub(super) fn ended(&self) -> Span {
        self.control.span().from(4 * ENDED_WORD as u64)
    }

    /// Where a wait leaves how long it took.
    pub(super) fn waited(&self) -> Span {
        self.control.span().from(4 * WAITED_WORD as u64)
    }

    /// How long the last wait for rows took; its batch has ended.
    pub fn waited_ns(&self) -> u64 {
        u64::from(self.control.word(WAITED_WORD).load(Ordering::Acquire))
    }
}

impl CardRing for SlotRing {
    fn kind(&self) -> LinkKind {
        match self.memory {
            Memory::OfCard { .. } => LinkKind::Peer,
            Memory::OfHost(_) => LinkKind::Mapped,
        }
    }

    fn end_waits(&self) {
        self.control.word(ENDED_WORD).store(1, Ordering::Release);
    }
}
