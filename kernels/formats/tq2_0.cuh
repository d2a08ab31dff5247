// tq2_0.cuh: TQ2_0: 256 values of two bits around 1, one scale.
//
// Layout: 64 bytes, d f16; bits 2 k of byte 32 h + l belong to value 128 h + 32 k + l.
// code = q - 1; value = d * code.
// Twin: src/gguf/formats/tq2_0.rs.
#pragma once
#include "formats/part.cuh"

struct TQ2_0 : Format {
    static constexpr i32 VALUES = 256, BYTES = 64 + 2, ALIGN = 2;
    static constexpr i32 BIAS = 1;
    static constexpr Order ORDER = Order::SUPER;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        out.d[0] = load_f16(block + 64);
        set_scales(out, 1, 1);
        u32 q[8];
        load_words<ALIGN>(block + 32 * (part >> 2), q);
#pragma unroll
        for (i32 i = 0; i < 8; i++) out.code[i] = q[i] >> (2 * (part & 3)) & four(3);
    }
};
static_assert(TQ2_0::BYTES == 66, "TQ2_0");
