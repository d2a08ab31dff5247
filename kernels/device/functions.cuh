// exp and silu in f32, by the one definition that all backends share.
//
// Invariants: each line is one f32 operation rounded to nearest even, or a 32-bit integer operation mod 2^32;
// comparisons stand where min and max would, because those drop NaN. NaN in gives NaN out.
// Does not know: the vendor's math library, rows. Source: docs/numerics.md, Functions.
// twin: src/device/cpu/plain/functions.rs, equal bit for bit.
#pragma once
#include "device/vendor.h"

constexpr u32 LOG2E_BITS = 0x3fb8aa3b;
// 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
constexpr u32 MAGIC_BITS = 0x4b400000;
constexpr u32 LN2_HIGH_BITS = 0x3f317218;
constexpr u32 LN2_LOW_BITS = 0xb102e308;

// exp(x) = fma(h, r, 1) * s1 * s2; both scalings are exact unless the result is denormal, zero or infinite.
struct ExpCore {
    f32 h;
    f32 r;
    f32 s1;
    f32 s2;
};

DEVICE f32 not_below_minus_112(f32 x) { return x < -112.0f ? -112.0f : x; }

DEVICE ExpCore exp_core(f32 x) {
    x = not_below_minus_112(x);
    x = x > 89.0f ? 89.0f : x;
    const f32 magic = bits_f32(MAGIC_BITS);
    const f32 t = fmaf(x, bits_f32(LOG2E_BITS), magic);
    const f32 n = t - magic;
    const f32 r = fmaf(n, -bits_f32(LN2_LOW_BITS), fmaf(n, -bits_f32(LN2_HIGH_BITS), x));
    f32 p = bits_f32(0x3ab52646);
    p = fmaf(p, r, bits_f32(0x3c091cc4));
    p = fmaf(p, r, bits_f32(0x3d2aac58));
    p = fmaf(p, r, bits_f32(0x3e2aaa49));
    p = fmaf(p, r, bits_f32(0x3efffffe));
    const u32 b = f32_bits(t);
    const u32 s1 = ((b << 22) & 0xff800000u) + 0x3f800000u;
    const u32 s2 = (b << 23) + 0x7f000000u - s1;
    return ExpCore{fmaf(p, r, 1.0f), r, bits_f32(s1), bits_f32(s2)};
}

// e^x.
DEVICE f32 exp_f32(f32 x) {
    const ExpCore c = exp_core(x);
    return (fmaf(c.h, c.r, 1.0f) * c.s1) * c.s2;
}

// x / (1 + e^-x), rounded as one function. Below -16.25 it is x e (1 - e) with e = exp(x): 1 + exp(-x) has no room left
// for the 1. Above, exp(-x) enters the denominator unrounded.
DEVICE f32 silu_f32(f32 x) {
    const bool tail = x < -16.25f;
    x = not_below_minus_112(x);
    const ExpCore c = exp_core(tail ? x : -x);
    if (tail) {
        const f32 u = fmaf(c.h, c.r, 1.0f) * c.s1;
        const f32 v = x * u;
        return fmaf(-v, u * c.s2, v) * c.s2;
    }
    const f32 s = c.s1 * c.s2;
    const f32 d = fmaf(c.r * s, c.h, s + 1.0f);
    return x / d;
}

// 2^x within 3e-6 for x from -125 to 127; below -125 it is 2^-125, and NaN gives that too. For weights that will be
// rounded to binary16.
DEVICE f32 exp2_near(f32 x) {
    x = fmaxf(x, -125.0f);
    const f32 magic = bits_f32(MAGIC_BITS);
    const f32 t = x + magic;
    const f32 r = x - (t - magic);
    f32 p = bits_f32(0x3c1d0166);
    p = fmaf(p, r, bits_f32(0x3d64fe23));
    p = fmaf(p, r, bits_f32(0x3e7601bc));
    p = fmaf(p, r, bits_f32(0x3f317096));
    p = fmaf(p, r, 1.0f);
    return bits_f32(f32_bits(p) + (f32_bits(t) << 23));
}
