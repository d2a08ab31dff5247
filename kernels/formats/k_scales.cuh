// k_scales.cuh: the packed six-bit scales of the K formats.
//
// Invariant: every scale is a number of its six bits, whatever the bytes. Does not know: codes and float scales.
// Twin: src/gguf/formats/k_scales.rs.
#pragma once
#include "formats/part.cuh"

// Of the twelve bytes of Q4_K and Q5_K, as words: the scale and the minimum of a part, each 0..63.
DEVICE void scale_and_min(u32 first, u32 second, u32 third, i32 part, Part& out) {
    const i32 at = 8 * (part & 3);
    const u32 a = first >> at, b = second >> at, c = third >> at;
    const bool early = part < 4;
    const u32 scale = early ? a & 63 : (c & 15) | (a >> 2 & 48);
    const u32 min = early ? b & 63 : (c >> 4 & 15) | (b >> 2 & 48);
    set_scales(out, scale, scale);
    set_mins(out, min, min);
}

// Of the twelve bytes of Q3_K: the scale of half part i, -32..31.
template <class P>
DEVICE i32 signed_scale(P s, i32 i) {
    const u32 low = s[i & 7] >> (i < 8 ? 0 : 4) & 15;
    const u32 high = s[8 + (i & 3)] >> (2 * (i >> 2)) & 3;
    return (i32) (low | high << 4) - 32;
}
