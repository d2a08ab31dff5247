// q6_k.cuh: Q6_K: 256 values of six bits around 32; a signed byte as scale for each 16.
//
// Layout: 128 bytes of nibbles, 64 bytes of upper bits, 16 scale bytes, d f16. Value 128 h + 32 k + l: nibble k >> 1 of
// byte 64 h + 32 (k & 1) + l, upper bits 2 k of byte 32 h + l. code = q - 32; value = d * scale * code.
// Twin: src/gguf/formats/q6_k.rs.
#pragma once
#include "formats/part.cuh"

struct Q6_K : Format {
    static constexpr i32 VALUES = 256, BYTES = 128 + 64 + 16 + 2, ALIGN = 2;
    static constexpr i32 BIAS = 32;
    static constexpr Order ORDER = Order::SUPER;
    static constexpr i32 SCALE_VALUES = 16;
    static constexpr bool FAR_PARTS = true;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        const i32 h = part >> 2, k = part & 3;
        out.d[0] = load_f16(block + 208);
        set_scales(out, (i8) block[192 + 2 * part], (i8) block[193 + 2 * part]);
        u32 low[8], upper[8];
        load_words<ALIGN>(block + 64 * h + 32 * (k & 1), low);
        load_words<ALIGN>(block + 128 + 32 * h, upper);
#pragma unroll
        for (i32 i = 0; i < 8; i++) {
            out.code[i] = low_nibbles(low[i] >> (4 * (k >> 1))) | (upper[i] >> (2 * k) & four(3)) << 4;
        }
    }
};
static_assert(Q6_K::BYTES == 210, "Q6_K");
