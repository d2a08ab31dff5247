//! A virtual card whose layers hash instead of computing: every logit depends on every token and position before it,
//! through the pages that the state owns.
//!
//! A row is four 16-bit integers in f32. A layer stores a hash of the row at its position, and replaces the row by a
//! hash of itself and, in order, of everything stored for the state so far: a lost row, a wrong page, a swapped
//! state or another order changes the text.
//! Invariant: results depend on tokens and positions alone, not on stages, batches or pages.
//! Does not know: the machines that drive it.

use std::ops::Range;

use super::rng::mix;
use crate::device::batch::{Batch, PageTables, RowWants};
use crate::device::best::Chooser;
use crate::device::{CardError, RunStamp, StageExec};
use crate::model::facts::{CardId, PAGE_POSITIONS, PageId};

/// Values of a row between stages.
pub const HASH_ROW_VALUES: usize = 4;

/// The row of a token before the first layer.
pub(super) fn embed(token: u32, position: u32) -> u64 {
    mix(u64::from(token) << 32 | u64::from(position))
}

/// What a layer stores for a row.
pub(super) fn entry(row: u64, layer: usize) -> u64 {
    mix(row ^ (layer as u64 + 1) << 56)
}

/// One more stored entry is read.
pub(super) fn attend(sum: u64, entry: u64) -> u64 {
    mix(sum.rotate_left(7) ^ entry)
}

/// The row behind a layer.
pub(super) fn leave(row: u64, sum: u64) -> u64 {
    mix(row ^ sum.wrapping_mul(3))
}

/// The logit of a token: an integer below 2^20.
pub(super) fn logit(row: u64, token: usize) -> f32 {
    (mix(row ^ (token as u64) << 40) >> 44) as f32
}

/// The layers of one stage.
#[derive(Debug)]
pub struct HashCard {
    card: CardId,
    layers: Range<usize>,
    layer_count: usize,
    vocab: usize,
    /// One after the other: pages x layers x positions.
    stored: Vec<u64>,
    pages: usize,
}

impl HashCard {
    /// A card for `layers` of `layer_count`, with `pages` pages of anything.
    pub fn new(
        card: CardId,
        layers: Range<usize>,
        layer_count: usize,
        vocab: usize,
        pages: usize,
    ) -> HashCard {
        let stored = (0..pages * layers.len() * PAGE_POSITIONS).map(|i| mix(i as u64)).collect();
        HashCard { card, layers, layer_count, vocab, stored, pages }
    }

    fn place(&self, page: PageId, layer: usize, position: usize) -> usize {
        (page.index() * self.layers.len() + layer) * PAGE_POSITIONS + position % PAGE_POSITIONS
    }

    fn broken(&self, what: String) -> CardError {
        CardError::Unsupported { card: self.card, what }
    }

    /// A page belongs to one state: found here by looking at every table, whatever the page books say.
    fn check_owners(&self, pages: &PageTables) -> Result<(), CardError> {
        let mut owners = vec![None; self.pages];
        for (state, table) in pages.states.iter().enumerate() {
            for page in table {
                match owners.get_mut(page.index()) {
                    Some(owner @ None) => *owner = Some(state),
                    Some(Some(other)) => {
                        let what = format!("{page} belongs to state {other} and to state {state}");
                        return Err(self.broken(what));
                    }
                    None => return Err(self.broken(format!("{page} of {}", self.pages))),
                }
            }
        }
        Ok(())
    }
}

impl StageExec for HashCard {
    fn run(
        &mut self,
        batch: &Batch,
        pages: &PageTables,
        input: &[f32],
        output: &mut [f32],
    ) -> Result<RunStamp, CardError> {
        self.check_owners(pages)?;
        let (embeds, heads) = (self.layers.start == 0, self.layers.end == self.layer_count);
        let mut values_at = 0;
        for (index, row) in batch.rows.iter().enumerate() {
            let mut x = match embeds {
                true => embed(row.token, row.position),
                false => row_from_values(&input[index * HASH_ROW_VALUES..][..HASH_ROW_VALUES]),
            };
            let table = pages.of(row.state);
            let position = row.position as usize;
            if table.len() <= position / PAGE_POSITIONS {
                return Err(self.broken(format!("{} has no page for position {position}", row.state)));
            }
            for layer in 0..self.layers.len() {
                let place = self.place(table[position / PAGE_POSITIONS], layer, position);
                self.stored[place] = entry(x, self.layers.start + layer);
                let sum = (0..=position).fold(0, |sum, p| {
                    attend(sum, self.stored[self.place(table[p / PAGE_POSITIONS], layer, p)])
                });
                x = leave(x, sum);
            }
            if !heads {
                row_to_values(x, &mut output[index * HASH_ROW_VALUES..][..HASH_ROW_VALUES]);
            } else if row.wants.is_some() {
                let logits: Vec<f32> = (0..self.vocab).map(|token| logit(x, token)).collect();
                let values = &mut output[values_at..][..row.wants.values(self.vocab)];
                match row.wants {
                    RowWants::Nothing => {}
                    RowWants::Best(_) => Chooser::default().choose(&logits, values),
                    RowWants::Logits => values.copy_from_slice(&logits),
                }
                values_at += values.len();
            }
        }
        Ok(RunStamp { busy_ns: batch.rows.len() as u64, card: None, waited_ns: 0 })
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), CardError> {
        let values = self.layers.len() * PAGE_POSITIONS;
        self.stored.copy_within(from.index() * values..(from.index() + 1) * values, to.index() * values);
        Ok(())
    }
}

fn row_to_values(row: u64, values: &mut [f32]) {
    for (i, value) in values.iter_mut().enumerate() {
        *value = f32::from(((row >> (16 * i)) & 0xffff) as u16);
    }
}

fn row_from_values(values: &[f32]) -> u64 {
    values.iter().enumerate().fold(0, |row, (i, &value)| row | u64::from(value as u16) << (16 * i))
}
