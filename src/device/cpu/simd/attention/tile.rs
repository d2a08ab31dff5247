//! A tile's work in parts, each compiled once for a stored form and a tier: keys to columns, scores, values.
//!
//! Invariants: a part touches the queries that read any key of the tile, and of the keys those that each reads.
//! Does not know: pages, spans. Source: `docs/numerics.md`, Attention.

#![allow(unsafe_code, reason = "hands checked pages and scratch to kernels by address")]
#![allow(clippy::inline_always, reason = "kernels must end up inside the functions compiled for the tier")]
#![allow(
    clippy::needless_range_loop,
    reason = "index loops over registers unroll; iterators go through memory"
)]

use std::marker::PhantomData;
use std::ops::Range;

use super::super::stored::Stored;
use super::super::vector::{Kernel, Vector};
use super::Queries;
use super::partial::{PartialsMut, merge_sums};
use super::scores;
use super::scores::{COLUMN_VECTORS, KeyColumns, KeyRows};
use super::values::{Factors, Weighted, expand};
use crate::model::facts::PAGE_POSITIONS;

/// 64 rows of a page in stored form.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, S> {
    bytes: &'a [u8],
    form: PhantomData<S>,
}

impl<'a, S> Rows<'a, S> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Rows { bytes, form: PhantomData }
    }
}

/// A part of a tile's work, for vectors only: the plain tier computes whole spans another way.
pub(super) trait Part {
    fn vectors<V: Vector>(self, w: V::Witness);
}

pub(super) struct OnVectors<P>(pub P);

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
pub(super) struct Tile<'a> {
    pub queries: &'a Queries<'a>,
    /// Position of its first key.
    pub first_key: usize,
    /// Whether it is the first of its span.
    pub first: bool,
    pub readers: Range<usize>,
    /// For each query the scores, then p.
    pub weights: &'a mut [[f32; PAGE_POSITIONS]],
    pub max: &'a mut [f32],
    pub sum: &'a mut [f32],
    /// Factors of the merge.
    pub left: &'a mut [f32],
    pub right: &'a mut [f32],
    pub partial: PartialsMut<'a>,
}

impl Tile<'_> {
    /// Floats for each query in `max`, `sum`, `left` and `right`.
    pub(super) const STATS: usize = 4;

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
pub(super) struct Expand<'a, S> {
    pub keys: Rows<'a, S>,
    pub values: Rows<'a, S>,
    pub columns: &'a mut [f32],
    pub expanded: &'a mut [f32],
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

pub(super) struct ScoresByRows<'a, 't, S> {
    pub tile: &'a mut Tile<'t>,
    pub keys: Rows<'a, S>,
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

pub(super) struct ScoresByColumns<'a, 't> {
    pub tile: &'a mut Tile<'t>,
    pub columns: &'a [f32],
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

pub(super) struct AddValues<'a, 't, S> {
    pub tile: &'a mut Tile<'t>,
    pub values: Rows<'a, S>,
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
