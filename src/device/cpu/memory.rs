//! Memory of a virtual card: zeroed, page-aligned, booked before it is taken.
//!
//! Invariant: an arena exists only where the ledger has its bytes. Large arenas ask for huge pages, which spares a
//! decode row most misses of the address translation.
//! Does not know: what the bytes mean.

use memmap2::{Advice, MmapMut, MmapOptions};

use crate::device::CardError;
use crate::device::ledger::Ledger;
use crate::model::facts::CardId;
use crate::model::footprint::ItemKind;

/// From this size on an arena asks for huge pages.
const HUGE_BYTES: usize = 4 << 20;

/// One allocation.
#[derive(Debug)]
pub struct Arena {
    map: Option<MmapMut>,
}

impl Arena {
    /// Takes `bytes` bytes and books them as `item`.
    pub fn new(ledger: &mut Ledger, card: CardId, item: ItemKind, bytes: usize) -> Result<Arena, CardError> {
        ledger.book(item, bytes as u64)?;
        Arena::unbooked(card, item, bytes)
    }

    /// Takes bytes that the caller has booked, as one of several items.
    pub fn unbooked(card: CardId, item: ItemKind, bytes: usize) -> Result<Arena, CardError> {
        if bytes == 0 {
            return Ok(Arena { map: None });
        }
        let map = MmapOptions::new().len(bytes).map_anon();
        let map =
            map.map_err(|_| CardError::SystemMemory { card, item: item.to_string(), bytes: bytes as u64 })?;
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_BYTES {
            // A system without huge pages serves small ones.
            let _ = map.advise(Advice::HugePage);
        }
        Ok(Arena { map: Some(map) })
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }

    /// All bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().unwrap_or(&mut [])
    }
}
