// parts.cuh: the parts in which attention is made, what attention over a part leaves, how neighbours become one.
//
// Invariants: a tile reads one page; parts are merged from left to right, the first is taken as it is.
// Does not know: how a part is made, images. Source: docs/numerics.md, Attention.
// twin: src/device/cpu/plain/attention.rs.
#pragma once
#include "device/functions.cuh"
#include "device/pages.cuh"
#include "device/reduce.cuh"

constexpr i32 TILE_POSITIONS = 64;
constexpr i32 SPAN_TILES = 16;
constexpr i32 SPAN_POSITIONS = TILE_POSITIONS * SPAN_TILES;

static_assert(TILE_POSITIONS == PAGE_POSITIONS, "a tile reads one page");
static_assert(TILE_POSITIONS == 2 * SHORT_LANES, "a lane has two keys of a tile");

// What attention over some keys leaves before the division; acc lies in memory.
struct Partial {
    f32 max;
    f32 sum;
};

// The factors by which two neighbours are scaled when they are merged.
struct Merge {
    f32 max;
    f32 left;
    f32 right;

    DEVICE Merge(f32 left_max, f32 right_max)
        : max(right_max > left_max ? right_max : left_max), left(exp_f32(left_max - max)),
          right(exp_f32(right_max - max)) {}

    DEVICE f32 join(f32 left_value, f32 right_value) const { return fmaf(right_value, right, left_value * left); }
    DEVICE static f32 share(f32 acc, f32 sum) { return acc / sum; }
};

// Merges the spans of a row and head, each of SPAN positions, of which `work` has maximum, sum and acc. A block of BLOCK
// threads. Join is Merge, or puts two parts together in another way.
template <class Join, i32 SPAN, i32 BLOCK> DEVICE void merge_spans(
    const f32* work, i32 spans_max, const u32* positions, f32* out, i32 out_stride, i32 q_heads, i32 value_width, i32 n) {
    const i32 head = (i32) blockIdx.x;
    const i64 row = (i64) blockIdx.y;
    if (row >= n) return;
    let_next_start();
    wait_for_previous();
    const i32 spans = (i32) positions[row] / SPAN + 1;
    const i64 span_floats = value_width + 2;
    work += (row * q_heads + head) * spans_max * span_floats;
    out += row * out_stride + (i64) head * value_width;
    for (i32 d = (i32) threadIdx.x; d < value_width; d += BLOCK) {
        Partial merged = {work[0], work[1]};
        f32 acc = work[2 + d];
        for (i32 span = 1; span < spans; span++) {
            const f32* right = work + span * span_floats;
            const Join join(merged.max, right[0]);
            merged = Partial{join.max, join.join(merged.sum, right[1])};
            acc = join.join(acc, right[2 + d]);
        }
        out[d] = Join::share(acc, merged.sum);
    }
}
