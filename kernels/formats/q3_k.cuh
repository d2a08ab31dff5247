// q3_k.cuh: Q3_K: 256 values of three bits around 4; a scale of six bits around 32 for each 16.
//
// Layout: 32 bytes of third bits (bit i >> 5 of byte i & 31), 64 bytes of two bits as in Q2_K, 12 scale bytes, d f16.
// code = q - 4; value = d * scale * code.
// Twin: src/gguf/formats/q3_k.rs.
#pragma once
#include "formats/part.cuh"
#include "formats/k_scales.cuh"

struct Q3_K : Format {
    static constexpr i32 VALUES = 256, BYTES = 32 + 64 + 12 + 2, ALIGN = 2;
    static constexpr i32 BIAS = 4;
    static constexpr Order ORDER = Order::SUPER;
    static constexpr i32 SCALE_VALUES = 16;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        out.d[0] = load_f16(block + 108);
        set_scales(out, signed_scale(block + 96, 2 * part), signed_scale(block + 96, 2 * part + 1));
        u32 third[8], low[8];
        load_words<ALIGN>(block, third);
        load_words<ALIGN>(block + 32 + 32 * (part >> 2), low);
#pragma unroll
        for (i32 i = 0; i < 8; i++) {
            out.code[i] = (low[i] >> (2 * (part & 3)) & four(3)) | (third[i] >> part & four(1)) << 2;
        }
    }
};
static_assert(Q3_K::BYTES == 110, "Q3_K");
