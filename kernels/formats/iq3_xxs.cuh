// iq3_xxs.cuh: IQ3_XXS: 256 values, groups of four from a table of 256; a scale of four bits for each 32.
//
// Layout: d f16, 64 index bytes, 8 words u32: four times seven sign bits for eight values each, the scale on top.
// code = sign * grid, scale = 2 n + 1; value = d / 4 * scale * code.
// Twin: src/gguf/formats/iq3_xxs.rs.
#pragma once
#include "formats/part.cuh"
#include "formats/grids.cuh"

struct IQ3_XXS : Format {
    static constexpr i32 VALUES = 256, BYTES = 2 + 64 + 32, ALIGN = 2;
    static constexpr Order ORDER = Order::SUPER;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        u32 index[2], word[1];
        load_words<ALIGN>(block + 2 + 8 * part, index);
        load_words<ALIGN>(block + 66 + 4 * part, word);
        const i32 scale = 2 * (word[0] >> 28) + 1;
        out.d[0] = load_f16(block) * 0.25f;
        set_scales(out, scale, scale);
#pragma unroll
        for (i32 i = 0; i < 8; i++) {
            const u32 signs = even_signs(word[0] >> (7 * (i / 2)) & 127) >> (4 * (i & 1));
            out.code[i] = signed4(GRID_IQ3_XXS[index[i / 4] >> (8 * (i & 3)) & 255], signs);
        }
    }
};
static_assert(IQ3_XXS::BYTES == 98, "IQ3_XXS");
