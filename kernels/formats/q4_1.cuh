// q4_1.cuh: Q4_1: 32 values of four bits, one scale, one offset.
//
// Layout: d f16, m f16, 16 bytes of nibbles; byte j holds values j (low) and j + 16 (high).
// code = nibble; value = d * code + m.
// Twin: src/gguf/formats/q4_1.rs.
#pragma once
#include "formats/part.cuh"

struct Q4_1 : Format {
    static constexpr i32 VALUES = 32, BYTES = 2 + 2 + 16, ALIGN = 4;
    static constexpr Order ORDER = Order::STEPS;
    static constexpr bool OFFSET = true;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        out.d[0] = load_f16(block);
        out.m = load_f16(block + 2);
        u32 q[4];
        load_words<ALIGN>(block + 4, q);
#pragma unroll
        for (i32 i = 0; i < 4; i++) {
            out.code[i] = low_nibbles(q[i]);
            out.code[i + 4] = high_nibbles(q[i]);
        }
    }
};
static_assert(Q4_1::BYTES == 20, "Q4_1");
