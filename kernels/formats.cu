// formats.cu: what reads weights: rows of a table, products with 8-bit images and with floats, products of experts.
//
// shapes   w [rows][row bytes] in file order, its address a multiple of 16; codes [n][cols] i8 at a multiple of 16, scales
//          [n][cols / 32] (A32) or [n][cols / 256] (A256); x, out [n][stride] f32; cols whole blocks (any for plain types)
// launch   embed: grid (n), block 256. Products: grid (rows / 4, n / 8) rounded up, block 128: a warp for a weight row,
//          which up to 8 activation rows share. Expert products: grid (rows / 4, pairs), one activation row a pair
// order    images: docs/numerics.md, Dot product with a quantised row: integers in any order, float steps of a group in
//          rising order, the chain of groups; floats: lanes(32). Then scale, then bias. A result depends on its two rows
//          alone, not on n, grid or card
// moves    a weight row once for 8 activation rows, whose images come from L2
// twin     device/cpu/plain/product.rs, equal bit for bit (oracle/dots.json)
#include "device/types.h"
#include "device/vendor.h"
#include "formats/chosen.cuh"
#include "formats/part.cuh"

constexpr i32 EMBED_THREADS = 256;                   // of a block that decodes a row of a table
constexpr i32 EMBED_AHEAD = 8;                       // values of a plain row that a thread loads at once
constexpr i32 WARPS = 4;                             // weight rows of a block of threads
constexpr i32 SHARED_ROWS = 8;                       // activation rows that share a decoded weight row
constexpr i32 GROUP_PARTS = 256 / PART_VALUES;       // parts of a group of 256 values
constexpr i32 STRIDE_GROUPS = WARP / GROUP_PARTS;    // groups that a warp takes at a time: a part a lane
static_assert(STRIDE_GROUPS * SHARED_ROWS == WARP, "a lane for each group value of a stride");

// ---- products with images

// What the lanes of a warp tell each other about one stride: the integers of every part with every activation row. The odd
// width keeps the lanes that read one activation row each out of each other's banks.
template <class F>
struct Stride {
    static constexpr i32 STEPS = F::HALVES ? 2 : 1;
    i32 codes[STEPS][SHARED_ROWS][WARP + 1];
    i32 sums[F::OFFSET ? SHARED_ROWS : 1][WARP + 1];
    f32 d[STEPS][WARP];
    f32 m[F::OFFSET ? WARP : 1];
};

// The integers of a decoded part with the same values of `count` activation rows, which are `cols` apart.
template <class F>
DEVICE void write_integers(const Part& part, const i8* codes, i32 cols, i32 count, i32 lane, Stride<F>& stride) {
#pragma unroll 1
    for (i32 r = 0; r < count; r++) {
        u32 q[PART_WORDS];
        load_words<16>((const u8*) (codes + (i64) r * cols), q);
        i32 dot[2] = {0, 0}, sum[2] = {0, 0};
#pragma unroll
        for (i32 i = 0; i < PART_WORDS; i++) {
            dot[i / 4] = dp4a(part.code[i], q[i], dot[i / 4]);
            if constexpr (F::OFFSET) sum[i / 4] = dp4a(four(1), q[i], sum[i / 4]);
        }
        if constexpr (F::ORDER == Order::SUPER) {
            stride.codes[0][r][lane] = part.scale[0] * dot[0] + part.scale[1] * dot[1];
            if constexpr (F::OFFSET) stride.sums[r][lane] = part.min[0] * sum[0] + part.min[1] * sum[1];
        } else {
            if constexpr (F::HALVES) {
                stride.codes[0][r][lane] = dot[0];
                stride.codes[1][r][lane] = dot[1];
            } else {
                stride.codes[0][r][lane] = dot[0] + dot[1];
            }
            if constexpr (F::OFFSET) stride.sums[r][lane] = sum[0] + sum[1];
        }
    }
    stride.d[0][lane] = part.d[0];
    if constexpr (F::HALVES) stride.d[1][lane] = part.d[1];
    if constexpr (F::OFFSET) stride.m[lane] = part.m;
}

// The value of the group that starts at part `first` of the stride and has `parts` parts, with activation row r.
// `scales` is that of the group's first values.
template <class F>
DEVICE f32 group_value(const Stride<F>& stride, i32 first, i32 parts, i32 r, const f32* scales) {
    if constexpr (F::ORDER == Order::SUPER) {
        i32 codes = 0, sums = 0;
#pragma unroll
        for (i32 p = 0; p < GROUP_PARTS; p++) {
            codes += stride.codes[0][r][first + p];
            if constexpr (F::OFFSET) sums += stride.sums[r][first + p];
        }
        const f32 a = scales[0];
        const f32 scaled = stride.d[0][first] * a;
        if constexpr (F::OFFSET) return fmaf(scaled, (f32) codes, -((stride.m[first] * a) * (f32) sums));
        return scaled * (f32) codes;
    } else {
        f32 g = 0.0f;
#pragma unroll
        for (i32 p = 0; p < GROUP_PARTS; p++) {
            if (p >= parts) break;
            const f32 a = scales[p];
#pragma unroll
            for (i32 s = 0; s < Stride<F>::STEPS; s++)
                g = fmaf(stride.d[s][first + p] * a, (f32) stride.codes[s][r][first + p], g);
            if constexpr (F::OFFSET) g = fmaf(stride.m[first + p] * a, (f32) stride.sums[r][first + p], g);
        }
        return g;
    }
}

// A weight row with `count` images, at most SHARED_ROWS: lane r gets the result of activation row r.
template <class F>
DEVICE f32 row_with_images(const u8* row, const i8* codes, const f32* scales, i32 cols, i32 count, i32 lane,
                           Stride<F>& stride) {
    constexpr i32 BLOCK_PARTS = F::VALUES / PART_VALUES;
    constexpr i32 SCALE_PARTS = F::ORDER == Order::SUPER ? GROUP_PARTS : 1;
    const i32 parts = cols / PART_VALUES;
    const i32 r = lane % SHARED_ROWS, group = lane / SHARED_ROWS;  // whose value the lane makes
    f32 result = 0.0f;
    for (i32 start = 0; start < parts; start += WARP) {
        const i32 mine = start + lane;
        if (mine < parts) {
            Part part;
            F::decode(row + (i64) (mine / BLOCK_PARTS) * F::BYTES, mine % BLOCK_PARTS, part);
            write_integers<F>(part, codes + mine * PART_VALUES, cols, count, lane, stride);
        }
        warp_barrier();
        const i32 first = group * GROUP_PARTS, left = parts - start - first;
        f32 g = 0.0f;
        if (r < count && left > 0) {
            const f32* a = scales + (i64) r * (parts / SCALE_PARTS) + (start + first) / SCALE_PARTS;
            g = group_value<F>(stride, first, left < GROUP_PARTS ? left : GROUP_PARTS, r, a);
        }
        warp_barrier();
#pragma unroll
        for (i32 k = 0; k < STRIDE_GROUPS; k++) {
            const f32 next = shuffle(g, k * SHARED_ROWS + r);
            if (start + k * GROUP_PARTS < parts) result = result + next;
        }
    }
    return result;
}

// ---- products with floats

// One stride of a row: the codes of each lane's part, and what makes them values: each operation rounded in the order of
// the format's formula. The odd width serves lanes that write a part each.
template <class F>
struct Values {
    static constexpr bool HALVES = F::ORDER == Order::SUPER || F::HALVES;
    u32 code[WARP][PART_WORDS + 1];
    f32 factor[WARP][2];
    f32 offset[F::OFFSET ? WARP : 1][2];

    DEVICE void write(const u8* row, i32 part_number, i32 lane) {
        constexpr i32 BLOCK_PARTS = F::VALUES / PART_VALUES;
        Part part;
        F::decode(row + (i64) (part_number / BLOCK_PARTS) * F::BYTES, part_number % BLOCK_PARTS, part);
#pragma unroll
        for (i32 i = 0; i < PART_WORDS; i++) code[lane][i] = part.code[i];
#pragma unroll
        for (i32 half = 0; half < (HALVES ? 2 : 1); half++) {
            if constexpr (F::ORDER == Order::SUPER) {
                factor[lane][half] = part.d[0] * (f32) part.scale[half];
                if constexpr (F::OFFSET) offset[lane][half] = part.m * (f32) part.min[half];
            } else {
                factor[lane][half] = part.d[half];
                if constexpr (F::OFFSET) offset[lane][half] = part.m;
            }
        }
    }

    // Value i of the part of lane `part`.
    DEVICE f32 value(i32 part, i32 i) const {
        const i32 half = HALVES ? i / 16 : 0;
        const f32 y = factor[part][half] * (f32) ((const i8*) code[part])[i];
        if constexpr (!F::OFFSET) return y;
        return F::ORDER == Order::SUPER ? y - offset[part][half] : y + offset[part][half];
    }
};

// The halving tree over the lanes for each of the first ROWS sums: lane r gets that of sum[r].
template <i32 ROWS>
DEVICE f32 tree_sums(f32 (&sum)[SHARED_ROWS], i32 lane) {
#pragma unroll
    for (i32 half = WARP / 2; half > 0; half /= 2) {
#pragma unroll
        for (i32 r = 0; r < ROWS; r++) sum[r] = sum[r] + shuffle_down(sum[r], half);
    }
    f32 result = sum[0];
#pragma unroll
    for (i32 r = 1; r < ROWS; r++) {
        const f32 total = shuffle(sum[r], 0);
        if (lane == r) result = total;
    }
    return result;
}

// Lane r < count gets sum[r] of all lanes.
DEVICE f32 sums_of_rows(f32 (&sum)[SHARED_ROWS], i32 count, i32 lane) {
    return count == 1 ? tree_sums<1>(sum, lane) : tree_sums<SHARED_ROWS>(sum, lane);
}

// One weight of this lane with the same place of `count` activation rows.
DEVICE void add_products(f32 (&sum)[SHARED_ROWS], f32 w, const f32* x, i32 x_stride, i32 count) {
#pragma unroll
    for (i32 r = 0; r < SHARED_ROWS; r++)
        if (r < count) sum[r] = fmaf(w, x[(i64) r * x_stride], sum[r]);
}

// A block format's row with `count` rows of floats: lane r gets the result of activation row r.
template <class F>
struct BlockRow {
    typedef Values<F> Shared;
    static DEVICE i64 bytes(i32 cols) { return (i64) (cols / F::VALUES) * F::BYTES; }

    static DEVICE f32 with_floats(const u8* row, const f32* x, i32 x_stride, i32 cols, i32 count, i32 lane,
                                  Shared& values) {
        const i32 parts = cols / PART_VALUES;
        f32 sum[SHARED_ROWS] = {};
        for (i32 start = 0; start < parts; start += WARP) {
            const i32 here = parts - start < WARP ? parts - start : WARP;
            if (lane < here) values.write(row, start + lane, lane);
            warp_barrier();
#pragma unroll 1
            for (i32 p = 0; p < here; p++)
                add_products(sum, values.value(p, lane), x + (start + p) * PART_VALUES + lane, x_stride, count);
            warp_barrier();
        }
        return sums_of_rows(sum, count, lane);
    }
};

// The same for a plain type.
template <class F>
struct PlainRow {
    struct Shared {};
    static DEVICE i64 bytes(i32 cols) { return (i64) cols * F::BYTES; }

    // The next N strides of the row, for ROWS activation rows: all loads before the first fma. Rows past the last repeat it.
    template <i32 N, i32 ROWS>
    static DEVICE void add_strides(const u8* row, const f32* x, i32 x_stride, i32 count, i32 i, f32 (&sum)[SHARED_ROWS]) {
        f32 w[N], a[ROWS][N];
#pragma unroll
        for (i32 s = 0; s < N; s++) w[s] = F::value(row, i + s * WARP);
#pragma unroll
        for (i32 r = 0; r < ROWS; r++) {
            const f32* from = x + (i64) (r < count ? r : count - 1) * x_stride + i;
#pragma unroll
            for (i32 s = 0; s < N; s++) a[r][s] = from[s * WARP];
        }
#pragma unroll
        for (i32 s = 0; s < N; s++) {
#pragma unroll
            for (i32 r = 0; r < ROWS; r++) sum[r] = fmaf(w[s], a[r][s], sum[r]);
        }
    }

    template <i32 N, i32 ROWS>
    static DEVICE void add_row(const u8* row, const f32* x, i32 x_stride, i32 cols, i32 count, i32 lane,
                               f32 (&sum)[SHARED_ROWS]) {
        i32 i = lane;
        for (; i + (N - 1) * WARP < cols; i += N * WARP) add_strides<N, ROWS>(row, x, x_stride, count, i, sum);
#pragma unroll 1
        for (; i < cols; i += WARP) add_strides<1, ROWS>(row, x, x_stride, count, i, sum);
    }

    static DEVICE f32 with_floats(const u8* row, const f32* x, i32 x_stride, i32 cols, i32 count, i32 lane, Shared&) {
        f32 sum[SHARED_ROWS] = {};
        if (count == 1) {
            add_row<32, 1>(row, x, x_stride, cols, count, lane, sum);
        } else {
            add_row<8, SHARED_ROWS>(row, x, x_stride, cols, count, lane, sum);
        }
        return sums_of_rows(sum, count, lane);
    }
};

// ---- the bodies of the kernels

template <class F>
DEVICE void embed_blocks(const u8* table, const u32* tokens, f32* out, i32 out_stride, i32 cols) {
    __shared__ Values<F> values[EMBED_THREADS / WARP];
    const u8* row = table + (i64) tokens[blockIdx.x] * BlockRow<F>::bytes(cols);
    f32* y = out + (i64) blockIdx.x * out_stride;
    const i32 parts = cols / PART_VALUES, lane = (i32) threadIdx.x % WARP, warp = (i32) threadIdx.x / WARP;
    // A short row is shared by all warps.
    constexpr i32 ROW_WARPS = EMBED_THREADS / WARP;
    const i32 even = (parts + ROW_WARPS - 1) / ROW_WARPS, each = even < WARP ? even : WARP;
    for (i32 start = warp * each; start < parts; start += ROW_WARPS * each) {
        const i32 here = parts - start < each ? parts - start : each;
        if (lane < here) values[warp].write(row, start + lane, lane);
        warp_barrier();
#pragma unroll 4
        for (i32 p = 0; p < here; p++) y[(start + p) * PART_VALUES + lane] = values[warp].value(p, lane);
        warp_barrier();
    }
}

template <class F>
DEVICE void embed_plain(const u8* table, const u32* tokens, f32* out, i32 out_stride, i32 cols) {
    const u8* row = table + (i64) tokens[blockIdx.x] * PlainRow<F>::bytes(cols);
    f32* y = out + (i64) blockIdx.x * out_stride;
#pragma unroll 1
    for (i32 start = threadIdx.x; start < cols; start += EMBED_AHEAD * EMBED_THREADS) {
        f32 ahead[EMBED_AHEAD];
#pragma unroll
        for (i32 k = 0; k < EMBED_AHEAD; k++) {
            const i32 i = start + k * EMBED_THREADS;
            ahead[k] = F::value(row, i < cols ? i : start);
        }
#pragma unroll
        for (i32 k = 0; k < EMBED_AHEAD; k++)
            if (start + k * EMBED_THREADS < cols) y[start + k * EMBED_THREADS] = ahead[k];
    }
}

// Where the warps of a block of threads stand in a matrix.
struct Place {
    i32 lane, warp, row;
};

DEVICE Place place() {
    const i32 warp = threadIdx.x / WARP;
    return {(i32) threadIdx.x % WARP, warp, (i32) blockIdx.x * WARPS + warp};
}

// The companion scale, then the bias, where they exist.
DEVICE f32 finish(f32 result, const f32* scale, const f32* bias) {
    if (scale) result = result * *scale;
    if (bias) result = result + *bias;
    return result;
}

// The activation rows that a block of threads serves.
struct Share {
    i64 first;
    i32 count;
};

DEVICE Share share(i32 n) {
    const i32 first = (i32) blockIdx.y * SHARED_ROWS, left = n - first;
    return {first, left < SHARED_ROWS ? left : SHARED_ROWS};
}

template <class F>
DEVICE void product(const u8* w, const i8* codes, const f32* scales, f32* out, i32 out_stride, i32 rows, i32 cols, i32 n,
                    const f32* scale, const f32* bias) {
    constexpr i32 SCALE_VALUES = F::ORDER == Order::SUPER ? 256 : 32;
    __shared__ Stride<F> strides[WARPS];
    const Place at = place();
    const Share share_of = share(n);
    if (at.row >= rows) return;
    const f32 result = row_with_images<F>(w + at.row * BlockRow<F>::bytes(cols), codes + share_of.first * cols,
                                          scales + share_of.first * (cols / SCALE_VALUES), cols, share_of.count, at.lane,
                                          strides[at.warp]);
    if (at.lane < share_of.count)
        out[(share_of.first + at.lane) * out_stride + at.row] = finish(result, scale, bias ? bias + at.row : bias);
}

template <class R>
DEVICE void product_float(const u8* w, const f32* x, i32 x_stride, f32* out, i32 out_stride, i32 rows, i32 cols, i32 n,
                          const f32* scale, const f32* bias) {
    __shared__ typename R::Shared shared[WARPS];
    const Place at = place();
    const Share share_of = share(n);
    if (at.row >= rows) return;
    const f32 result = R::with_floats(w + at.row * R::bytes(cols), x + share_of.first * x_stride, x_stride, cols,
                                      share_of.count, at.lane, shared[at.warp]);
    if (at.lane < share_of.count)
        out[(share_of.first + at.lane) * out_stride + at.row] = finish(result, scale, bias ? bias + at.row : bias);
}

// A pair of a row and one of its `used` experts: grid.y counts them.
struct Pair {
    i64 number, input;
    u32 expert;
    const f32* scale;
};

DEVICE Pair pair_of(const u32* ids, i32 used, i32 per_pair, const f32* scale, i32 scale_per_expert) {
    const i32 number = blockIdx.y;
    const u32 expert = ids[number];
    return {number, per_pair ? number : number / used, expert, scale && scale_per_expert ? scale + expert : scale};
}

template <class F>
DEVICE void expert_product(const u8* w, i64 expert_bytes, const u32* ids, i32 used, i32 per_pair, const i8* codes,
                           const f32* scales, f32* out, i32 rows, i32 cols, const f32* scale, i32 scale_per_expert) {
    constexpr i32 SCALE_VALUES = F::ORDER == Order::SUPER ? 256 : 32;
    __shared__ Stride<F> strides[WARPS];
    const Place at = place();
    const Pair pair = pair_of(ids, used, per_pair, scale, scale_per_expert);
    if (at.row >= rows) return;
    const u8* row = w + pair.expert * expert_bytes + at.row * BlockRow<F>::bytes(cols);
    const f32 result = row_with_images<F>(row, codes + pair.input * cols, scales + pair.input * (cols / SCALE_VALUES), cols,
                                          1, at.lane, strides[at.warp]);
    if (at.lane == 0) out[pair.number * rows + at.row] = finish(result, pair.scale, nullptr);
}

template <class R>
DEVICE void expert_product_float(const u8* w, i64 expert_bytes, const u32* ids, i32 used, i32 per_pair, const f32* x,
                                 i32 x_stride, f32* out, i32 rows, i32 cols, const f32* scale, i32 scale_per_expert) {
    __shared__ typename R::Shared shared[WARPS];
    const Place at = place();
    const Pair pair = pair_of(ids, used, per_pair, scale, scale_per_expert);
    if (at.row >= rows) return;
    const u8* row = w + pair.expert * expert_bytes + at.row * R::bytes(cols);
    const f32 result = R::with_floats(row, x + pair.input * x_stride, x_stride, cols, 1, at.lane, shared[at.warp]);
    if (at.lane == 0) out[pair.number * rows + at.row] = finish(result, pair.scale, nullptr);
}

// ---- the kernels, by name

// The 1 of float products lets a thread have the registers that its loads ahead need.

#define FLOAT_KERNELS(T, R)                                                                                              \
    extern "C" __global__ void __launch_bounds__(WARPS* WARP, 1)                                                         \
    product_float_##T(const u8* __restrict__ w, const f32* __restrict__ x, i32 x_stride, f32* out, i32 out_stride,       \
                      i32 rows, i32 cols, i32 n, const f32* scale, const f32* bias) {                                    \
        product_float<R>(w, x, x_stride, out, out_stride, rows, cols, n, scale, bias);                                   \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(WARPS* WARP, 1)                                                         \
    expert_product_float_##T(const u8* __restrict__ w, i64 expert_bytes, const u32* ids, i32 used, i32 per_pair,         \
                             const f32* __restrict__ x, i32 x_stride, f32* out, i32 rows, i32 cols, i32 pairs,           \
                             const f32* scale, i32 scale_per_expert) {                                                   \
        expert_product_float<R>(w, expert_bytes, ids, used, per_pair, x, x_stride, out, rows, cols, scale,               \
                                scale_per_expert);                                                                       \
    }

#define BLOCK_KERNELS(T, F)                                                                                              \
    extern "C" __global__ void __launch_bounds__(EMBED_THREADS)                                                          \
    embed_##T(const u8* table, const u32* tokens, f32* out, i32 out_stride, i32 cols, i32 n) {                           \
        embed_blocks<F>(table, tokens, out, out_stride, cols);                                                           \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(WARPS* WARP)                                                            \
    product_##T(const u8* __restrict__ w, const i8* __restrict__ codes, const f32* __restrict__ scales, f32* out,        \
                i32 out_stride, i32 rows, i32 cols, i32 n, const f32* scale, const f32* bias) {                          \
        product<F>(w, codes, scales, out, out_stride, rows, cols, n, scale, bias);                                       \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(WARPS* WARP)                                                            \
    expert_product_##T(const u8* __restrict__ w, i64 expert_bytes, const u32* ids, i32 used, i32 per_pair,               \
                       const i8* __restrict__ codes, const f32* __restrict__ scales, f32* out, i32 rows, i32 cols,       \
                       i32 pairs, const f32* scale, i32 scale_per_expert) {                                              \
        expert_product<F>(w, expert_bytes, ids, used, per_pair, codes, scales, out, rows, cols, scale,                   \
                          scale_per_expert);                                                                             \
    }                                                                                                                    \
    FLOAT_KERNELS(T, BlockRow<F>)

#define PLAIN_KERNELS(T, F)                                                                                              \
    extern "C" __global__ void __launch_bounds__(EMBED_THREADS)                                                          \
    embed_##T(const u8* table, const u32* tokens, f32* out, i32 out_stride, i32 cols, i32 n) {                           \
        embed_plain<F>(table, tokens, out, out_stride, cols);                                                            \
    }                                                                                                                    \
    FLOAT_KERNELS(T, PlainRow<F>)

PLAIN_FORMATS(PLAIN_KERNELS)
BLOCK_FORMATS(BLOCK_KERNELS)
