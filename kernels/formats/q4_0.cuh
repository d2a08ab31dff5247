// q4_0.cuh: Q4_0: 32 values of four bits around 8, one scale.
//
// Layout: d f16, 16 bytes of nibbles; byte j holds values j (low) and j + 16 (high).
// code = nibble - 8; value = d * code.
// Twin: src/gguf/formats/q4_0.rs.
#pragma once
#include "formats/part.cuh"

struct Q4_0 : Format {
    static constexpr i32 VALUES = 32, BYTES = 2 + 16, ALIGN = 2;
    static constexpr i32 BIAS = 8;
    static constexpr Order ORDER = Order::STEPS;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        out.d[0] = load_f16(block);
        u32 q[4];
        load_words<ALIGN>(block + 2, q);
#pragma unroll
        for (i32 i = 0; i < 4; i++) {
            out.code[i] = low_nibbles(q[i]);
            out.code[i + 4] = high_nibbles(q[i]);
        }
    }
};
static_assert(Q4_0::BYTES == 18, "Q4_0");
