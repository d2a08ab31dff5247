//! K/V memory of a virtual card: one arena, cut into equal pages that are addressed by page id.
//!
//! A page holds 64 positions of every paged state of the stage. For each state it holds the keys, head after head, 64
//! rows a head, then the values likewise, so the rows of a head that a tile of attention reads lie side by side.
//! Invariants: `page_bytes * pages` is the plan's item; rows are in their stored form (`docs/numerics.md`, Attention).
//! Does not know: which state owns a page, positions of sequences.

use super::memory::Arena;
use super::plain::NotFinite;
use super::simd::convert;
use super::simd::tier::Tier;
use crate::device::CardError;
use crate::device::ledger::Ledger;
use crate::model::facts::{CardId, KvFormat, PAGE_POSITIONS, PageId};
use crate::model::footprint::ItemKind;
use crate::model::program::StateKind;

/// Widest head that can be stored as f16 through the row buffer.
const F16_BUFFER_VALUES: usize = 256;

/// Where a state's rows lie inside a page.
#[derive(Clone, Copy, Debug)]
struct Place {
    heads: usize,
    key_width: usize,
    value_width: usize,
    keys_at: usize,
    values_at: usize,
}

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

/// The pages of a stage.
#[derive(Debug)]
pub struct KvStore {
    arena: Arena,
    format: KvFormat,
    page_bytes: usize,
    places: Vec<Place>,
}

impl KvStore {
    /// `pages` pages for the paged states among `states`, booked as K/V pages.
    pub fn new(
        ledger: &mut Ledger,
        card: CardId,
        states: &[StateKind],
        format: KvFormat,
        pages: usize,
    ) -> Result<KvStore, CardError> {
        let (mut places, mut page_bytes) = (Vec::new(), 0);
        for state in states {
            let StateKind::Paged { heads, key_width, value_width } = *state else { continue };
            if format == KvFormat::Q8_0 && (key_width % 32 != 0 || value_width % 32 != 0) {
                let what = format!("--kv q8_0 needs heads of whole 32 values, not {key_width}; use --kv f16");
                return Err(CardError::Unsupported { card, what });
            }
            let keys_at = page_bytes;
            let values_at = keys_at + heads * PAGE_POSITIONS * format.row_bytes(key_width);
            page_bytes = values_at + heads * PAGE_POSITIONS * format.row_bytes(value_width);
            places.push(Place { heads, key_width, value_width, keys_at, values_at });
        }
        let arena = Arena::new(ledger, card, ItemKind::KvPages, page_bytes * pages)?;
        Ok(KvStore { arena, format, page_bytes, places })
    }

    /// How rows are kept.
    pub fn format(&self) -> KvFormat {
        self.format
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The 64 rows of one head.
    pub fn rows(&self, page: PageId, state: usize, head: usize, side: Side) -> &[u8] {
        let p = self.places[state];
        let (at, width) = match side {
            Side::Keys => (p.keys_at, p.key_width),
            Side::Values => (p.values_at, p.value_width),
        };
        let head_bytes = PAGE_POSITIONS * self.format.row_bytes(width);
        &self.arena.bytes()[page.index() * self.page_bytes + at + head * head_bytes..][..head_bytes]
    }

    /// Stores a position's key and value heads, which lie side by side.
    pub fn append(
        &mut self,
        tier: Tier,
        (page, slot): (PageId, usize),
        state: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), NotFinite> {
        let (p, format) = (self.places[state], self.format);
        let page = &mut self.arena.bytes_mut()[page.index() * self.page_bytes..][..self.page_bytes];
        for (at, width, row) in [(p.keys_at, p.key_width, keys), (p.values_at, p.value_width, values)] {
            assert_eq!(row.len(), p.heads * width, "append: values of {} heads", p.heads);
            let row_bytes = format.row_bytes(width);
            for (head, x) in row.chunks_exact(width).enumerate() {
                let to = at + (head * PAGE_POSITIONS + slot) * row_bytes;
                store(tier, format, x, &mut page[to..to + row_bytes])?;
            }
        }
        Ok(())
    }

    /// Copies a page's bytes.
    pub fn copy_page(&mut self, from: PageId, to: PageId) {
        let start = from.index() * self.page_bytes;
        self.arena.bytes_mut().copy_within(start..start + self.page_bytes, to.index() * self.page_bytes);
    }
}

/// One head's row in its stored form.
fn store(tier: Tier, format: KvFormat, x: &[f32], out: &mut [u8]) -> Result<(), NotFinite> {
    match format {
        KvFormat::F32 => {
            for (v, to) in x.iter().zip(out.chunks_exact_mut(4)) {
                to.copy_from_slice(&v.to_le_bytes());
            }
            Ok(())
        }
        KvFormat::F16 => {
            let mut half = [0u16; F16_BUFFER_VALUES];
            for (x, out) in x.chunks(F16_BUFFER_VALUES).zip(out.chunks_mut(2 * F16_BUFFER_VALUES)) {
                let half = &mut half[..x.len()];
                convert::store_f16(tier, x, half)?;
                for (v, to) in half.iter().zip(out.chunks_exact_mut(2)) {
                    to.copy_from_slice(&v.to_le_bytes());
                }
            }
            Ok(())
        }
        KvFormat::Q8_0 => convert::store_q8_0(tier, x, out),
    }
}
