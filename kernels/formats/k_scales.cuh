// k_scales.cuh: the packed six-bit scales of the K formats.
//
// Invariant: every scale is a number of its six bits, whatever the bytes. Does not know: codes and float scales.
// Twin: src/gguf/formats/k_scales.rs.
#pragma once
#include "formats/part.cuh"

// Of the twelve bytes of Q4_K and Q5_K: the scale and the minimum of a part, each 0..63.
DEVICE void scale_and_min(const u8* s, i32 part, Part& out) {
    u32 scale, min;
    if (part < 4) {
        scale = s[part] & 63;
        min = s[part + 4] & 63;
    } else {
        scale = (s[part + 4] & 15) | (u32) (s[part - 4] >> 6) << 4;
        min = (u32) (s[part + 4] >> 4) | (u32) (s[part] >> 6) << 4;
    }
    set_scales(out, scale, scale);
    set_mins(out, min, min);
}

// Of the twelve bytes of Q3_K: the scale of half part i, -32..31.
DEVICE i32 signed_scale(const u8* s, i32 i) {
    const u32 low = s[i & 7] >> (i < 8 ? 0 : 4) & 15;
    const u32 high = s[8 + (i & 3)] >> (2 * (i >> 2)) & 3;
    return (i32) (low | high << 4) - 32;
}
