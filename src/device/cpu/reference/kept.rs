//! Keys and values of the interpreter, as the stored form gives them back.
//!
//! Invariant: every row goes through its stored form (`plain::stored`) and is kept as the f32 values that come out.
//! Does not know: layouts of real pages, sequences.

use crate::device::cpu::plain::NotFinite;
use crate::device::cpu::plain::attention::Stored;
use crate::device::cpu::plain::stored::{Q8_0_BLOCK_BYTES, load_f16, load_q8_0, store_f16, store_q8_0};
use crate::model::facts::{KvFormat, PAGE_POSITIONS, PageId};

/// One paged state: a key row and a value row for each position of each page.
#[derive(Debug)]
pub(super) struct KeptState {
    pub(super) heads: usize,
    key_width: usize,
    pub(super) value_width: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl KeptState {
    pub(super) fn new(pages: usize, heads: usize, key_width: usize, value_width: usize) -> KeptState {
        let rows = pages * PAGE_POSITIONS * heads;
        KeptState {
            heads,
            key_width,
            value_width,
            keys: vec![0.0; rows * key_width],
            values: vec![0.0; rows * value_width],
        }
    }

    /// Stores a position's key and value heads.
    pub(super) fn append(
        &mut self,
        format: KvFormat,
        (page, slot): (PageId, usize),
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), NotFinite> {
        let row = page.index() * PAGE_POSITIONS + slot;
        let (keys_to, values_to) = (row * keys.len(), row * values.len());
        self.keys[keys_to..][..keys.len()].copy_from_slice(&read_back(format, keys)?);
        self.values[values_to..][..values.len()].copy_from_slice(&read_back(format, values)?);
        Ok(())
    }

    /// Copies a page.
    pub(super) fn copy_page(&mut self, from: PageId, to: PageId) {
        let rows = PAGE_POSITIONS * self.heads;
        for (kept, width) in [(&mut self.keys, self.key_width), (&mut self.values, self.value_width)] {
            let (start, values) = (from.index() * rows * width, rows * width);
            kept.copy_within(start..start + values, to.index() * values);
        }
    }
}

/// What a value reads back as after it was stored. Heads lie side by side; blocks never cross them.
fn read_back(format: KvFormat, x: &[f32]) -> Result<Vec<f32>, NotFinite> {
    let mut out = vec![0.0; x.len()];
    match format {
        KvFormat::F32 => out.copy_from_slice(x),
        KvFormat::F16 => {
            let mut row = vec![0; x.len()];
            store_f16(x, &mut row)?;
            load_f16(&row, &mut out);
        }
        KvFormat::Q8_0 => {
            let mut row = vec![0; x.len() / 32 * Q8_0_BLOCK_BYTES];
            store_q8_0(x, &mut row)?;
            load_q8_0(&row, &mut out);
        }
    }
    Ok(out)
}

/// One head of a state, through the pages that a sequence owns.
pub(super) struct KeptHead<'a> {
    pub(super) state: &'a KeptState,
    pub(super) pages: &'a [PageId],
    pub(super) head: usize,
}

impl KeptHead<'_> {
    fn row(&self, position: usize) -> usize {
        let page = self.pages[position / PAGE_POSITIONS].index();
        (page * PAGE_POSITIONS + position % PAGE_POSITIONS) * self.state.heads + self.head
    }
}

impl Stored for KeptHead<'_> {
    fn key(&self, position: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.state.keys[self.row(position) * self.state.key_width..][..out.len()]);
    }

    fn value(&self, position: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.state.values[self.row(position) * self.state.value_width..][..out.len()]);
    }
}
