// best.cu: the best tokens of rows of logits, as keys.
//
// shapes   a row of logits is [values] f32, rows `stride` apart; keys [n][pieces][count] u64: the logit's bits in rising
//          order (-0 as +0), then the complement of the id. The best token has the largest key; all ones stand for a logit
//          that is not finite, and come first; 0 is less than any token's key, and fills up
// launch   grid (pieces of 2,048 values, rows), block 256, static shared memory only; a piece gives its `count` largest
//          keys in falling order, and best_of_keys takes those of all pieces until one piece is left. count is at most 64
// order    no sums; no two keys are equal, so there is one order
// moves    each logit once, from L2; a launch behind the first one `count` keys of each piece
// twin     src/device/best.rs, equal bit for bit
#include "device/image.cuh"

constexpr i32 BEST_BLOCK = 256;
// Values of a thread; of a piece.
constexpr i32 BEST_EACH = 8;
constexpr i32 BEST_PIECE = BEST_BLOCK * BEST_EACH;
constexpr i32 BEST_WARPS = BEST_BLOCK / WARP;
constexpr u64 KEY_NOT_FINITE = ~0ull;

DEVICE u64 token_key(f32 logit, u32 id) {
    if (!is_finite(magnitude(logit))) return KEY_NOT_FINITE;
    return (u64) rising(logit + 0.0f) << 32 | (u64) (~id);
}

// The largest key of a warp, for every lane.
DEVICE u64 warp_largest_key(u64 key) {
    const u32 high = warp_largest((u32) (key >> 32));
    const u32 low = warp_largest((u32) (key >> 32) == high ? (u32) key : 0u);
    return (u64) high << 32 | low;
}

// The `count` largest keys of a block's, of which each thread has some, in falling order; all but the first `here` are 0.
DEVICE void write_best(const u64 (&mine)[BEST_EACH], i32 here, u64* best, i32 count) {
    __shared__ u64 sorted[BEST_PIECE];
    const i32 thread = (i32) threadIdx.x;
    if (count == 1) {
        u64 largest = mine[0];
#pragma unroll
        for (i32 k = 1; k < BEST_EACH; k++) largest = mine[k] > largest ? mine[k] : largest;
        largest = warp_largest_key(largest);
        if (thread % WARP == 0) sorted[thread / WARP] = largest;
        __syncthreads();
        if (thread >= WARP) return;
        largest = warp_largest_key(thread < BEST_WARPS ? sorted[thread] : 0);
        if (thread == 0) best[0] = largest;
        return;
    }
#pragma unroll
    for (i32 k = 0; k < BEST_EACH; k++) sorted[thread + k * BEST_BLOCK] = mine[k];
    __syncthreads();
    // A bitonic sort: runs of `size` keys fall and rise in turn, until one run falls. The pairs of a warp lie in 64
    // neighbouring keys, so that near ones wait for the warp alone.
#pragma unroll 1
    for (i32 size = 2; size < 2 * here; size *= 2) {
#pragma unroll 1
        for (i32 half = size / 2; half > 0; half /= 2) {
            if (half >= WARP) {
                __syncthreads();
            } else {
                warp_barrier();
            }
#pragma unroll
            for (i32 k = 0; k < BEST_EACH / 2; k++) {
                const i32 pair = thread + k * BEST_BLOCK;
                if (pair >= here) break;
                const i32 first = 2 * pair - (pair & (half - 1));
                const u64 one = sorted[first];
                const u64 other = sorted[first + half];
                const bool falls = (first & size) == 0;
                if ((one < other) == falls) {
                    sorted[first] = other;
                    sorted[first + half] = one;
                }
            }
        }
    }
    __syncthreads();
    if (thread < count) best[thread] = sorted[thread];
}

// The best of a piece of a row, whose `values` have the keys that `key_at` gives.
template <class KeyAt> DEVICE void best_of(const KeyAt& key_at, i32 values, u64* best, i32 count, i32 n) {
    const i64 row = (i64) blockIdx.y;
    if (row >= n) return;
    wait_for_previous();
    let_next_start();
    const i32 first = (i32) blockIdx.x * BEST_PIECE;
    u64 mine[BEST_EACH];
#pragma unroll
    for (i32 k = 0; k < BEST_EACH; k++) {
        const i32 i = first + (i32) threadIdx.x + k * BEST_BLOCK;
        mine[k] = i < values ? key_at(row, i) : 0;
    }
    const i32 here = values - first < BEST_PIECE ? values - first : BEST_PIECE;
    write_best(mine, here, best + (row * gridDim.x + blockIdx.x) * count, count);
}

extern "C" __global__ void __launch_bounds__(BEST_BLOCK)
best_of_logits(const f32* logits, i32 stride, i32 values, u64* best, i32 count, i32 n) {
    best_of([=](i64 row, i32 i) { return token_key(logits[row * stride + i], (u32) i); }, values, best, count, n);
}

// Of the keys that pieces gave: `values` a row.
extern "C" __global__ void __launch_bounds__(BEST_BLOCK)
best_of_keys(const u64* keys, i32 values, u64* best, i32 count, i32 n) {
    best_of([=](i64 row, i32 i) { return keys[row * values + i]; }, values, best, count, n);
}
