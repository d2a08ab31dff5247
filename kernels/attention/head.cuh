// head.cuh: a head of a query, key or value that a warp holds between product and attention: norm, rope, stored form.
//
// Invariants: lane l has values l, l + 32, l + 64, ...; those that do not exist are 0; the sum of squares is lanes(32).
// Does not know: which head it is, pages. Source: docs/numerics.md, Norms, rope, elementwise.
// twin: src/device/cpu/plain/{norm,rope,stored}.rs.
#pragma once
#include "device/reduce.cuh"
#include "device/stored.cuh"

// The widest head that a warp holds, and a lane's values of it.
constexpr i32 HEAD_MAX = 256;
constexpr i32 HEAD_EACH = HEAD_MAX / SHORT_LANES;

// WHOLE: a head has 32 * EACH values, and rope turns all of them or none.

// A lane's values of a row of `width`.
template <i32 EACH, bool WHOLE = false> DEVICE void load_head(f32 (&value)[EACH], const f32* row, i32 width) {
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
#pragma unroll
    for (i32 i = 0; i < EACH; i++)
        value[i] = WHOLE || lane + i * SHORT_LANES < width ? row[lane + i * SHORT_LANES] : 0.0f;
}

// A lane's part of the angles of a row: `pairs` cosines, then as many sines.
template <i32 EACH, bool WHOLE = false> struct Angles {
    f32 cosine[EACH];
    f32 sine[EACH];
    i32 pairs;
    bool neox;

    DEVICE Angles(const f32* row, i32 pairs, bool neox) : pairs(pairs), neox(neox) {
        if (WHOLE && pairs == 0) return;
#pragma unroll
        for (i32 i = 0; i < EACH; i++) {
            const i32 at = (i32) threadIdx.x % SHORT_LANES + i * SHORT_LANES;
            const bool is_first = WHOLE ? i < EACH / 2 : at < pairs;
            const i32 pair = !neox ? at / 2 : is_first ? at : at - pairs;
            const bool is_turned = WHOLE || at < 2 * pairs;
            cosine[i] = is_turned ? row[pair] : 0.0f;
            sine[i] = is_turned ? row[pairs + pair] : 0.0f;
        }
    }

    // All lanes of the warp call.
    DEVICE void turn(f32 (&value)[EACH]) const {
        const i32 lane = (i32) threadIdx.x % SHORT_LANES;
        f32 other[EACH];
        if (neox && (WHOLE || 2 * pairs == EACH * SHORT_LANES)) {
#pragma unroll
            for (i32 i = 0; i < EACH; i++) other[i] = value[(i + EACH / 2) % EACH];  // the lane's own
        } else if (neox) {
#pragma unroll
            for (i32 i = 0; i < EACH; i++) other[i] = shuffled(value, partner(lane + i * SHORT_LANES));
        } else {
#pragma unroll
            for (i32 i = 0; i < EACH; i++) other[i] = shuffle_xor(value[i], 1);
        }
#pragma unroll
        for (i32 i = 0; i < EACH; i++) {
            const i32 at = lane + i * SHORT_LANES;
            const bool is_second = !neox ? at % 2 != 0 : WHOLE ? i >= EACH / 2 : at >= pairs;
            const f32 own = value[i] * cosine[i];
            const f32 crossed = other[i] * sine[i];
            const f32 turned = is_second ? crossed + own : own - crossed;
            value[i] = WHOLE || at < 2 * pairs ? turned : value[i];
        }
    }

    DEVICE i32 partner(i32 at) const { return at >= pairs ? at - pairs : at + pairs; }

    // What the warp has at a lane's place.
    DEVICE static f32 shuffled(const f32 (&value)[EACH], i32 place) {
        f32 found = 0.0f;
#pragma unroll
        for (i32 k = 0; k < EACH; k++) {
            const f32 there = shuffle(value[k], place % SHORT_LANES);
            found = place / SHORT_LANES == k ? there : found;
        }
        return found;
    }
};

// RMS norm of a head of `width` values, in place.
template <i32 EACH> DEVICE void norm_head(f32 (&value)[EACH], const f32 (&weight)[EACH], i32 width, f32 eps) {
    f32 sum = 0.0f;
#pragma unroll
    for (i32 i = 0; i < EACH; i++) {
        sum = fmaf(value[i], value[i], sum);  // values that do not exist are 0 and change nothing
    }
    const f32 root = 1.0f / sqrtf(mean_of(warp_tree_all(sum), width) + eps);
#pragma unroll
    for (i32 i = 0; i < EACH; i++) value[i] = (value[i] * root) * weight[i];
}

// The lane's values come to stand at `place` of each 32.
template <i32 EACH, bool WHOLE = false>
DEVICE void write_head(f32* row, const f32 (&value)[EACH], i32 width, i32 place) {
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
#pragma unroll
    for (i32 i = 0; i < EACH; i++)
        if (WHOLE || lane + i * SHORT_LANES < width) row[place + i * SHORT_LANES] = value[i];
}

// Whether all that the lane has fits the form.
template <class Form, i32 EACH, bool WHOLE = false> DEVICE bool store_head(u8* row, const f32 (&value)[EACH], i32 width) {
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
    bool fits = true;
#pragma unroll
    for (i32 i = 0; i < EACH; i++)
        if (WHOLE || lane + i * SHORT_LANES < width) fits = Form::store(row, lane + i * SHORT_LANES, value[i]) && fits;
    return fits;
}

// Heads of rows as products leave them, and what stands between these and attention.
struct Heads {
    f32* q;
    i32 q_stride;
    i32 q_heads;
    f32* k;
    i32 k_stride;
    const f32* v;
    i32 v_stride;
    i32 kv_heads;
    i32 key_width;
    i32 value_width;
    const f32* q_weight;  // null: no norm
    const f32* k_weight;
    f32 eps;
    const f32* cos_sin;
    i32 pairs;  // 0: no rope
    i32 neox;
};

enum class HeadKind { QUERY, KEY, VALUE };

// One of them, by a warp: what does not depend on products is loaded when it is made. No head is wider than 32 * EACH.
template <i32 EACH, bool WHOLE = false> struct WarpHead {
    f32* from;
    i32 width;
    f32 eps;
    bool is_normed;
    f32 weight[EACH];
    Angles<EACH, WHOLE> angles;

    DEVICE WarpHead(const Heads& heads, HeadKind kind, i32 head, i64 row)
        : width(kind == HeadKind::VALUE ? heads.value_width : heads.key_width), eps(heads.eps),
          angles(heads.cos_sin + row * (2 * (i64) heads.pairs), kind == HeadKind::VALUE ? 0 : heads.pairs, heads.neox != 0) {
        const bool is_query = kind == HeadKind::QUERY;
        from = is_query ? heads.q + row * heads.q_stride
                        : kind == HeadKind::KEY ? heads.k + row * heads.k_stride : (f32*) heads.v + row * heads.v_stride;
        from += (i64) head * width;
        const f32* of = is_query ? heads.q_weight : kind == HeadKind::KEY ? heads.k_weight : nullptr;
        is_normed = of != nullptr;
        if (is_normed) load_head<EACH, WHOLE>(weight, of, width);
    }

    DEVICE void load(f32 (&value)[EACH]) const { load_head<EACH, WHOLE>(value, from, width); }

    // Norm and rope; all lanes of the warp call.
    DEVICE void make(f32 (&value)[EACH]) const {
        if (is_normed) norm_head(value, weight, width, eps);
        if (angles.pairs > 0) angles.turn(value);
    }
};
