// nvfp4.cuh: NVFP4: 64 values of E2M1, one E4M3 scale for each 16.
//
// Layout: 4 scale bytes, 4 times 8 bytes of nibbles; byte j of sub-block s holds values 16 s + j (low) and
// 16 s + 8 + j (high). code = twice the E2M1 value; value = t(scale byte) * code.
// Twin: src/gguf/formats/nvfp4.rs.
#pragma once
#include "formats/part.cuh"

// Half the unsigned E4M3 value, since the codes are doubled; bit 7 does not count, except that only 0x7f of the two
// not-a-numbers is 0.
DEVICE f32 half_e4m3(u32 x) {
    const u32 exponent = x >> 3 & 15, mantissa = x & 7;
    if (x == 0x7f) return 0.0f;
    if (exponent == 0) return (f32) mantissa * 0x1p-10f;
    return bits_f32((exponent + 127 - 8) << 23 | mantissa << 20);
}

struct NVFP4 : Format {
    static constexpr i32 VALUES = 64, BYTES = 4 + 32, ALIGN = 4;
    static constexpr Order ORDER = Order::STEPS;
    static constexpr bool HALVES = true;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        constexpr Table16 TABLE = e2m1_table();
        u32 q[4];
        load_words<ALIGN>(block + 4 + 16 * part, q);
#pragma unroll
        for (i32 half = 0; half < 2; half++) {
            out.d[half] = half_e4m3(block[2 * part + half]);
            look_up(TABLE, q[2 * half], out.code[4 * half], out.code[4 * half + 2]);
            look_up(TABLE, q[2 * half + 1], out.code[4 * half + 1], out.code[4 * half + 3]);
        }
    }
};
static_assert(NVFP4::BYTES == 36, "NVFP4");
