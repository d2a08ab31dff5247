// formats.cu: what reads weights: rows of a table, products with 8-bit images and with floats, products of experts.
//
// shapes   w [rows][row bytes] in file order, its address a multiple of 16; codes [n][cols] i8 at a multiple of 16, scales
//          [n][cols / 32] (A32) or [n][cols / 256] (A256); x, out [n][stride] f32; cols whole blocks (any for plain types)
// launch   embed: grid (n), block 256. Windows, products with images: block 256, grid (tiles of 16 rows of all matrices, or
//          groups of 2, 4 or 8 of them, n / 2 rounded up; window_wide: n / 8; of experts or with images of the block's own
//          making: n, their number). Float products: grid (rows / warps, n / 8) rounded up, a warp a weight row; experts:
//          grid (rows / 4, pairs), block 128, one activation row a pair
// order    images: docs/numerics.md, Dot product with a quantised row: integers in any order, float steps of a group in
//          rising order, the chain of groups; floats: lanes(32). Then scale, then bias, then the product of gate and up,
//          then what is added. A result depends on its two rows alone, not on n, grid or card
// moves    a weight row once for 8 activation rows (narrow: 2; experts: 1), whose images come from L2
// twin     device/cpu/plain/product.rs, equal bit for bit (oracle/dots.json)
#include "device/functions.cuh"
#include "device/image.cuh"
#include "device/types.h"
#include "device/vendor.h"
#include "formats/chosen.cuh"
#include "formats/part.cuh"
#include "formats/tile.cuh"

constexpr i32 EMBED_THREADS = 256;                   // of a block that decodes a row of a table
constexpr i32 EMBED_AHEAD = 8;                       // values of a plain row that a thread loads at once
constexpr i32 WARPS = 4;                             // of a block of threads; each takes a weight row with floats
constexpr i32 SHARED_ROWS = 8;                       // activation rows that share a decoded weight row
constexpr i32 WINDOW_WARPS = 8;                      // of a block that multiplies with images
constexpr i32 SLOTS_BYTES = 40 * 1024;               // of such a block: two are on a multiprocessor of 100 KiB
constexpr i32 OWN_COLS = 4096;                       // of a row whose image a block makes itself

// ---- products with images

// What a block of threads shares while it makes tiles: 16 rows of one matrix or of two, with up to 2 SETS activation rows.
// Items are groups of 256 columns of a tile's matrices; a warp takes item after item.
template <class F, i32 SETS>
struct Window {
    static constexpr i32 AHEAD = 2 * WINDOW_WARPS * (i32) sizeof(Slot<F>) <= SLOTS_BYTES ? 2 : 1;
    // Items whose values wait for the chain.
    static constexpr i32 PASS = 16;
    Slot<F> slot[WINDOW_WARPS][AHEAD];
    f32 value[PASS][2 * SETS][TILE_ROWS];
    // The chain so far of each thread's result, for each matrix.
    f32 result[2][WINDOW_WARPS * WARP];
};

// Blocks that a multiprocessor's registers hold without a spill, of the narrow kernel and of the wide one. The decoder of
// Q4_K needs the fewest registers, those of Q5_K and Q6_K the most.
struct Q4_K;
struct Q5_K;
struct Q6_K;
template <class F> constexpr i32 NARROW_BLOCKS = 2;
template <> constexpr i32 NARROW_BLOCKS<Q4_K> = MORE_REGISTERS ? 2 : 3;
template <> constexpr i32 NARROW_BLOCKS<Q6_K> = MORE_REGISTERS ? 1 : 2;
template <class F> constexpr i32 WIDE_BLOCKS = 2;
template <> constexpr i32 WIDE_BLOCKS<Q5_K> = MORE_REGISTERS ? 1 : 2;

// The work of one block: 1 << tiles_log tiles of one matrix or, where `two` is 1, of two.
template <class F, i32 SETS>
struct Tiles {
    typedef Window<F, SETS> Shared;
    Shared& shared;
    const u8* first;  // the first row of the first tile in either matrix
    const u8* second;
    i32 row_bytes, rows;  // left in the matrix from there on
    i32 groups, two, tiles_log;

    DEVICE i32 items() const { return groups << (two + tiles_log); }
    DEVICE i32 group_of(i32 item) const { return item >> (two + tiles_log); }

    // The rows that an item belongs to: of tiles past the last those of the first.
    DEVICE Bytes rows_of(i32 item) const {
        const i32 tile = item >> two & ((1 << tiles_log) - 1), behind = tile * TILE_ROWS < rows ? tile * TILE_ROWS : 0;
        return Bytes{(item & two ? second : first) + (u32) (behind * row_bytes), row_bytes, rows - behind};
    }

    DEVICE void bring(i32 item, i32 lane, Slot<F>& to) const {
        if (item < items()) fill(to, rows_of(item), group_of(item), lane);
        close_copies();
    }

    // Starts the first copies.
    DEVICE void start() const {
        const i32 lane = (i32) threadIdx.x % WARP, warp = (i32) threadIdx.x / WARP;
#pragma unroll 1
        for (i32 k = 0; k < Shared::AHEAD; k++) bring(k * WINDOW_WARPS + warp, lane, shared.slot[warp][k]);
    }

    // The results of tile threadIdx.x / (32 SETS), its row threadIdx.x % 16, with activation row threadIdx.x / 16 of 2 SETS.
    DEVICE void run(const Images& x) const {
        constexpr i32 AHEAD = Shared::AHEAD, PASS = Shared::PASS, OUTPUTS = 2 * SETS * TILE_ROWS;
        const i32 thread = (i32) threadIdx.x, lane = thread % WARP, warp = thread / WARP;
        const i32 all = items(), step = 1 << (two + tiles_log);
        f32* const values = &shared.value[0][0][0];
        GroupWork<F, SETS> work(x, lane);
#pragma unroll
        for (i32 k = 0; k < 2; k++) shared.result[k][thread] = 0.0f;
        i32 item = warp;
        if (item < all) work.load(group_of(item), lane);
#pragma unroll 1
        for (i32 pass = 0; pass < all; pass += PASS) {
            const i32 end = pass + PASS < all ? pass + PASS : all;
#pragma unroll 1
            for (; item < end; item += WINDOW_WARPS) {
                Slot<F>& here = shared.slot[warp][item / WINDOW_WARPS % AHEAD];
                wait_copies<AHEAD - 1>();
                warp_barrier();
                f32 g[SETS];
                work.values(here, rows_of(item), group_of(item), lane, g);
                const i32 next = item + WINDOW_WARPS;
                if (next < all) work.load(group_of(next), lane);
#pragma unroll
                for (i32 s = 0; s < SETS; s++)
                    values[(item - pass) * OUTPUTS + (2 * s + (lane & 1)) * TILE_ROWS + (lane >> 2) + 8 * (lane >> 1 & 1)] = g[s];
                warp_barrier();
                bring(item + AHEAD * WINDOW_WARPS, lane, here);
            }
            __syncthreads();
            if (thread < OUTPUTS << tiles_log) {
                const f32* const own = values + thread % OUTPUTS;
                for (i32 matrix = 0; matrix <= two; matrix++) {
                    f32 result = shared.result[matrix][thread];
#pragma unroll 4
                    for (i32 k = (thread / OUTPUTS << two) + matrix; k < end - pass; k += step) result = result + own[k * OUTPUTS];
                    shared.result[matrix][thread] = result;
                }
            }
            if (end < all) __syncthreads();
        }
    }
};

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
        if constexpr (N > 8)
            for (; i + 7 * WARP < cols; i += 8 * WARP) add_strides<8, ROWS>(row, x, x_stride, count, i, sum);
#pragma unroll 1
        for (; i < cols; i += WARP) add_strides<1, ROWS>(row, x, x_stride, count, i, sum);
    }

    static DEVICE f32 with_floats(const u8* row, const f32* x, i32 x_stride, i32 cols, i32 count, i32 lane, Shared&) {
        f32 sum[SHARED_ROWS] = {};
        if (count == 1) {
            add_row<64, 1>(row, x, x_stride, cols, count, lane, sum);
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
    let_next_start();
    wait_for_previous();
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
    let_next_start();
    wait_for_previous();
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
    return {(i32) threadIdx.x % WARP, warp, (i32) (blockIdx.x * blockDim.x) / WARP + warp};
}

// Asks for the first bytes of a row.
DEVICE void prefetch_row(const u8* row, i64 bytes, i32 lane) {
    constexpr i64 MOST = 4 * WARP * LINE_BYTES;
    for (i64 at = lane * LINE_BYTES; at < bytes && at < MOST; at += WARP * LINE_BYTES) prefetch(row + at);
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

// A matrix, where its products go, and what follows their sums.
struct Target {
    const u8* w;
    f32* out;
    i32 out_stride, rows;
    const f32* scale;
    const f32* bias;
};

// Whose matrices: those of the expert ids[pair], for pairs of an input row and one of its `used` experts. Bit k of
// `scales`: target k has a scale an expert.
struct Chosen {
    const u32* ids;
    i64 expert_bytes;
    i32 used, scales;
};

// Rows of floats of which a block makes the images itself.
struct Floats {
    const f32* at;
    i32 stride;
    u32* fault;
    u32 fault_id;
};

// The image of a row of floats in shared memory, by all threads of a block; a thread takes 8 values.
template <class F>
struct RowImage {
    alignas(16) i8 code[OWN_COLS];
    f32 scale[OWN_COLS / image_values<F>()];

    DEVICE void make(const f32* x, i32 cols, u32* fault, u32 fault_id) {
        constexpr i32 EACH = 8, LANES = image_values<F>() / EACH;
        const i32 whole_warps = (cols + WARP * EACH - 1) / (WARP * EACH) * (WARP * EACH);
#pragma unroll 1
        for (i32 first = (i32) threadIdx.x * EACH; first < whole_warps; first += WINDOW_WARPS * WARP * EACH) {
            const bool wanted = first < cols;
            f32 value[EACH];
            u32 largest = 0;
#pragma unroll
            for (i32 i = 0; i < EACH; i++) value[i] = wanted ? x[first + i] : 0.0f;
#pragma unroll
            for (i32 i = 0; i < EACH; i++) {
                const u32 here = magnitude(value[i]);
                largest = here > largest ? here : largest;
            }
#pragma unroll
            for (i32 bit = LANES / 2; bit > 0; bit /= 2) {
                const u32 other = shuffle_xor(largest, bit);
                largest = other > largest ? other : largest;
            }
            if (!wanted) continue;
            if (!is_finite(largest)) report_fault(fault, fault_id);
            const ImageScale scaled = image_scale(largest);
            Words2 word = {};
#pragma unroll
            for (i32 i = 0; i < EACH; i++) word.word[i / 4] |= (u32) (image_code(value[i], scaled) & 255) << (8 * (i % 4));
            *(Words2*) (code + first) = word;
            if (first % image_values<F>() == 0) scale[first / image_values<F>()] = scaled.scale;
        }
        __syncthreads();
    }
};
template <>
struct RowImage<void> {};

template <bool FIRST, class A, class B>
struct Either {
    typedef A Type;
};
template <class A, class B>
struct Either<false, A, B> {
    typedef B Type;
};

// Up to three matrices with one input; `paired`: the first two make one row, silu of the first times the second. A block
// makes 1 << tiles_log tiles of a matrix, more than one only in the narrow kernel.
template <class F, i32 SETS>
DEVICE void window(const Target (&targets)[3], i32 paired, i32 tiles_log, Images in, i32 n, const f32* add, i32 add_stride,
                   const Chosen& chosen, const Floats& floats) {
    constexpr bool OWN_IMAGES = SETS == 1;
    constexpr i32 OUTPUTS = 2 * SETS * TILE_ROWS;
    __shared__ Window<F, SETS> shared;
    __shared__ RowImage<typename Either<OWN_IMAGES, F, void>::Type> image;
    let_next_start();
    const i32 block_rows = TILE_ROWS << tiles_log;
    i32 number = (i32) blockIdx.x, which = 0;
    if (!paired) {
#pragma unroll
        for (i32 k = 0; k < 2; k++) {
            const i32 blocks = (targets[k].rows + block_rows - 1) / block_rows;
            if (which == k && number >= blocks) {
                number -= blocks;
                which = k + 1;
            }
        }
    }
    const auto chosen_target = [&](i32 k) { return k == 0 ? targets[0] : k == 1 ? targets[1] : targets[2]; };
    // A pair has its own weights, and an image that the block makes is that of one row.
    const i32 each = chosen.ids || floats.at ? 1 : 2 * SETS, first = (i32) blockIdx.y * each, left = n - first;
    in.count = left < each ? left : each;
    i64 input = first, behind = 0;
    u32 expert = 0;
    if (chosen.ids) {
        wait_for_previous();
        input = first / chosen.used;
        expert = chosen.ids[first];
        behind = expert * chosen.expert_bytes;
    }
    in.codes += input * in.cols;
    in.scales += input * (in.cols / image_values<F>());
    const i32 first_row = number * block_rows, row_bytes = (i32) BlockRow<F>::bytes(in.cols);
    behind += (i64) first_row * row_bytes;
    const Tiles<F, SETS> tiles{shared, chosen_target(which).w + behind, targets[1].w + behind, row_bytes,
                               chosen_target(which).rows - first_row,
                               (in.cols + GROUP_VALUES - 1) / GROUP_VALUES, paired, tiles_log};
    tiles.start();
    if (!chosen.ids) wait_for_previous();
    if constexpr (OWN_IMAGES) {
        if (floats.at) {
            image.make(floats.at + input * floats.stride, in.cols, floats.fault, floats.fault_id);
            in.codes = image.code;
            in.scales = image.scale;
        }
    }
    tiles.run(in);
    // The compiler does not see that this is the same target, and keeps nothing of it meanwhile.
    const Target to = chosen_target(shuffle(which, 0));
    const i32 thread = (i32) threadIdx.x, of = thread % OUTPUTS / TILE_ROWS;
    const i32 row = first_row + thread / OUTPUTS * TILE_ROWS + thread % TILE_ROWS;
    if (of >= in.count || row >= to.rows || thread >= OUTPUTS << tiles_log) return;
    const auto scale = [&](i32 k, const f32* s) { return s && chosen.scales >> k & 1 ? s + expert : s; };
    f32 y = finish(shared.result[0][thread], scale(which, to.scale), to.bias ? to.bias + row : to.bias);
    if (paired) y = silu_f32(y) * finish(shared.result[1][thread], scale(1, targets[1].scale), targets[1].bias ? targets[1].bias + row : nullptr);
    if (add) y = add[(i64) (first + of) * add_stride + row] + y;
    to.out[(i64) (first + of) * to.out_stride + row] = y;
}

template <class R>
DEVICE void product_float(const u8* w, const f32* x, i32 x_stride, f32* out, i32 out_stride, i32 rows, i32 cols, i32 n,
                          const f32* scale, const f32* bias) {
    __shared__ typename R::Shared shared[WARPS];
    let_next_start();
    const Place at = place();
    const Share share_of = share(n);
    if (at.row >= rows) return;
    const u8* const row = w + at.row * R::bytes(cols);
    prefetch_row(row, R::bytes(cols), at.lane);
    wait_for_previous();
    const f32 result =
        R::with_floats(row, x + share_of.first * x_stride, x_stride, cols, share_of.count, at.lane, shared[at.warp]);
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

template <class R>
DEVICE void expert_product_float(const u8* w, i64 expert_bytes, const u32* ids, i32 used, i32 per_pair, const f32* x,
                                 i32 x_stride, f32* out, i32 rows, i32 cols, const f32* scale, i32 scale_per_expert) {
    __shared__ typename R::Shared shared[WARPS];
    let_next_start();
    wait_for_previous();
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

#define WINDOW_KERNEL(NAME, F, SETS, BLOCKS)                                                                             \
    extern "C" __global__ void __launch_bounds__(WINDOW_WARPS* WARP, BLOCKS)                                             \
    NAME(const u8* w0, const u8* w1, const u8* w2, f32* out0, f32* out1, f32* out2, i32 stride0, i32 stride1, i32 stride2, \
         i32 rows0, i32 rows1, i32 rows2, const f32* scale0, const f32* scale1, const f32* scale2, const f32* bias0,     \
         const f32* bias1, const f32* bias2, i32 paired, i32 tiles_log, const i8* codes, const f32* scales, i32 cols, i32 n, \
         const f32* add, i32 add_stride, const u32* ids, i64 expert_bytes, i32 used, i32 scales_per_expert, const f32* x, \
         i32 x_stride, u32* fault, u32 fault_id) {                                                                       \
        const Target targets[3] = {{w0, out0, stride0, rows0, scale0, bias0},                                            \
                                   {w1, out1, stride1, rows1, scale1, bias1},                                            \
                                   {w2, out2, stride2, rows2, scale2, bias2}};                                           \
        window<F, SETS>(targets, paired, tiles_log, Images{codes, scales, cols, 0}, n, add, add_stride,                  \
                        Chosen{ids, expert_bytes, used, scales_per_expert}, Floats{x, x_stride, fault, fault_id});       \
    }

#define BLOCK_KERNELS(T, F)                                                                                              \
    extern "C" __global__ void __launch_bounds__(EMBED_THREADS)                                                          \
    embed_##T(const u8* table, const u32* tokens, f32* out, i32 out_stride, i32 cols, i32 n) {                           \
        embed_blocks<F>(table, tokens, out, out_stride, cols);                                                           \
    }                                                                                                                    \
    WINDOW_KERNEL(window_##T, F, 1, NARROW_BLOCKS<F>)                                                                    \
    WINDOW_KERNEL(window_wide_##T, F, 4, WIDE_BLOCKS<F>)                                                                 \
    FLOAT_KERNELS(T, BlockRow<F>)

#define PLAIN_KERNELS(T, F)                                                                                              \
    extern "C" __global__ void __launch_bounds__(EMBED_THREADS)                                                          \
    embed_##T(const u8* table, const u32* tokens, f32* out, i32 out_stride, i32 cols, i32 n) {                           \
        embed_plain<F>(table, tokens, out, out_stride, cols);                                                            \
    }                                                                                                                    \
    FLOAT_KERNELS(T, PlainRow<F>)

PLAIN_FORMATS(PLAIN_KERNELS)
BLOCK_FORMATS(BLOCK_KERNELS)
