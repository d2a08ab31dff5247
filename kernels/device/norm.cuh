// The sum of a row's squares, and what a norm makes of it, by a block of 256 threads.
//
// Invariants: lanes(256) for more than 256 values, else lanes(32); every thread of the block calls, or none.
// Does not know: where rows lie, what becomes of them. Source: docs/numerics.md, Norms.
// twin: src/device/cpu/plain/norm.rs.
#pragma once
#include "device/reduce.cuh"

// The sum of a row's squares, for every thread: x is the row, of which `value` has thread + k * LONG_LANES, or 0.
template <i32 AHEAD> DEVICE f32 row_squares(const f32 (&value)[AHEAD], const f32* x, i32 width, f32 (&part)[LONG_LANES]) {
    const i32 thread = (i32) threadIdx.x;
    f32 sum = 0.0f;
    if (width > LONG_LANES) {
#pragma unroll
        for (i32 k = 0; k < AHEAD; k++) sum = fmaf(value[k], value[k], sum);  // values that do not exist change nothing
#pragma unroll 8
        for (i32 i = thread + AHEAD * LONG_LANES; i < width; i += LONG_LANES) sum = fmaf(x[i], x[i], sum);
        part[thread] = sum;
        __syncthreads();
        return long_tree(part);
    }
    // Every warp makes the whole sum.
    part[thread] = value[0];
    __syncthreads();
#pragma unroll
    for (i32 k = 0; k < LONG_LANES / SHORT_LANES; k++) {
        const f32 one = part[thread % SHORT_LANES + k * SHORT_LANES];
        sum = fmaf(one, one, sum);
    }
    return warp_tree_all(sum);
}

// The reciprocal root that a norm multiplies with, for every thread.
template <i32 AHEAD>
DEVICE f32 norm_root(const f32 (&value)[AHEAD], const f32* x, i32 width, f32 eps, f32 (&part)[LONG_LANES]) {
    return 1.0f / sqrtf(mean_of(row_squares(value, x, width, part), width) + eps);
}
