// iq3_s.cuh: IQ3_S: 256 values, groups of four from a table of 512; a scale of four bits for each 32.
//
// Layout: d f16, 64 index bytes, 8 bytes of ninth index bits (bit k of byte g for index 8 g + k), 32 sign bytes, 4 bytes of
// scale nibbles. code = sign * grid, scale = 2 n + 1; value = d * scale * code.
// Twin: src/gguf/formats/iq3_s.rs.
#pragma once
#include "formats/part.cuh"
#include "formats/grids.cuh"

struct IQ3_S : Format {
    static constexpr i32 VALUES = 256, BYTES = 2 + 64 + 8 + 32 + 4, ALIGN = 2;
    static constexpr Order ORDER = Order::SUPER;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        const i32 scale = 2 * (block[106 + (part >> 1)] >> (4 * (part & 1)) & 15) + 1;
        const u32 ninth = block[66 + part];
        out.d[0] = load_f16(block);
        set_scales(out, scale, scale);
        u32 index[2], signs[1];
        load_words<ALIGN>(block + 2 + 8 * part, index);
        load_words<ALIGN>(block + 74 + 4 * part, signs);
#pragma unroll
        for (i32 i = 0; i < 8; i++) {
            const u32 group = GRID_IQ3_S[(index[i / 4] >> (8 * (i & 3)) & 255) | (ninth >> i & 1) << 8];
            out.code[i] = signed4(group, signs[0] >> (4 * i));
        }
    }
};
static_assert(IQ3_S::BYTES == 110, "IQ3_S");
