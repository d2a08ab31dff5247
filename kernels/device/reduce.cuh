// The fixed shapes of float sums inside a block, and the exact maximum of a warp.
//
// Invariants: a tree adds lane l + half to lane l for half = N/2, N/4, ... 1, over all N lanes; lanes without elements
// hold +0 and take part. Every thread of the block (of the warp) calls, or none.
// Does not know: what is summed. Source: docs/numerics.md, Reductions.
// twin: src/device/cpu/plain/reduce.rs.
#pragma once
#include "device/vendor.h"

// Lanes of every dot product with float operands, and of sums over at most 256 values.
constexpr i32 SHORT_LANES = 32;
// Lanes of sums over more than 256 values.
constexpr i32 LONG_LANES = 256;

// sum / count: by a power of two a product gives the same bits.
DEVICE f32 mean_of(f32 sum, i32 count) {
    if ((count & (count - 1)) == 0) return sum * bits_f32(0x7f000000u - f32_bits((f32) count));
    return sum / (f32) count;
}

// The halving tree over one value of each of a warp's 32 lanes; the sum is lane 0's alone.
DEVICE f32 warp_tree(f32 value) {
#pragma unroll
    for (i32 half = SHORT_LANES / 2; half > 0; half /= 2) value = value + shuffle_down(value, half);
    return value;
}

// The same for every lane: lanes past a half add the same two values.
DEVICE f32 warp_tree_all(f32 value) {
#pragma unroll
    for (i32 half = SHORT_LANES / 2; half > 0; half /= 2) value = value + shuffle_xor(value, half);
    return value;
}

// The halving tree over the 256 values of `part` in shared memory; every warp makes the same sum, for every lane. One
// barrier between the writing of `part` and the call is the caller's.
DEVICE f32 long_tree(const f32* part) {
    constexpr i32 EACH = LONG_LANES / SHORT_LANES;
    f32 value[EACH];
#pragma unroll
    for (i32 i = 0; i < EACH; i++) value[i] = part[(i32) threadIdx.x % SHORT_LANES + i * SHORT_LANES];
#pragma unroll
    for (i32 half = EACH / 2; half > 0; half /= 2) {
#pragma unroll
        for (i32 i = 0; i < half; i++) value[i] = value[i] + value[i + half];
    }
    return warp_tree_all(value[0]);
}

// The largest value of a warp, for every lane.
template <class T> DEVICE T warp_max(T value) {
    for (i32 bit = SHORT_LANES / 2; bit > 0; bit /= 2) {
        const T other = shuffle_xor(value, bit);
        value = other > value ? other : value;
    }
    return value;
}

// The largest value of a block of 32 * WARPS threads, for every thread; `largest` may be written again after the next
// barrier.
template <class T, i32 WARPS> DEVICE T block_max(T value, T (&largest)[WARPS]) {
    const i32 thread = (i32) threadIdx.x;
    value = warp_max(value);
    if (thread % SHORT_LANES == 0) largest[thread / SHORT_LANES] = value;
    __syncthreads();
    for (i32 warp = 0; warp < WARPS; warp++) value = largest[warp] > value ? largest[warp] : value;
    return value;
}
