// iq2_xxs.cuh: IQ2_XXS: 256 values, groups of eight from a table of 256; a scale of four bits for each 32.
//
// Layout: d f16, then for each 32 values four index bytes and a u32: four times seven sign bits, the scale on top.
// code = sign * grid, scale = 2 n + 1; value = d / 8 * scale * code.
// Twin: src/gguf/formats/iq2_xxs.rs.
#pragma once
#include "formats/part.cuh"
#include "formats/grids.cuh"

struct IQ2_XXS : Format {
    static constexpr i32 VALUES = 256, BYTES = 2 + 64, ALIGN = 2;
    static constexpr Order ORDER = Order::SUPER;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        u32 word[2];
        load_words<ALIGN>(block + 2 + 8 * part, word);
        const i32 scale = 2 * (word[1] >> 28) + 1;
        out.d[0] = load_f16(block) * 0.125f;
        set_scales(out, scale, scale);
#pragma unroll
        for (i32 k = 0; k < 4; k++) {
            const u32 signs = even_signs(word[1] >> (7 * k) & 127);
            const Words2 group = GRID_IQ2_XXS[word[0] >> (8 * k) & 255];
            out.code[2 * k] = signed4(group.word[0], signs);
            out.code[2 * k + 1] = signed4(group.word[1], signs >> 4);
        }
    }
};
static_assert(IQ2_XXS::BYTES == 66, "IQ2_XXS");
