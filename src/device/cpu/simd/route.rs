//! The router's choice: softmax over all experts, the best of them in rank order, and their weights.
//!
//! Invariants: exact maximum; the sum has the order of `lanes(32)` for at most 256 experts, else `lanes(256)`; equal
//! probabilities rank by the lower index. Does not know: experts' products. Source: `docs/numerics.md`, Router.

use super::functions::exp_nonpositive_v;
use super::norm::lanes_sum;
use super::tier::Tier;
use super::vector::{Kernel, Vector, run};
use crate::device::cpu::plain::route as plain;

/// Replaces logits by probabilities.
pub fn softmax(tier: Tier, row: &mut [f32]) {
    run(tier, Softmax { row });
}

struct Softmax<'a> {
    row: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    fn plain(self) {
        plain::softmax(self.row);
    }

    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) {
        let lowest = V::splat(w, f32::NEG_INFINITY);
        let mut max = lowest;
        for part in self.row.chunks(V::LANES) {
            max = V::load_first(w, part).first(part.len(), lowest).max(max);
        }
        let max = V::splat(w, max.largest());
        for part in self.row.chunks_mut(V::LANES) {
            exp_nonpositive_v(w, V::load_first(w, part).sub(max)).store_first(part);
        }
        // No exponential is -0: a lane without an element may take +0.
        let sum = V::splat(w, lanes_sum::<V>(w, self.row, |x, acc| acc.add(x)));
        for part in self.row.chunks_mut(V::LANES) {
            V::load_first(w, part).div(sum).store_first(part);
        }
    }
}

/// Writes the best experts by (probability descending, index ascending) and their probabilities: as many as `ids` has
/// places. `logits` become probabilities.
///
/// # Panics
/// If there are fewer logits than places, or not one weight for each id.
pub fn choose(tier: Tier, logits: &mut [f32], ids: &mut [u32], weights: &mut [f32]) {
    assert!(ids.len() <= logits.len(), "route: {} of {} experts", ids.len(), logits.len());
    assert_eq!(ids.len(), weights.len(), "route: a weight for each expert");
    softmax(tier, logits);
    let mut found = 0;
    for (id, &p) in (0..).zip(logits.iter()) {
        // Behind everything that is as large: equal probabilities keep their rising index.
        let mut place = found;
        while place > 0 && p.total_cmp(&weights[place - 1]).is_gt() {
            place -= 1;
        }
        if place == ids.len() {
            continue;
        }
        found = (found + 1).min(ids.len());
        ids[place..found].rotate_right(1);
        weights[place..found].rotate_right(1);
        (ids[place], weights[place]) = (id, p);
    }
}

/// The same with the weights divided by max(their sum in rank order, 2^-14).
pub fn choose_normalised(tier: Tier, logits: &mut [f32], ids: &mut [u32], weights: &mut [f32]) {
    choose(tier, logits, ids, weights);
    plain::normalise(weights);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::simd::samples::{assert_bits, small_values};

    #[test]
    fn every_tier_chooses_as_the_plain_router() {
        for (experts, used) in
            [(1, 1), (7, 2), (16, 4), (31, 3), (60, 4), (128, 8), (256, 8), (257, 6), (512, 10)]
        {
            for seed in 0..20 {
                let mut logits = small_values(seed, experts);
                if seed % 3 == 0 {
                    // Many equal probabilities.
                    logits.iter_mut().for_each(|l| *l = l.round());
                }
                let mut want = plain::choose(&logits, used);
                for tier in Tier::available() {
                    let what = format!("{used} of {experts}, seed {seed} by {}", tier.name());
                    let (mut ids, mut weights) = (vec![u32::MAX; used], vec![f32::NAN; used]);
                    choose(tier, &mut logits.clone(), &mut ids, &mut weights);
                    assert!(
                        ids.iter().map(|&id| id as usize).eq(want.ids.iter().copied()),
                        "{what}: {ids:?}"
                    );
                    assert_bits(&weights, &want.weights, &what);
                }
                plain::normalise(&mut want.weights);
                for tier in Tier::available() {
                    let (mut ids, mut weights) = (vec![u32::MAX; used], vec![f32::NAN; used]);
                    choose_normalised(tier, &mut logits.clone(), &mut ids, &mut weights);
                    assert_bits(&weights, &want.weights, &format!("{used} of {experts}, seed {seed}"));
                }
            }
        }
    }
}
