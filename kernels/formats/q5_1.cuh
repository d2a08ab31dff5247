// q5_1.cuh: Q5_1: 32 values of five bits, one scale, one offset.
//
// Layout: d f16, m f16, fifth bits u32 (bit j of value j), 16 bytes of nibbles as in Q4_0.
// code = q; value = d * code + m.
// Twin: src/gguf/formats/q5_1.rs.
#pragma once
#include "formats/part.cuh"

struct Q5_1 : Format {
    static constexpr i32 VALUES = 32, BYTES = 2 + 2 + 4 + 16, ALIGN = 8;
    static constexpr Order ORDER = Order::STEPS;
    static constexpr bool OFFSET = true;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        out.d[0] = load_f16(block);
        out.m = load_f16(block + 2);
        u32 word[5];  // the fifth bits, then the nibbles
        load_words<4>(block + 4, word);
#pragma unroll
        for (i32 i = 0; i < 4; i++) {
            const u32 low = low_nibbles(word[i + 1]) | spread_bits(word[0] >> (4 * i) & 15) << 4;
            const u32 high = high_nibbles(word[i + 1]) | spread_bits(word[0] >> (4 * i + 16) & 15) << 4;
            out.code[i] = low;
            out.code[i + 4] = high;
        }
    }
};
static_assert(Q5_1::BYTES == 24, "Q5_1");
