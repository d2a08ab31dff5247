// q8_0.cuh: Q8_0: 32 values of eight bits, one scale.
//
// Layout: d f16, 32 signed bytes.
// code = the byte; value = d * code.
// Twin: src/gguf/formats/q8_0.rs.
#pragma once
#include "formats/part.cuh"

struct Q8_0 : Format {
    static constexpr i32 VALUES = 32, BYTES = 2 + 32, ALIGN = 2;
    static constexpr Order ORDER = Order::STEPS;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        out.d[0] = load_f16(block);
        load_words<ALIGN>(block + 2, out.code);
    }
};
static_assert(Q8_0::BYTES == 34, "Q8_0");
