// iq2_s.cuh: IQ2_S: 256 values, groups of eight from a table of 1024; a scale of four bits for each 16.
//
// Layout: d f16, 32 index bytes, 32 sign bytes, 8 bytes of upper index bits (2 (k & 3) of byte k >> 2), 8 bytes of scale
// nibbles. code = sign * grid, scale = 2 n + 1; value = d / 8 * scale * code.
// Twin: src/gguf/formats/iq2_s.rs.
#pragma once
#include "formats/part.cuh"
#include "formats/grids.cuh"

struct IQ2_S : Format {
    static constexpr i32 VALUES = 256, BYTES = 2 + 32 + 32 + 8 + 8, ALIGN = 2;
    static constexpr Order ORDER = Order::SUPER;
    static constexpr i32 SCALE_VALUES = 16;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        const u32 nibbles = block[74 + part], upper = block[66 + part];
        out.d[0] = load_f16(block) * 0.125f;
        set_scales(out, 2 * (nibbles & 15) + 1, 2 * (nibbles >> 4) + 1);
        u32 low[1], signs[1];
        load_words<ALIGN>(block + 2 + 4 * part, low);
        load_words<ALIGN>(block + 34 + 4 * part, signs);
#pragma unroll
        for (i32 k = 0; k < 4; k++) {
            const Words2 group = GRID_IQ2_S[(low[0] >> (8 * k) & 255) | (upper >> (2 * k) & 3) << 8];
            out.code[2 * k] = signed4(group.word[0], signs[0] >> (8 * k));
            out.code[2 * k + 1] = signed4(group.word[1], signs[0] >> (8 * k + 4));
        }
    }
};
static_assert(IQ2_S::BYTES == 82, "IQ2_S");
