//! RMS norm of rows and heads, and rope on heads.
//!
//! Invariants: the sum of squares is `lanes(256)` for pieces of more than 256 values, else `lanes(32)`; the
//! reciprocal root is made once a piece; rope rounds each product, then adds once. Every tier gives the same bits.
//! Does not know: batches, models. Source: `docs/numerics.md`, Norms.

#![allow(
    clippy::needless_range_loop,
    reason = "index loops over registers unroll; iterators go through memory"
)]

use super::tier::Tier;
use super::vector::{Kernel, SUM_LANES, Vector, run};
use crate::device::cpu::plain;
use crate::device::cpu::plain::reduce::LONG_LANES;
use crate::model::program::RopePairing;

/// RMS norm of each piece of `piece_values` values: `out = (x * (1 / sqrt(mean(x^2) + eps))) * weight`. The weight
/// has the values of one piece, shared by all, or as many as `x`.
pub fn rms_norm(tier: Tier, x: &[f32], piece_values: usize, weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "rms_norm: rows of one length");
    run(tier, RmsNorm::new(Some(x), piece_values, weight, eps, out));
}

/// The same in place.
pub fn rms_norm_in_place(tier: Tier, x: &mut [f32], piece_values: usize, weight: &[f32], eps: f32) {
    run(tier, RmsNorm::new(None, piece_values, weight, eps, x));
}

struct RmsNorm<'a> {
    /// `None`: `out` itself.
    x: Option<&'a [f32]>,
    piece_values: usize,
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl<'a> RmsNorm<'a> {
    fn new(
        x: Option<&'a [f32]>,
        piece_values: usize,
        weight: &'a [f32],
        eps: f32,
        out: &'a mut [f32],
    ) -> Self {
        assert!(piece_values > 0 && out.len().is_multiple_of(piece_values), "rms_norm: whole pieces");
        assert!(
            weight.len() == piece_values || weight.len() == out.len(),
            "rms_norm: {} weights for pieces of {piece_values} of {} values",
            weight.len(),
            out.len()
        );
        RmsNorm { x, piece_values, weight, eps, out }
    }
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    fn plain(self) {
        let mut weights = self.weight.chunks_exact(self.piece_values).cycle();
        for (i, out) in self.out.chunks_exact_mut(self.piece_values).enumerate() {
            let x = match self.x {
                Some(x) => x[i * self.piece_values..][..self.piece_values].to_vec(),
                None => out.to_vec(),
            };
            plain::norm::rms_norm(&x, weights.next(), self.eps, out);
        }
    }

    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) {
        let n = self.piece_values;
        for (i, out) in self.out.chunks_exact_mut(n).enumerate() {
            let x = self.x.map(|x| &x[i * n..][..n]);
            let weight = if self.weight.len() == n { self.weight } else { &self.weight[i * n..][..n] };
            let sum = sum_of_squares::<V>(w, x.unwrap_or(out));
            let root = V::splat(w, 1.0 / (sum / n as f32 + self.eps).sqrt());
            for (j, (out, weight)) in out.chunks_mut(V::LANES).zip(weight.chunks(V::LANES)).enumerate() {
                let x = match x {
                    Some(x) => V::load_first(w, &x[j * V::LANES..][..out.len()]),
                    None => V::load_first(w, out),
                };
                x.mul(root).mul(V::load_first(w, weight)).store_first(out);
            }
        }
    }
}

/// Squares are never -0, so a lane without an element may take +0 * +0 with an unchanged sum.
#[inline(always)]
fn sum_of_squares<V: Vector>(w: V::Witness, x: &[f32]) -> f32 {
    lanes_sum::<V>(w, x, |x, acc| x.fma(x, acc))
}

/// `lanes(256)` for more than 256 values, else `lanes(32)`, of `step(values, lane sums)`. A step with +0 must leave
/// sums as they are.
#[inline(always)]
pub(super) fn lanes_sum<V: Vector>(w: V::Witness, x: &[f32], step: impl Fn(V, V) -> V + Copy) -> f32 {
    if x.len() > LONG_LANES {
        // Eight vectors of sums at a time stay in registers, in AVX2's sixteen too.
        tree_of::<V, LONG_LANES, 8>(w, x, step)
    } else if V::LANES == 16 {
        tree_of::<V, SUM_LANES, 2>(w, x, step)
    } else {
        tree_of::<V, SUM_LANES, 4>(w, x, step)
    }
}

/// `lanes(N)`, `B` vectors of lanes at a time.
#[inline(always)]
fn tree_of<V: Vector, const N: usize, const B: usize>(
    w: V::Witness,
    x: &[f32],
    step: impl Fn(V, V) -> V + Copy,
) -> f32 {
    let mut sums = [0.0; N];
    for first in (0..N).step_by(B * V::LANES) {
        let mut acc = [V::splat(w, 0.0); B];
        let mut rest = x.get(first..).unwrap_or(&[]);
        while rest.len() >= B * V::LANES {
            for j in 0..B {
                acc[j] = step(V::load(w, &rest[j * V::LANES..]), acc[j]);
            }
            rest = rest.get(N..).unwrap_or(&[]);
        }
        for (acc, values) in acc.iter_mut().zip(rest.chunks(V::LANES)) {
            *acc = step(V::load_first(w, values), *acc);
        }
        for j in 0..B {
            acc[j].store(&mut sums[first + j * V::LANES..]);
        }
    }
    let mut half = N / 2;
    while half >= V::LANES {
        let (low, high) = sums.split_at_mut(half);
        for (low, high) in low.chunks_mut(V::LANES).zip(high.chunks(V::LANES)) {
            V::load(w, low).add(V::load(w, high)).store(low);
        }
        half /= 2;
    }
    V::load(w, &sums).tree()
}

/// The longest rotated part of a head that the vector tiers take.
const ROTATED_VALUES_MAX: usize = 512;

/// Rotates the first 2 * `cos.len()` values of each head in place, all by the same angles (those of one position).
pub fn rope(
    tier: Tier,
    heads: &mut [f32],
    head_width: usize,
    cos: &[f32],
    sin: &[f32],
    pairing: RopePairing,
) {
    assert_eq!(cos.len(), sin.len(), "a sine for each cosine");
    assert!(2 * cos.len() <= head_width, "rope: {} angles for {head_width} values", cos.len());
    assert!(heads.len().is_multiple_of(head_width), "rope: whole heads");
    let tier = if 2 * cos.len() > ROTATED_VALUES_MAX { Tier::Plain } else { tier };
    run(tier, Rope { heads, head_width, cos, sin, pairing });
}

struct Rope<'a> {
    heads: &'a mut [f32],
    head_width: usize,
    cos: &'a [f32],
    sin: &'a [f32],
    pairing: RopePairing,
}

impl Kernel for Rope<'_> {
    type Output = ();

    fn plain(self) {
        for head in self.heads.chunks_exact_mut(self.head_width) {
            plain::rope::rotate(head, self.cos, self.sin, self.pairing);
        }
    }

    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) {
        match self.pairing {
            RopePairing::Halves => self.halves::<V>(w),
            RopePairing::Neighbours => self.neighbours::<V>(w),
        }
    }
}

impl Rope<'_> {
    #[inline(always)]
    fn halves<V: Vector>(self, w: V::Witness) {
        let pairs = self.cos.len();
        for head in self.heads.chunks_exact_mut(self.head_width) {
            let (first, rest) = head.split_at_mut(pairs);
            let second = &mut rest[..pairs];
            let values = first.chunks_mut(V::LANES).zip(second.chunks_mut(V::LANES));
            let angles = self.cos.chunks(V::LANES).zip(self.sin.chunks(V::LANES));
            for ((first, second), (cos, sin)) in values.zip(angles) {
                let (x0, x1) = (V::load_first(w, first), V::load_first(w, second));
                let (c, s) = (V::load_first(w, cos), V::load_first(w, sin));
                x0.mul(c).sub(x1.mul(s)).store_first(first);
                x0.mul(s).add(x1.mul(c)).store_first(second);
            }
        }
    }

    /// Angles are spread over the pairs once, the sine negated for the first of each: x0 c + x1 (-s) has the bits of
    /// x0 c - x1 s.
    #[inline(always)]
    fn neighbours<V: Vector>(self, w: V::Witness) {
        let rotated = 2 * self.cos.len();
        let (mut cos, mut sin) = ([0.0; ROTATED_VALUES_MAX], [0.0; ROTATED_VALUES_MAX]);
        for (j, (&c, &s)) in self.cos.iter().zip(self.sin).enumerate() {
            cos[2 * j..2 * j + 2].copy_from_slice(&[c, c]);
            sin[2 * j..2 * j + 2].copy_from_slice(&[-s, s]);
        }
        for head in self.heads.chunks_exact_mut(self.head_width) {
            let values = head[..rotated].chunks_mut(V::LANES);
            for (x, (c, s)) in values.zip(cos.chunks(V::LANES).zip(sin.chunks(V::LANES))) {
                let v = V::load_first(w, x);
                v.mul(V::load(w, c)).add(v.swap_pairs().mul(V::load(w, s))).store_first(x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::simd::samples::{assert_bits, values};

    #[test]
    fn norms_of_every_length_have_the_plain_bits() {
        for n in (1..70)
            .chain([80, 96, 127, 128, 129, 255, 256, 257, 300, 511, 512, 513, 576, 767, 1000, 1024, 1535])
        {
            let (x, weight) = (values(n as u32, n), values(n as u32 + 1, n));
            let mut want = vec![0.0; n];
            plain::norm::rms_norm(&x, Some(&weight), 1e-5, &mut want);
            for tier in Tier::available() {
                let mut got = vec![f32::NAN; n];
                rms_norm(tier, &x, n, &weight, 1e-5, &mut got);
                assert_bits(&got, &want, &format!("{n} values by {}", tier.name()));
                let mut got = x.clone();
                rms_norm_in_place(tier, &mut got, n, &weight, 1e-5);
                assert_bits(&got, &want, &format!("{n} values in place by {}", tier.name()));
            }
        }
    }

    #[test]
    fn pieces_share_a_weight_or_have_their_own() {
        for tier in Tier::available() {
            for (piece, pieces) in [(64, 3), (40, 2), (300, 2)] {
                let x = values(5, piece * pieces);
                for weight in [values(6, piece), values(7, piece * pieces)] {
                    let mut want = vec![0.0; x.len()];
                    for (i, out) in want.chunks_exact_mut(piece).enumerate() {
                        let weight = &weight[if weight.len() == piece { 0 } else { i * piece }..][..piece];
                        plain::norm::rms_norm(&x[i * piece..][..piece], Some(weight), 1e-6, out);
                    }
                    let mut got = vec![f32::NAN; x.len()];
                    rms_norm(tier, &x, piece, &weight, 1e-6, &mut got);
                    assert_bits(&got, &want, &format!("{pieces} of {piece} by {}", tier.name()));
                }
            }
        }
    }

    #[test]
    fn both_pairings_rotate_with_the_plain_bits() {
        for pairing in [RopePairing::Neighbours, RopePairing::Halves] {
            for (width, pairs) in
                [(2, 1), (64, 32), (64, 20), (80, 40), (96, 7), (128, 64), (33, 16), (1200, 600)]
            {
                let (x, cos, sin) = (values(8, 3 * width), values(9, pairs), values(10, pairs));
                let mut want = x.clone();
                for head in want.chunks_exact_mut(width) {
                    plain::rope::rotate(head, &cos, &sin, pairing);
                }
                for tier in Tier::available() {
                    let mut got = x.clone();
                    rope(tier, &mut got, width, &cos, &sin, pairing);
                    assert_bits(&got, &want, &format!("{pairing:?}, {pairs} of {width} by {}", tier.name()));
                }
            }
        }
    }
}
