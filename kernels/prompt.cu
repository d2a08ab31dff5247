// prompt.cu: products of the many rows of a chunk with 8-bit images, on the matrix units; experts grouped.
//
// shapes   w, codes, scales, out as in formats.cu; order [pairs] u32: pairs of a row and one of its experts, sorted by
//          expert; tiles: their number in the first word, then 16 bytes each: expert, first pair in `order`, pairs
// launch   group_pairs: grid (experts), block 1024. Products: grid (n / 64, rows / 128) rounded up, block 256, dynamic
//          shared memory SUPER_BYTES or STEPS_BYTES: 128 weight rows with 64 activation rows. With tiles, where n counts
//          pairs: grid (tiles at most, rows / 128)
// order    that of formats.cu, to the bit: integers in any order, float steps of a group in rising order, the chain of
//          groups
// moves    a weight row once for 64 activation rows, from HBM once for neighbouring blocks; images from L2
// twin     device/cpu/plain/product.rs, equal bit for bit (oracle/dots.json)
#include "device/copies.cuh"
#include "device/mma_int8.cuh"
#include "device/types.h"
#include "device/vendor.h"
#include "formats/chosen.cuh"
#include "formats/part.cuh"

// The shape of a tile: what a block of threads makes, from steps of neighbouring values. It is bound by registers: two
// blocks share a multiprocessor, where a thread has 128, 64 of them for sums.
constexpr i32 THREADS = 256;
constexpr i32 TILE_ROWS = 128;                             // weight rows
constexpr i32 TILE_COLUMNS = 64;                           // activation rows
constexpr i32 STEP_PARTS = 2;                              // one a thread, of the weights
constexpr i32 STEP_VALUES = STEP_PARTS * PART_VALUES;
constexpr i32 GROUP_PARTS = 256 / PART_VALUES;
constexpr i32 GROUP_STEPS = GROUP_PARTS / STEP_PARTS;
constexpr i32 PIECE_VALUES = 16;                           // that a load of 16 bytes moves
constexpr i32 STEP_PIECES = STEP_VALUES / PIECE_VALUES;
constexpr i32 IMAGE_STAGES = 3;                            // steps of images in shared memory; of weights two
static_assert(TILE_ROWS * STEP_PARTS == THREADS, "a part of the weights for each thread");
static_assert(TILE_COLUMNS * STEP_PIECES == THREADS, "a piece of the images for each thread");

// Shared memory that a launch gives, by the format's order; every card since compute capability 7.5 lets a block have it.
constexpr i32 SUPER_BYTES = 64 * 1024;
constexpr i32 STEPS_BYTES = 48 * 1024;

// The shape of a warp's share of it: 32 weight rows (two fragments) with every second 8 activation rows.
constexpr i32 WARP_ROWS = 32;
constexpr i32 ROW_WARPS = TILE_ROWS / WARP_ROWS;
constexpr i32 COLUMN_WARPS = THREADS / WARP / ROW_WARPS;
constexpr i32 FRAGMENTS = WARP_ROWS / 16;
constexpr i32 EIGHTS = TILE_COLUMNS / 8 / COLUMN_WARPS;

// Sums of a warp's share, as its lanes hold them: [fragment of rows][eight of columns][sum of a fragment].
template <class T>
using Sums = T[FRAGMENTS][EIGHTS][4];

template <class T>
DEVICE void clear(Sums<T>& sums) {
#pragma unroll
    for (i32 f = 0; f < FRAGMENTS; f++)
#pragma unroll
        for (i32 j = 0; j < EIGHTS; j++)
#pragma unroll
            for (i32 k = 0; k < 4; k++) sums[f][j][k] = 0;
}

// Where piece `piece` of a row of codes lies among rows of STEP_PIECES: rows that lie in the same banks have their pieces
// in another order.
DEVICE i32 place_of(i32 row, i32 piece) { return row * STEP_PIECES + (piece ^ (row >> 1 & (STEP_PIECES - 1))); }

// Where a lane stands in its warp, and its warp in the tile.
struct Lane {
    i32 lane, g, t, row_warp, column_warp;

    // Weight row k of four of this lane's sums, in the tile.
    DEVICE i32 row(i32 k) const { return row_warp * WARP_ROWS + 8 * k + g; }
    // First activation row of eight j of the warp.
    DEVICE i32 eight(i32 j) const { return 8 * (COLUMN_WARPS * j + column_warp); }
};

// The codes of one step's weights.
struct WeightCodes {
    Words4 weights[TILE_ROWS * STEP_PIECES];

    DEVICE void put_part(const Part& part, i32 row, i32 number) {
#pragma unroll
        for (i32 k = 0; k < 2; k++)
            weights[place_of(row, 2 * number + k)] =
                Words4{{part.code[4 * k], part.code[4 * k + 1], part.code[4 * k + 2], part.code[4 * k + 3]}};
    }
};

// The codes of one step's images.
struct ImageCodes {
    Words4 images[TILE_COLUMNS * STEP_PIECES];
};

// Where a lane's rows of matrices begin among the codes of a step, for units of UNIT values: bytes from the first, of
// which unit u changes bits below a row alone.
template <i32 UNIT>
struct Matrices {
    static constexpr i32 PIECES = UNIT / PIECE_VALUES;
    static constexpr i32 LOADED = 4 / PIECES;  // eights of a load
    i32 weights, images;

    DEVICE explicit Matrices(const Lane& at) {
        static_assert(FRAGMENTS == 2, "a load of pieces of 16 values has both");
        const i32 first = at.row_warp * WARP_ROWS, matrix = at.lane / 8;
        if constexpr (UNIT == PART_VALUES) {
            weights = 16 * place_of(first + at.lane % 16, at.lane / 16);
        } else {
            weights = 16 * place_of(first + at.lane, 0);
        }
        images = 16 * place_of(at.eight(matrix / PIECES) + at.lane % 8, matrix % PIECES);
    }

    // Unit u of a warp's weights, as fragments of rows.
    DEVICE void load_weights(const WeightCodes& from, i32 u, u32 (&a)[FRAGMENTS][UNIT / 8]) const {
        const u8* const row = (const u8*) from.weights + (weights ^ UNIT * u);
        if constexpr (UNIT == PART_VALUES) {
#pragma unroll
            for (i32 f = 0; f < FRAGMENTS; f++) load_matrices(row + f * 16 * STEP_VALUES, a[f]);
        } else {
            u32 both[4];
            load_matrices(row, both);
#pragma unroll
            for (i32 i = 0; i < 4; i++) a[i / 2][i % 2] = both[i];
        }
    }

    // The same of images: of the LOADED eights from j on.
    DEVICE void load_images(const ImageCodes& from, i32 u, i32 j, u32 (&b)[4]) const {
        load_matrices((const u8*) from.images + (images ^ UNIT * u) + j * 8 * COLUMN_WARPS * STEP_VALUES, b);
    }
};

// For each of the first USED eights of a warp, the sums `dot` of weight fragment f with it over unit u, begun with `start`:
// visit(j, f, dot).
template <i32 USED, i32 UNIT, class V>
DEVICE void each_product(const Matrices<UNIT>& matrices, const WeightCodes& weights, const ImageCodes& images, i32 u,
                         u32 start, V visit) {
    constexpr i32 LOADED = Matrices<UNIT>::LOADED;
    u32 a[FRAGMENTS][UNIT / 8], b[4];
    matrices.load_weights(weights, u, a);
#pragma unroll
    for (i32 j = 0; j < USED; j++) {
        if (j % LOADED == 0) matrices.load_images(images, u, j, b);
#pragma unroll
        for (i32 f = 0; f < FRAGMENTS; f++) {
            i32 dot[4];
#pragma unroll
            for (i32 k = 0; k < 4; k++) dot[k] = (i32) start;
            if constexpr (UNIT == PART_VALUES) {
                mma_int8(dot, a[f], b[2 * (j % LOADED)], b[2 * (j % LOADED) + 1]);
            } else {
                mma_int8_half(dot, a[f][0], a[f][1], b[j % LOADED]);
            }
            visit(j, f, dot);
        }
    }
}

// ---- what the two orders of float steps keep and do

// Order::SUPER: integers through a group, then one float step.
template <class F>
struct Super {
    static constexpr i32 MIN_ROWS = F::OFFSET ? TILE_ROWS : 1, SUM_COLUMNS = F::OFFSET ? TILE_COLUMNS : 1;
    static constexpr i32 SCALE_PARTS = GROUP_PARTS;

    struct Shared {
        u32 scales[2][TILE_ROWS];  // of a step: a signed byte for each half part
        // Of a group.
        f32 d[2][TILE_ROWS];
        f32 m[2][MIN_ROWS];
        f32 a[2][TILE_COLUMNS];
        u32 mins[2][MIN_ROWS][GROUP_STEPS];                     // a byte for each half part
        u32 low[2][SUM_COLUMNS][GROUP_STEPS];                   // the same of sums of images, seven bits,
        u32 high[2][SUM_COLUMNS][GROUP_STEPS];                  // and what lies above
    };

    Sums<i32> codes;

    DEVICE void start_group() { clear(codes); }

    static DEVICE void put_part(Shared& shared, const Part& part, i32 row, i32 number, i32 step) {
        const u32 pair = (u32) (part.scale[0] & 255) | (u32) (part.scale[1] & 255) << 8;
        ((u16*) &shared.scales[step % 2][row])[number] = (u16) pair;
        const i32 group = step / GROUP_STEPS % 2;
        if constexpr (F::OFFSET) {
            const u32 mins = (u32) part.min[0] | (u32) part.min[1] << 8;
            ((u16*) &shared.mins[group][row][step % GROUP_STEPS])[number] = (u16) mins;
        }
        if (step % GROUP_STEPS == 0 && number == 0) {
            shared.d[group][row] = part.d[0];
            if constexpr (F::OFFSET) shared.m[group][row] = part.m;
        }
    }

    // Whether the thread that brings a piece brings its scale, and where to.
    static DEVICE bool takes_scale(i32 piece, i32 step) { return step % GROUP_STEPS == 0 && piece == 0; }
    static DEVICE f32& scale_place(Shared& shared, i32 column, i32, i32 step, i32) {
        return shared.a[step / GROUP_STEPS % 2][column];
    }

    // Where F::OFFSET: the sum of a piece.
    static DEVICE void put_sum(Shared& shared, i32 sum, i32 column, i32 piece, i32 step) {
        const i32 group = step / GROUP_STEPS % 2;
        ((u8*) &shared.low[group][column][step % GROUP_STEPS])[piece] = (u8) (sum & 127);
        ((u8*) &shared.high[group][column][step % GROUP_STEPS])[piece] = (u8) (sum >> 7);
    }

    // The parts of a step all exist.
    template <i32 USED>
    DEVICE void add_step(const Shared& shared, const WeightCodes& weights, const ImageCodes& images, const Lane& at,
                         i32 step, i32, i32) {
        constexpr i32 UNIT = F::SCALE_VALUES;
        const Matrices<UNIT> matrices(at);
        u32 packed[2 * FRAGMENTS];
#pragma unroll
        for (i32 k = 0; k < 2 * FRAGMENTS; k++) packed[k] = shared.scales[step % 2][at.row(k)];
#pragma unroll 1
        for (i32 u = 0; u < STEP_VALUES / UNIT; u++) {
            i32 scales[2 * FRAGMENTS];
#pragma unroll
            for (i32 k = 0; k < 2 * FRAGMENTS; k++) scales[k] = (i8) (packed[k] >> (8 * u * (UNIT / PIECE_VALUES)));
            each_product<USED, UNIT>(matrices, weights, images, u, 0, [&](i32 j, i32 f, const i32 (&dot)[4]) {
#pragma unroll
                for (i32 k = 0; k < 4; k++) codes[f][j][k] += scales[2 * f + k / 2] * dot[k];
            });
        }
    }

    // Adds the group's values to the results and starts the next group.
    template <i32 USED>
    DEVICE void end_group(const Shared& shared, const Lane& at, i32 step, Sums<f32>& result) {
        const i32 group = step / GROUP_STEPS % 2;
        u32 mins[2 * FRAGMENTS];
        f32 d[2 * FRAGMENTS], m[2 * FRAGMENTS];
#pragma unroll
        for (i32 k = 0; k < 2 * FRAGMENTS; k++) {
            d[k] = shared.d[group][at.row(k)];
            if constexpr (F::OFFSET) m[k] = shared.m[group][at.row(k)];
            if constexpr (F::OFFSET) mins[k] = shared.mins[group][at.row(k)][at.t];
        }
#pragma unroll
        for (i32 j = 0; j < USED; j++) {
            f32 a[2];
#pragma unroll
            for (i32 c = 0; c < 2; c++) a[c] = shared.a[group][at.eight(j) + 2 * at.t + c];
#pragma unroll
            for (i32 f = 0; f < FRAGMENTS; f++) {
                i32 sums[4] = {0, 0, 0, 0};
                if constexpr (F::OFFSET) {
                    // Minima times sums of 16 values, which need 12 bits: the upper ones first.
                    const i32 column = at.eight(j) + at.g;
                    mma_int8_half(sums, mins[2 * f], mins[2 * f + 1], shared.high[group][column][at.t]);
#pragma unroll
                    for (i32 k = 0; k < 4; k++) sums[k] *= 128;
                    mma_int8_half(sums, mins[2 * f], mins[2 * f + 1], shared.low[group][column][at.t]);
                }
#pragma unroll
                for (i32 k = 0; k < 4; k++) {
                    const i32 row = 2 * f + k / 2;
                    const f32 scaled = d[row] * a[k % 2], whole = (f32) codes[f][j][k];
                    f32 g;
                    if constexpr (F::OFFSET) {
                        g = fmaf(scaled, whole, -((m[row] * a[k % 2]) * (f32) sums[k]));
                    } else {
                        g = scaled * whole;
                    }
                    result[f][j][k] = result[f][j][k] + g;
                    codes[f][j][k] = 0;
                }
            }
        }
    }
};

// Order::STEPS: a float step for each part or half part.
template <class F>
struct Steps {
    static constexpr i32 HALVES = F::HALVES ? 2 : 1;
    static constexpr i32 OFFSET_ROWS = F::OFFSET ? TILE_ROWS : 1, SUM_COLUMNS = F::OFFSET ? TILE_COLUMNS : 1;
    static constexpr i32 SCALE_PARTS = 1;
    // A sum of 32 products is below 2^22: begun with this integer it is the float 3 * 2^22 + sum, bit by bit.
    static constexpr u32 WHOLE_BITS = 0x4b400000;

    struct Shared {
        // Of a step.
        f32 d[2][STEP_PARTS][HALVES][TILE_ROWS];
        f32 m[2][STEP_PARTS][OFFSET_ROWS];
        f32 a[IMAGE_STAGES][STEP_PARTS][TILE_COLUMNS];
        f32 sums[2][STEP_PARTS][SUM_COLUMNS];
    };

    Sums<f32> group;

    DEVICE void start_group() { clear(group); }

    static DEVICE void put_part(Shared& shared, const Part& part, i32 row, i32 number, i32 step) {
#pragma unroll
        for (i32 half = 0; half < HALVES; half++) shared.d[step % 2][number][half][row] = part.d[half];
        if constexpr (F::OFFSET) shared.m[step % 2][number][row] = part.m;
    }

    static DEVICE bool takes_scale(i32 piece, i32) { return piece % 2 == 0; }
    static DEVICE f32& scale_place(Shared& shared, i32 column, i32 piece, i32, i32 stage) {
        return shared.a[stage][piece / 2][column];
    }

    static DEVICE void put_sum(Shared& shared, i32 sum, i32 column, i32 piece, i32 step) {
        sum += shuffle_xor(sum, 1);
        if (piece % 2 == 0) shared.sums[step % 2][piece / 2][column] = (f32) sum;
    }

    // `parts`: of the step that exist.
    template <i32 USED>
    DEVICE void add_step(const Shared& shared, const WeightCodes& weights, const ImageCodes& images, const Lane& at,
                         i32 step, i32 stage, i32 parts) {
        constexpr i32 UNIT = PART_VALUES / HALVES;
        const Matrices<UNIT> matrices(at);
#pragma unroll 1
        for (i32 u = 0; u < STEP_PARTS * HALVES; u++) {
            const i32 p = u / HALVES;
            if (p >= parts) break;
            const f32* const scales = &shared.a[stage][p][2 * at.t];
            f32 d[2 * FRAGMENTS];
#pragma unroll
            for (i32 k = 0; k < 2 * FRAGMENTS; k++) d[k] = shared.d[step % 2][p][u % HALVES][at.row(k)];
            each_product<USED, UNIT>(matrices, weights, images, u, WHOLE_BITS, [&](i32 j, i32 f, const i32 (&dot)[4]) {
#pragma unroll
                for (i32 k = 0; k < 4; k++) {
                    const f32 scaled = d[2 * f + k / 2] * scales[at.eight(j) + k % 2];
                    const f32 whole = bits_f32((u32) dot[k]) - bits_f32(WHOLE_BITS);
                    group[f][j][k] = fmaf(scaled, whole, group[f][j][k]);
                }
            });
            if constexpr (F::OFFSET) {
                const f32* const sums = &shared.sums[step % 2][p][2 * at.t];
                f32 m[2 * FRAGMENTS];
#pragma unroll
                for (i32 k = 0; k < 2 * FRAGMENTS; k++) m[k] = shared.m[step % 2][p][at.row(k)];
#pragma unroll
                for (i32 j = 0; j < USED; j++) {
                    warp_barrier();  // loads of the next are not to come before the sums of this one
#pragma unroll
                    for (i32 f = 0; f < FRAGMENTS; f++) {
#pragma unroll
                        for (i32 k = 0; k < 4; k++) {
                            const i32 column = at.eight(j) + k % 2;
                            group[f][j][k] = fmaf(m[2 * f + k / 2] * scales[column], sums[column], group[f][j][k]);
                        }
                    }
                }
            }
        }
    }

    template <i32 USED>
    DEVICE void end_group(const Shared&, const Lane&, i32, Sums<f32>& result) {
#pragma unroll
        for (i32 f = 0; f < FRAGMENTS; f++)
#pragma unroll
            for (i32 j = 0; j < USED; j++)
#pragma unroll
                for (i32 k = 0; k < 4; k++) {
                    result[f][j][k] = result[f][j][k] + group[f][j][k];
                    group[f][j][k] = 0.0f;
                }
    }
};

template <class F, Order ORDER>
struct OrderOf {
    typedef Super<F> Of;
};
template <class F>
struct OrderOf<F, Order::STEPS> {
    typedef Steps<F> Of;
};

// ---- a tile

template <i32 N>
struct Count {
    static constexpr i32 VALUE = N;
};

// Which activation rows a block serves, and with whose weights.
struct TilePlace {
    u32 expert;
    i32 first, columns;
};

DEVICE TilePlace tile_place(const Words4* tiles, i32 n) {
    if (!tiles) {
        const i32 first = (i32) blockIdx.x * TILE_COLUMNS, left = n - first;
        return {0, first, left < TILE_COLUMNS ? left : TILE_COLUMNS};
    }
    if (blockIdx.x >= tiles[0].word[0]) return {0, 0, 0};
    const Words4 tile = tiles[1 + blockIdx.x];
    return {tile.word[0], (i32) tile.word[1], (i32) tile.word[2]};
}

// The bytes of a weight row that are copied at a time: whole blocks and whole steps.
template <class F>
struct Raw {
    static constexpr i32 BLOCK_PARTS = F::VALUES / PART_VALUES;
    static constexpr i32 PARTS = BLOCK_PARTS > STEP_PARTS ? BLOCK_PARTS : STEP_PARTS;
    static constexpr i32 STEPS = PARTS / STEP_PARTS;
    static constexpr i32 BYTES = PARTS / BLOCK_PARTS * F::BYTES;
    static constexpr i32 PIECES = (BYTES + (16 - F::ALIGN) + 15) / 16;  // of 16 bytes that they touch
};

// Shared memory of a block.
template <class F>
struct TileMemory {
    WeightCodes weights[2];
    ImageCodes images[IMAGE_STAGES];
    Words4 raw[TILE_ROWS][Raw<F>::PIECES];
    typename OrderOf<F, F::ORDER>::Of::Shared shared;
    // Kept here and not by every thread, which has no registers left.
    const u8* rows[TILE_ROWS];
    const i8* images_from[TILE_COLUMNS];
    const f32* scales_from[TILE_COLUMNS];
    i32 places[TILE_COLUMNS];  // where results go
};

template <class F>
DEVICE void product_tile(const u8* w, i64 expert_bytes, const Words4* tiles, const u32* order, i32 rows_per_input,
                         const i8* codes, const f32* scales, f32* out, i32 out_stride, i32 rows, i32 cols, i32 n,
                         const f32* scale, i32 scale_per_expert, const f32* bias) {
    typedef typename OrderOf<F, F::ORDER>::Of Arithmetic;
    constexpr i32 BLOCK_PARTS = F::VALUES / PART_VALUES;
    DYNAMIC_SHARED(TileMemory<F>, memory);
    static_assert(sizeof(TileMemory<F>) <= (F::ORDER == Order::SUPER ? SUPER_BYTES : STEPS_BYTES), "what launches give");

    wait_for_previous();
    let_next_start();
    const TilePlace tile = tile_place(tiles, n);
    if (tile.columns == 0) return;
    const i32 thread = threadIdx.x;
    // Rows that do not exist repeat one that does.
    const i32 parts = cols / PART_VALUES, steps = (parts + STEP_PARTS - 1) / STEP_PARTS;
    const i32 row_bytes = parts / BLOCK_PARTS * F::BYTES;
    if (thread < TILE_COLUMNS) {
        const i32 column = tile.first + (thread < tile.columns ? thread : 0);
        const i32 place = order ? (i32) order[column] : column;
        memory->places[thread] = place;
        const i64 input = place / rows_per_input;
        memory->images_from[thread] = codes + input * cols;
        memory->scales_from[thread] = scales + input * (parts / Arithmetic::SCALE_PARTS);
    }
    if (thread < TILE_ROWS) {
        const i32 row = (i32) blockIdx.y * TILE_ROWS + thread;
        memory->rows[thread] = w + tile.expert * expert_bytes + (i64) (row < rows ? row : rows - 1) * row_bytes;
    }
    __syncthreads();

    // What a thread moves, and where its sums stand, it finds anew each time: there are no registers to keep that in.
    const auto lane_at = [&] {
        const i32 t = hidden(thread), lane = t % WARP, warp = t / WARP;
        return Lane{lane, lane / 4, lane % 4, warp % ROW_WARPS, warp / ROW_WARPS};
    };
    // A part of a weight row, a piece of an image.
    struct Moved {
        i32 row, part, column, piece, place;
    };
    const auto moved = [&] {
        const i32 t = hidden(thread);
        const i32 column = t / STEP_PIECES, piece = t % STEP_PIECES;
        return Moved{t / STEP_PARTS, t % STEP_PARTS, column, piece, place_of(column, piece)};
    };

    // The two threads of a weight row copy every second of its pieces.
    const auto start_raw = [&](i32 unit) {
        const i32 first = unit * Raw<F>::BYTES;
        if (first < row_bytes) {
            const Moved my = moved();
            const u8* const from = memory->rows[my.row] + first;
            const i32 skip = (i32) ((u64) from & 15), left = row_bytes - first;
            const i32 end = skip + (left < Raw<F>::BYTES ? left : Raw<F>::BYTES);
#pragma unroll
            for (i32 k = 0; k < (Raw<F>::PIECES + 1) / 2; k++) {
                const i32 piece = 2 * k + my.part, bytes = end - 16 * piece;
                if (bytes > 0)
                    start_copy((u8*) &memory->raw[my.row][piece], from - skip + 16 * piece, bytes < 16 ? bytes : 16);
            }
        }
    };
    const auto start_piece = [&](i32 step, i32 stage) {
        const Moved my = moved();
        const i32 part = step * STEP_PARTS + my.piece / 2;
        if (part < parts) {
            const i8* const from = memory->images_from[my.column] + (step * STEP_VALUES + my.piece * PIECE_VALUES);
            start_copy((u8*) &memory->images[stage].images[my.place], (const u8*) from, 16);
            if (Arithmetic::takes_scale(my.piece, step))
                start_copy_word((u8*) &Arithmetic::scale_place(memory->shared, my.column, my.piece, step, stage),
                                (const u8*) (memory->scales_from[my.column] + part / Arithmetic::SCALE_PARTS));
        }
        close_copies();
    };
    // The codes of the step's weights from their bytes, whose place the bytes of the step behind it take then; the sum of
    // the piece that this thread has brought. All lanes have waited for their copies.
    const auto prepare = [&](i32 step, i32 stage) {
        const Moved my = moved();
        if constexpr (F::OFFSET) {
            const Words4 piece = memory->images[stage].images[my.place];
            i32 sum = 0;
#pragma unroll
            for (i32 i = 0; i < 4; i++) sum = dp4a(four(1), piece.word[i], sum);
            Arithmetic::put_sum(memory->shared, sum, my.column, my.piece, step);
        }
        warp_barrier();
        if (step * STEP_PARTS + my.part < parts) {
            const i32 number = step % Raw<F>::STEPS * STEP_PARTS + my.part;
            const i32 skip = ((i32) (u64) memory->rows[my.row] + step / Raw<F>::STEPS * Raw<F>::BYTES) & 15;
            const u8* const block = (const u8*) memory->raw[my.row] + skip + number / BLOCK_PARTS * F::BYTES;
            Part part;
            F::decode(block, number % BLOCK_PARTS, part);
            remove_bias<F>(part);
            memory->weights[step % 2].put_part(part, my.row, my.part);
            Arithmetic::put_part(memory->shared, part, my.row, my.part, step);
        }
        if ((step + 1) % Raw<F>::STEPS == 0) {
            warp_barrier();
            start_raw((step + 1) / Raw<F>::STEPS);
        }
        close_copies();
    };

    Arithmetic sums;
    Sums<f32> result;
    sums.start_group();
    clear(result);
    start_raw(0);
    start_piece(0, 0);
    start_piece(1, 1);
    wait_copies<1>();
    prepare(0, 0);
    __syncthreads();
    const auto run = [&](auto used) {
        constexpr i32 USED = decltype(used)::VALUE;
        i32 stage = 0;
#pragma unroll 1
        for (i32 step = 0; step < steps; step++) {
            const i32 next = stage + 1 < IMAGE_STAGES ? stage + 1 : 0, left = parts - step * STEP_PARTS;
            start_piece(step + 2, next + 1 < IMAGE_STAGES ? next + 1 : 0);
            sums.template add_step<USED>(memory->shared, memory->weights[step % 2], memory->images[stage], lane_at(), step,
                                         stage, left);
            if (step % GROUP_STEPS == GROUP_STEPS - 1 || step + 1 == steps)
                sums.template end_group<USED>(memory->shared, lane_at(), step, result);
            wait_copies<1>();
            if (step + 1 < steps) prepare(step + 1, next);
            __syncthreads();
            stage = next;
        }
    };
    if (tile.columns <= TILE_COLUMNS / 2) {
        run(Count<EIGHTS / 2>());
    } else {
        run(Count<EIGHTS>());
    }

    const TilePlace done = tile_place(tiles, n);
    const Lane at = lane_at();
    const f32* const factor = scale && scale_per_expert ? scale + done.expert : scale;
#pragma unroll
    for (i32 f = 0; f < FRAGMENTS; f++) {
#pragma unroll
        for (i32 j = 0; j < EIGHTS; j++) {
#pragma unroll
            for (i32 k = 0; k < 4; k++) {
                const i32 to_row = (i32) blockIdx.y * TILE_ROWS + at.row(2 * f + k / 2);
                const i32 column = at.eight(j) + 2 * at.t + k % 2;
                if (to_row >= rows || column >= done.columns) continue;
                f32 value = result[f][j][k];
                if (factor) value = value * *factor;
                if (bias) value = value + bias[to_row];
                out[(i64) memory->places[column] * out_stride + to_row] = value;
            }
        }
    }
}

// ---- experts

constexpr i32 GROUP_THREADS = 1024;
constexpr i32 EXPERTS_MAX = 1024;
constexpr i32 AHEAD = 4;  // strides whose pairs a warp asks for at once

// Block e writes the places of expert e: its pairs in rising order, behind those of the experts before it, and its tiles.
extern "C" __global__ void __launch_bounds__(GROUP_THREADS)
group_pairs(const u32* ids, i32 pairs, i32 experts, u32* order, Words4* tiles) {
    __shared__ u32 counts[EXPERTS_MAX];
    __shared__ u32 before[GROUP_THREADS / WARP];
    wait_for_previous();
    let_next_start();
    const i32 thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    const u32 own = blockIdx.x;
#pragma unroll 1
    for (i32 e = thread; e < experts; e += GROUP_THREADS) counts[e] = 0;
    __syncthreads();
#pragma unroll 1
    for (i32 i = thread; i < pairs; i += GROUP_THREADS) add_one(&counts[ids[i]]);
    __syncthreads();
    // Pairs and tiles of the experts before, and of all.
    const u32 count = thread < experts ? counts[thread] : 0, count_tiles = (count + TILE_COLUMNS - 1) / TILE_COLUMNS;
    u32 earlier = (u32) thread < own ? count : 0, earlier_tiles = (u32) thread < own ? count_tiles : 0, all = count_tiles;
#pragma unroll
    for (i32 bits = 1; bits < WARP; bits *= 2) {
        earlier += shuffle_xor(earlier, bits);
        earlier_tiles += shuffle_xor(earlier_tiles, bits);
        all += shuffle_xor(all, bits);
    }
    __shared__ u32 totals[GROUP_THREADS / WARP][3];
    if (lane == 0) {
        totals[warp][0] = earlier;
        totals[warp][1] = earlier_tiles;
        totals[warp][2] = all;
    }
    __syncthreads();
    u32 first = 0, first_tile = 0, tile_count = 0;
#pragma unroll 1
    for (i32 i = 0; i < GROUP_THREADS / WARP; i++) {
        first += totals[i][0];
        first_tile += totals[i][1];
        tile_count += totals[i][2];
    }
    const u32 mine = counts[own];
    if (own == 0 && thread == 0) tiles[0] = Words4{{tile_count, 0, 0, 0}};
#pragma unroll 1
    for (u32 at = thread * TILE_COLUMNS; at < mine; at += GROUP_THREADS * TILE_COLUMNS) {
        const u32 left = mine - at;
        tiles[1 + first_tile + at / TILE_COLUMNS] =
            Words4{{own, first + at, left < TILE_COLUMNS ? left : (u32) TILE_COLUMNS, 0}};
    }
    // A warp's share of the pairs is one run of them.
    const i32 share = (pairs + GROUP_THREADS - 1) / GROUP_THREADS * WARP, start = warp * share;
    const i32 end = start + share < pairs ? start + share : pairs;
    // The lanes whose pair of each of the next strides is the expert's.
    const auto own_pairs = [&](i32 from, u32 (&bits)[AHEAD]) {
        u32 id[AHEAD];
#pragma unroll
        for (i32 k = 0; k < AHEAD; k++) {
            const i32 pair = from + k * WARP + lane;
            id[k] = pair < end ? ids[pair] : ~0u;
        }
#pragma unroll
        for (i32 k = 0; k < AHEAD; k++) bits[k] = lanes_where(id[k] == own);
    };
    u32 bits[AHEAD], found = 0;
#pragma unroll 1
    for (i32 from = start; from < end; from += AHEAD * WARP) {
        own_pairs(from, bits);
#pragma unroll
        for (i32 k = 0; k < AHEAD; k++) found += count_bits(bits[k]);
    }
    if (lane == 0) before[warp] = found;
    __syncthreads();
    u32 to = first;
#pragma unroll 1
    for (i32 i = 0; i < warp; i++) to += before[i];
#pragma unroll 1
    for (i32 from = start; from < end; from += AHEAD * WARP) {
        own_pairs(from, bits);
#pragma unroll
        for (i32 k = 0; k < AHEAD; k++) {
            const u32 below = bits[k] & ((1u << lane) - 1);
            if (bits[k] >> lane & 1) order[to + count_bits(below)] = from + k * WARP + lane;
            to += count_bits(bits[k]);
        }
    }
}

// ---- the kernels, by name

// Blocks whose shared memory a multiprocessor has.
constexpr i32 TILE_BLOCKS = SHARED_BYTES_MAX > SUPER_BYTES ? 2 : 1;

// Blocks that a multiprocessor's registers hold without a spill. Where half parts have float scales of their own, 128 a
// thread are too few.
struct Q1_0;
template <class F> constexpr i32 PROMPT_BLOCKS = F::HALVES ? 1 : TILE_BLOCKS;
template <> constexpr i32 PROMPT_BLOCKS<Q1_0> = MORE_REGISTERS ? 1 : TILE_BLOCKS;

#define PROMPT_KERNELS(T, F)                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, PROMPT_BLOCKS<F>)                                              \
    prompt_product_##T(const u8* __restrict__ w, i64 expert_bytes, const Words4* tiles, const u32* order,                \
                       i32 rows_per_input, const i8* __restrict__ codes, const f32* __restrict__ scales, f32* out,       \
                       i32 out_stride, i32 rows, i32 cols, i32 n, const f32* scale, i32 scale_per_expert,                \
                       const f32* bias) {                                                                                \
        product_tile<F>(w, expert_bytes, tiles, order, rows_per_input, codes, scales, out, out_stride, rows, cols, n,    \
                        scale, scale_per_expert, bias);                                                                  \
    }

BLOCK_FORMATS(PROMPT_KERNELS)
