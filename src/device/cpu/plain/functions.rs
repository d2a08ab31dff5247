//! `exp`, `sigmoid`, `silu`, `log1p`, `softplus` and `tanh` in f32, by one definition for all backends.
//!
//! Invariants: each line is one f32 operation rounded to nearest even, or a 32-bit integer operation; NaN in gives
//! NaN out; at most 2 ulp. Comparisons stand where `min` and `max` would, because those drop NaN.
//! Does not know: the platform's math library. Source: `docs/numerics.md`, Functions.

const LOG2E: f32 = f32::from_bits(0x3fb8aa3b);
/// 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
const MAGIC: f32 = f32::from_bits(0x4b400000);
const LN2_HIGH: f32 = f32::from_bits(0x3f317218);
const LN2_LOW: f32 = f32::from_bits(0xb102e308);
/// Coefficients of r^2 .. r^6 in exp(r).
const EXP: [f32; 5] = coefficients([0x3efffffe, 0x3e2aaa49, 0x3d2aac58, 0x3c091cc4, 0x3ab52646]);
/// log(1 + m) = m + m^2 * (LOG[0] + LOG[1] m + ...).
const LOG: [f32; 9] = coefficients([
    0xbf000000, 0x3eaaaad2, 0xbe800024, 0x3e4cb4c5, 0xbe2a76ef, 0x3e144130, 0xbe06ccd9, 0x3dd67263,
    0xbd38de14,
]);
/// ln 2 * 2^-23.
const LN2_ULP: f32 = f32::from_bits(0x33b17218);
/// tanh(x) = x + x z (TANH[0] + TANH[1] z + ...), z = x^2.
const TANH: [f32; 5] = coefficients([0xbeaaaaa5, 0x3e088677, 0xbd5c8f3f, 0x3cac728c, 0xbbcc90d1]);

const fn coefficients<const N: usize>(bits: [u32; N]) -> [f32; N] {
    let mut out = [0.0; N];
    let mut i = 0;
    while i < N {
        out[i] = f32::from_bits(bits[i]);
        i += 1;
    }
    out
}

/// Horner's rule with fma, highest coefficient first.
fn polynomial(coefficients: &[f32], x: f32) -> f32 {
    coefficients.iter().rev().copied().reduce(|p, c| p.mul_add(x, c)).unwrap_or(0.0)
}

/// exp(x) = fma(h, r, 1) * s1 * s2; both scalings are exact unless the result is denormal, zero or infinite.
struct Core {
    h: f32,
    r: f32,
    s1: f32,
    s2: f32,
}

fn core(x: f32) -> Core {
    let x = if x < -112.0 { -112.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let t = x.mul_add(LOG2E, MAGIC);
    let n = t - MAGIC;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let h = polynomial(&EXP, r).mul_add(r, 1.0);
    let b = t.to_bits();
    let s1 = ((b << 22) & 0xff80_0000).wrapping_add(0x3f80_0000);
    let s2 = (b << 23).wrapping_add(0x7f00_0000).wrapping_sub(s1);
    Core { h, r, s1: f32::from_bits(s1), s2: f32::from_bits(s2) }
}

/// e^x.
pub fn exp(x: f32) -> f32 {
    let c = core(x);
    (c.h.mul_add(c.r, 1.0) * c.s1) * c.s2
}

/// `numerator(x) / (1 + e^-x)`; the numerator is 1 or x.
fn logistic(x: f32, numerator: impl Fn(f32) -> f32) -> f32 {
    let tail = x < -16.25;
    let x = if x < -112.0 { -112.0 } else { x };
    let c = core(if tail { x } else { -x });
    if tail {
        // e (1 - e) with e = exp(x): 1 + exp(-x) has no room left for the 1.
        let u = c.h.mul_add(c.r, 1.0) * c.s1;
        let v = numerator(x) * u;
        return (-v).mul_add(u * c.s2, v) * c.s2;
    }
    // exp(-x) enters the denominator unrounded.
    let s = c.s1 * c.s2;
    let d = (c.r * s).mul_add(c.h, s + 1.0);
    numerator(x) / d
}

/// 1 / (1 + e^-x).
pub fn sigmoid(x: f32) -> f32 {
    logistic(x, |_| 1.0)
}

/// x * sigmoid(x), rounded as one function.
pub fn silu(x: f32) -> f32 {
    logistic(x, |x| x)
}

/// log(1 + y) for 0 < 1 + y < inf.
fn log1p_core(y: f32) -> f32 {
    let w = 1.0 + y;
    let e = w.to_bits().wrapping_sub(0x3f40_0000) & 0xff80_0000;
    let c = 0.25 * f32::from_bits(0x4080_0000_u32.wrapping_sub(e));
    let m = y.mul_add(c, c - 1.0);
    let p = (m * m).mul_add(polynomial(&LOG, m), m);
    (e.cast_signed() as f32).mul_add(LN2_ULP, p)
}

/// log(1 + x): x itself for +-0 and +inf, -inf at -1, NaN below.
pub fn log1p(x: f32) -> f32 {
    if x > -1.0 && x < f32::INFINITY && x != 0.0 {
        log1p_core(x)
    } else if x == -1.0 {
        f32::NEG_INFINITY
    } else if x >= 0.0 {
        x
    } else {
        f32::NAN
    }
}

/// log(1 + e^x).
pub fn softplus(x: f32) -> f32 {
    (if x > 0.0 { x } else { 0.0 }) + log1p_core(exp(-x.abs()))
}

/// Hyperbolic tangent. Both zeros give +0, as the steps of the definition do.
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    if a < 0.55 {
        let z = x * x;
        (polynomial(&TANH, z) * z).mul_add(x, x)
    } else {
        (1.0 - 2.0 / (1.0 + exp(a + a))).copysign(x)
    }
}

/// silu(gate) * up.
pub fn swiglu(gate: f32, up: f32) -> f32 {
    silu(gate) * up
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_zeros_are_exact() {
        let bits = |y: f32| y.to_bits();
        let ends = [
            (exp(0.0), 1.0),
            (exp(-0.0), 1.0),
            (exp(f32::from_bits(0x42b1_7218)), f32::INFINITY),
            (exp(f32::from_bits(0xc2cf_f1b5)), 0.0),
            (sigmoid(f32::INFINITY), 1.0),
            (sigmoid(f32::NEG_INFINITY), 0.0),
            (silu(f32::NEG_INFINITY), -0.0),
            (silu(-0.0), -0.0),
            (tanh(-0.0), 0.0),
            (tanh(f32::NEG_INFINITY), -1.0),
            (log1p(-0.0), -0.0),
            (log1p(f32::INFINITY), f32::INFINITY),
            (log1p(-1.0), f32::NEG_INFINITY),
        ];
        for (i, (got, want)) in ends.into_iter().enumerate() {
            assert_eq!(bits(got), bits(want), "case {i}: {got} instead of {want}");
        }
    }

    #[test]
    fn nan_comes_out_as_nan() {
        for (i, f) in [exp, sigmoid, silu, log1p, softplus, tanh].into_iter().enumerate() {
            assert!(f(f32::NAN).is_nan(), "function {i}");
        }
    }
}
