//! A card's memory by items of the plan: one allocation an item, cut into places.
//!
//! Invariants: an allocation is booked before it is made, with exactly its bytes; places lie on cache lines of their
//! own and fill the allocation to its end. Does not know: what lies in a place.

use super::driver::{Context, DeviceMemory, Span};
use crate::device::CardError;
use crate::device::ledger::Ledger;
use crate::model::facts::CardId;
use crate::model::footprint::{ItemKind, kept};

/// A card's memory and its books.
pub struct Memory<'a> {
    /// Which card.
    pub card: CardId,
    /// Its device.
    pub context: &'a Context,
    /// Its books.
    pub ledger: &'a mut Ledger,
}

impl Memory<'_> {
    /// Books `bytes` as `item` and takes them.
    pub fn arena(&mut self, item: ItemKind, bytes: u64) -> Result<Arena, CardError> {
        self.ledger.book(item, bytes)?;
        let memory = DeviceMemory::new(self.context, bytes).map_err(|e| e.on(self.card))?;
        Ok(Arena { memory, used: 0 })
    }
}

/// The memory of one item.
#[derive(Debug)]
pub struct Arena {
    memory: DeviceMemory,
    used: u64,
}

impl Arena {
    /// The next place: `bytes` bytes, filled up to whole cache lines.
    pub fn cut(&mut self, bytes: usize) -> Span {
        let place = self.memory.span().part(self.used, bytes as u64);
        self.used += kept(bytes as u64);
        place
    }

    /// All of it; every place has been cut.
    pub fn whole(&self) -> Span {
        let (used, all) = (self.used, self.memory.span());
        assert_eq!(used, all.bytes(), "places of {used} B in an allocation of {} B", all.bytes());
        all
    }
}
