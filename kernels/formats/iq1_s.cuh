// iq1_s.cuh: IQ1_S: 256 values, groups of eight from a table of 2048; a scale of three bits and a shift for each 32.
//
// Layout: d f16, 32 index bytes, 8 words u16: four times three upper index bits, the scale, the sign of the shift on top.
// code = 8 * grid + 1 or - 1, scale = 2 n + 1; value = d / 8 * scale * code.
// Twin: src/gguf/formats/iq1_s.rs.
#pragma once
#include "formats/part.cuh"
#include "formats/grids.cuh"

struct IQ1_S : Format {
    static constexpr i32 VALUES = 256, BYTES = 2 + 32 + 16, ALIGN = 2;
    static constexpr Order ORDER = Order::SUPER;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        const u32 word = load_u16(block + 34 + 2 * part);
        const i32 scale = 2 * (word >> 12 & 7) + 1;
        const u32 base = four(word >> 15 ? 9 : 7);  // the table holds 8 (grid + 1)
        out.d[0] = load_f16(block) * 0.125f;
        set_scales(out, scale, scale);
        u32 low[1];
        load_words<ALIGN>(block + 2 + 4 * part, low);
#pragma unroll
        for (i32 k = 0; k < 4; k++) {
            const Words2 group = GRID_IQ1[(low[0] >> (8 * k) & 255) | (word >> (3 * k) & 7) << 8];
            out.code[2 * k] = minus4(group.word[0], base);
            out.code[2 * k + 1] = minus4(group.word[1], base);
        }
    }
};
static_assert(IQ1_S::BYTES == 50, "IQ1_S");
