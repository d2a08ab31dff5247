// mxfp4.cuh: MXFP4: 32 values of E2M1, one power of two as scale.
//
// Layout: exponent byte e, 16 bytes of nibbles; byte j holds values j (low) and j + 16 (high).
// code = twice the E2M1 value; value = 2^(e - 128) * code.
// Twin: src/gguf/formats/mxfp4.rs.
#pragma once
#include "formats/part.cuh"

// 2^(e - 128): half the E8M0 value, since the codes are doubled. 255 is a number like any other here.
DEVICE f32 half_e8m0(u32 e) {
    // The two smallest are subnormal in f32.
    return bits_f32(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

struct MXFP4 : Format {
    static constexpr i32 VALUES = 32, BYTES = 1 + 16, ALIGN = 1;
    static constexpr Order ORDER = Order::STEPS;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        constexpr Table16 TABLE = e2m1_table();
        out.d[0] = half_e8m0(block[0]);
        u32 q[4];
        load_words<ALIGN>(block + 1, q);
#pragma unroll
        for (i32 i = 0; i < 4; i++) look_up(TABLE, q[i], out.code[i], out.code[i + 4]);
    }
};
static_assert(MXFP4::BYTES == 17, "MXFP4");
