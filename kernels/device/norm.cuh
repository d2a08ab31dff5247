// The sum of a row's squares, and what a norm makes of it, by a block.
//
// Invariants: lanes(256) for more than 256 values, else lanes(32); every thread of the block calls, or none; a block of
// 256 threads, or more where that is said.
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

// The same for a row in shared memory, by a block of at least 256 threads.
DEVICE f32 row_squares(const f32* near, i32 width, f32 (&part)[LONG_LANES]) {
    const i32 thread = (i32) threadIdx.x;
    if (width > LONG_LANES) {
        if (thread < LONG_LANES) {
            f32 sum = 0.0f;
#pragma unroll 8
            for (i32 i = thread; i < width; i += LONG_LANES) sum = fmaf(near[i], near[i], sum);
            part[thread] = sum;
        }
        __syncthreads();
        return long_tree(part);
    }
    f32 sum = 0.0f;
    for (i32 i = thread % SHORT_LANES; i < width; i += SHORT_LANES) sum = fmaf(near[i], near[i], sum);
    return warp_tree_all(sum);
}

// What a norm multiplies with.
DEVICE f32 root_of(f32 squares, i32 width, f32 eps) { return 1.0f / sqrtf(mean_of(squares, width) + eps); }

// The reciprocal root of a row, for every thread.
template <i32 AHEAD>
DEVICE f32 norm_root(const f32 (&value)[AHEAD], const f32* x, i32 width, f32 eps, f32 (&part)[LONG_LANES]) {
    return root_of(row_squares(value, x, width, part), width, eps);
}
DEVICE f32 norm_root(const f32* near, i32 width, f32 eps, f32 (&part)[LONG_LANES]) {
    return root_of(row_squares(near, width, part), width, eps);
}
