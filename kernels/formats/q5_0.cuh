// q5_0.cuh: Q5_0: 32 values of five bits around 16, one scale.
//
// Layout: d f16, fifth bits u32 (bit j of value j), 16 bytes of nibbles as in Q4_0.
// code = q - 16; value = d * code.
// Twin: src/gguf/formats/q5_0.rs.
#pragma once
#include "formats/part.cuh"

struct Q5_0 : Format {
    static constexpr i32 VALUES = 32, BYTES = 2 + 4 + 16, ALIGN = 2;
    static constexpr i32 BIAS = 16;
    static constexpr Order ORDER = Order::STEPS;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        out.d[0] = load_f16(block);
        u32 word[5];  // the fifth bits, then the nibbles
        load_words<ALIGN>(block + 2, word);
#pragma unroll
        for (i32 i = 0; i < 4; i++) {
            const u32 low = low_nibbles(word[i + 1]) | spread_bits(word[0] >> (4 * i) & 15) << 4;
            const u32 high = high_nibbles(word[i + 1]) | spread_bits(word[0] >> (4 * i + 16) & 15) << 4;
            out.code[i] = low;
            out.code[i + 4] = high;
        }
    }
};
static_assert(Q5_0::BYTES == 22, "Q5_0");
