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

// How LANES neighbouring lanes share the 32 partial sums of a dot: a lane has runs of RUN neighbours, RUN * LANES apart. So it
// folds the first levels of the halving tree itself, the next ones with other lanes, the last ones itself again.
template <i32 LANES_, i32 RUN_> struct Share {
    static constexpr i32 LANES = LANES_;
    static constexpr i32 RUN = RUN_;
    static constexpr i32 SUMS = SHORT_LANES / LANES;
    static constexpr i32 RUNS = SUMS / RUN;

    // Where a lane's run stands among 32 values.
    DEVICE static i32 first(i32 lane, i32 run) { return run * RUN * LANES + lane * RUN; }
    // Where one of 32 values stands when each lane's are neighbours.
    DEVICE static i32 place(i32 value) {
        const i32 within = value % (RUN * LANES);
        return within / RUN * SUMS + value / (RUN * LANES) * RUN + within % RUN;
    }
};

// The halving trees of COUNT dots. In place c a lane has dot c ^ `own`; its first EACH become whole.
template <class Share, i32 COUNT> struct Trees {
    static constexpr i32 SUMS = Share::SUMS;
    static constexpr i32 RUN = Share::RUN;
    static constexpr i32 EACH = COUNT > Share::LANES ? COUNT / Share::LANES : 1;

    // A lane gives its partner the sums that the partner keeps.
    DEVICE static i32 own(i32 lane) {
        i32 own = 0;
        i32 keep = COUNT / 2;
#pragma unroll
        for (i32 bit = Share::LANES / 2; bit > 0; bit /= 2) {
            own |= (lane & bit) != 0 ? keep : 0;
            keep /= 2;
        }
        return own;
    }

    template <i32 HAVE, i32 BIT> DEVICE static void across(f32 (&part)[COUNT][SUMS]) {
        if constexpr (BIT > 0) {
            constexpr i32 KEEP = HAVE > 1 ? HAVE / 2 : 1;
#pragma unroll
            for (i32 c = 0; c < KEEP; c++) {
#pragma unroll
                for (i32 j = 0; j < RUN; j++) part[c][j] = part[c][j] + shuffle_xor(part[HAVE - KEEP + c][j], BIT);
            }
            across<KEEP, BIT / 2>(part);
        }
    }

    template <i32 DOTS, i32 FROM, i32 TO> DEVICE static void within(f32 (&part)[COUNT][SUMS]) {
#pragma unroll
        for (i32 half = FROM / 2; half >= TO; half /= 2) {
#pragma unroll
            for (i32 c = 0; c < DOTS; c++) {
#pragma unroll
                for (i32 j = 0; j < half; j++) part[c][j] = part[c][j] + part[c][j + half];
            }
        }
    }

    DEVICE static void sum(f32 (&part)[COUNT][SUMS]) {
        within<COUNT, SUMS, RUN>(part);
        across<COUNT, Share::LANES / 2>(part);
        within<EACH, RUN, 1>(part);
    }
};

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
template <class Form> struct Several<Form, EIGHT> {
    typename Form::Eight eight;

    DEVICE void load(const u8* row, i32 d) { eight = Form::load_eight(row, d); }
    DEVICE f32 value(i32 i) const { return eight.value(i); }
};

// Adds STRIDES strides of 32 values from `start` on to the partial sums of KEYS keys with HEADS heads, of which a lane has its
// share. Queries stand as Share places them.
template <class Form, class Share, i32 HEADS, i32 KEYS, i32 STRIDES>
DEVICE void add_scores(const u8* const (&stored)[KEYS], const f32* query, i32 key_width, i32 part_heads, i32 own, i32 start,
                       f32 (&part)[HEADS * KEYS][Share::SUMS]) {
    constexpr i32 SUMS = Share::SUMS;
    const i32 lane = (i32) threadIdx.x % Share::LANES;
    Several<Form, Share::RUN> ahead[STRIDES][KEYS][Share::RUNS];
#pragma unroll
    for (i32 s = 0; s < STRIDES; s++) {
#pragma unroll
        for (i32 k = 0; k < KEYS; k++) {
#pragma unroll
            for (i32 r = 0; r < Share::RUNS; r++)
                ahead[s][k][r].load(stored[k], start + s * SHORT_LANES + Share::first(lane, r));
        }
    }
#pragma unroll
    for (i32 s = 0; s < STRIDES; s++) {
        f32 key[KEYS][SUMS];
#pragma unroll
        for (i32 k = 0; k < KEYS; k++) {
#pragma unroll
            for (i32 j = 0; j < SUMS; j++) key[k][j] = ahead[s][k][j / Share::RUN].value(j % Share::RUN);
        }
#pragma unroll
        for (i32 h = 0; h < HEADS; h++) {
            const i32 head = part_heads + (h ^ own % HEADS);
            const Words4* words = (const Words4*)(query + head * key_width + start + s * SHORT_LANES + lane * SUMS);
            Words4 asked[SUMS / 4];
#pragma unroll
            for (i32 j = 0; j < SUMS / 4; j++) asked[j] = words[j];
#pragma unroll
            for (i32 k = 0; k < KEYS; k++) {
#pragma unroll
                for (i32 j = 0; j < SUMS; j++) {
                    f32& to = part[k * HEADS + h][j];
                    to = fmaf(key[k][j], bits_f32(asked[j / 4].word[j % 4]), to);
                }
            }
        }
    }
}

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
