// q2_k.cuh: Q2_K: 256 values of two bits; a scale and a minimum of four bits for each 16.
//
// Layout: 16 scale bytes (low nibble scale, high minimum), 64 bytes, d f16, dmin f16; bits 2 k of byte 32 h + l belong
// to value 128 h + 32 k + l. code = q; value = d * scale * code - dmin * min.
// Twin: src/gguf/formats/q2_k.rs.
#pragma once
#include "formats/part.cuh"

struct Q2_K : Format {
    static constexpr i32 VALUES = 256, BYTES = 16 + 64 + 2 + 2, ALIGN = 4;
    static constexpr Order ORDER = Order::SUPER;
    static constexpr i32 SCALE_VALUES = 16;
    static constexpr bool OFFSET = true;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        const u32 first = block[2 * part], second = block[2 * part + 1];
        out.d[0] = load_f16(block + 80);
        out.m = load_f16(block + 82);
        set_scales(out, first & 15, second & 15);
        set_mins(out, first >> 4, second >> 4);
        u32 q[8];
        load_words<ALIGN>(block + 16 + 32 * (part >> 2), q);
#pragma unroll
        for (i32 i = 0; i < 8; i++) out.code[i] = q[i] >> (2 * (part & 3)) & four(3);
    }
};
static_assert(Q2_K::BYTES == 84, "Q2_K");
