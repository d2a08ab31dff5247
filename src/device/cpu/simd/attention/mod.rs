//! Causal attention of the query heads that share one K/V head, over paged keys and values.
//!
//! A part of the work is (some rows of one state, one K/V head): parts are independent, so threads take them as they
//! like. Inside a part, rows go in blocks, so that what a page's keys and values are turned into serves many queries.
//! Long contexts of few rows can be cut by spans instead ([`attend_span`], [`finish_spans`]).
//!
//! Invariants: tiles, spans and merges of `plain::attention`, bit for bit, in every tier and for any grouping of rows.
//! Does not know: threads, sequences. Source: `docs/numerics.md`, Attention.

#![allow(unsafe_code, reason = "loads at computed places inside checked pages and scratch")]

mod partial;
mod scores;
#[cfg(test)]
mod tests;
mod tile;
mod values;

use std::ops::Range;

use super::stored::{F16, F32, Q8, Stored};
use super::tier::{Avx2, Tier};
use super::vector::{SUM_LANES, run};
use crate::device::cpu::columns::Columns;
use crate::device::cpu::plain::attention as plain;
use crate::device::cpu::plain::attention::SPAN_TILES;
use crate::device::cpu::plain::stored::{load_f16, load_q8_0};
use crate::model::facts::{KvFormat, PAGE_POSITIONS};
use partial::{PartialsMut, divide, merge_span};
use tile::{AddValues, Expand, OnVectors, Rows, ScoresByColumns, ScoresByRows, Tile};

/// Queries of a block: enough that turning a page's keys into columns costs little beside using them, few enough that
/// their sums stay in the second-level cache.
const BLOCK_QUERIES: usize = 96;

/// From so many queries on, a page's keys are transposed and its values expanded once for all of them.
const EXPAND_QUERIES: usize = 8;

/// Floats that aligning the scratch to cache lines may cost.
const ALIGN_VALUES: usize = 16;

/// The keys and values of one K/V head of one state.
pub trait HeadPages {
    /// How they are kept.
    fn format(&self) -> KvFormat;
    /// The 64 key rows of page `page` (of the state, in position order), without gaps.
    fn keys(&self, page: usize) -> &[u8];
    /// Its 64 value rows.
    fn values(&self, page: usize) -> &[u8];
}

/// Query heads that share a K/V head, of some rows of one state.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// All query heads of all rows: head h of a row is `key_width` values from `h * key_width` on.
    pub values: &'a [f32],
    /// Values from a row to the next.
    pub stride: usize,
    /// Position of each row, never falling. A row reads the keys of positions 0 up to its own.
    pub positions: &'a [u32],
    /// Which K/V head.
    pub kv_head: usize,
    /// Query heads for a K/V head: heads `kv_head * group ..` of `group`.
    pub group: usize,
    /// Values of a key.
    pub key_width: usize,
    /// Values of a value.
    pub value_width: usize,
    /// Times q.k.
    pub scale: f32,
}

impl<'a> Queries<'a> {
    /// Number of queries: rows times heads.
    fn count(&self) -> usize {
        self.positions.len() * self.group
    }

    /// Query `i`, row after row.
    fn query(&self, i: usize) -> &'a [f32] {
        let head = self.kv_head * self.group + i % self.group;
        &self.values[i / self.group * self.stride + head * self.key_width..][..self.key_width]
    }

    /// Keys that query `i` reads.
    fn keys(&self, i: usize) -> usize {
        self.positions[i / self.group] as usize + 1
    }

    /// The columns of query `i`'s output in its row.
    fn output_columns(&self, i: usize) -> Range<usize> {
        let start = (self.kv_head * self.group + i % self.group) * self.value_width;
        start..start + self.value_width
    }

    /// Keys that the last row reads, the most of all.
    fn keys_max(&self) -> usize {
        self.positions.last().map_or(0, |&position| position as usize + 1)
    }

    /// The first query that reads key `key`; all behind it do too.
    fn first_reader(&self, key: usize) -> usize {
        self.positions.partition_point(|&position| (position as usize) < key) * self.group
    }

    fn rows(&self, rows: Range<usize>) -> Queries<'a> {
        Queries {
            values: &self.values[rows.start * self.stride..],
            positions: &self.positions[rows],
            ..*self
        }
    }

    fn check(&self) {
        assert!(self.group > 0 && self.key_width > 0 && self.value_width > 0, "attention: empty heads");
        assert!(self.positions.is_sorted(), "attention: positions never fall");
        assert!((self.kv_head + 1) * self.group * self.key_width <= self.stride, "attention: heads of a row");
        assert!(
            self.positions.len() * self.stride <= self.values.len(),
            "attention: {} rows of {} in {} values",
            self.positions.len(),
            self.stride,
            self.values.len()
        );
    }
}

/// Rows of a block.
fn block_rows(group: usize) -> usize {
    (BLOCK_QUERIES / group).max(1)
}

/// Floats that [`attend`] needs for parts of at most `rows` rows.
pub fn scratch_values(rows: usize, group: usize, key_width: usize, value_width: usize) -> usize {
    let queries = rows.min(block_rows(group)) * group;
    span_scratch_values(queries, key_width, value_width) + 2 * partial_values(queries, value_width)
}

/// Floats that [`attend_span`] needs for so many queries (rows times heads).
pub fn span_scratch_values(queries: usize, key_width: usize, value_width: usize) -> usize {
    let expanded = PAGE_POSITIONS * (key_width + value_width);
    ALIGN_VALUES + expanded + queries * (PAGE_POSITIONS + Tile::STATS)
}

/// Floats of what a span leaves of so many queries: largest scores, sums, weighted values.
pub fn partial_values(queries: usize, value_width: usize) -> usize {
    queries * (2 + value_width)
}

/// Attention of all rows of `queries`. Row r of `queries` is row `first_row + r` of `out`, whose columns must hold the
/// outputs of these heads (head h: `value_width` columns from `h * value_width` on).
pub fn attend(
    tier: Tier,
    queries: &Queries<'_>,
    pages: &dyn HeadPages,
    first_row: usize,
    out: &mut Columns<'_>,
    scratch: &mut [f32],
) {
    queries.check();
    let rows = queries.positions.len();
    let step = block_rows(queries.group);
    for start in (0..rows).step_by(step) {
        let block = queries.rows(start..rows.min(start + step));
        let n = block.count();
        let (totals, rest) = scratch.split_at_mut(partial_values(n, block.value_width));
        let (spans, rest) = rest.split_at_mut(partial_values(n, block.value_width));
        for span in 0..span_count(&block) {
            if span == 0 {
                attend_span(tier, &block, pages, span, totals, rest);
            } else {
                attend_span(tier, &block, pages, span, spans, rest);
                merge_span(tier, &block, span, totals, spans);
            }
        }
        divide(tier, &block, totals, first_row + start, out);
    }
}

/// Spans of 1,024 positions that the last row of `queries` reads.
pub fn span_count(queries: &Queries<'_>) -> usize {
    queries.keys_max().div_ceil(SPAN_TILES * PAGE_POSITIONS)
}

/// What span `span` (of 1,024 positions) leaves of the queries that read any of it, for [`finish_spans`]. `partial`
/// holds [`partial_values`], `scratch` at least [`span_scratch_values`].
pub fn attend_span(
    tier: Tier,
    queries: &Queries<'_>,
    pages: &dyn HeadPages,
    span: usize,
    partial: &mut [f32],
    scratch: &mut [f32],
) {
    queries.check();
    let needed = span_scratch_values(queries.count(), queries.key_width, queries.value_width);
    assert!(scratch.len() >= needed, "attention: scratch of {} values, not {needed}", scratch.len());
    assert!(
        pages.format() != KvFormat::Q8_0
            || queries.key_width.is_multiple_of(SUM_LANES) && queries.value_width.is_multiple_of(SUM_LANES),
        "attention: q8_0 has blocks of 32 values"
    );
    let tier = tier_for(tier, queries);
    let partial = PartialsMut::new(queries, partial);
    let span = Span { queries, pages, span };
    match (tier, pages.format()) {
        (Tier::Plain, _) => span.plain(partial),
        (_, KvFormat::F32) => span.tiles::<F32>(tier, partial, scratch),
        (_, KvFormat::F16) => span.tiles::<F16>(tier, partial, scratch),
        (_, KvFormat::Q8_0) => span.tiles::<Q8>(tier, partial, scratch),
    }
}

/// Merges the spans 0, 1, ... of `queries`, whose partials follow each other in `partials`, and writes the rows.
pub fn finish_spans(
    tier: Tier,
    queries: &Queries<'_>,
    partials: &mut [f32],
    first_row: usize,
    out: &mut Columns<'_>,
) {
    queries.check();
    let values = partial_values(queries.count(), queries.value_width);
    assert_eq!(partials.len(), values * span_count(queries), "attention: a partial for each span");
    let (totals, spans) = partials.split_at_mut(values);
    for (i, partial) in spans.chunks_exact_mut(values).enumerate() {
        merge_span(tier, queries, i + 1, totals, partial);
    }
    divide(tier, queries, totals, first_row, out);
}

/// The best tier that takes these widths: whole vectors, and a part of a key for each of the 32 chains.
fn tier_for(tier: Tier, queries: &Queries<'_>) -> Tier {
    let fits = |lanes: usize| {
        queries.key_width >= SUM_LANES
            && queries.key_width.is_multiple_of(lanes)
            && queries.value_width.is_multiple_of(lanes)
    };
    match tier {
        Tier::Avx512(_) if fits(16) => tier,
        Tier::Avx512(_) | Tier::Avx2(_) if fits(8) => Avx2::detect().map_or(Tier::Plain, Tier::Avx2),
        _ => Tier::Plain,
    }
}

/// Keys and values of one state's K/V head, read back one by one.
struct OneByOne<'a> {
    pages: &'a dyn HeadPages,
}

impl OneByOne<'_> {
    fn read(&self, rows: &[u8], row: usize, out: &mut [f32]) {
        let bytes = self.pages.format().row_bytes(out.len());
        let row = &rows[row * bytes..][..bytes];
        match self.pages.format() {
            KvFormat::F32 => {
                for (out, bytes) in out.iter_mut().zip(row.as_chunks().0) {
                    *out = f32::from_ne_bytes(*bytes);
                }
            }
            KvFormat::F16 => {
                let bits: Vec<u16> = row.as_chunks().0.iter().map(|b| u16::from_ne_bytes(*b)).collect();
                load_f16(&bits, out);
            }
            KvFormat::Q8_0 => load_q8_0(row, out),
        }
    }
}

impl plain::Stored for OneByOne<'_> {
    fn key(&self, position: usize, out: &mut [f32]) {
        self.read(self.pages.keys(position / PAGE_POSITIONS), position % PAGE_POSITIONS, out);
    }

    fn value(&self, position: usize, out: &mut [f32]) {
        self.read(self.pages.values(position / PAGE_POSITIONS), position % PAGE_POSITIONS, out);
    }
}

/// One span of some queries.
struct Span<'a> {
    queries: &'a Queries<'a>,
    pages: &'a dyn HeadPages,
    span: usize,
}

impl Span<'_> {
    fn plain(&self, mut partial: PartialsMut<'_>) {
        let first = self.span * SPAN_TILES * PAGE_POSITIONS;
        for i in self.queries.first_reader(first)..self.queries.count() {
            let end = self.queries.keys(i).min(first + SPAN_TILES * PAGE_POSITIONS);
            let positions: Vec<usize> = (first..end).collect();
            let (query, scale) = (self.queries.query(i), self.queries.scale);
            let stored = OneByOne { pages: self.pages };
            partial.set(i, &plain::attend(query, scale, &positions, &stored, self.queries.value_width));
        }
    }

    fn tiles<S: Stored>(&self, tier: Tier, partial: PartialsMut<'_>, scratch: &mut [f32]) {
        let queries = self.queries;
        let n = queries.count();
        let skip = scratch.as_ptr().align_offset(64).min(ALIGN_VALUES);
        let (columns, rest) = scratch[skip..].split_at_mut(PAGE_POSITIONS * queries.key_width);
        let (expanded, rest) = rest.split_at_mut(PAGE_POSITIONS * queries.value_width);
        let (weights, rest) = rest.split_at_mut(PAGE_POSITIONS * n);
        let (max, rest) = rest.split_at_mut(n);
        let (sum, rest) = rest.split_at_mut(n);
        let (left, rest) = rest.split_at_mut(n);
        let right = &mut rest[..n];
        let weights = weights.as_chunks_mut().0;
        let mut tile = Tile {
            queries,
            first_key: 0,
            first: true,
            readers: 0..n,
            weights,
            max,
            sum,
            left,
            right,
            partial,
        };
        let page_bytes = |width| PAGE_POSITIONS * self.pages.format().row_bytes(width);
        for number in 0..SPAN_TILES {
            let page = self.span * SPAN_TILES + number;
            tile.first_key = page * PAGE_POSITIONS;
            tile.first = number == 0;
            tile.readers = queries.first_reader(tile.first_key)..n;
            if tile.readers.is_empty() {
                return;
            }
            let (keys, values) = (self.pages.keys(page), self.pages.values(page));
            assert_eq!(keys.len(), page_bytes(queries.key_width), "attention: a page's keys");
            assert_eq!(values.len(), page_bytes(queries.value_width), "attention: a page's values");
            let (keys, values) = (Rows::<S>::new(keys), Rows::<S>::new(values));
            if tile.readers.len() >= EXPAND_QUERIES {
                run(tier, OnVectors(Expand { keys, values, columns, expanded }));
                run(tier, OnVectors(ScoresByColumns { tile: &mut tile, columns }));
                // SAFETY: any bytes are bytes; the borrow goes on.
                let expanded = unsafe { expanded.align_to::<u8>().1 };
                run(tier, OnVectors(AddValues { tile: &mut tile, values: Rows::<F32>::new(expanded) }));
            } else {
                run(tier, OnVectors(ScoresByRows { tile: &mut tile, keys }));
                run(tier, OnVectors(AddValues { tile: &mut tile, values }));
            }
        }
    }
}
