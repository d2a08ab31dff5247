// formats.cu: what reads weights: rows of a table, products with 8-bit images and with floats, products of experts.
//
// shapes   w [rows][row bytes] in file order, its address a multiple of 16; codes [n][cols] i8 at a multiple of 16, scales
//          [n][cols / 32] (A32) or [n][cols / 256] (A256); x, out [n][stride] f32; cols whole blocks (any for plain types)
// launch   embed: grid (n), block 256. Windows, products with images: grid (blocks of all matrices, n / activation rows of
//          the kernel rounded up; with images of the block's own making: n; of experts: their number a row, rows). By
//          lanes: block 128, a block 8 rows of a matrix or some times as many, dynamic shared memory for weights, images and
//          values. By tiles: block 256, a block 16 rows of a matrix or 2, 4, 8 times as many. Float products: grid (rows /
//          warps, n / 8) rounded up, a warp a weight row; experts: grid (rows / 4, pairs), block 128, one activation row a pair
// order    images: docs/numerics.md, Dot product with a quantised row: integers in any order, float steps of a group in
//          rising order, the chain of groups; floats: lanes(32). Then scale, then bias, then the product of gate and up,
//          then what is added. A result depends on its two rows alone, not on n, grid or card
// moves    a weight row once for as many activation rows as the kernel takes (experts: 1), whose images come from L2
// twin     device/cpu/plain/product.rs, equal bit for bit (oracle/dots.json)
#include "device/functions.cuh"
#include "device/image.cuh"
#include "device/types.h"
#include "device/vendor.h"
#include "formats/chosen.cuh"
#include "formats/lanes.cuh"
#include "formats/part.cuh"
#include "formats/tile.cuh"

constexpr i32 EMBED_THREADS = 256;                   // of a block that decodes a row of a table
constexpr i32 EMBED_AHEAD = 8;                       // values of a plain row that a thread loads at once
constexpr i32 WARPS = 4;                             // of a block of threads; each takes a weight row with floats
constexpr i32 SHARED_ROWS = 8;                       // activation rows that share a decoded weight row
constexpr i32 WINDOW_WARPS = 8;                      // of a block that multiplies with images
constexpr i32 SLOTS_BYTES = 40 * 1024;               // of such a block: two are on a multiprocessor of 100 KiB
constexpr i32 LANE_WARPS = 4;                        // of a block that multiplies by lanes

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

// Blocks that a multiprocessor's registers hold without a spill: by lanes, for so many activation rows; by tiles,
// many or few. The decoder of Q4_K needs the fewest registers, those of Q5_K and Q6_K the most.
template <i32 COUNT> constexpr i32 LANE_BLOCKS = (COUNT == 1 ? 5 : COUNT == 2 ? 4 : 3) - (MORE_REGISTERS ? 1 : 0);
struct Q4_1;
struct Q4_K;
struct Q5_K;
struct Q6_K;
template <class F> constexpr i32 WIDE_BLOCKS = 2;
template <> constexpr i32 WIDE_BLOCKS<Q4_1> = MORE_REGISTERS ? 1 : 2;
template <> constexpr i32 WIDE_BLOCKS<Q5_K> = MORE_REGISTERS ? 1 : 2;
template <class F> constexpr i32 NARROW_BLOCKS = 2;
template <> constexpr i32 NARROW_BLOCKS<Q4_K> = MORE_REGISTERS ? 2 : 3;
template <> constexpr i32 NARROW_BLOCKS<Q6_K> = MORE_REGISTERS ? 1 : 2;

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
        remove_bias<F>(part);
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
    i32 first_block;  // of the grid
};

// Whose matrices: those of the expert ids[pair], for pairs of an input row (grid.z) and one of its experts (grid.y). Bit k of
// `scales`: target k has a scale an expert.
struct Chosen {
    const u32* ids;
    i64 expert_bytes;
    i32 scales;
    // Whether the launch before has waited for what wrote the ids before it let this one begin.
    i32 settled;
};

// Rows that results are added to.
struct Added {
    const f32* at;
    i32 stride;
};

// Rows of floats of which a block makes the images itself.
struct Floats {
    const f32* at;
    i32 stride;
    u32* fault;
    u32 fault_id;
};

// What a block of threads makes: rows of a target, or of the first two where they are paired, for activation rows.
struct Task {
    i32 which, first_row, rows;  // rows that the target has from the first on
    i32 first, count;            // activation rows, of which the results' rows are those of the same number
    Images in;                   // theirs
    const f32* floats;           // or, where the block makes the image, its row
    u32 expert;
    const u8* at[2];             // the first row in the target, and in the second
};

DEVICE Target chosen_target(const Target (&targets)[3], i32 which) {
    return which == 0 ? targets[0] : which == 1 ? targets[1] : targets[2];
}

// The task of this block of `block_rows` weight rows and, where these are not a pair's or the image of one row of floats,
// up to `each` activation rows. The next kernel may begin once this one has seen the ids of its experts.
template <class F>
DEVICE Task task_of(const Target (&targets)[3], i32 block_rows, i32 each, const Images& in, i32 n,
                    const Chosen& chosen, const Floats& floats) {
    Task task;
    const i32 number = (i32) blockIdx.x;
    const bool in_second = number >= targets[1].first_block, in_third = number >= targets[2].first_block;
    task.which = in_third ? 2 : in_second ? 1 : 0;
    const Target own = chosen_target(targets, task.which);
    task.expert = 0;
    i64 behind = 0;
    i32 input = (i32) blockIdx.y;
    if (chosen.ids) {
        input = (i32) blockIdx.z;
        task.first = input * (i32) gridDim.y + (i32) blockIdx.y;
        task.count = 1;
        if (!chosen.settled) wait_for_previous();
        task.expert = load_fresh(chosen.ids + task.first);
        behind = task.expert * chosen.expert_bytes;
    } else {
        const i32 most = floats.at ? 1 : each;
        input *= most;
        task.first = input;
        task.count = n - input < most ? n - input : most;
    }
    let_next_start();
    task.first_row = (number - own.first_block) * block_rows;
    task.rows = own.rows - task.first_row;
    behind += task.first_row * BlockRow<F>::bytes(in.cols);
    task.at[0] = own.w + behind;
    task.at[1] = targets[1].w + behind;
    task.in = Images{in.codes + (i64) input * in.cols, in.scales + (i64) input * (in.cols / image_values<F>()), in.cols, task.count};
    task.floats = floats.at ? floats.at + (i64) input * floats.stride : nullptr;
    return task;
}

// Before activations are read.
DEVICE void wait_for_activations(const Chosen& chosen) {
    if (!chosen.ids || chosen.settled) wait_for_previous();
}

// Writes the result of row `row` of the task and activation row `of`: `sums(k)` is the chain in matrix k.
template <class S>
DEVICE void put_result(const Target (&targets)[3], const Task& task, i32 paired, i32 row, i32 of, const S& sums,
                       const Added& add, const Chosen& chosen) {
    // The compiler does not see that this is the same target, and keeps nothing of it meanwhile.
    const Target to = chosen_target(targets, hidden(task.which));
    const i32 at = task.first_row + row, result_row = task.first + of;
    const auto scale = [&](i32 k, const f32* s) { return s && chosen.scales >> k & 1 ? s + task.expert : s; };
    f32 y = finish(sums(0), scale(task.which, to.scale), to.bias ? to.bias + at : nullptr);
    if (paired) y = silu_f32(y) * finish(sums(1), scale(1, targets[1].scale), targets[1].bias ? targets[1].bias + at : nullptr);
    if (add.at) y = add.at[(i64) result_row * add.stride + at] + y;
    to.out[(i64) result_row * to.out_stride + at] = y;
}

// Up to three matrices with one input; `paired`: the first two make one row, silu of the first times the second. By tiles:
// a block makes 1 << tiles_log tiles of a matrix.
template <class F, i32 SETS>
DEVICE void window_tiles(const Target (&targets)[3], i32 paired, i32 tiles_log, i32, const Images& in, i32 n, const Added& add,
                         const Chosen& chosen, const Floats&) {
    constexpr i32 OUTPUTS = 2 * SETS * TILE_ROWS;
    __shared__ Window<F, SETS> shared;
    const Task task = task_of<F>(targets, TILE_ROWS << tiles_log, 2 * SETS, in, n, chosen, Floats{});
    const Tiles<F, SETS> tiles{shared, task.at[0], task.at[1], (i32) BlockRow<F>::bytes(in.cols), task.rows,
                               (in.cols + GROUP_VALUES - 1) / GROUP_VALUES, paired, tiles_log};
    tiles.start();
    wait_for_activations(chosen);
    tiles.run(task.in);
    const i32 thread = (i32) threadIdx.x, of = thread % OUTPUTS / TILE_ROWS;
    const i32 row = thread / OUTPUTS * TILE_ROWS + thread % TILE_ROWS;
    if (of >= task.count || row >= task.rows || thread >= OUTPUTS << tiles_log) return;
    put_result(targets, task, paired, row, of, [&](i32 k) { return shared.result[k][thread]; }, add, chosen);
}

// The same by lanes, for up to COUNT activation rows: a block makes `eights` times 8 rows of a matrix; its warps copy
// `far` items ahead, 1 or 2.
template <class F, i32 COUNT>
DEVICE void window_lanes(const Target (&targets)[3], i32 paired, i32 eights, i32 far, const Images& in, i32 n, const Added& add,
                         const Chosen& chosen, const Floats& floats) {
    constexpr i32 THREADS = LANE_WARPS * WARP, STEP = LANE_WARPS * ITEM_CELLS;
    DYNAMIC_SHARED(u8, memory);
    const i32 thread = (i32) threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    const i32 block_rows = eights * CELL_ROWS, groups = (in.cols + GROUP_VALUES - 1) / GROUP_VALUES;
    Bank<F>* const banks = (Bank<F>*) memory + warp * far;
    const Task task = task_of<F>(targets, block_rows, COUNT, in, n, chosen, floats);
    const i32 rows = task.rows < block_rows ? task.rows : block_rows;
    const Lines lines{task.at[0], task.at[1], (i32) BlockRow<F>::bytes(in.cols), rows, groups, paired,
                      (rows + CELL_ROWS - 1) / CELL_ROWS << paired};
    Spot ahead(lines, warp * ITEM_CELLS + lane / CELL_ROWS), here = ahead;
#pragma unroll 1
    for (i32 k = 0; k < far; k++) {
        bring(banks[k], lines, ahead);
        ahead.advance(lines, STEP);
    }
    wait_for_activations(chosen);
    const NearImages<F, COUNT> images(memory + LANE_WARPS * far * (i32) sizeof(Bank<F>), in.cols);
    if (task.floats) {
        images.template make<THREADS>(task.floats, in.cols, floats.fault, floats.fault_id);
    } else {
        images.template copy<THREADS>(task.in);
    }
    __syncthreads();
    // [activation row][line][group][8]; an odd number of groups keeps lines in different banks.
    f32* const values = (f32*) images.end();
    const i32 line_values = (groups | 1) * CELL_ROWS, row_values = (eights << paired) * line_values;
    const i32 items = (lines.count * groups + ITEM_CELLS - 1) / ITEM_CELLS;
#pragma unroll 1
    for (i32 item = warp; item < items; item += LANE_WARPS) {
        Bank<F>& bank = banks[far > 1 ? item / LANE_WARPS & 1 : 0];
        if (far > 1) {
            wait_copies<1>();
        } else {
            wait_copies<0>();
        }
        warp_barrier();
        const i32 skip = F::ALIGN == 16 ? 0 : (i32) ((u32) (u64) here.at<F>(lines) & 15);
        f32 g[COUNT];
        images.values(Near{bank.byte + lane * Slot<F>::STRIDE + skip}, here.group, g);
        if (here.line < lines.count) {
            f32* const to = values + here.line * line_values + here.group * CELL_ROWS + lane % CELL_ROWS;
#pragma unroll
            for (i32 r = 0; r < COUNT; r++) to[r * row_values] = g[r];
        }
        here.advance(lines, STEP);
        warp_barrier();
        bring(bank, lines, ahead);
        ahead.advance(lines, STEP);
    }
    __syncthreads();
#pragma unroll 1
    for (i32 k = thread; k < rows * task.count; k += THREADS) {
        const i32 of = COUNT > 1 ? k / rows : 0, row = k - of * rows;
        const auto chain = [&](i32 matrix) {
            const i32 line = (row / CELL_ROWS << paired) + matrix;
            const f32* const own = values + of * row_values + line * line_values + row % CELL_ROWS;
            f32 result = 0.0f;
#pragma unroll 8
            for (i32 group = 0; group < groups; group++) result = result + own[group * CELL_ROWS];
            return result;
        };
        put_result(targets, task, paired, row, of, chain, add, chosen);
    }
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

#define WINDOW_KERNEL(NAME, THREADS, BLOCKS, BODY, ...)                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                        \
    NAME(const u8* w0, const u8* w1, const u8* w2, f32* out0, f32* out1, f32* out2, i32 stride0, i32 stride1, i32 stride2, \
         i32 rows0, i32 rows1, i32 rows2, const f32* scale0, const f32* scale1, const f32* scale2, const f32* bias0,     \
         const f32* bias1, const f32* bias2, i32 first1, i32 first2, i32 paired, i32 height, i32 far, const i8* codes,   \
         const f32* scales, i32 cols, i32 n, const f32* add, i32 add_stride, const u32* ids, i64 expert_bytes,           \
         i32 scales_per_expert, i32 settled,                                                                             \
         const f32* x, i32 x_stride, u32* fault, u32 fault_id) {                                                         \
        const Target targets[3] = {{w0, out0, stride0, rows0, scale0, bias0, 0},                                         \
                                   {w1, out1, stride1, rows1, scale1, bias1, first1},                                    \
                                   {w2, out2, stride2, rows2, scale2, bias2, first2}};                                  \
        BODY<__VA_ARGS__>(targets, paired, height, far, Images{codes, scales, cols, 0}, n, Added{add, add_stride},       \
                          Chosen{ids, expert_bytes, scales_per_expert, settled},                                         \
                          Floats{x, x_stride, fault, fault_id});                                                         \
    }

#define BLOCK_KERNELS(T, F)                                                                                              \
    extern "C" __global__ void __launch_bounds__(EMBED_THREADS)                                                          \
    embed_##T(const u8* table, const u32* tokens, f32* out, i32 out_stride, i32 cols, i32 n) {                           \
        embed_blocks<F>(table, tokens, out, out_stride, cols);                                                           \
    }                                                                                                                    \
    WINDOW_KERNEL(window_one_##T, LANE_WARPS* WARP, LANE_BLOCKS<1>, window_lanes, F, 1)                                  \
    WINDOW_KERNEL(window_two_##T, LANE_WARPS* WARP, LANE_BLOCKS<2>, window_lanes, F, 2)                                  \
    WINDOW_KERNEL(window_four_##T, LANE_WARPS* WARP, LANE_BLOCKS<4>, window_lanes, F, 4)                                 \
    WINDOW_KERNEL(window_narrow_##T, WINDOW_WARPS* WARP, NARROW_BLOCKS<F>, window_tiles, F, 1)                           \
    WINDOW_KERNEL(window_wide_##T, WINDOW_WARPS* WARP, WIDE_BLOCKS<F>, window_tiles, F, 4)                               \
    FLOAT_KERNELS(T, BlockRow<F>)

#define PLAIN_KERNELS(T, F)                                                                                              \
    extern "C" __global__ void __launch_bounds__(EMBED_THREADS)                                                          \
    embed_##T(const u8* table, const u32* tokens, f32* out, i32 out_stride, i32 cols, i32 n) {                           \
        embed_plain<F>(table, tokens, out, out_stride, cols);                                                            \
    }                                                                                                                    \
    FLOAT_KERNELS(T, PlainRow<F>)

PLAIN_FORMATS(PLAIN_KERNELS)
BLOCK_FORMATS(BLOCK_KERNELS)
