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

// A lane's values of a row of `width`.
template <i32 EACH> DEVICE void load_head(f32 (&value)[EACH], const f32* row, i32 width) {
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
#pragma unroll
    for (i32 i = 0; i < EACH; i++) value[i] = lane + i * SHORT_LANES < width ? row[lane + i * SHORT_LANES] : 0.0f;
}

// A lane's part of the angles of a row: `pairs` cosines, then as many sines.
template <i32 EACH> struct Angles {
    f32 cosine[EACH];
    f32 sine[EACH];
    i32 pairs;
    bool neox;

    DEVICE Angles(const f32* row, i32 pairs, bool neox) : pairs(pairs), neox(neox) {
#pragma unroll
        for (i32 i = 0; i < EACH; i++) {
            const i32 at = (i32) threadIdx.x % SHORT_LANES + i * SHORT_LANES;
            const i32 pair = !neox ? at / 2 : at < pairs ? at : at - pairs;
            cosine[i] = at < 2 * pairs ? row[pair] : 0.0f;
            sine[i] = at < 2 * pairs ? row[pairs + pair] : 0.0f;
        }
    }

    // All lanes of the warp call.
    DEVICE void turn(f32 (&value)[EACH]) const {
        const i32 lane = (i32) threadIdx.x % SHORT_LANES;
        f32 turned[EACH];
#pragma unroll
        for (i32 i = 0; i < EACH; i++) {
            const i32 at = lane + i * SHORT_LANES;
            const bool is_second = neox ? at >= pairs : at % 2 != 0;
            const i32 partner = !neox ? at ^ 1 : is_second ? at - pairs : at + pairs;
            f32 other = value[i];
            if (neox && 2 * pairs == EACH * SHORT_LANES) {
                other = value[(i + EACH / 2) % EACH];  // the lane's own
            } else if (neox) {
#pragma unroll
                for (i32 k = 0; k < EACH; k++) {
                    const f32 there = shuffle(value[k], partner % SHORT_LANES);
                    other = partner / SHORT_LANES == k ? there : other;
                }
            } else {
                other = shuffle_xor(value[i], 1);
            }
            const f32 own = value[i] * cosine[i];
            const f32 crossed = other * sine[i];
            turned[i] = at >= 2 * pairs ? value[i] : is_second ? crossed + own : own - crossed;
        }
#pragma unroll
        for (i32 i = 0; i < EACH; i++) value[i] = turned[i];
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

template <i32 EACH> DEVICE void write_head(f32* row, const f32 (&value)[EACH], i32 width) {
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
#pragma unroll
    for (i32 i = 0; i < EACH; i++)
        if (lane + i * SHORT_LANES < width) row[lane + i * SHORT_LANES] = value[i];
}

// Whether all that the lane has fits the form.
template <class Form, i32 EACH> DEVICE bool store_head(u8* row, const f32 (&value)[EACH], i32 width) {
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
    bool fits = true;
#pragma unroll
    for (i32 i = 0; i < EACH; i++)
        if (lane + i * SHORT_LANES < width) fits = Form::store(row, lane + i * SHORT_LANES, value[i]) && fits;
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
template <i32 EACH> struct WarpHead {
    f32* from;
    i32 width;
    f32 eps;
    bool is_normed;
    f32 weight[EACH];
    Angles<EACH> angles;

    DEVICE WarpHead(const Heads& heads, HeadKind kind, i32 head, i64 row)
        : width(kind == HeadKind::VALUE ? heads.value_width : heads.key_width), eps(heads.eps),
          angles(heads.cos_sin + row * (2 * (i64) heads.pairs), kind == HeadKind::VALUE ? 0 : heads.pairs, heads.neox != 0) {
        const bool is_query = kind == HeadKind::QUERY;
        from = is_query ? heads.q + row * heads.q_stride
                        : kind == HeadKind::KEY ? heads.k + row * heads.k_stride : (f32*) heads.v + row * heads.v_stride;
        from += (i64) head * width;
        const f32* of = is_query ? heads.q_weight : kind == HeadKind::KEY ? heads.k_weight : nullptr;
        is_normed = of != nullptr;
        if (is_normed) load_head(weight, of, width);
    }

    DEVICE void load(f32 (&value)[EACH]) const { load_head(value, from, width); }

    // Norm and rope; all lanes of the warp call.
    DEVICE void make(f32 (&value)[EACH]) const {
        if (is_normed) norm_head(value, weight, width, eps);
        if (angles.pairs > 0) angles.turn(value);
    }
};
