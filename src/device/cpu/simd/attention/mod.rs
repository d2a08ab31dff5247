//! Causal attention of the query heads that share one K/V head, over paged keys and values.
//!
//! A part of the work is (some rows of one state, one K/V head): parts are independent, so threads take them as they
//! like. Inside a part, rows go in blocks, so that what a page's keys and values are turned into serves many queries.
//! Long contexts of few rows can be cut by spans instead ([`attend_span`], [`finish_spans`]).
//!
//! Invariants: tiles, spans and merges of `plain::attention`, bit for bit, in every tier and for any grouping of rows.
//! Does not know: threads, sequences. Source: `docs/numerics.md`, Attention.

#![allow(unsafe_code, reason = "loads at computed places inside checked pages and scratch")]
#![allow(clippy::inline_always, reason = "kernels must end up inside the functions compiled for the tier")]

mod scores;
#[cfg(test)]
mod tests;
mod values;

use std::marker::PhantomData;
use std::ops::Range;

use super::functions::exp_v;
use super::stored::{F16, F32, Q8, Stored};
use super::tier::{Avx2, Tier};
use super::vector::{Kernel, SUM_LANES, Vector, run};
use crate::device::cpu::columns::Columns;
use crate::device::cpu::plain::attention as plain;
use crate::device::cpu::plain::attention::{Partial, SPAN_TILES};
use crate::device::cpu::plain::stored::{load_f16, load_q8_0};
use crate::model::facts::{KvFormat, PAGE_POSITIONS};
use scores::{COLUMN_VECTORS, KeyColumns, KeyRows};
use values::{Factors, Weighted, expand, merged};

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

/// Sums of some queries over some keys, before the division.
struct PartialsMut<'a> {
    max: &'a mut [f32],
    sum: &'a mut [f32],
    acc: &'a mut [f32],
}

impl<'a> PartialsMut<'a> {
    fn new(queries: &Queries<'_>, values: &'a mut [f32]) -> PartialsMut<'a> {
        let n = queries.count();
        assert!(values.len() >= partial_values(n, queries.value_width), "attention: room for partial sums");
        let (max, rest) = values.split_at_mut(n);
        let (sum, rest) = rest.split_at_mut(n);
        PartialsMut { max, sum, acc: &mut rest[..n * queries.value_width] }
    }

    fn get(&self, i: usize, value_width: usize) -> Partial {
        let acc = self.acc[i * value_width..][..value_width].to_vec();
        Partial { max: self.max[i], sum: self.sum[i], acc }
    }

    fn set(&mut self, i: usize, partial: &Partial) {
        (self.max[i], self.sum[i]) = (partial.max, partial.sum);
        self.acc[i * partial.acc.len()..][..partial.acc.len()].copy_from_slice(&partial.acc);
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

/// 64 rows of a page in stored form.
#[derive(Clone, Copy)]
struct Rows<'a, S> {
    bytes: &'a [u8],
    form: PhantomData<S>,
}

impl<'a, S> Rows<'a, S> {
    fn new(bytes: &'a [u8]) -> Self {
        Rows { bytes, form: PhantomData }
    }
}

/// A part of a tile's work, for vectors only: the plain tier computes whole spans another way.
trait Part {
    fn vectors<V: Vector>(self, w: V::Witness);
}

struct OnVectors<P>(P);

impl<P: Part> Kernel for OnVectors<P> {
    type Output = ();

    fn plain(self) {
        unreachable!("invariant: the plain tier never cuts a span into parts");
    }

    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) {
        self.0.vectors::<V>(w);
    }
}

/// A tile of the queries that read any of its keys, with room for its scores.
struct Tile<'a> {
    queries: &'a Queries<'a>,
    /// Position of its first key.
    first_key: usize,
    /// Whether it is the first of its span.
    first: bool,
    readers: Range<usize>,
    /// For each query the scores, then p.
    weights: &'a mut [[f32; PAGE_POSITIONS]],
    max: &'a mut [f32],
    sum: &'a mut [f32],
    /// Factors of the merge.
    left: &'a mut [f32],
    right: &'a mut [f32],
    partial: PartialsMut<'a>,
}

impl Tile<'_> {
    /// Floats for each query in `max`, `sum`, `left` and `right`.
    const STATS: usize = 4;

    /// Keys of the tile that query `i` reads.
    #[inline(always)]
    fn keys(&self, i: usize) -> usize {
        (self.queries.keys(i) - self.first_key).min(PAGE_POSITIONS)
    }

    /// Turns the readers' scores into p.
    #[inline(always)]
    fn softmax<V: Vector>(&mut self, w: V::Witness) {
        for i in self.readers.clone() {
            let count = self.keys(i);
            (self.max[i], self.sum[i]) = scores::exponentials::<V>(w, &mut self.weights[i], count);
        }
    }

    /// Merges largest scores and sums, and leaves the factors for the values.
    #[inline(always)]
    fn merge<V: Vector>(&mut self, w: V::Witness) {
        let readers = || self.readers.clone();
        let tile = [&self.max[readers()], &self.sum[readers()]];
        let before = [&mut self.partial.max[readers()], &mut self.partial.sum[readers()]];
        if self.first {
            before[0].copy_from_slice(tile[0]);
            before[1].copy_from_slice(tile[1]);
        } else {
            merge_sums::<V>(w, before, tile, [&mut self.left[readers()], &mut self.right[readers()]]);
        }
    }
}

/// Queries that go together: four need 32 registers, two fit in AVX2's sixteen.
const fn together<V: Vector>() -> usize {
    if V::LANES == 16 { 4 } else { 2 }
}

/// A page's keys to columns and its values to f32.
struct Expand<'a, S> {
    keys: Rows<'a, S>,
    values: Rows<'a, S>,
    columns: &'a mut [f32],
    expanded: &'a mut [f32],
}

impl<S: Stored> Part for Expand<'_, S> {
    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) {
        let (width, count) = (self.columns.len() / PAGE_POSITIONS, self.expanded.len());
        // SAFETY: `tiles` checked the sizes of the pages; the scratch has a page of floats; widths fit (`tier_for`).
        unsafe {
            scores::transpose::<V, S>(w, self.keys.bytes.as_ptr(), width, self.columns.as_mut_ptr());
            expand::<V, S>(w, self.values.bytes.as_ptr(), count, self.expanded.as_mut_ptr());
        }
    }
}

struct ScoresByRows<'a, 't, S> {
    tile: &'a mut Tile<'t>,
    keys: Rows<'a, S>,
}

impl<S: Stored> Part for ScoresByRows<'_, '_, S> {
    #[inline(always)]
    fn vectors<V: Vector>(mut self, w: V::Witness) {
        let Range { start: mut i, end } = self.tile.readers.clone();
        while i < end {
            match (end - i).min(together::<V>()) {
                1 => self.some::<V, 1>(w, &mut i),
                2 => self.some::<V, 2>(w, &mut i),
                3 => self.some::<V, 3>(w, &mut i),
                _ => self.some::<V, 4>(w, &mut i),
            }
        }
        self.tile.softmax::<V>(w);
    }
}

impl<S: Stored> ScoresByRows<'_, '_, S> {
    #[inline(always)]
    fn some<V: Vector, const R: usize>(&mut self, w: V::Witness, i: &mut usize) {
        let tile = &mut *self.tile;
        let queries = std::array::from_fn(|r| tile.queries.query(*i + r).as_ptr());
        let keys = self.keys.bytes.as_ptr();
        let rows = KeyRows::<V, R> { w, queries, keys, width: tile.queries.key_width };
        let scale = V::splat(w, tile.queries.scale);
        // The last query of a run reads the most.
        let count = tile.keys(*i + R - 1);
        for first in (0..count).step_by(V::LANES) {
            // SAFETY: `tiles` checked the size of the page, which has whole vectors of keys; `query` made the queries
            // from slices of the width.
            let products = unsafe { rows.products::<S>(first) };
            for r in 0..R {
                products[r].mul(scale).store(&mut tile.weights[*i + r][first..]);
            }
        }
        *i += R;
    }
}

struct ScoresByColumns<'a, 't> {
    tile: &'a mut Tile<'t>,
    columns: &'a [f32],
}

impl Part for ScoresByColumns<'_, '_> {
    #[inline(always)]
    fn vectors<V: Vector>(mut self, w: V::Witness) {
        let Range { start: mut i, end } = self.tile.readers.clone();
        if V::LANES == 16 {
            while i + 2 <= end {
                self.some::<V, 2>(w, &mut i);
            }
        }
        while i < end {
            self.some::<V, 1>(w, &mut i);
        }
        self.tile.softmax::<V>(w);
    }
}

impl ScoresByColumns<'_, '_> {
    #[inline(always)]
    fn some<V: Vector, const R: usize>(&mut self, w: V::Witness, i: &mut usize) {
        let tile = &mut *self.tile;
        let queries = std::array::from_fn(|r| tile.queries.query(*i + r).as_ptr());
        let columns =
            KeyColumns::<V, R> { w, queries, columns: self.columns.as_ptr(), width: tile.queries.key_width };
        let scale = V::splat(w, tile.queries.scale);
        let count = tile.keys(*i + R - 1);
        for first in (0..count).step_by(COLUMN_VECTORS * V::LANES) {
            // SAFETY: `Expand` wrote the columns for all keys of the page; `query` made the queries from slices of the
            // width.
            let products = unsafe { columns.products(first) };
            for r in 0..R {
                for c in 0..COLUMN_VECTORS {
                    products[r][c].mul(scale).store(&mut tile.weights[*i + r][first + c * V::LANES..]);
                }
            }
        }
        *i += R;
    }
}

struct AddValues<'a, 't, S> {
    tile: &'a mut Tile<'t>,
    values: Rows<'a, S>,
}

impl<S: Stored> Part for AddValues<'_, '_, S> {
    #[inline(always)]
    fn vectors<V: Vector>(mut self, w: V::Witness) {
        self.tile.merge::<V>(w);
        let Range { start: mut i, end } = self.tile.readers.clone();
        while i < end {
            // Neighbours that read as many keys go together.
            let count = self.tile.keys(i);
            let most = end.min(i + together::<V>());
            match (i..most).take_while(|&next| self.tile.keys(next) == count).count() {
                1 => self.some::<V, 1>(w, &mut i, count),
                2 => self.some::<V, 2>(w, &mut i, count),
                3 => self.some::<V, 3>(w, &mut i, count),
                _ => self.some::<V, 4>(w, &mut i, count),
            }
        }
    }
}

impl<S: Stored> AddValues<'_, '_, S> {
    #[inline(always)]
    fn some<V: Vector, const R: usize>(&mut self, w: V::Witness, i: &mut usize, count: usize) {
        let tile = &mut *self.tile;
        let width = tile.queries.value_width;
        let factors: [Factors; R] =
            std::array::from_fn(|r| (!tile.first).then(|| (tile.left[*i + r], tile.right[*i + r])));
        let weights = tile.weights[*i..*i + R].as_ptr().cast();
        let acc = tile.partial.acc[*i * width..(*i + R) * width].as_mut_ptr();
        let values = self.values.bytes.as_ptr();
        // SAFETY: the slices above hold R queries; `tiles` checked the size of the page, or expanded all of it; `count`
        // is at most 64; the width fits (`tier_for`).
        unsafe { Weighted::<V, R> { w, weights, count, values, width, acc }.add::<S>(factors) };
        *i += R;
    }
}

/// Merges `tile` (largest scores, sums) behind `before`, and writes the factors of both sides.
#[inline(always)]
fn merge_sums<V: Vector>(
    w: V::Witness,
    before: [&mut [f32]; 2],
    tile: [&[f32]; 2],
    factors: [&mut [f32]; 2],
) {
    let ([max, sum], [left, right]) = (before, factors);
    for first in (0..max.len()).step_by(V::LANES) {
        let part = first..max.len().min(first + V::LANES);
        let (max_a, sum_a) = (V::load_first(w, &max[part.clone()]), V::load_first(w, &sum[part.clone()]));
        let (max_b, sum_b) =
            (V::load_first(w, &tile[0][part.clone()]), V::load_first(w, &tile[1][part.clone()]));
        let larger = max_a.max(max_b);
        let (factor_a, factor_b) = (exp_v(w, max_a.sub(larger)), exp_v(w, max_b.sub(larger)));
        larger.store_first(&mut max[part.clone()]);
        sum_b.fma(factor_b, sum_a.mul(factor_a)).store_first(&mut sum[part.clone()]);
        factor_a.store_first(&mut left[part.clone()]);
        factor_b.store_first(&mut right[part]);
    }
}

/// Merges span `span` behind the spans in `totals`, for the queries that read it; uses up `spans`.
fn merge_span(tier: Tier, queries: &Queries<'_>, span: usize, totals: &mut [f32], spans: &mut [f32]) {
    let readers = queries.first_reader(span * SPAN_TILES * PAGE_POSITIONS)..queries.count();
    let (totals, spans) = (PartialsMut::new(queries, totals), PartialsMut::new(queries, spans));
    run(tier_for(tier, queries), MergeSpan { readers, width: queries.value_width, totals, spans });
}

struct MergeSpan<'a> {
    readers: Range<usize>,
    width: usize,
    totals: PartialsMut<'a>,
    spans: PartialsMut<'a>,
}

impl Kernel for MergeSpan<'_> {
    type Output = ();

    fn plain(mut self) {
        for i in self.readers.clone() {
            let (left, right) = (self.totals.get(i, self.width), self.spans.get(i, self.width));
            self.totals.set(i, &plain::merge(&left, &right));
        }
    }

    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) {
        let (width, totals, spans) = (self.width, self.totals, self.spans);
        for i in self.readers {
            let (mut left, mut right) = ([0.0], [0.0]);
            let before = [&mut totals.max[i..=i], &mut totals.sum[i..=i]];
            merge_sums::<V>(w, before, [&spans.max[i..=i], &spans.sum[i..=i]], [&mut left, &mut right]);
            let acc = totals.acc[i * width..][..width].chunks_exact_mut(V::LANES);
            for (acc, right_acc) in acc.zip(spans.acc[i * width..][..width].chunks_exact(V::LANES)) {
                // SAFETY: the piece has `LANES` values.
                unsafe { merged(w, acc.as_ptr(), V::load(w, right_acc), Some((left[0], right[0]))) }
                    .store(acc);
            }
        }
    }
}

/// Writes acc / sum of each query to its place.
fn divide(tier: Tier, queries: &Queries<'_>, totals: &mut [f32], first_row: usize, out: &mut Columns<'_>) {
    let totals = PartialsMut::new(queries, totals);
    run(tier_for(tier, queries), Divide { queries, totals, first_row, out });
}

struct Divide<'a, 'out> {
    queries: &'a Queries<'a>,
    totals: PartialsMut<'a>,
    first_row: usize,
    out: &'a mut Columns<'out>,
}

impl Kernel for Divide<'_, '_> {
    type Output = ();

    fn plain(self) {
        for i in 0..self.queries.count() {
            let out =
                self.out.row_mut(self.first_row + i / self.queries.group, self.queries.output_columns(i));
            self.totals.get(i, self.queries.value_width).finish(out);
        }
    }

    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) {
        let width = self.queries.value_width;
        for i in 0..self.queries.count() {
            let out =
                self.out.row_mut(self.first_row + i / self.queries.group, self.queries.output_columns(i));
            let sum = V::splat(w, self.totals.sum[i]);
            let acc = self.totals.acc[i * width..][..width].chunks_exact(V::LANES);
            for (acc, out) in acc.zip(out.chunks_exact_mut(V::LANES)) {
                V::load(w, acc).div(sum).store(out);
            }
        }
    }
}
