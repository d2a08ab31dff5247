// tq1_0.cuh: TQ1_0: 256 values -1, 0, 1, five base-3 digits a byte, one scale.
//
// Layout: 32 bytes (five digits each), 16 bytes (five), 4 bytes (four), d f16. Digit n of the bytes makes one run of
// values: parts 0 .. 4 are those of the first 32 bytes, parts 5 .. 7 those of the others.
// code = digit - 1; value = d * code.
// Twin: src/gguf/formats/tq1_0.rs.
#pragma once
#include "formats/part.cuh"

// Digit n of four bytes, for power = 3^n: a byte is a fraction of 256, and multiplying shifts digits out of it.
DEVICE u32 digits(u32 bytes, u32 power) {
    const u32 even = (bytes & 0x00ff00ffu) * power & 0x00ff00ffu;
    const u32 odd = (bytes >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
    return (even * 3 >> 8 & 0x00030003u) | (odd * 3 & 0x03000300u);
}

struct TQ1_0 : Format {
    static constexpr i32 VALUES = 256, BYTES = 32 + 16 + 4 + 2, ALIGN = 2;
    static constexpr i32 BIAS = 1;
    static constexpr Order ORDER = Order::SUPER;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        out.d[0] = load_f16(block + 52);
        set_scales(out, 1, 1);
#pragma unroll
        for (i32 i = 0; i < 8; i++) {
            i32 at = 4 * i, n = part;
            if (part >= 5) {
                const i32 run = 2 * (part - 5) + i / 4;  // 0 .. 4: a digit of the 16 bytes; 5: all digits of the last 4
                at = run < 5 ? 32 + 4 * (i & 3) : 48;
                n = run < 5 ? run : i & 3;
            }
            u32 q[1];
            load_words<ALIGN>(block + at, q);
            out.code[i] = digits(q[0], n < 4 ? 0x1b090301u >> (8 * n) & 255 : 81);
        }
    }
};
static_assert(TQ1_0::BYTES == 54, "TQ1_0");
