//! `exp`, `sigmoid` and `silu` on vectors, and over slices in every tier.
//!
//! Invariant: the steps of `plain::functions`, lane by lane, so the same bits (NaN gives NaN).
//! Does not know: where the values come from. Source: `docs/numerics.md`, Functions.

use super::tier::Tier;
use super::vector::{Kernel, Vector, run};
use crate::device::cpu::plain::functions as plain;

const LOG2E: u32 = 0x3fb8aa3b;
const MAGIC: u32 = 0x4b400000;
const LN2_HIGH: u32 = 0x3f317218;
const LN2_LOW: u32 = 0xb102e308;
/// Coefficients of r^2 .. r^6 in exp(r).
const EXP: [u32; 5] = [0x3efffffe, 0x3e2aaa49, 0x3d2aac58, 0x3c091cc4, 0x3ab52646];

/// A constant by its bits.
#[inline(always)]
fn bits<V: Vector>(w: V::Witness, u: u32) -> V {
    V::splat(w, f32::from_bits(u))
}

/// `(h, r, bits of t)` of the definition's Core, without its clamps.
#[inline(always)]
fn reduced<V: Vector>(w: V::Witness, x: V) -> (V, V, V) {
    let t = x.fma(bits(w, LOG2E), bits(w, MAGIC));
    let n = t.sub(bits(w, MAGIC));
    let r = n.fnma(bits(w, LN2_LOW), n.fnma(bits(w, LN2_HIGH), x));
    let mut p = bits::<V>(w, EXP[4]);
    for c in [EXP[3], EXP[2], EXP[1], EXP[0]] {
        p = p.fma(r, bits(w, c));
    }
    (p.fma(r, V::splat(w, 1.0)), r, t)
}

/// The two factors of 2^n.
#[inline(always)]
fn factors<V: Vector>(w: V::Witness, t: V) -> (V, V) {
    let s1 = t.bits_shl_22().bits_and(bits(w, 0xff80_0000)).bits_add(bits(w, 0x3f80_0000));
    let s2 = t.bits_shl_23().bits_add(bits(w, 0x7f00_0000)).bits_sub(s1);
    (s1, s2)
}

/// e^x.
#[inline(always)]
pub(super) fn exp_v<V: Vector>(w: V::Witness, x: V) -> V {
    let x = V::splat(w, 89.0).min(V::splat(w, -112.0).max(x));
    let (h, r, t) = reduced(w, x);
    let (s1, s2) = factors(w, t);
    h.fma(r, V::splat(w, 1.0)).mul(s1).mul(s2)
}

/// e^x for x <= 0 (or NaN): 15 operations instead of 20.
#[inline(always)]
pub(super) fn exp_nonpositive_v<V: Vector>(w: V::Witness, x: V) -> V {
    let (h, r, t) = reduced(w, V::splat(w, -112.0).max(x));
    let s = t.bits_shl_23().bits_add(bits(w, 0x5f80_0000));
    h.fma(r, V::splat(w, 1.0)).mul(s).mul(bits(w, 0x1f80_0000))
}

/// `numerator / (1 + e^-x)`, the numerator 1 or x.
#[inline(always)]
fn logistic<V: Vector, const TIMES_X: bool>(w: V::Witness, x: V) -> V {
    let (one, edge) = (V::splat(w, 1.0), V::splat(w, -16.25));
    let clamped = V::splat(w, -112.0).max(x);
    let argument = x.where_less(edge, clamped, clamped.neg());
    // An argument of the tail is at least -112 already, and so is -x of every x below 89.
    let argument = V::splat(w, 89.0).min(V::splat(w, -112.0).max(argument));
    let (h, r, t) = reduced(w, argument);
    let (s1, s2) = factors(w, t);
    let numerator = if TIMES_X { clamped } else { one };
    let u = h.fma(r, one).mul(s1);
    let v = if TIMES_X { clamped.mul(u) } else { u };
    let near = v.fnma(u.mul(s2), v).mul(s2);
    let s = s1.mul(s2);
    let d = r.mul(s).fma(h, s.add(one));
    x.where_less(edge, near, numerator.div(d))
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(super) fn sigmoid_v<V: Vector>(w: V::Witness, x: V) -> V {
    logistic::<V, false>(w, x)
}

/// x / (1 + e^-x), rounded as one function.
#[inline(always)]
pub(super) fn silu_v<V: Vector>(w: V::Witness, x: V) -> V {
    logistic::<V, true>(w, x)
}

/// A function of one value.
trait Function {
    fn plain(x: f32) -> f32;
    fn vector<V: Vector>(w: V::Witness, x: V) -> V;
}

macro_rules! function {
    ($name:ident, $plain:expr, $vector:ident) => {
        struct $name;
        impl Function for $name {
            fn plain(x: f32) -> f32 {
                $plain(x)
            }
            #[inline(always)]
            fn vector<V: Vector>(w: V::Witness, x: V) -> V {
                $vector(w, x)
            }
        }
    };
}

function!(Exp, plain::exp, exp_v);
function!(ExpNonpositive, plain::exp, exp_nonpositive_v);
function!(Sigmoid, plain::sigmoid, sigmoid_v);
function!(Silu, plain::silu, silu_v);

struct Map<'a, F> {
    x: &'a mut [f32],
    function: std::marker::PhantomData<F>,
}

impl<F: Function> Kernel for Map<'_, F> {
    type Output = ();

    fn plain(self) {
        for x in self.x {
            *x = F::plain(*x);
        }
    }

    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) {
        for x in self.x.chunks_mut(V::LANES) {
            F::vector(w, V::load_first(w, x)).store_first(x);
        }
    }
}

fn map<F: Function>(tier: Tier, x: &mut [f32]) {
    run(tier, Map::<F> { x, function: std::marker::PhantomData });
}

/// Replaces each value by e^x.
pub fn exp(tier: Tier, x: &mut [f32]) {
    map::<Exp>(tier, x);
}

/// Replaces each value, none above 0, by e^x.
pub fn exp_nonpositive(tier: Tier, x: &mut [f32]) {
    debug_assert!(!x.iter().any(|&x| x > 0.0), "exp_nonpositive: a value above 0");
    map::<ExpNonpositive>(tier, x);
}

/// Replaces each value by 1 / (1 + e^-x).
pub fn sigmoid(tier: Tier, x: &mut [f32]) {
    map::<Sigmoid>(tier, x);
}

/// Replaces each value by x / (1 + e^-x).
pub fn silu(tier: Tier, x: &mut [f32]) {
    map::<Silu>(tier, x);
}

#[cfg(test)]
mod tests {
    use super::*;

    type Case = (&'static str, fn(f32) -> f32, fn(Tier, &mut [f32]), fn(f32) -> bool);

    const CASES: [Case; 4] = [
        ("exp", plain::exp, exp, |_| true),
        ("exp of x <= 0", plain::exp, exp_nonpositive, |x| x.is_nan() || x <= 0.0),
        ("sigmoid", plain::sigmoid, sigmoid, |_| true),
        ("silu", plain::silu, silu, |_| true),
    ];

    /// Compares every tier with the plain functions on the inputs with these bits.
    fn check(inputs: impl Iterator<Item = u32> + Clone) {
        for (name, plain, vector, domain) in CASES {
            let mut inputs = inputs.clone().map(f32::from_bits).filter(|&x| domain(x)).peekable();
            while inputs.peek().is_some() {
                let x: Vec<f32> = inputs.by_ref().take(1 << 16).collect();
                let want: Vec<f32> = x.iter().map(|&x| plain(x)).collect();
                for tier in Tier::available() {
                    let mut got = x.clone();
                    vector(tier, &mut got);
                    for ((&x, &want), &got) in x.iter().zip(&want).zip(&got) {
                        let equal = want.to_bits() == got.to_bits() || (want.is_nan() && got.is_nan());
                        assert!(equal, "{name}({x:e}) by {}: {got:e}, not {want:e}", tier.name());
                    }
                }
            }
        }
    }

    #[test]
    fn every_tier_gives_the_plain_bits_on_a_sample_of_all_inputs() {
        check((0..=u32::MAX).step_by(4099));
    }

    #[test]
    fn every_tier_gives_the_plain_bits_around_the_edges() {
        let edges = [
            0.0,
            -0.0,
            1.0,
            -112.0,
            -16.25,
            89.0,
            88.72284,
            -103.97208,
            -87.33655,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MIN_POSITIVE,
            -f32::MIN_POSITIVE,
            f32::NAN,
            f32::MAX,
            f32::MIN,
        ];
        let near = |x: f32| (0..65).map(move |i| x.to_bits().wrapping_add(i).wrapping_sub(32));
        check(edges.into_iter().flat_map(near));
    }

    #[test]
    #[ignore = "all 2^32 inputs take minutes"]
    fn every_tier_gives_the_plain_bits_on_all_inputs() {
        check(0..=u32::MAX);
    }

    #[test]
    fn every_remainder_is_written_and_nothing_behind_it() {
        for tier in Tier::available() {
            for n in 0..50 {
                let x: Vec<f32> = (0..n).map(|i| i as f32 * -0.37).collect();
                let mut got = [x.clone(), vec![7.0; 3]].concat();
                exp(tier, &mut got[..n]);
                let mut want: Vec<f32> = x.iter().map(|&x| plain::exp(x)).collect();
                want.extend([7.0; 3]);
                assert_eq!(got, want, "{n} values by {}", tier.name());
            }
        }
    }
}
