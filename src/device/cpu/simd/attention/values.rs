//! Weighted sums of a tile's values, merged into what lies left of the tile.
//!
//! Invariants: `acc[d]` is a chain of fma over the tile's keys in rising order; the merge is
//! `fma(acc, right, before * left)`, the first tile is taken as it is. Does not know: pages, scores.

#![allow(unsafe_code, reason = "loads at computed places inside checked pages and scratch")]
#![allow(clippy::inline_always, reason = "kernels must end up inside the functions compiled for the tier")]
#![allow(
    clippy::needless_range_loop,
    reason = "index loops over registers unroll; iterators go through memory"
)]

use super::super::stored::Stored;
use super::super::vector::Vector;
use crate::model::facts::PAGE_POSITIONS;

/// Factors of a merge, `(left, right)`; `None` where there is nothing on the left.
pub(super) type Factors = Option<(f32, f32)>;

/// `R` neighbouring queries that read the same keys of a tile.
pub(super) struct Weighted<V: Vector, const R: usize> {
    pub w: V::Witness,
    /// p of the first query's keys; the next query's follow 64 later.
    pub weights: *const f32,
    /// Keys that they read.
    pub count: usize,
    /// The page's values in stored form, `width` a row.
    pub values: *const u8,
    pub width: usize,
    /// The first query's sums; the next query's follow `width` later.
    pub acc: *mut f32,
}

impl<V: Vector, const R: usize> Weighted<V, R> {
    /// Adds the tile to `acc`.
    ///
    /// # Safety
    /// All places named by the fields exist, for `R` queries; `width` is a multiple of `LANES`; nobody else uses `acc`.
    #[inline(always)]
    pub(super) unsafe fn add<S: Stored>(&self, factors: [Factors; R]) {
        let mut d = 0;
        // SAFETY: as for this function.
        unsafe {
            while d + 4 * V::LANES <= self.width {
                self.part::<S, 4>(d, &factors);
                d += 4 * V::LANES;
            }
            match (self.width - d) / V::LANES {
                1 => self.part::<S, 1>(d, &factors),
                2 => self.part::<S, 2>(d, &factors),
                3 => self.part::<S, 3>(d, &factors),
                _ => {}
            }
        }
    }

    /// Columns `d .. d + C * LANES`.
    #[inline(always)]
    unsafe fn part<S: Stored, const C: usize>(&self, d: usize, factors: &[Factors; R]) {
        let mut sums = [[V::splat(self.w, 0.0); C]; R];
        for key in 0..self.count {
            // SAFETY: as for `add`: key `key` has values d .. d + C * LANES, and each query has its weight.
            unsafe {
                let start = key * self.width + d;
                let mut values = [V::splat(self.w, 0.0); C];
                for c in 0..C {
                    values[c] = S::load::<V>(self.w, self.values, start + c * V::LANES);
                }
                for r in 0..R {
                    let p = V::splat(self.w, *self.weights.add(r * PAGE_POSITIONS + key));
                    for c in 0..C {
                        sums[r][c] = p.fma(values[c], sums[r][c]);
                    }
                }
            }
        }
        for r in 0..R {
            for c in 0..C {
                // SAFETY: as for `add`: each query has its sums.
                unsafe {
                    let place = self.acc.add(r * self.width + d + c * V::LANES);
                    merged(self.w, place, sums[r][c], factors[r]).store_at(place);
                }
            }
        }
    }
}

/// What `before` becomes when `right` is merged behind it.
///
/// # Safety
/// `before` is valid for reading a vector.
#[inline(always)]
pub(super) unsafe fn merged<V: Vector>(w: V::Witness, before: *const f32, right: V, factors: Factors) -> V {
    match factors {
        None => right,
        Some((left_factor, right_factor)) => {
            // SAFETY: as for this function.
            let left = unsafe { V::load_at(w, before) };
            right.fma(V::splat(w, right_factor), left.mul(V::splat(w, left_factor)))
        }
    }
}

/// Reads a page's values once for many queries.
///
/// # Safety
/// Both hold `count` values, a multiple of `LANES`.
#[inline(always)]
pub(super) unsafe fn expand<V: Vector, S: Stored>(
    w: V::Witness,
    values: *const u8,
    count: usize,
    out: *mut f32,
) {
    for i in (0..count).step_by(V::LANES) {
        // SAFETY: as for this function.
        unsafe { S::load::<V>(w, values, i).store_at(out.add(i)) };
    }
}
