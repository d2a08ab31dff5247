//! Products of queries with the keys of a page, and the exponentials of a tile.
//!
//! Two ways with the same bits. For few queries, a key's values lie in the lanes (`lanes(32)` is two or four vectors)
//! and the last steps of the halving tree join the sums of several keys. For many, a page's keys are transposed once,
//! a key is a lane, and the 32 partial sums of a product are registers that the tree joins as they are made.
//!
//! Invariant: score = halving tree of 32 fma chains over the head. Does not know: pages, spans.
//! Source: `docs/numerics.md`, Attention.

#![allow(unsafe_code, reason = "loads at computed places inside checked pages and scratch")]
#![allow(clippy::inline_always, reason = "kernels must end up inside the functions compiled for the tier")]
#![allow(
    clippy::needless_range_loop,
    reason = "index loops over registers unroll; iterators go through memory"
)]

use super::super::functions::exp_nonpositive_v;
use super::super::stored::Stored;
use super::super::vector::{SUM_LANES, Vector};
use crate::model::facts::PAGE_POSITIONS;

/// The lanes of one product's sums after the first steps of the tree: one vector a query.
type Sums<V, const R: usize> = [V; R];

/// `R` queries beside the keys of a page in their stored form.
pub(super) struct KeyRows<V: Vector, const R: usize> {
    pub w: V::Witness,
    pub queries: [*const f32; R],
    pub keys: *const u8,
    pub width: usize,
}

impl<V: Vector, const R: usize> KeyRows<V, R> {
    /// The products with keys `first .. first + LANES`, a key a lane.
    ///
    /// # Safety
    /// Queries have `width` values, a multiple of `LANES`; the page has these keys.
    #[inline(always)]
    pub(super) unsafe fn products<S: Stored>(&self, first: usize) -> Sums<V, R> {
        // A loop, not sixteen copies of a key's code: the four results go through memory.
        let mut quarters = [[V::splat(self.w, 0.0); R]; 4];
        for (i, quarter) in quarters.iter_mut().enumerate() {
            // SAFETY: as for this function.
            *quarter = unsafe { self.quarter::<S>(first + i) };
        }
        let [a, b, c, d] = quarters;
        join::<V, R, 1>(join::<V, R, 2>(a, c), join::<V, R, 2>(b, d))
    }

    /// Keys key, key + 4, ... of a vector's number of keys.
    #[inline(always)]
    unsafe fn quarter<S: Stored>(&self, key: usize) -> Sums<V, R> {
        // As many keys at once as the registers hold sums of: each query's values are loaded once for all of them.
        // SAFETY: as for `products`.
        unsafe {
            if V::LANES == 8 {
                let [a, b] = self.some::<S, 2>([key, key + 4]);
                join::<V, R, 4>(a, b)
            } else if R <= 2 {
                let [a, b, c, d] = self.some::<S, 4>([key, key + 4, key + 8, key + 12]);
                join::<V, R, 4>(join::<V, R, 8>(a, c), join::<V, R, 8>(b, d))
            } else {
                let [a, c] = self.some::<S, 2>([key, key + 8]);
                let [b, d] = self.some::<S, 2>([key + 4, key + 12]);
                join::<V, R, 4>(join::<V, R, 8>(a, c), join::<V, R, 8>(b, d))
            }
        }
    }

    /// Some keys: 32 chains each, folded to the lanes of one vector.
    #[inline(always)]
    unsafe fn some<S: Stored, const N: usize>(&self, keys: [usize; N]) -> [Sums<V, R>; N] {
        // SAFETY: as for `products`.
        unsafe {
            let mut folded = self.fold::<S, N>(keys, 0);
            if V::PARTS == 4 {
                let odd = self.fold::<S, N>(keys, V::LANES);
                for n in 0..N {
                    for r in 0..R {
                        folded[n][r] = folded[n][r].add(odd[n][r]);
                    }
                }
            }
            folded
        }
    }

    /// Lanes `first .. first + LANES` of the 32, plus those 16 higher.
    #[inline(always)]
    unsafe fn fold<S: Stored, const N: usize>(&self, keys: [usize; N], first: usize) -> [Sums<V, R>; N] {
        let zero = V::splat(self.w, 0.0);
        let (mut low, mut high) = ([[zero; R]; N], [[zero; R]; N]);
        let mut d = first;
        // SAFETY: as for `products`: the values d .. d + LANES of keys and queries exist.
        unsafe {
            while d + SUM_LANES / 2 < self.width {
                self.step::<S, N>(keys, d, &mut low);
                self.step::<S, N>(keys, d + SUM_LANES / 2, &mut high);
                d += SUM_LANES;
            }
            if d < self.width {
                self.step::<S, N>(keys, d, &mut low);
            }
        }
        for n in 0..N {
            for r in 0..R {
                low[n][r] = low[n][r].add(high[n][r]);
            }
        }
        low
    }

    /// One fma of `LANES` chains of each key and query.
    #[inline(always)]
    unsafe fn step<S: Stored, const N: usize>(&self, keys: [usize; N], d: usize, sums: &mut [[V; R]; N]) {
        let mut values = [V::splat(self.w, 0.0); N];
        // SAFETY: as for `fold`.
        unsafe {
            for n in 0..N {
                values[n] = S::load::<V>(self.w, self.keys, keys[n] * self.width + d);
            }
            for r in 0..R {
                let query = V::load_at(self.w, self.queries[r].add(d));
                for n in 0..N {
                    sums[n][r] = values[n].fma(query, sums[n][r]);
                }
            }
        }
    }
}

/// One step of the halving trees of two groups of keys: lanes `STEP` apart are added; where that bit of a lane's number
/// is clear it goes on for `a`, else for `b`.
#[inline(always)]
fn join<V: Vector, const R: usize, const STEP: usize>(a: Sums<V, R>, b: Sums<V, R>) -> Sums<V, R> {
    let mut sums = a;
    for r in 0..R {
        let (clear, set) = V::exchange::<STEP>(a[r], b[r]);
        sums[r] = clear.add(set);
    }
    sums
}

/// `R` queries beside transposed keys: `columns[d][key]`, 64 keys a row.
pub(super) struct KeyColumns<V: Vector, const R: usize> {
    pub w: V::Witness,
    pub queries: [*const f32; R],
    pub columns: *const f32,
    pub width: usize,
}

/// Vectors of keys that are computed together.
pub(super) const COLUMN_VECTORS: usize = 2;

type Tile<V, const R: usize> = [[V; COLUMN_VECTORS]; R];

impl<V: Vector, const R: usize> KeyColumns<V, R> {
    /// The products with keys `first .. first + COLUMN_VECTORS * LANES`, a key a lane.
    ///
    /// # Safety
    /// Queries and columns have `width` values, at least 32; the page has these keys.
    #[inline(always)]
    pub(super) unsafe fn products(&self, first: usize) -> Tile<V, R> {
        // A loop, not 32 copies of a chain's code: the four results go through memory.
        let mut quarters = [[[V::splat(self.w, 0.0); COLUMN_VECTORS]; R]; 4];
        for (l, quarter) in quarters.iter_mut().enumerate() {
            // SAFETY: as for this function, down to `chain`.
            *quarter = unsafe { self.tree_4(self.columns.add(first), l) };
        }
        let [a, b, c, d] = quarters;
        Self::add(Self::add(a, c), Self::add(b, d))
    }

    #[inline(always)]
    unsafe fn tree_4(&self, columns: *const f32, l: usize) -> Tile<V, R> {
        // SAFETY: as for `products`.
        unsafe { Self::add(self.tree_8(columns, l), self.tree_8(columns, l + 4)) }
    }

    #[inline(always)]
    unsafe fn tree_8(&self, columns: *const f32, l: usize) -> Tile<V, R> {
        // SAFETY: as for `products`.
        unsafe { Self::add(self.tree_16(columns, l), self.tree_16(columns, l + 8)) }
    }

    #[inline(always)]
    unsafe fn tree_16(&self, columns: *const f32, l: usize) -> Tile<V, R> {
        // SAFETY: as for `products`.
        unsafe { Self::add(self.chain(columns, l), self.chain(columns, l + 16)) }
    }

    /// Partial sum l: elements l, l + 32, ... by fma.
    #[inline(always)]
    unsafe fn chain(&self, columns: *const f32, l: usize) -> Tile<V, R> {
        let mut sums = [[V::splat(self.w, 0.0); COLUMN_VECTORS]; R];
        let mut d = l;
        while d < self.width {
            // SAFETY: as for `products`: value d of the keys and of the queries exists.
            unsafe {
                let row = columns.add(d * PAGE_POSITIONS);
                for r in 0..R {
                    let value = V::splat(self.w, *self.queries[r].add(d));
                    for c in 0..COLUMN_VECTORS {
                        sums[r][c] = value.fma(V::load_at(self.w, row.add(c * V::LANES)), sums[r][c]);
                    }
                }
            }
            d += SUM_LANES;
        }
        sums
    }

    #[inline(always)]
    fn add(a: Tile<V, R>, b: Tile<V, R>) -> Tile<V, R> {
        let mut sums = a;
        for r in 0..R {
            for c in 0..COLUMN_VECTORS {
                sums[r][c] = a[r][c].add(b[r][c]);
            }
        }
        sums
    }
}

/// Writes a page's keys to `columns[d][key]`.
///
/// # Safety
/// The page has 64 keys of `width` values, a multiple of `LANES`; `columns` has as many values.
#[inline(always)]
pub(super) unsafe fn transpose<V: Vector, S: Stored>(
    w: V::Witness,
    keys: *const u8,
    width: usize,
    columns: *mut f32,
) {
    for first in (0..PAGE_POSITIONS).step_by(V::LANES) {
        for d in (0..width).step_by(V::LANES) {
            let mut square = [V::splat(w, 0.0); 16];
            for key in 0..V::LANES {
                // SAFETY: as for this function.
                square[key] = unsafe { S::load::<V>(w, keys, (first + key) * width + d) };
            }
            if V::LANES == 16 {
                exchange_rows::<V, 8>(&mut square);
            }
            exchange_rows::<V, 4>(&mut square);
            exchange_rows::<V, 2>(&mut square);
            exchange_rows::<V, 1>(&mut square);
            for i in 0..V::LANES {
                // SAFETY: as for this function: row d + i of the columns has keys first .. first + LANES.
                unsafe { square[i].store_at(columns.add((d + i) * PAGE_POSITIONS + first)) };
            }
        }
    }
}

#[inline(always)]
fn exchange_rows<V: Vector, const STEP: usize>(square: &mut [V; 16]) {
    for i in 0..V::LANES {
        if i & STEP == 0 {
            (square[i], square[i + STEP]) = V::exchange::<STEP>(square[i], square[i + STEP]);
        }
    }
}

/// Turns the first `count` scores of a tile into p = exp(score - max), in place; returns (max, sum). Places behind
/// `count` hold any values and are left with +0 or as they were.
#[inline(always)]
pub(super) fn exponentials<V: Vector>(
    w: V::Witness,
    scores: &mut [f32; PAGE_POSITIONS],
    count: usize,
) -> (f32, f32) {
    let lowest = V::splat(w, f32::NEG_INFINITY);
    let mut max = lowest;
    let vectors = count.div_ceil(V::LANES);
    for (j, part) in scores.chunks_exact(V::LANES).enumerate().take(vectors) {
        max = V::load(w, part).first(count - j * V::LANES, lowest).max(max);
    }
    let largest = max.largest();
    let max = V::splat(w, largest);
    // exp(-inf) is +0, which leaves a lane's sum as it is: absent keys take no part.
    let mut lanes = [V::splat(w, 0.0); 4];
    for (j, part) in scores.chunks_exact_mut(V::LANES).enumerate().take(vectors) {
        let score = V::load(w, part).first(count - j * V::LANES, lowest);
        let p = exp_nonpositive_v(w, score.sub(max));
        p.store(part);
        let lane = &mut lanes[j % V::PARTS];
        *lane = lane.add(p);
    }
    let [a, b, c, d] = lanes;
    let sum = if V::PARTS == 2 { a.add(b) } else { a.add(c).add(b.add(d)) };
    (largest, sum.tree())
}
