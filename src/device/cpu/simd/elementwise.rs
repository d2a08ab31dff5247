//! Ops without sums over a row: residual adds, SwiGLU, companion scale and bias, and the experts' rank-order sum.
//!
//! Invariants: one rounding for each step that `docs/numerics.md` names (no add is fused into a product unless the
//! step is an fma); every tier gives the same bits. Does not know: rows, batches.

use super::functions::silu_v;
use super::tier::Tier;
use super::vector::{Kernel, Vector, run};
use crate::device::cpu::plain;

/// What happens to each value of `out`, with the values of `x` beside it.
trait Step: Copy {
    fn plain(self, out: f32, x: f32) -> f32;
    fn vector<V: Vector>(self, w: V::Witness, out: V, x: V) -> V;
}

/// `out + x`.
#[derive(Clone, Copy)]
struct Add;

impl Step for Add {
    fn plain(self, out: f32, x: f32) -> f32 {
        out + x
    }
    #[inline(always)]
    fn vector<V: Vector>(self, _: V::Witness, out: V, x: V) -> V {
        out.add(x)
    }
}

/// `silu(out) * x`.
#[derive(Clone, Copy)]
struct SwiGlu;

impl Step for SwiGlu {
    fn plain(self, out: f32, x: f32) -> f32 {
        plain::functions::swiglu(out, x)
    }
    #[inline(always)]
    fn vector<V: Vector>(self, w: V::Witness, out: V, x: V) -> V {
        silu_v(w, out).mul(x)
    }
}

/// `fma(factor, x, out)`.
#[derive(Clone, Copy)]
struct Accumulate(f32);

impl Step for Accumulate {
    fn plain(self, out: f32, x: f32) -> f32 {
        self.0.mul_add(x, out)
    }
    #[inline(always)]
    fn vector<V: Vector>(self, w: V::Witness, out: V, x: V) -> V {
        V::splat(w, self.0).fma(x, out)
    }
}

/// `out + factor * x`, the product rounded.
#[derive(Clone, Copy)]
struct AddScaled(f32);

impl Step for AddScaled {
    fn plain(self, out: f32, x: f32) -> f32 {
        out + self.0 * x
    }
    #[inline(always)]
    fn vector<V: Vector>(self, w: V::Witness, out: V, x: V) -> V {
        out.add(V::splat(w, self.0).mul(x))
    }
}

/// `out` taken from `from`, or where there is none from itself, through a step with `x`.
struct Zip<'a, S> {
    step: S,
    from: Option<&'a [f32]>,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl<S: Step> Kernel for Zip<'_, S> {
    type Output = ();

    fn plain(self) {
        for (i, (out, &x)) in self.out.iter_mut().zip(self.x).enumerate() {
            *out = self.step.plain(self.from.map_or(*out, |from| from[i]), x);
        }
    }

    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) {
        for (i, (out, x)) in self.out.chunks_mut(V::LANES).zip(self.x.chunks(V::LANES)).enumerate() {
            let from = match self.from {
                Some(from) => V::load_first(w, &from[i * V::LANES..][..out.len()]),
                None => V::load_first(w, out),
            };
            self.step.vector(w, from, V::load_first(w, x)).store_first(out);
        }
    }
}

fn zip<S: Step>(tier: Tier, step: S, from: Option<&[f32]>, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "elementwise: rows of one length");
    assert!(from.is_none_or(|from| from.len() == out.len()), "elementwise: rows of one length");
    run(tier, Zip { step, from, x, out });
}

/// `out = x + y`.
pub fn add(tier: Tier, x: &[f32], y: &[f32], out: &mut [f32]) {
    zip(tier, Add, Some(x), y, out);
}

/// `out = out + y`.
pub fn add_to(tier: Tier, out: &mut [f32], y: &[f32]) {
    zip(tier, Add, None, y, out);
}

/// `out = silu(gate) * up`.
pub fn swiglu(tier: Tier, gate: &[f32], up: &[f32], out: &mut [f32]) {
    zip(tier, SwiGlu, Some(gate), up, out);
}

/// `gate = silu(gate) * up`.
pub fn swiglu_in_place(tier: Tier, gate: &mut [f32], up: &[f32]) {
    zip(tier, SwiGlu, None, up, gate);
}

/// `acc = fma(weight, e, acc)`: one expert's part of a row.
pub fn accumulate(tier: Tier, acc: &mut [f32], weight: f32, e: &[f32]) {
    zip(tier, Accumulate(weight), None, e, acc);
}

/// From +0, the sum over the experts' rows (of `out.len()` values each) in rank order.
pub fn experts_sum(tier: Tier, weights: &[f32], rows: &[f32], out: &mut [f32]) {
    assert_eq!(rows.len(), weights.len() * out.len(), "experts_sum: a row for each weight");
    out.fill(0.0);
    for (&weight, row) in weights.iter().zip(rows.chunks_exact(out.len())) {
        accumulate(tier, out, weight, row);
    }
}

/// Adds the shared expert's row, times `sigmoid(gate)` (rounded) where it has a gate.
pub fn add_shared(tier: Tier, out: &mut [f32], shared: &[f32], gate: Option<f32>) {
    match gate.map(plain::functions::sigmoid) {
        Some(factor) => zip(tier, AddScaled(factor), None, shared, out),
        None => add_to(tier, out, shared),
    }
}

/// What follows a product: times the companion scale, then plus the bias, each where there is one.
pub fn scale_and_bias(tier: Tier, x: &mut [f32], scale: Option<f32>, bias: Option<&[f32]>) {
    if let Some(scale) = scale {
        run(tier, Scale { scale, x });
    }
    if let Some(bias) = bias {
        add_to(tier, x, bias);
    }
}

struct Scale<'a> {
    scale: f32,
    x: &'a mut [f32],
}

impl Kernel for Scale<'_> {
    type Output = ();

    fn plain(self) {
        for x in self.x {
            *x *= self.scale;
        }
    }

    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) {
        for x in self.x.chunks_mut(V::LANES) {
            V::load_first(w, x).mul(V::splat(w, self.scale)).store_first(x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::simd::samples::{assert_bits, values};

    /// Runs `op` in every tier over rows of every remainder; it gets two rows and replaces the first.
    fn check(name: &str, op: impl Fn(Tier, &mut [f32], &[f32]), plain: impl Fn(f32, f32) -> f32) {
        for tier in Tier::available() {
            for n in (0..70).chain([576, 1024]) {
                let (a, b) = (values(1, n), values(2, n));
                let want: Vec<f32> = a.iter().zip(&b).map(|(&a, &b)| plain(a, b)).collect();
                let mut got = a.clone();
                op(tier, &mut got, &b);
                assert_bits(&got, &want, &format!("{name}, {n} values by {}", tier.name()));
            }
        }
    }

    #[test]
    fn adds_are_plain_adds() {
        check("add_to", add_to, |a, b| a + b);
        check(
            "add",
            |t, a, b| {
                let x = a.to_vec();
                add(t, &x, b, a)
            },
            |a, b| a + b,
        );
    }

    #[test]
    fn swiglu_is_silu_times_up() {
        let plain = plain::functions::swiglu;
        check("swiglu_in_place", swiglu_in_place, plain);
        check(
            "swiglu",
            |t, a, b| {
                let x = a.to_vec();
                swiglu(t, &x, b, a)
            },
            plain,
        );
    }

    #[test]
    fn the_experts_part_is_one_fma() {
        check("accumulate", |t, a, b| accumulate(t, a, 0.3, b), |a, b| 0.3f32.mul_add(b, a));
    }

    #[test]
    fn the_shared_expert_is_added_after_its_rounded_factor() {
        let factor = plain::functions::sigmoid(0.7);
        check("with a gate", |t, a, b| add_shared(t, a, b, Some(0.7)), |a, b| a + factor * b);
        check("without", |t, a, b| add_shared(t, a, b, None), |a, b| a + b);
    }

    #[test]
    fn scale_comes_before_bias() {
        check("both", |t, a, b| scale_and_bias(t, a, Some(1.1), Some(b)), |a, b| a * 1.1 + b);
        check("scale", |t, a, _| scale_and_bias(t, a, Some(1.1), None), |a, _| a * 1.1);
        check("bias", |t, a, b| scale_and_bias(t, a, None, Some(b)), |a, b| a + b);
    }

    #[test]
    fn experts_are_summed_in_rank_order() {
        for tier in Tier::available() {
            for n in [1, 15, 16, 17, 96, 130] {
                let (weights, rows) = ([0.5, 0.3, 0.15, 0.05], values(3, 4 * n));
                let (mut got, mut want) = (vec![f32::NAN; n], vec![f32::NAN; n]);
                plain::experts::experts_sum(&weights, &rows, &mut want);
                experts_sum(tier, &weights, &rows, &mut got);
                assert_bits(&got, &want, &format!("{n} values by {}", tier.name()));
            }
        }
    }
}
