// iq4_xs.cuh: IQ4_XS: 256 values of a table of 16; a scale of six bits around 32 for each 32.
//
// Layout: d f16, upper scale bits u16 (2 s), 4 bytes of scale nibbles, 128 bytes; byte 16 s + j holds values 32 s + j
// (low) and 32 s + 16 + j (high). code = table[nibble]; value = d * scale * code.
// Twin: src/gguf/formats/iq4_xs.rs.
#pragma once
#include "formats/part.cuh"

struct IQ4_XS : Format {
    static constexpr i32 VALUES = 256, BYTES = 2 + 2 + 4 + 128, ALIGN = 8;
    static constexpr Order ORDER = Order::SUPER;

    template <class P>
    static DEVICE void decode(P block, i32 part, Part& out) {
        constexpr Table16 TABLE = iq4_table();
        const u32 low = block[4 + (part >> 1)] >> (4 * (part & 1)) & 15;
        const i32 scale = (i32) (low | (load_u16(block + 2) >> (2 * part) & 3) << 4) - 32;
        out.d[0] = load_f16(block);
        set_scales(out, scale, scale);
        u32 q[4];
        load_words<ALIGN>(block + 8 + 16 * part, q);
#pragma unroll
        for (i32 i = 0; i < 4; i++) look_up(TABLE, q[i], out.code[i], out.code[i + 4]);
    }
};
static_assert(IQ4_XS::BYTES == 136, "IQ4_XS");
