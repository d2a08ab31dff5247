// q1_0.cuh: Q1_0: 128 signs, one scale.
//
// Layout: d f16, 16 bytes; bit j & 7 of byte j >> 3 belongs to value j.
// code = 1 where the bit is 1, else -1; value = d * code.
// Twin: src/gguf/formats/q1_0.rs.
#pragma once
#include "formats/part.cuh"

struct Q1_0 : Format {
    static constexpr i32 VALUES = 128, BYTES = 2 + 16, ALIGN = 2;
    static constexpr i32 BIAS = 1;
    static constexpr Order ORDER = Order::STEPS;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        out.d[0] = load_f16(block);
        u32 bits[1];
        load_words<ALIGN>(block + 2 + 4 * part, bits);
#pragma unroll
        for (i32 i = 0; i < 8; i++) out.code[i] = spread_bits(bits[0] >> (4 * i) & 15) << 1;
    }
};
static_assert(Q1_0::BYTES == 18, "Q1_0");
