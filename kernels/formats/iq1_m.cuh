// iq1_m.cuh: IQ1_M: 256 values, groups of eight from a table of 2048 with a shift each; a scale of three bits for each 16.
//
// Layout: 32 index bytes, 16 bytes of nibbles (three upper index bits, the sign of the shift), 4 words u16: four times three
// scale bits, the top nibbles together are d. code = 8 * grid + 1 or - 1, scale = 2 n + 1; value = d / 8 * scale * code.
// Twin: src/gguf/formats/iq1_m.rs.
#pragma once
#include "formats/part.cuh"
#include "formats/grids.cuh"

struct IQ1_M : Format {
    static constexpr i32 VALUES = 256, BYTES = 32 + 16 + 8, ALIGN = 8;
    static constexpr Order ORDER = Order::SUPER;
    static constexpr i32 SCALE_VALUES = 16;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        u32 top[2];
        load_words<4>(block + 48, top);
        const u32 d_bits = (top[0] >> 12 & 15) | (top[0] >> 28) << 4 | (top[1] >> 12 & 15) << 8 | (top[1] >> 28) << 12;
        const u32 scales = load_u16(block + 48 + 2 * (part >> 1)) >> (6 * (part & 1));
        out.d[0] = f16_f32((u16) d_bits) * 0.125f;
        set_scales(out, 2 * (scales & 7) + 1, 2 * (scales >> 3 & 7) + 1);
        u32 low[1];
        load_words<4>(block + 4 * part, low);
        const u32 nibbles = load_u16(block + 32 + 2 * part);
#pragma unroll
        for (i32 k = 0; k < 4; k++) {
            const u32 nibble = nibbles >> (4 * k) & 15;
            const u32 base = four(nibble & 8 ? 9 : 7);  // the table holds 8 (grid + 1)
            const Words2 group = GRID_IQ1[(low[0] >> (8 * k) & 255) | (nibble & 7) << 8];
            out.code[2 * k] = minus4(group.word[0], base);
            out.code[2 * k + 1] = minus4(group.word[1], base);
        }
    }
};
static_assert(IQ1_M::BYTES == 56, "IQ1_M");
