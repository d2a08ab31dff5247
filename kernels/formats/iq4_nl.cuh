// iq4_nl.cuh: IQ4_NL: 32 values of a table of 16, one scale.
//
// Layout: d f16, 16 bytes of nibbles; byte j holds values j (low) and j + 16 (high).
// code = table[nibble]; value = d * code.
// Twin: src/gguf/formats/iq4_nl.rs.
#pragma once
#include "formats/part.cuh"

struct IQ4_NL : Format {
    static constexpr i32 VALUES = 32, BYTES = 2 + 16, ALIGN = 2;
    static constexpr Order ORDER = Order::STEPS;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        constexpr Table16 TABLE = iq4_table();
        out.d[0] = load_f16(block);
        u32 q[4];
        load_words<ALIGN>(block + 2, q);
#pragma unroll
        for (i32 i = 0; i < 4; i++) look_up(TABLE, q[i], out.code[i], out.code[i + 4]);
    }
};
static_assert(IQ4_NL::BYTES == 18, "IQ4_NL");
