// router.cu: which experts a row asks: norm with the product of a router, and the choice.
//
// shapes   x [n][x_stride] f32; router [experts][width] of a plain type; images as in rows.cu; logits [n][logits_stride];
//          ids, weights [n][used]
// launch   norm_router: grid (experts / 8 rounded up + 1, n), block 256, dynamic shared memory for a row; every block makes
//          the norm, a warp a logit, the last block of a row what others read of the norm. route: grid (n), block 32 for up
//          to 256 experts, else 256
// order    norm: lanes(256) for more than 256 values, else lanes(32); logits: lanes(32); softmax: lanes(32) for up to 256
//          experts, else lanes(256); the divisor a chain in rank order. A row's bits depend on that row alone
// moves    the router once a row, of which a warp has up to 64 values a lane at hand before its row is there
// twin     src/device/cpu/plain/{norm,product,route,image}.rs, equal bit for bit
#include "device/functions.cuh"
#include "device/images.cuh"
#include "device/norm.cuh"
#include "formats/plain.cuh"

constexpr i32 BLOCK = LONG_LANES;
constexpr i32 WARPS = BLOCK / SHORT_LANES;
// Experts of a router: the shared memory of a choice.
constexpr i32 EXPERTS_MAX = 1024;
// Values of a row that a thread keeps, and of the router that a lane has at hand.
constexpr i32 ROW_AHEAD = 8;
constexpr i32 ROUTER_AHEAD = 64;

// Whether all logits are finite; if not, reports the fault, and the row takes experts 0 .. used - 1 with weight 0, so that
// what follows stays inside its buffers.
DEVICE bool are_finite(u32 largest, i32 used, u32* ids, f32* weights, u32* fault, u32 fault_id) {
    if (is_finite(largest)) return true;
    if (threadIdx.x == 0) report_fault(fault, fault_id);
    for (i32 rank = (i32) threadIdx.x; rank < used; rank += (i32) blockDim.x) {
        ids[rank] = (u32) rank;
        weights[rank] = 0.0f;
    }
    return false;
}

// Divides the probabilities of the chosen, in rank order in shared memory.
DEVICE void write_weights(const f32* chosen, f32 divisor, i32 used, f32* weights) {
    const f32 least = 0x1p-14f;
    divisor = divisor > least ? divisor : least;
    for (i32 rank = (i32) threadIdx.x; rank < used; rank += (i32) blockDim.x) weights[rank] = chosen[rank] / divisor;
}

// A warp chooses among at most 32 * EACH experts: e = lane + 32 k in place k. Expert after expert, it takes the best that is
// left: of the highest probability, of these the lowest index. Probabilities are in the order of their bits.
template <i32 EACH>
DEVICE void choose_few(const f32* logits, i32 experts, i32 used, u32* ids, f32* weights, f32* chosen, u32* fault,
                       u32 fault_id) {
    const i32 lane = (i32) threadIdx.x;
    // Places without an expert repeat the last one, which changes no maximum.
    f32 mine[EACH];
#pragma unroll
    for (i32 k = 0; k < EACH; k++) {
        const i32 e = lane + k * SHORT_LANES;
        mine[k] = logits[e < experts ? e : experts - 1];
    }
    f32 max = mine[0];
    u32 largest = magnitude(max);
#pragma unroll
    for (i32 k = 1; k < EACH; k++) {
        max = mine[k] > max ? mine[k] : max;
        largest = magnitude(mine[k]) > largest ? magnitude(mine[k]) : largest;
    }
    if (!are_finite(warp_largest(largest), used, ids, weights, fault, fault_id)) return;
    max = from_rising(warp_largest(rising(max)));
    // Experts that do not exist weigh 0, which changes no sum.
    f32 sum = 0.0f;
#pragma unroll
    for (i32 k = 0; k < EACH; k++) {
        const f32 e = exp_f32(mine[k] - max);
        mine[k] = lane + k * SHORT_LANES < experts ? e : 0.0f;
        sum = sum + mine[k];
    }
    sum = warp_tree_all(sum);
    // What is left: 1 + the bits of the probability, 0 for what is taken or does not exist.
    u32 left[EACH];
#pragma unroll
    for (i32 k = 0; k < EACH; k++) {
        const u32 bits = f32_bits(mine[k] / sum) + 1;
        left[k] = lane + k * SHORT_LANES < experts ? bits : 0;
    }
    f32 divisor = 0.0f;
#pragma unroll 1
    for (i32 rank = 0; rank < used; rank++) {
        u32 best = left[0];
#pragma unroll
        for (i32 k = 1; k < EACH; k++) best = left[k] > best ? left[k] : best;
        best = warp_largest(best);
        // The complement of the lowest index is the largest.
        u32 index = 0;
#pragma unroll
        for (i32 k = EACH - 1; k >= 0; k--) index = left[k] == best ? ~(u32) (lane + k * SHORT_LANES) : index;
        const i32 expert = (i32) ~warp_largest(index);
#pragma unroll
        for (i32 k = 0; k < EACH; k++) left[k] = expert == lane + k * SHORT_LANES ? 0 : left[k];
        const f32 probability = bits_f32(best - 1);
        divisor = divisor + probability;
        if (lane == 0) {
            ids[rank] = (u32) expert;
            chosen[rank] = probability;
        }
    }
    warp_barrier();
    write_weights(chosen, divisor, used, weights);
}

// A block chooses among more than 256 experts: a thread has e = thread, thread + 256, ... and ranks an expert at a time by
// the number of experts before it, those of a higher probability, and of the same with a lower index.
DEVICE void choose_many(const f32* logits, i32 experts, i32 used, u32* ids, f32* weights, f32* chosen, u32* fault,
                        u32 fault_id) {
    constexpr i32 EACH = EXPERTS_MAX / BLOCK;
    alignas(16) __shared__ f32 probability[EXPERTS_MAX];
    __shared__ f32 part[LONG_LANES];
    __shared__ u32 warps[WARPS];
    const i32 thread = (i32) threadIdx.x;
    f32 mine[EACH];
    u32 largest = 0, most = 0;
#pragma unroll
    for (i32 k = 0; k < EACH; k++) {
        const i32 e = thread + k * BLOCK;
        mine[k] = logits[e < experts ? e : experts - 1];
        largest = magnitude(mine[k]) > largest ? magnitude(mine[k]) : largest;
        most = rising(mine[k]) > most ? rising(mine[k]) : most;
    }
    if (!are_finite(block_max(largest, warps), used, ids, weights, fault, fault_id)) return;
    __syncthreads();
    const f32 max = from_rising(block_max(most, warps));
    f32 sum = 0.0f;
#pragma unroll
    for (i32 k = 0; k < EACH; k++) {
        mine[k] = thread + k * BLOCK < experts ? exp_f32(mine[k] - max) : 0.0f;
        sum = sum + mine[k];
    }
    part[thread] = sum;
    __syncthreads();
    sum = long_tree(part);
#pragma unroll
    for (i32 k = 0; k < EACH; k++) probability[thread + k * BLOCK] = mine[k] / sum;
    __syncthreads();
#pragma unroll 1
    for (i32 own = thread; own < experts; own += BLOCK) {
        const f32 p = probability[own];
        i32 rank = 0;
#pragma unroll 4
        for (i32 other = 0; other < experts; other += 4) {
            const Words4 four = *(const Words4*)(probability + other);  // places without an expert hold 0 and come last
#pragma unroll
            for (i32 j = 0; j < 4; j++) {
                const f32 its = bits_f32(four.word[j]);
                rank += its > p || (its == p && other + j < own) ? 1 : 0;
            }
        }
        if (rank < used) {
            ids[rank] = (u32) own;
            chosen[rank] = p;
        }
    }
    __syncthreads();
    f32 divisor = 0.0f;
#pragma unroll 8
    for (i32 rank = 0; rank < used; rank++) divisor = divisor + chosen[rank];
    write_weights(chosen, divisor, used, weights);
}

// Softmax over all experts, the best `used` by (probability descending, index ascending), their probabilities divided
// by max(sum, 2^-14).
extern "C" __global__ void __launch_bounds__(BLOCK)
route(const f32* logits, i32 logits_stride, i32 experts, i32 used, u32* ids, f32* weights, i32 n, u32* fault,
      u32 fault_id) {
    __shared__ f32 chosen[EXPERTS_MAX];
    const i64 row = (i64) blockIdx.x;
    if (row >= n) return;
    let_next_start();
    wait_for_previous();
    logits += row * logits_stride;
    ids += row * used;
    weights += row * used;
    if (experts <= 128) {
        choose_few<4>(logits, experts, used, ids, weights, chosen, fault, fault_id);
    } else if (experts <= 256) {
        choose_few<8>(logits, experts, used, ids, weights, chosen, fault, fault_id);
    } else {
        choose_many(logits, experts, used, ids, weights, chosen, fault, fault_id);
    }
}

// A warp's row of the router. The first values of each lane of a long one are with it before the wait.
template <class F>
struct RouterRow {
    const u8* row;
    i32 width;
    f32 ahead[ROUTER_AHEAD];

    DEVICE RouterRow(const u8* of, i32 values, i32 lane) : row(of), width(values) {
        if (width < ROUTER_AHEAD * SHORT_LANES) {
            for (i32 at = lane * LINE_BYTES; at < width * F::BYTES; at += SHORT_LANES * LINE_BYTES) prefetch(row + at);
            return;
        }
#pragma unroll
        for (i32 s = 0; s < ROUTER_AHEAD; s++) ahead[s] = F::value(row, lane + s * SHORT_LANES);
    }

    // The dot product with `near` in shared memory, for every lane.
    DEVICE f32 dot(const f32* near, i32 lane) const {
        f32 sum = 0.0f;
        i32 i = lane;
        if (width >= ROUTER_AHEAD * SHORT_LANES) {
#pragma unroll
            for (i32 s = 0; s < ROUTER_AHEAD; s++) sum = fmaf(ahead[s], near[lane + s * SHORT_LANES], sum);
            i += ROUTER_AHEAD * SHORT_LANES;
        }
#pragma unroll 8
        for (; i < width; i += SHORT_LANES) sum = fmaf(F::value(row, i), near[i], sum);
        return warp_tree_all(sum);
    }
};

// The RMS norm of a row as floats (out null: nobody reads them) and as images; its products with the rows of a router,
// scaled and biased where that is given.
template <class F>
DEVICE void norm_router(const f32* x, const f32* norm, i32 width, f32 eps, f32* out, const Images& images, i64 at,
                        const u8* router, const f32* scale, const f32* bias, f32* logits, i32 experts, u32* fault,
                        u32 fault_id) {
    DYNAMIC_SHARED(f32, near);
    __shared__ f32 part[LONG_LANES];
    const i32 thread = (i32) threadIdx.x, lane = thread % SHORT_LANES;
    const bool has_products = blockIdx.x + 1 < gridDim.x;
    const i32 expert = (i32) blockIdx.x * WARPS + thread / SHORT_LANES;
    const bool is_there = has_products && expert < experts;
    f32 factor[ROW_AHEAD], value[ROW_AHEAD];
#pragma unroll
    for (i32 k = 0; k < ROW_AHEAD; k++) factor[k] = thread + k * BLOCK < width ? norm[thread + k * BLOCK] : 0.0f;
    const RouterRow<F> row(router + (i64) (is_there ? expert : 0) * width * F::BYTES, is_there ? width : 0, lane);
    let_next_start();
    wait_for_previous();

#pragma unroll
    for (i32 k = 0; k < ROW_AHEAD; k++) value[k] = thread + k * BLOCK < width ? x[thread + k * BLOCK] : 0.0f;
    const f32 root = norm_root(value, x, width, eps, part);
#pragma unroll
    for (i32 k = 0; k < ROW_AHEAD; k++)
        if (thread + k * BLOCK < width) near[thread + k * BLOCK] = (value[k] * root) * factor[k];
#pragma unroll 4
    for (i32 i = thread + ROW_AHEAD * BLOCK; i < width; i += BLOCK) near[i] = (x[i] * root) * norm[i];
    __syncthreads();
    if (!has_products) {
        if (out != nullptr)
            for (i32 i = thread; i < width; i += BLOCK) out[i] = near[i];
        images.write_row<WARPS>(near, width, at, fault, fault_id);
        return;
    }
    if (!is_there) return;
    f32 result = row.dot(near, lane);
    if (scale != nullptr) result = result * *scale;
    if (bias != nullptr) result = result + bias[expert];
    if (lane == 0) logits[expert] = result;
}

#define NORM_ROUTER(T, F)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(BLOCK, 1)                                                                 \
    norm_router_##T(const f32* x, i32 x_stride, const f32* norm, i32 width, f32 eps, f32* out, i32 out_stride,             \
                    i8* codes32, f32* scales32, i8* codes256, f32* scales256, const u8* router, const f32* scale,          \
                    const f32* bias, f32* logits, i32 logits_stride, i32 experts, i32 n, u32* fault, u32 fault_id) {       \
        const i64 row = (i64) blockIdx.y;                                                                                  \
        if (row >= n) return;                                                                                              \
        norm_router<F>(x + row * x_stride, norm, width, eps, out == nullptr ? out : out + row * out_stride,                \
                       Images{codes32, scales32, codes256, scales256}, row * width, router, scale, bias,                   \
                       logits + row * logits_stride, experts, fault, fault_id);                                            \
    }

NORM_ROUTER(f32, F32)
NORM_ROUTER(f16, F16)
NORM_ROUTER(bf16, BF16)
