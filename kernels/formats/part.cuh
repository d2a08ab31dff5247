// part.cuh: 32 neighbouring values of a row as integer codes and scales, and what decoders build them from.
//
// Every format's file has one struct: BYTES and VALUES of a block, ALIGN (the largest power of two that divides BYTES,
// at most 16), ORDER, those traits of its products that are not `Format`'s, and `decode`, which gives part
// 0 .. VALUES / 32 - 1 of a block.
// Invariants: decoding never fails and never leaves a table, whatever the bytes; from a card's memory (`const u8*`) it reads
// bytes of its block, and below them at most those of the same aligned word; from shared memory (`Near`) whole sixteens.
// A block's address is a multiple of ALIGN.
// Does not know: activations, products, kernels.
#pragma once
#include "device/types.h"
#include "device/vendor.h"

constexpr i32 PART_VALUES = 32;
constexpr i32 PART_WORDS = PART_VALUES / 4;

// How a format's integers become floats (docs/numerics.md, Dot product with a quantised row).
enum class Order {
    STEPS,  // A32: a float step for each part (NVFP4: each half part), value = d * code (+ m)
    SUPER,  // A256: a float step for each 256 values, value = d * scale * code (- m * min)
};

// What most formats have in common.
struct Format {
    static constexpr i32 SCALE_VALUES = 32;      // SUPER: values of an integer scale, 32 or 16
    static constexpr i32 BIAS = 0;               // `decode` gives codes + BIAS, which lie in 0 .. 127 then
    static constexpr bool FAR_PARTS = false;     // SUPER: parts i and i + 2 of each four share bytes, not neighbours
    static constexpr bool OFFSET = false;        // values have an offset beside their scale
    static constexpr bool HALVES = false;        // STEPS: half parts have float scales of their own
};

struct Part {
    u32 code[PART_WORDS];  // signed bytes, value i in byte i & 3 of word i >> 2; with BIAS more by that
    i32 scale[2];          // SUPER: integer scale of each half part
    i32 min[2];            // SUPER with an offset: integer minimum of each half part
    f32 d[2];              // float scale of each half part, where HALVES; else d[0] is the part's
    f32 m;                 // with an offset: its float scale
};

// ---- bytes of a block

DEVICE u32 load_u16(const u8* p) { return *(const u16*) p; }

DEVICE f32 load_f16(const u8* p) { return f16_f32(*(const u16*) p); }

// N words from `p`, a multiple of ALIGN, in as few loads as that allows.
template <i32 ALIGN, i32 N>
DEVICE void load_words(const u8* p, u32 (&out)[N]) {
    if constexpr (ALIGN >= 4) {
        constexpr i32 WIDTH = ALIGN >= 16 && N % 4 == 0 ? 4 : ALIGN >= 8 && N % 2 == 0 ? 2 : 1;
#pragma unroll
        for (i32 i = 0; i < N / WIDTH; i++) {
            const Words<WIDTH> v = ((const Words<WIDTH>*) p)[i];
#pragma unroll
            for (i32 k = 0; k < WIDTH; k++) out[WIDTH * i + k] = v.word[k];
        }
    } else {
        // Aligned words, moved into place; the bytes behind the last one singly, so that nothing past them is read.
        const u32 skip = (u32) ((u64) p & 3);
        const u8* base = p - skip;
        u32 word[N + 1];
#pragma unroll
        for (i32 i = 0; i < N; i++) word[i] = ((const u32*) base)[i];
        word[N] = 0;
        if constexpr (ALIGN == 2) {
            if (skip) word[N] = load_u16(base + 4 * N);
        } else {
#pragma unroll
            for (u32 k = 0; k < 3; k++)
                if (k < skip) word[N] |= (u32) base[4 * N + k] << (8 * k);
        }
#pragma unroll
        for (i32 i = 0; i < N; i++) out[i] = (u32) (((u64) word[i + 1] << 32 | word[i]) >> (8 * skip));
    }
}

// Bytes in shared memory that whole sixteens around them may be read.
struct Near {
    const u8* at;

    DEVICE Near operator+(i32 bytes) const { return Near{at + bytes}; }
    DEVICE u8 operator[](i32 i) const { return at[i]; }
};

DEVICE u32 load_u16(Near p) { return load_u16(p.at); }
DEVICE f32 load_f16(Near p) { return load_f16(p.at); }

template <i32 ALIGN, i32 N>
DEVICE void load_words(Near p, u32 (&out)[N]) {
    if constexpr (ALIGN >= 4 || N < 4) {
        load_words<ALIGN>(p.at, out);
    } else {
        // Lanes that read neighbouring bytes meet in fewer banks by sixteens than by words.
        constexpr i32 SIXTEENS = (4 * N + 30) / 16;
        const u32 skip = (u32) ((u64) p.at & 15);
        const Words4* const from = (const Words4*) (p.at - skip);
        u32 word[4 * SIXTEENS];
#pragma unroll
        for (i32 i = 0; i < SIXTEENS; i++) {
            const Words4 sixteen = from[i];
#pragma unroll
            for (i32 k = 0; k < 4; k++) word[4 * i + k] = sixteen.word[k];
        }
#pragma unroll
        for (i32 i = 0; i < N + 2; i++)
            if (i + 2 < 4 * SIXTEENS) word[i] = skip & 8 ? word[i + 2] : word[i];
#pragma unroll
        for (i32 i = 0; i < N + 1; i++) word[i] = skip & 4 ? word[i + 1] : word[i];
#pragma unroll
        for (i32 i = 0; i < N; i++) out[i] = (u32) (((u64) word[i + 1] << 32 | word[i]) >> (8 * (skip & 3)));
    }
}

// ---- four bytes in a word

DEVICE constexpr u32 bytes4(i32 a, i32 b, i32 c, i32 d) {
    return (u32) (a & 255) | (u32) (b & 255) << 8 | (u32) (c & 255) << 16 | (u32) (d & 255) << 24;
}

// v in each byte.
DEVICE constexpr u32 four(u32 v) { return v * 0x01010101u; }

// Each byte of x minus that of y, as signed bytes; bytes of x are at most 127, those of y at most 128.
DEVICE u32 minus4(u32 x, u32 y) { return ((x | 0x80808080u) - y) ^ 0x80808080u; }

// The codes of a part of F without their bias.
template <class F>
DEVICE void remove_bias(Part& part) {
    if constexpr (F::BIAS > 0) {
#pragma unroll
        for (i32 i = 0; i < PART_WORDS; i++) part.code[i] = minus4(part.code[i], four(F::BIAS));
    }
}

// Bit k of four bits as byte k: 0 or 1.
DEVICE u32 spread_bits(u32 bits) { return (bits * 0x00204081u) & 0x01010101u; }

// Two bits each of eight as byte k: 0 .. 3.
DEVICE u32 spread_pairs(u32 bits) { return (bits | bits << 6 | bits << 12 | bits << 18) & 0x03030303u; }

// The bytes whose bit in the four is 1 negated. Bytes are 1 .. 127: 0 would carry into its neighbour.
DEVICE u32 signed4(u32 x, u32 bits) {
    const u32 ones = spread_bits(bits & 15);
    return (x ^ ones * 255u) + ones;
}

// Seven sign bits and the one that makes their number even.
DEVICE u32 even_signs(u32 seven) {
    const u32 folded = seven ^ seven >> 4;
    return seven | (0x6996u >> (folded & 15) & 1u) << 7;
}

// The low nibbles of four bytes, and the high ones.
DEVICE u32 low_nibbles(u32 x) { return x & 0x0f0f0f0fu; }
DEVICE u32 high_nibbles(u32 x) { return x >> 4 & 0x0f0f0f0fu; }

// Sixteen signed bytes that a nibble chooses from.
struct Table16 {
    u32 word[4];
};

// The entries of four nibbles, the low half of x.
DEVICE u32 look_up4(const Table16& table, u32 x) {
    const u32 place = x & 0x7777u;
    const u32 lower = byte_permute(table.word[0], table.word[1], place);
    const u32 upper = byte_permute(table.word[2], table.word[3], place);
    return byte_permute(lower, upper, 0x3210u | (x >> 1 & 0x4444u));
}

// The entries of the low nibbles of four bytes, and of the high ones.
DEVICE void look_up(const Table16& table, u32 x, u32& low, u32& high) {
    const u32 first = look_up4(table, x & 0xffffu), second = look_up4(table, x >> 16);
    low = byte_permute(first, second, 0x6420u);
    high = byte_permute(first, second, 0x7531u);
}

// Values of IQ4_NL and IQ4_XS.
DEVICE constexpr Table16 iq4_table() {
    return {{bytes4(-127, -104, -83, -65), bytes4(-49, -35, -22, -10), bytes4(1, 13, 25, 38), bytes4(53, 69, 89, 113)}};
}

// Values of MXFP4 and NVFP4: E2M1 times two.
DEVICE constexpr Table16 e2m1_table() {
    return {{bytes4(0, 1, 2, 3), bytes4(4, 6, 8, 12), bytes4(0, -1, -2, -3), bytes4(-4, -6, -8, -12)}};
}

// ---- fields of a part

DEVICE void set_scales(Part& out, i32 first, i32 second) {
    out.scale[0] = first;
    out.scale[1] = second;
}

DEVICE void set_mins(Part& out, i32 first, i32 second) {
    out.min[0] = first;
    out.min[1] = second;
}
