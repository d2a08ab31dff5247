// The stored forms of one head's key or value: f32, f16 and q8_0, written a value a thread and read back.
//
// Invariants: f16 rounds to nearest even and refuses overflow (rule 6); q8_0 has A32's codes and the f16 scale
// amax / 127, in blocks of 34 bytes; a read value is rounded once. `store` says whether what it saw fits the
// form: neighbouring lanes have neighbouring values. `load_one` and `load_eight` only load, so that many may be in flight; `value` makes what was loaded a
// float. Does not know: pages, positions. Source: docs/numerics.md, Attention.
// twin: src/device/cpu/plain/stored.rs.
#pragma once
#include "device/image.cuh"
#include "device/reduce.cuh"

// Exponent bits of an f16: all of them are set where it is not finite.
constexpr u16 F16_EXPONENT = 0x7c00;

DEVICE bool is_finite_f16(u16 bits) { return (bits & F16_EXPONENT) != F16_EXPONENT; }

// Values that `load_eight` takes, from a multiple of 8 in a row of whole eights, whose address is a multiple of its bytes
// (q8_0: of 2).
constexpr i32 EIGHT = 8;
// Lanes that share a row of which each takes eight values at a time: eight of its 32 partial sums.
constexpr i32 KEY_LANES = SHORT_LANES / EIGHT;

struct StoredF32 {
    // Values of neighbouring rows, and strides of 32 values of one, whose loads are in flight together.
    static constexpr i32 AHEAD = 8;
    static constexpr i32 STRIDES = 2;

    struct One {
        f32 bits;
        DEVICE f32 value() const { return bits; }
    };
    struct Eight {
        Words4 words[2];
        DEVICE f32 value(i32 j) const { return bits_f32(words[j / 4].word[j % 4]); }
    };

    // N neighbours, from a multiple of N, two or four.
    template <i32 N> struct Few {
        Words<N> words;
        DEVICE f32 value(i32 j) const { return bits_f32(words.word[j]); }
    };

    DEVICE static constexpr i64 row_bytes(i32 width) { return 4 * (i64) width; }

    template <i32 N> DEVICE static Few<N> load_few(const u8* row, i32 i) { return Few<N>{*(const Words<N>*)(row + 4 * i)}; }

    DEVICE static One load_one(const u8* row, i32 i) { return One{((const f32*)row)[i]}; }
    DEVICE static Eight load_eight(const u8* row, i32 i) {
        const Words4* words = (const Words4*)(row + 4 * i);
        return Eight{{words[0], words[1]}};
    }

    // Anything fits: what is not finite is found by the quantiser that reads it next.
    DEVICE static bool store(u8* row, i32 i, f32 value) {
        ((f32*)row)[i] = value;
        return true;
    }
};

struct StoredF16 {
    // Whether values are codes with scales of their own.
    static constexpr bool CODES = false;
    static constexpr i32 AHEAD = 16;
    static constexpr i32 STRIDES = 4;

    struct One {
        u16 bits;
        DEVICE f32 value() const { return f16_f32(bits); }
    };
    struct Eight {
        Words4 words;
        DEVICE f32 value(i32 j) const { return f16_f32((u16) (words.word[j / 2] >> (16 * (j % 2)))); }
    };

    template <i32 N> struct Few {
        Words<N / 2> words;
        DEVICE f32 value(i32 j) const { return f16_f32((u16) (words.word[j / 2] >> (16 * (j % 2)))); }
    };

    DEVICE static constexpr i64 row_bytes(i32 width) { return 2 * (i64) width; }

    template <i32 N> DEVICE static Few<N> load_few(const u8* row, i32 i) {
        return Few<N>{*(const Words<N / 2>*)(row + 2 * i)};
    }

    DEVICE static One load_one(const u8* row, i32 i) { return One{((const u16*)row)[i]}; }
    DEVICE static Eight load_eight(const u8* row, i32 i) { return Eight{*(const Words4*)(row + 2 * i)}; }

    DEVICE static bool store(u8* row, i32 i, f32 value) {
        const u16 half = f32_f16(value);
        ((u16*)row)[i] = half;
        return is_finite_f16(half);
    }
};

// width is a multiple of 32.
struct StoredQ8 {
    static constexpr bool CODES = true;
    static constexpr i32 BLOCK_BYTES = 2 + A32_VALUES;
    static constexpr i32 AHEAD = 8;
    static constexpr i32 STRIDES = 4;

    struct One {
        u16 scale;
        i8 code;
        DEVICE f32 value() const { return f16_f32(scale) * (f32) code; }
    };
    struct Eight {
        u16 scale;
        u16 codes[EIGHT / 2];
        DEVICE f32 code(i32 j) const { return (f32) (i8) (codes[j / 2] >> (8 * (j % 2))); }
        DEVICE f32 value(i32 j) const { return f16_f32(scale) * code(j); }
    };

    template <i32 N> struct Few {
        u16 scale;
        u16 codes[N / 2];
        DEVICE f32 value(i32 j) const { return f16_f32(scale) * (f32) (i8) (codes[j / 2] >> (8 * (j % 2))); }
    };

    DEVICE static constexpr i64 row_bytes(i32 width) { return (i64) (width / A32_VALUES) * BLOCK_BYTES; }

    template <i32 N> DEVICE static Few<N> load_few(const u8* row, i32 i) {
        const u8* block = row + (i / A32_VALUES) * BLOCK_BYTES;
        const u16* codes = (const u16*)(block + 2 + i % A32_VALUES);
        Few<N> few;
        few.scale = *(const u16*)block;
#pragma unroll
        for (i32 k = 0; k < N / 2; k++) few.codes[k] = codes[k];
        return few;
    }

    DEVICE static One load_one(const u8* row, i32 i) {
        const u8* block = row + (i / A32_VALUES) * BLOCK_BYTES;
        return One{*(const u16*)block, (i8) block[2 + i % A32_VALUES]};
    }
    DEVICE static Eight load_eight(const u8* row, i32 i) {
        const u8* block = row + (i / A32_VALUES) * BLOCK_BYTES;
        const u16* codes = (const u16*)(block + 2 + i % A32_VALUES);
        return Eight{*(const u16*)block, {codes[0], codes[1], codes[2], codes[3]}};
    }

    // The lanes of a warp have the values of a block.
    DEVICE static bool store(u8* row, i32 i, f32 value) {
        const u32 largest = warp_largest(magnitude(value));
        const ImageScale scale = image_scale(largest);
        const u16 half = f32_f16(scale.scale);
        u8* block = row + (i / A32_VALUES) * BLOCK_BYTES;
        if (i % A32_VALUES == 0) *(u16*)block = half;
        block[2 + i % A32_VALUES] = (u8) (i8) image_code(value, scale);
        return is_finite(largest) && is_finite_f16(half);
    }
};
