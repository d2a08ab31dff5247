// tile.cuh: scores and acc of several heads over the keys of a tile, in registers.
//
// Invariants: a score is lanes(32) over the head; a value of acc is a chain over the tile's keys.
// Does not know: where keys and values lie, weights, which heads. Source: docs/numerics.md, Attention.
// twin: src/device/cpu/plain/attention.rs.
#pragma once
#include "device/reduce.cuh"
#include "device/stored.cuh"

// Keys of a tile whose values are in flight together.
constexpr i32 ACC_AHEAD = 16;

// The halving trees over the 32 partial sums of COUNT dots, of which each of four neighbouring lanes has eight: sums
// 8 * (lane % 4) + j. In place c a lane has dot c ^ `own`; its first EACH become whole.
template <i32 COUNT> struct FourLanes {
    static constexpr i32 HALF = COUNT > 1 ? COUNT / 2 : 1;
    static constexpr i32 EACH = HALF > 1 ? HALF / 2 : 1;

    // A lane gives its partner the sums that the partner keeps.
    DEVICE static i32 own(i32 lane) {
        const i32 upper = (lane & 2) != 0 && HALF < COUNT ? HALF : 0;
        return upper | ((lane & 1) != 0 && EACH < HALF ? EACH : 0);
    }

    template <i32 FROM, i32 TO> DEVICE static void fold(f32 (&part)[COUNT][EIGHT], i32 bit) {
#pragma unroll
        for (i32 c = 0; c < TO; c++) {
#pragma unroll
            for (i32 j = 0; j < EIGHT; j++) part[c][j] = part[c][j] + shuffle_xor(part[FROM == TO ? c : c + TO][j], bit);
        }
    }

    DEVICE static void sum(f32 (&part)[COUNT][EIGHT]) {
        fold<COUNT, HALF>(part, 2);
        fold<HALF, EACH>(part, 1);
#pragma unroll
        for (i32 c = 0; c < EACH; c++) {
#pragma unroll
            for (i32 half = EIGHT / 2; half > 0; half /= 2) {
#pragma unroll
                for (i32 j = 0; j < half; j++) part[c][j] = part[c][j] + part[c][j + half];
            }
        }
    }
};

// Adds STRIDES strides of 32 values, of which a lane has eight each from `first` on, to the partial sums of KEYS keys with
// HEADS heads.
template <class Form, i32 HEADS, i32 KEYS, i32 STRIDES>
DEVICE void add_scores(const u8* const (&stored)[KEYS], const f32* query, i32 key_width, i32 part_heads, i32 own, i32 first,
                       f32 (&part)[HEADS * KEYS][EIGHT]) {
    typename Form::Eight ahead[STRIDES][KEYS];
#pragma unroll
    for (i32 s = 0; s < STRIDES; s++) {
#pragma unroll
        for (i32 k = 0; k < KEYS; k++) ahead[s][k] = Form::load_eight(stored[k], first + s * SHORT_LANES);
    }
#pragma unroll
    for (i32 s = 0; s < STRIDES; s++) {
        f32 key[KEYS][EIGHT];
#pragma unroll
        for (i32 k = 0; k < KEYS; k++) {
#pragma unroll
            for (i32 j = 0; j < EIGHT; j++) key[k][j] = ahead[s][k].value(j);
        }
#pragma unroll
        for (i32 h = 0; h < HEADS; h++) {
            const i32 head = part_heads + (h ^ own % HEADS);
            const Words4* words = (const Words4*)(query + head * key_width + first + s * SHORT_LANES);
            const Words4 both[2] = {words[0], words[1]};
#pragma unroll
            for (i32 k = 0; k < KEYS; k++) {
#pragma unroll
                for (i32 j = 0; j < EIGHT; j++) {
                    f32& to = part[k * HEADS + h][j];
                    to = fmaf(key[k][j], bits_f32(both[j / 4].word[j % 4]), to);
                }
            }
        }
    }
}

// DIMS neighbouring values of a row on their way.
template <class Form, i32 DIMS> struct Several {
    typename Form::template Few<DIMS> few;

    DEVICE void load(const u8* row, i32 d) { few = Form::template load_few<DIMS>(row, d); }
    DEVICE f32 value(i32 i) const { return few.value(i); }
};
template <class Form> struct Several<Form, 1> {
    typename Form::One one;

    DEVICE void load(const u8* row, i32 d) { one = Form::load_one(row, d); }
    DEVICE f32 value(i32) const { return one.value(); }
};

// Adds COUNT keys of a tile to DIMS values of acc of HEADS heads from d on: all loads before the first fma. Weight k of
// head h is weights[k / 4 * stride + 4 * h + k % 4].
template <class Form, i32 HEADS, i32 DIMS, i32 COUNT>
DEVICE void add_keys(const u8* values, i32 row_bytes, const f32* weights, i32 stride, i32 d, f32 (&acc)[HEADS][DIMS]) {
    static_assert(COUNT % 4 == 0, "weights come by fours");
    Several<Form, DIMS> ahead[COUNT];
#pragma unroll
    for (i32 k = 0; k < COUNT; k++) ahead[k].load(values + k * row_bytes, d);
#pragma unroll
    for (i32 k = 0; k < COUNT; k += 4) {
        Words4 weight[HEADS];
#pragma unroll
        for (i32 h = 0; h < HEADS; h++) weight[h] = *(const Words4*)(weights + k / 4 * stride + 4 * h);
#pragma unroll
        for (i32 j = 0; j < 4; j++) {
#pragma unroll
            for (i32 i = 0; i < DIMS; i++) {
                const f32 value = ahead[k + j].value(i);
#pragma unroll
                for (i32 h = 0; h < HEADS; h++) acc[h][i] = fmaf(bits_f32(weight[h].word[j]), value, acc[h][i]);
            }
        }
    }
}

// Adds the first `count` keys of a tile.
template <class Form, i32 HEADS, i32 DIMS>
DEVICE void tile_accs(const u8* values, i32 row_bytes, const f32* weights, i32 stride, i32 count, i32 d,
                      f32 (&acc)[HEADS][DIMS]) {
    i32 key = 0;
#pragma unroll 1
    for (; key + ACC_AHEAD <= count; key += ACC_AHEAD)
        add_keys<Form, HEADS, DIMS, ACC_AHEAD>(values + key * row_bytes, row_bytes, weights + key / 4 * stride, stride, d, acc);
#pragma unroll 1
    for (; key + 4 <= count; key += 4)
        add_keys<Form, HEADS, DIMS, 4>(values + key * row_bytes, row_bytes, weights + key / 4 * stride, stride, d, acc);
#pragma unroll 1
    for (; key < count; key++) {
        Several<Form, DIMS> last;
        last.load(values + key * row_bytes, d);
#pragma unroll
        for (i32 h = 0; h < HEADS; h++) {
            const f32 weight = weights[key / 4 * stride + 4 * h + key % 4];
#pragma unroll
            for (i32 i = 0; i < DIMS; i++) acc[h][i] = fmaf(weight, last.value(i), acc[h][i]);
        }
    }
}
