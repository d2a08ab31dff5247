// q2_0.cuh: Q2_0: 64 values of two bits around 1, one scale.
//
// Layout: d f16, 16 bytes; bits 2 (j & 3) of byte j >> 2 belong to value j.
// code = q - 1; value = d * code.
// Twin: src/gguf/formats/q2_0.rs.
#pragma once
#include "formats/part.cuh"

struct Q2_0 : Format {
    static constexpr i32 VALUES = 64, BYTES = 2 + 16, ALIGN = 2;
    static constexpr i32 BIAS = 1;
    static constexpr Order ORDER = Order::STEPS;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        out.d[0] = load_f16(block);
        u32 q[2];
        load_words<ALIGN>(block + 2 + 8 * part, q);
#pragma unroll
        for (i32 i = 0; i < 8; i++) out.code[i] = spread_pairs(q[i / 4] >> (8 * (i & 3)) & 255);
    }
};
static_assert(Q2_0::BYTES == 18, "Q2_0");
