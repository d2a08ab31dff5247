// rows.cu: everything that a row passes through between products: norms, images, rope, elementwise, sums of experts.
//
// shapes   a row r of x starts at x + r * x_stride floats; codes [n][cols] i8, scales [n][cols / block] f32;
//          ids, weights [n][used]; pairs [n * used][width]
// launch   one block of 256 threads (rope: 64) for a piece or 256 values, batch rows in grid.y; norm_images: a
//          block for a row, rows in grid.x; static shared memory only
// order    norms: lanes(256) for more than 256 values, else lanes(32); sums of experts: a chain in rank order. A row's bits
//          depend on that row alone
// moves    each value is read once or twice (the second time from L1 or L2) and written once
// twin     src/device/cpu/plain/{norm,image,rope,experts,functions}.rs, equal bit for bit
#include "device/functions.cuh"
#include "device/image.cuh"
#include "device/images.cuh"
#include "device/norm.cuh"
#include "device/reduce.cuh"

constexpr i32 BLOCK = 256;
constexpr i32 ROPE_BLOCK = 64;
// Values of a norm that a thread keeps.
constexpr i32 NORM_AHEAD = 16;

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
    let_next_start();
    wait_for_previous();
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
    const f32 root = norm_root(value, x, width, eps, part);
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
    const f32 root = norm_root(value, x, width, eps, part);

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
        images.write_row<BLOCK / SHORT_LANES>(near, here, at + start, fault, fault_id);
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
    let_next_start();
    wait_for_previous();
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
    let_next_start();
    wait_for_previous();
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
    let_next_start();
    wait_for_previous();
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
