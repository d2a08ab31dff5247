// q5_k.cuh: Q5_K: 256 values of five bits; a scale and a minimum of six bits for each 32.
//
// Layout: d f16, dmin f16, 12 scale bytes, 32 bytes of fifth bits (bit s of byte l belongs to value 32 s + l), 128 bytes
// as in Q4_K. code = q; value = d * scale * code - dmin * min.
// Twin: src/gguf/formats/q5_k.rs.
#pragma once
#include "formats/part.cuh"
#include "formats/k_scales.cuh"

struct Q5_K : Format {
    static constexpr i32 VALUES = 256, BYTES = 2 + 2 + 12 + 32 + 128, ALIGN = 16;
    static constexpr Order ORDER = Order::SUPER;
    static constexpr bool OFFSET = true;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        u32 head[4];
        load_words<ALIGN>(block, head);
        out.d[0] = f16_f32((u16) head[0]);
        out.m = f16_f32((u16) (head[0] >> 16));
        scale_and_min(head[1], head[2], head[3], part, out);
        u32 fifth[8], q[8];
        load_words<ALIGN>(block + 16, fifth);
        load_words<ALIGN>(block + 48 + 32 * (part >> 1), q);
#pragma unroll
        for (i32 i = 0; i < 8; i++)
            out.code[i] = low_nibbles(q[i] >> (4 * (part & 1))) | (fifth[i] >> part & four(1)) << 4;
    }
};
static_assert(Q5_K::BYTES == 176, "Q5_K");
