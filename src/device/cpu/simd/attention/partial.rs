//! What queries have summed so far, merging it span by span, and the division at the end.
//!
//! Invariants: the left part is merged first; factors are exponentials of differences of largest scores. Queries that
//! read nothing of a span are left alone. Does not know: keys, values. Source: `docs/numerics.md`, Attention.

#![allow(unsafe_code, reason = "hands a checked piece to a kernel by address")]
#![allow(clippy::inline_always, reason = "kernels must end up inside the functions compiled for the tier")]

use std::ops::Range;

use super::super::functions::exp_v;
use super::super::tier::Tier;
use super::super::vector::{Kernel, Vector, run};
use super::values::merged;
use super::{Queries, partial_values, tier_for};
use crate::device::cpu::columns::Columns;
use crate::device::cpu::plain::attention as plain;
use crate::device::cpu::plain::attention::{Partial, SPAN_TILES};
use crate::model::facts::PAGE_POSITIONS;

/// Sums of some queries over some keys, before the division.
pub(super) struct PartialsMut<'a> {
    pub max: &'a mut [f32],
    pub sum: &'a mut [f32],
    pub acc: &'a mut [f32],
}

impl<'a> PartialsMut<'a> {
    pub(super) fn new(queries: &Queries<'_>, values: &'a mut [f32]) -> PartialsMut<'a> {
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

    pub(super) fn set(&mut self, i: usize, partial: &Partial) {
        (self.max[i], self.sum[i]) = (partial.max, partial.sum);
        self.acc[i * partial.acc.len()..][..partial.acc.len()].copy_from_slice(&partial.acc);
    }
}

/// Merges `tile` (largest scores, sums) behind `before`, and writes the factors of both sides.
#[inline(always)]
pub(super) fn merge_sums<V: Vector>(
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
pub(super) fn merge_span(
    tier: Tier,
    queries: &Queries<'_>,
    span: usize,
    totals: &mut [f32],
    spans: &mut [f32],
) {
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
pub(super) fn divide(
    tier: Tier,
    queries: &Queries<'_>,
    totals: &mut [f32],
    first_row: usize,
    out: &mut Columns<'_>,
) {
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
