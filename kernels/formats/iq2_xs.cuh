// iq2_xs.cuh: IQ2_XS: 256 values, groups of eight from a table of 512; a scale of four bits for each 16.
//
// Layout: d f16, 32 words u16 (nine index bits, seven sign bits), 8 bytes of scale nibbles.
// code = sign * grid, scale = 2 n + 1; value = d / 8 * scale * code.
// Twin: src/gguf/formats/iq2_xs.rs.
#pragma once
#include "formats/part.cuh"
#include "formats/grids.cuh"

struct IQ2_XS : Format {
    static constexpr i32 VALUES = 256, BYTES = 2 + 64 + 8, ALIGN = 2;
    static constexpr Order ORDER = Order::SUPER;
    static constexpr i32 SCALE_VALUES = 16;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        const u32 nibbles = block[66 + part];
        out.d[0] = load_f16(block) * 0.125f;
        set_scales(out, 2 * (nibbles & 15) + 1, 2 * (nibbles >> 4) + 1);
        u32 words[2];
        load_words<ALIGN>(block + 2 + 8 * part, words);
#pragma unroll
        for (i32 k = 0; k < 4; k++) {
            const u32 word = words[k / 2] >> (16 * (k & 1)) & 0xffff;
            const u32 signs = even_signs(word >> 9);
            const Words2 group = GRID_IQ2_XS[word & 511];
            out.code[2 * k] = signed4(group.word[0], signs);
            out.code[2 * k + 1] = signed4(group.word[1], signs >> 4);
        }
    }
};
static_assert(IQ2_XS::BYTES == 74, "IQ2_XS");
