// rows.cu: everything that a row passes through between products: norms, images, rope, elementwise, router, sums.
//
// shapes   a row r of x starts at x + r * x_stride floats; codes [n][cols] i8, scales [n][cols / block] f32;
//          ids, weights [n][used]; pairs [n * used][width]
// launch   one block of 256 threads (rope: 64) for a piece, 256 values or a row, batch rows in grid.y (route: grid.x);
//          static shared memory only
// order    rms_norm: lanes(256) for more than 256 values, else lanes(32); route: the same over the experts, the divisor a
//          chain in rank order; combine: a chain in rank order. A row's bits depend on that row alone
// moves    each value is read once or twice (the second time from L1 or L2) and written once
// twin     src/device/cpu/plain/{norm,image,rope,route,experts,functions}.rs, equal bit for bit
#include "device/functions.cuh"
#include "device/image.cuh"
#include "device/images.cuh"
#include "device/reduce.cuh"

constexpr i32 BLOCK = 256;
constexpr i32 ROPE_BLOCK = 64;
// Values of a norm that a thread keeps.
constexpr i32 NORM_AHEAD = 16;
// Experts of a router: the shared memory of `route`.
constexpr i32 EXPERTS_MAX = 1024;
constexpr i32 ROUTE_BLOCK = 128;
constexpr i32 ROUTE_WARPS = ROUTE_BLOCK / SHORT_LANES;

// The sum of a row's squares, for every thread: x is the row, of which `value` has thread + k * BLOCK, or 0.
template <i32 AHEAD> DEVICE f32 row_squares(const f32 (&value)[AHEAD], const f32* x, i32 width, f32 (&part)[LONG_LANES]) {
    const i32 thread = (i32) threadIdx.x;
    f32 sum = 0.0f;
    if (width > LONG_LANES) {
#pragma unroll
        for (i32 k = 0; k < AHEAD; k++) sum = fmaf(value[k], value[k], sum);  // values that do not exist change nothing
#pragma unroll 8
        for (i32 i = thread + AHEAD * BLOCK; i < width; i += BLOCK) sum = fmaf(x[i], x[i], sum);
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

// RMS norm of each piece: y = (x * (1 / sqrt(mean(x^2) + eps))) * w. x may be y: a thread writes what it alone read.
// (`norm` is the name of a function of CUDA's own.)
extern "C" __global__ void __launch_bounds__(BLOCK, 1)
rms_norm(const f32* x, i32 x_stride, i32 x_piece_stride, f32* y, i32 y_stride, i32 y_piece_stride, const f32* w,
         i32 w_per_piece, i32 width, f32 eps, i32 n) {
    __shared__ f32 part[LONG_LANES];
    const i32 piece = (i32) blockIdx.x;
    const i32 thread = (i32) threadIdx.x;
    const i64 row = (i64) blockIdx.y;
    if (row >= n) return;
    x += row * x_stride + (i64) piece * x_piece_stride;
    y += row * y_stride + (i64) piece * y_piece_stride;
    if (w_per_piece) w += (i64) piece * width;

    // The first values of a thread stay with it; their loads and those of w go ahead of the chain.
    f32 value[NORM_AHEAD], factor[NORM_AHEAD];
#pragma unroll
    for (i32 k = 0; k < NORM_AHEAD; k++) {
        const i32 i = thread + k * BLOCK;
        value[k] = i < width ? x[i] : 0.0f;
        factor[k] = i < width ? w[i] : 0.0f;
    }
    const f32 root = 1.0f / sqrtf(mean_of(row_squares(value, x, width, part), width) + eps);
#pragma unroll
    for (i32 k = 0; k < NORM_AHEAD; k++) {
        const i32 i = thread + k * BLOCK;
        if (i < width) y[i] = (value[k] * root) * factor[k];
    }
#pragma unroll 4
    for (i32 i = thread + NORM_AHEAD * BLOCK; i < width; i += BLOCK) y[i] = (x[i] * root) * w[i];
}

// See `norm_images`: a thread keeps AHEAD values; those of longer rows are read again.
template <i32 AHEAD>
DEVICE void norm_row(f32* x, const f32* y, const f32* w, i32 width, f32 eps, f32* out, const Images& images,
                     bool has_images, i64 at, u32* fault, u32 fault_id) {
    constexpr i32 PART = AHEAD * BLOCK;
    __shared__ f32 part[LONG_LANES];
    alignas(16) __shared__ f32 near[PART];
    const i32 thread = (i32) threadIdx.x;
    const i32 lane = thread % SHORT_LANES;
    f32 factor[AHEAD], value[AHEAD];
#pragma unroll
    for (i32 k = 0; k < AHEAD; k++) factor[k] = thread + k * BLOCK < width ? w[thread + k * BLOCK] : 0.0f;
    let_next_start();
    wait_for_previous();

#pragma unroll
    for (i32 k = 0; k < AHEAD; k++) value[k] = thread + k * BLOCK < width ? x[thread + k * BLOCK] : 0.0f;
    if (y != nullptr) {
        f32 added[AHEAD];
#pragma unroll
        for (i32 k = 0; k < AHEAD; k++) added[k] = thread + k * BLOCK < width ? y[thread + k * BLOCK] : 0.0f;
#pragma unroll
        for (i32 k = 0; k < AHEAD; k++) {
            value[k] = value[k] + added[k];
            if (thread + k * BLOCK < width) x[thread + k * BLOCK] = value[k];
        }
#pragma unroll 1
        for (i32 i = thread + PART; i < width; i += BLOCK) x[i] = x[i] + y[i];
    }
    const f32 root = 1.0f / sqrtf(mean_of(row_squares(value, x, width, part), width) + eps);

#pragma unroll 1
    for (i32 start = 0; start < width; start += PART) {
        const i32 here = width - start < PART ? width - start : PART;
        if (start > 0) {
#pragma unroll
            for (i32 k = 0; k < AHEAD; k++) {
                const i32 i = thread + k * BLOCK;
                value[k] = i < here ? x[start + i] : 0.0f;
                factor[k] = i < here ? w[start + i] : 0.0f;
            }
        }
#pragma unroll
        for (i32 k = 0; k < AHEAD; k++) {
            value[k] = (value[k] * root) * factor[k];
            near[thread + k * BLOCK] = value[k];
        }
        if (out != nullptr) {
#pragma unroll
            for (i32 k = 0; k < AHEAD; k++)
                if (thread + k * BLOCK < here) out[start + thread + k * BLOCK] = value[k];
        }
        if (!has_images) continue;
        __syncthreads();
#pragma unroll 1
        for (i32 group = thread / SHORT_LANES * A256_VALUES; group < here; group += BLOCK / SHORT_LANES * A256_VALUES) {
            const Words4* words = (const Words4*)(near + group + lane * LANE_VALUES);
            const Words4 both[2] = {words[0], words[1]};
            f32 mine[LANE_VALUES];
#pragma unroll
            for (i32 j = 0; j < LANE_VALUES; j++) mine[j] = bits_f32(both[j / 4].word[j % 4]);
            const u32 largest = images.write(mine, at + start + group, here - group);
            if (!is_finite(largest) && lane == 0) report_fault(fault, fault_id);
        }
        __syncthreads();
    }
}

// A residual row between two products: a row is added (y null: nothing), then the RMS norm as floats
// (out null: nobody reads them) and as images. width is a multiple of 32, of 256 where there is an A256 image.
extern "C" __global__ void __launch_bounds__(BLOCK, 1)
norm_images(f32* x, i32 x_stride, const f32* y, i32 y_stride, const f32* w, i32 width, f32 eps, f32* out, i32 out_stride,
            i8* codes32, f32* scales32, i8* codes256, f32* scales256, i32 n, u32* fault, u32 fault_id) {
    const i64 row = (i64) blockIdx.x;
    if (row >= n) return;
    x += row * x_stride;
    if (y != nullptr) y += row * y_stride;
    if (out != nullptr) out += row * out_stride;
    const Images images = {codes32, scales32, codes256, scales256};
    const bool has_images = codes32 != nullptr || codes256 != nullptr;
    if (width <= NORM_AHEAD / 2 * BLOCK) {
        norm_row<NORM_AHEAD / 2>(x, y, w, width, eps, out, images, has_images, row * width, fault, fault_id);
    } else {
        norm_row<NORM_AHEAD>(x, y, w, width, eps, out, images, has_images, row * width, fault, fault_id);
    }
}

// The A32 image of each row: a warp makes a block. cols is a multiple of 32.
extern "C" __global__ void __launch_bounds__(BLOCK)
quantise_a32(const f32* x, i32 x_stride, i8* codes, f32* scales, i32 cols, i32 n, u32* fault, u32 fault_id) {
    const i32 i = (i32) (blockIdx.x * BLOCK + threadIdx.x);
    const i64 row = (i64) blockIdx.y;
    if (row >= n || i >= cols) return;  // whole warps: cols is a multiple of 32
    const f32 value = x[row * x_stride + i];
    const u32 largest = warp_max(magnitude(value));
    if (!is_finite(largest)) report_fault(fault, fault_id);
    const ImageScale scale = image_scale(largest);
    codes[row * cols + i] = (i8) image_code(value, scale);
    if (i % A32_VALUES == 0) scales[row * (cols / A32_VALUES) + i / A32_VALUES] = scale.scale;
}

// The A256 image of each row: the block of threads makes a block of values. cols is a multiple of 256.
extern "C" __global__ void __launch_bounds__(BLOCK)
quantise_a256(const f32* x, i32 x_stride, i8* codes, f32* scales, i32 cols, i32 n, u32* fault, u32 fault_id) {
    __shared__ u32 warps[BLOCK / SHORT_LANES];
    const i32 thread = (i32) threadIdx.x;
    const i64 row = (i64) blockIdx.y;
    if (row >= n) return;
    const i32 i = (i32) blockIdx.x * A256_VALUES + thread;
    const f32 value = x[row * x_stride + i];
    const u32 largest = block_max(magnitude(value), warps);
    if (!is_finite(largest) && thread == 0) report_fault(fault, fault_id);
    const ImageScale scale = image_scale(largest);
    codes[row * cols + i] = (i8) image_code(value, scale);
    if (thread == 0) scales[row * (cols / A256_VALUES) + (i64) blockIdx.x] = scale.scale;
}

// Rotates the first 2 * pairs values of each piece in place by the angles of its row; the others stay.
// cos_sin [n][2 * pairs]: cosines, then sines. neox pairs (j, j + pairs), else (2j, 2j + 1).
extern "C" __global__ void __launch_bounds__(ROPE_BLOCK)
rope(f32* x, i32 x_stride, i32 piece_stride, const f32* cos_sin, i32 pairs, i32 neox, i32 n) {
    const i64 row = (i64) blockIdx.y;
    if (row >= n) return;
    x += row * x_stride + (i64) blockIdx.x * piece_stride;
    const f32* cosines = cos_sin + row * (2 * (i64) pairs);
    const f32* sines = cosines + pairs;
    for (i32 j = (i32) threadIdx.x; j < pairs; j += ROPE_BLOCK) {
        const i32 first = neox ? j : 2 * j;
        const i32 second = neox ? j + pairs : 2 * j + 1;
        const f32 x0 = x[first];
        const f32 x1 = x[second];
        x[first] = x0 * cosines[j] - x1 * sines[j];
        x[second] = x0 * sines[j] + x1 * cosines[j];
    }
}

// x = x + y.
extern "C" __global__ void __launch_bounds__(BLOCK)
add(f32* x, i32 x_stride, const f32* y, i32 y_stride, i32 width, i32 n) {
    let_next_start();
    wait_for_previous();
    const i32 i = (i32) (blockIdx.x * BLOCK + threadIdx.x);
    const i64 row = (i64) blockIdx.y;
    if (row >= n || i >= width) return;
    x[row * x_stride + i] = x[row * x_stride + i] + y[row * y_stride + i];
}

// gate = silu(gate) * up.
extern "C" __global__ void __launch_bounds__(BLOCK)
swiglu(f32* gate, i32 gate_stride, const f32* up, i32 up_stride, i32 width, i32 n) {
    let_next_start();
    wait_for_previous();
    const i32 i = (i32) (blockIdx.x * BLOCK + threadIdx.x);
    const i64 row = (i64) blockIdx.y;
    if (row >= n || i >= width) return;
    gate[row * gate_stride + i] = silu_f32(gate[row * gate_stride + i]) * up[row * up_stride + i];
}

// Row i of y = row which[i] of x.
extern "C" __global__ void __launch_bounds__(BLOCK)
gather(const f32* x, i32 x_stride, f32* y, i32 y_stride, const u32* which, i32 width, i32 n) {
    let_next_start();
    wait_for_previous();
    const i32 i = (i32) (blockIdx.x * BLOCK + threadIdx.x);
    const i64 row = (i64) blockIdx.y;
    if (row >= n || i >= width) return;
    y[row * y_stride + i] = x[(i64) which[row] * x_stride + i];
}

// A row of at most 32 * EACH logits. Every warp makes all probabilities, e = lane + 32 k in place k; then a thread ranks an
// expert at a time.
template <i32 EACH>
DEVICE void route_row(const f32* logits, i32 experts, i32 used, u32* ids, f32* weights, u32* fault, u32 fault_id) {
    alignas(16) __shared__ u32 probability[SHORT_LANES * EACH];
    __shared__ f32 chosen[SHORT_LANES * EACH];
    const i32 thread = (i32) threadIdx.x;
    const i32 lane = thread % SHORT_LANES;
    const i32 warp = thread / SHORT_LANES;

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
    if (!is_finite(warp_largest(largest))) {
        if (thread == 0) report_fault(fault, fault_id);
        for (i32 rank = thread; rank < used; rank += ROUTE_BLOCK) {
            ids[rank] = (u32) rank;
            weights[rank] = 0.0f;
        }
        return;  // the whole block: every warp has seen all
    }
    max = from_rising(warp_largest(rising(max)));

    // Experts that do not exist weigh 0, which changes no sum. Lane l of 256 has e = l, l + 256, ...
    constexpr i32 SUMS = EACH > LONG_LANES / SHORT_LANES ? LONG_LANES / SHORT_LANES : 1;
    f32 sums[SUMS] = {};
#pragma unroll
    for (i32 k = 0; k < EACH; k++) {
        mine[k] = lane + k * SHORT_LANES < experts ? exp_f32(mine[k] - max) : 0.0f;
        sums[k % SUMS] = sums[k % SUMS] + mine[k];
    }
#pragma unroll
    for (i32 half = SUMS / 2; half > 0; half /= 2) {
#pragma unroll
        for (i32 i = 0; i < half; i++) sums[i] = sums[i] + sums[i + half];
    }
    const f32 sum = warp_tree_all(sums[0]);
#pragma unroll
    for (i32 k = 0; k < EACH; k++) {
        if (k % ROUTE_WARPS == warp) probability[lane + k * SHORT_LANES] = f32_bits(mine[k] / sum);
    }
    __syncthreads();

    // An expert's rank is the number of experts before it: those of a higher probability, and of the same with a lower
    // index. Probabilities are in the order of their bits.
#pragma unroll 1
    for (i32 own = warp; own * SHORT_LANES < experts; own += ROUTE_WARPS) {
        const i32 p = (i32) probability[own * SHORT_LANES + lane];
        i32 rank = 0;
#pragma unroll 1
        for (i32 other = 0; other * SHORT_LANES < experts; other++) {
            const Words4* four = (const Words4*)(probability + other * SHORT_LANES);
            const i32 least = other < own ? p - 1 : p;
            if (other != own) {
#pragma unroll
                for (i32 i = 0; i < SHORT_LANES; i++) rank += (i32) four[i / 4].word[i % 4] > least ? 1 : 0;
            } else {
#pragma unroll
                for (i32 i = 0; i < SHORT_LANES; i++) rank += (i32) four[i / 4].word[i % 4] > (i < lane ? p - 1 : p) ? 1 : 0;
            }
        }
        if (own * SHORT_LANES + lane < experts && rank < used) {
            ids[rank] = (u32) (own * SHORT_LANES + lane);
            chosen[rank] = bits_f32((u32) p);
        }
    }
    __syncthreads();
    f32 divisor = 0.0f;
#pragma unroll 8
    for (i32 rank = 0; rank < used; rank++) divisor = divisor + chosen[rank];
    const f32 least = 0x1p-14f;
    divisor = divisor > least ? divisor : least;
    for (i32 rank = thread; rank < used; rank += ROUTE_BLOCK) weights[rank] = chosen[rank] / divisor;
}

// Softmax over all experts, the best `used` by (probability descending, index ascending), their probabilities divided
// by max(sum, 2^-14). A row with a logit that is not finite reports the fault and takes experts 0 .. used - 1 with
// weight 0, so that what follows stays inside its buffers.
extern "C" __global__ void __launch_bounds__(ROUTE_BLOCK)
route(const f32* logits, i32 logits_stride, i32 experts, i32 used, u32* ids, f32* weights, i32 n, u32* fault,
      u32 fault_id) {
    const i64 row = (i64) blockIdx.x;
    if (row >= n) return;
    let_next_start();
    wait_for_previous();
    logits += row * logits_stride;
    ids += row * used;
    weights += row * used;
    if (experts <= 128) {
        route_row<4>(logits, experts, used, ids, weights, fault, fault_id);
    } else if (experts <= 256) {
        route_row<8>(logits, experts, used, ids, weights, fault, fault_id);
    } else {
        route_row<EXPERTS_MAX / SHORT_LANES>(logits, experts, used, ids, weights, fault, fault_id);
    }
}

// out = the chain of fma(w_k, e_k, ...) over a row's pairs in rank order, from +0; `is_added`: out = out + the chain.
extern "C" __global__ void __launch_bounds__(BLOCK)
combine(const f32* pairs, const f32* weights, f32* out, i32 out_stride, i32 width, i32 used, i32 is_added, i32 n) {
    const i32 i = (i32) (blockIdx.x * BLOCK + threadIdx.x);
    const i64 row = (i64) blockIdx.y;
    if (row >= n || i >= width) return;
    let_next_start();
    wait_for_previous();
    const f32 before = is_added ? out[row * out_stride + i] : 0.0f;
    f32 acc = 0.0f;
#pragma unroll 8
    for (i32 rank = 0; rank < used; rank++) {
        const i64 pair = row * used + rank;
        acc = fmaf(weights[pair], pairs[pair * width + i], acc);
    }
    out[row * out_stride + i] = is_added ? before + acc : acc;
}
