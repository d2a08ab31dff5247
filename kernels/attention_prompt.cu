// attention_prompt.cu: attention of the rows of a chunk over f16 and q8_0 pages, on tensor cores.
//
// shapes   q [n] rows of q_heads * key_width f32; pages and pool as in append.cu; key_width and value_width are
//          multiples of 8 (q8_0: 32) and at most the width in the kernel's name; out [n] rows of q_heads * value_width
//          f32; work: nothing, or value_width + 2 floats for each row, head and span: max, sum, acc; the pool begins at a
//          multiple of 16
// launch   attend_prompt: grid (tiles of rows, kv_heads, spans or 1), block 128, dynamic shared memory of
//          PromptShape::BYTES; a block has SLOTS slots, one for each row of its tile and query head of its K/V head;
//          attend_prompt_merge: grid (q_heads, n), block 128
// order    scores: binary16 products of keys with the high and the low part of q (q8_0: codes, then a scale for 32 of
//          them), summed by tensor cores; weights 2^(score - m), where m is the largest score when it last grew by more
//          than GROW; sums and acc key by key tile inside a span of 2,048 positions; spans left to right. A row's bits
//          depend on its q, its keys and its values alone: not on its tile, slot or block
// moves    each key and value up to the tile's last position once for SLOTS slots
// twin     src/device/cpu/plain/attention.rs within 2e-3 relative L2 a row and head (kernels/emu/parity.py)
#include "attention/chosen.cuh"
#include "attention/parts.cuh"
#include "device/copies.cuh"
#include "device/functions.cuh"
#include "device/mma_f16.cuh"
#include "device/pages.cuh"

constexpr i32 PROMPT_BLOCK = 128;
constexpr i32 PROMPT_WARPS = PROMPT_BLOCK / SHORT_LANES;
constexpr i32 PROMPT_MERGE_BLOCK = 128;
constexpr i32 PROMPT_SPAN = 2048;
// Weights stand at 2^HEAD and above for the largest score, so that small ones keep their bits in binary16; a score may
// grow by GROW powers of two before they move. 2^(HEAD + GROW) fits binary16.
constexpr f32 HEAD = 7.0f;
constexpr f32 GROW = 8.0f;
// Below every score.
constexpr f32 LOWEST = -1e30f;
constexpr u32 MINUS_INFINITY_BITS = 0xff800000;
// The largest value of a query head is scaled into 2^8 .. 2^9, so that its low parts keep their bits.
constexpr i32 QUERY_EXPONENT = 8;

// Tile sizes. Registers: a lane holds ATOMS * W / 2 values of acc and ATOMS * KEYS / 2 scores, under 255 with two blocks
// a multiprocessor. Shared memory: 99 KiB, what the smallest cards with these tensor cores have.
template <class Form, i32 W> struct PromptShape {
    static constexpr bool CODES = Form::CODES;
    static constexpr i32 ATOMS = W <= 128 ? 2 : 1;
    static constexpr i32 KEYS = CODES ? (W <= 64 ? 32 : 16) : W <= 64 ? 64 : W <= 128 ? 32 : 16;
    // Tiles of keys and of values: one is filled while another is read. Codes wait as they are stored.
    static constexpr i32 STAGES = CODES ? 1 : 2;
    static constexpr i32 WARP_SLOTS = ATOMS * MMA_ROWS;
    static constexpr i32 SLOTS = PROMPT_WARPS * WARP_SLOTS;
    static constexpr i32 SPAN_KEY_TILES = PROMPT_SPAN / KEYS;
    // Places in shared memory, in bytes.
    static constexpr i32 LOW = 2 * SLOTS * W;
    static constexpr i32 KEY_TILE = 2 * LOW;
    static constexpr i32 VALUE_TILE = KEY_TILE + 2 * KEYS * W * STAGES;
    static constexpr i32 STORED_KEYS = VALUE_TILE + 2 * KEYS * W * STAGES;
    static constexpr i32 STORED_BYTES = CODES ? KEYS * (W / A32_VALUES) * StoredQ8::BLOCK_BYTES : 0;
    static constexpr i32 STORED_VALUES = STORED_KEYS + STORED_BYTES;
    static constexpr i32 KEY_SCALES = STORED_VALUES + STORED_BYTES;
    static constexpr i32 OF_SLOTS = KEY_SCALES + (CODES ? 4 * KEYS * (W / A32_VALUES) : 0);
    static constexpr i32 RUN = OF_SLOTS + 5 * 4 * SLOTS;
    static constexpr i32 REACH = RUN + 64;
    static constexpr i32 BYTES = REACH + 8 * PROMPT_WARPS;

    static_assert(PAGE_POSITIONS % KEYS == 0, "a tile of keys lies in one page");
    static_assert(STORED_BYTES % 16 == 0 && OF_SLOTS % 16 == 0, "copies of 16 bytes");
};

// A row of q_heads heads of the pool's widths, and where its rows stand.
struct PromptCall {
    const f32* q;
    i32 q_stride;
    i32 q_heads;
    i32 kv_heads;
    i32 key_width;
    i32 value_width;
    f32 scale;
    const u32* positions;
    const u32* states;
    const u32* pages;
    i32 pages_per_state;
    const u8* pool;
    i64 page_bytes;
    f32* work;
    i32 spans_max;
    f32* out;
    i32 out_stride;
    i32 n;
};

// What is the same for a block, or for a run of its rows. It lies in shared memory: registers are scarce.
struct PromptRun {
    const u8* keys;
    const u8* values;
    const u32* pages;
    i64 page_bytes;
    i32 key_bytes;
    i32 value_bytes;
    i32 group;  // query heads of a K/V head
    i32 first;  // row of the tile
    i32 rows;   // of the tile
    i32 end;    // of the run, counted in the tile
    i32 last;   // position of the run

    DEVICE const u8* keys_at(i32 position) const {
        return keys + pages[position / PAGE_POSITIONS] * page_bytes + position % PAGE_POSITIONS * key_bytes;
    }
    DEVICE const u8* values_at(i32 position) const {
        return values + pages[position / PAGE_POSITIONS] * page_bytes + position % PAGE_POSITIONS * value_bytes;
    }
};
static_assert(sizeof(PromptRun) <= 64, "its place in shared memory");

// The positions that a warp's slots read: the last of all, and the first at which one of them ends.
struct WarpReach {
    i32 last;
    i32 first_end;
};

// The places of a block in shared memory; those of slots begin at the lane's own, rows lane / 4 and 8 + lane / 4 of its
// warp.
template <class Shape> struct PromptRoom {
    u16* high;
    u16* low;
    u16* key_tile;
    u16* value_tile;
    u8* stored_keys;
    u8* stored_values;
    f32* key_scales;
    f32* factors;
    i32* limits;
    i32* rows;
    f32* kept_max;
    f32* kept_sum;
    PromptRun* run;
    WarpReach* reach;

    DEVICE PromptRoom(u8* room, i32 slot)
        : high((u16*) room), low((u16*)(room + Shape::LOW)), key_tile((u16*)(room + Shape::KEY_TILE)),
          value_tile((u16*)(room + Shape::VALUE_TILE)), stored_keys(room + Shape::STORED_KEYS),
          stored_values(room + Shape::STORED_VALUES), key_scales((f32*)(room + Shape::KEY_SCALES)),
          factors((f32*)(room + Shape::OF_SLOTS) + slot), limits((i32*) (factors + Shape::SLOTS)),
          rows(limits + Shape::SLOTS), kept_max((f32*)(rows + Shape::SLOTS)), kept_sum(kept_max + Shape::SLOTS),
          run((PromptRun*)(room + Shape::RUN)), reach((WarpReach*)(room + Shape::REACH) + slot / Shape::WARP_SLOTS) {}
};

// Scales a query head by a power of two and splits it into high and low halves. One warp; `factor` turns its products
// with keys into exponents of two.
template <i32 W> DEVICE void split_query(
    const f32* query, i32 width, f32 scale, i32 slot, u16* high, u16* low, f32* factor) {
    constexpr i32 PAIRS = W / (2 * SHORT_LANES);
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
    f32 x[2 * PAIRS];
    u32 largest = 0;
#pragma unroll
    for (i32 k = 0; k < 2 * PAIRS; k++) {
        const i32 d = 2 * (lane + k / 2 * SHORT_LANES) + k % 2;
        x[k] = query != nullptr && d < width ? query[d] : 0.0f;
        largest = magnitude(x[k]) > largest ? magnitude(x[k]) : largest;
    }
    largest = warp_max(largest);
    i32 exponent = (i32) (largest >> 23) - 127 - QUERY_EXPONENT;
    exponent = exponent < -120 ? -120 : exponent;
    const f32 down = bits_f32((u32) (127 - exponent) << 23);
#pragma unroll
    for (i32 k = 0; k < PAIRS; k++) {
        const f32 a = x[2 * k] * down;
        const f32 b = x[2 * k + 1] * down;
        const u32 top = f32_f16x2(a, b);
        const i32 d = 2 * (lane + k * SHORT_LANES);
        const i32 at = piece_at<W>(slot, d / PIECE) + d % PIECE;
        *(u32*)(high + at) = top;
        *(u32*)(low + at) = f32_f16x2(a - f16_f32((u16) top), b - f16_f32((u16) (top >> 16)));
    }
    const f32 up = bits_f32((u32) (127 + exponent) << 23) * (scale * bits_f32(LOG2E_BITS));
    if (lane == 0) *factor = is_finite(largest) ? up : bits_f32(0x7fc00000);
}

// Starts copying KEYS rows of binary16 into a tile; rows from `present` on and columns behind a row become zeros.
template <i32 W, i32 KEYS> DEVICE void copy_tile(u16* tile, const u8* rows, i32 row_bytes, i32 present) {
    constexpr i32 ROW_PIECES = W / PIECE;
    constexpr i32 EACH = KEYS * ROW_PIECES / PROMPT_BLOCK;
    constexpr i32 STEP = PROMPT_BLOCK / ROW_PIECES;  // rows
    const i32 thread = hidden((i32) threadIdx.x);
    const i32 row = thread / ROW_PIECES;
    const i32 piece = thread % ROW_PIECES;
    const u8* from = rows + (row * row_bytes + 2 * PIECE * piece);
    if (present >= KEYS && row_bytes == 2 * W) {
#pragma unroll
        for (i32 i = 0; i < EACH; i++) {
            start_copy((u8*) (tile + piece_at<W>(row + i * STEP, piece)), from + i * STEP * 2 * W, 16);
        }
    } else {
#pragma unroll
        for (i32 i = 0; i < EACH; i++) {
            const bool is_there = row + i * STEP < present && 2 * PIECE * piece < row_bytes;
            const u8* here = is_there ? from + i * STEP * row_bytes : rows;
            start_copy((u8*) (tile + piece_at<W>(row + i * STEP, piece)), here, is_there ? 16 : 0);
        }
    }
}

// Starts copying rows as they are stored, side by side.
DEVICE void copy_stored(u8* to, const u8* rows, i32 bytes) {
    for (i32 at = 16 * (i32) threadIdx.x; at < bytes; at += 16 * PROMPT_BLOCK) start_copy(to + at, rows + at, 16);
}

// Turns stored q8_0 rows into a tile: of codes, whose scales go to scales[block][key], or of values, rounded.
template <i32 W, i32 KEYS> DEVICE void unpack_tile(
    u16* tile, const u8* stored, i32 width, i32 present, f32* scales) {
    constexpr i32 ROW_PIECES = W / PIECE;
    const i32 thread = hidden((i32) threadIdx.x);
#pragma unroll
    for (i32 i = 0; i < KEYS * ROW_PIECES / PROMPT_BLOCK; i++) {
        const i32 at = thread + i * PROMPT_BLOCK;
        const i32 row = at / ROW_PIECES;
        const i32 piece = at % ROW_PIECES;
        Words4 halves = {};
        f32 scale = 0.0f;
        if (row < present && piece * PIECE < width) {
            const u8* from = stored + row * (i32) StoredQ8::row_bytes(width);
            const StoredQ8::Eight eight = StoredQ8::load_eight(from, piece * PIECE);
            scale = f16_f32(eight.scale);
#pragma unroll
            for (i32 j = 0; j < PIECE; j += 2) {
                halves.word[j / 2] = scales != nullptr ? f32_f16x2(eight.code(j), eight.code(j + 1))
                                                       : f32_f16x2(eight.value(j), eight.value(j + 1));
            }
        }
        *(Words4*)(tile + piece_at<W>(row, piece)) = halves;
        if (scales != nullptr && piece % 4 == 0) scales[piece / 4 * KEYS + row] = scale;
    }
}

// The scores of one warp's slots with a tile of keys, before their factors.
template <class Shape, i32 W> DEVICE void make_scores(
    const u16* high, const u16* low, const u16* keys, const f32* scales, i32 slot,
    f32 (&scores)[Shape::ATOMS][Shape::KEYS / MMA_COLS][4]) {
    constexpr i32 TILES = Shape::KEYS / MMA_COLS;
    constexpr i32 STEPS = W / MMA_DEPTH;
    constexpr i32 BLOCK_STEPS = Shape::CODES ? A32_VALUES / MMA_DEPTH : STEPS;
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
    const i32 left_place = left_at<W>() + slot * W;
    const i32 right_place = right_at<W>();
#pragma unroll
    for (i32 block = 0; block < STEPS / BLOCK_STEPS; block++) {
        f32 part[Shape::ATOMS][TILES][4];
#pragma unroll
        for (i32 step = 0; step < BLOCK_STEPS; step++) {
            const i32 column = (block * BLOCK_STEPS + step) * MMA_DEPTH;
            u32 top[Shape::ATOMS][4];
            u32 rest[Shape::ATOMS][4];
            u32 right[TILES / 2][4];
#pragma unroll
            for (i32 a = 0; a < Shape::ATOMS; a++) load_left<W>(low, left_place, a * MMA_ROWS, column, rest[a]);
#pragma unroll
            for (i32 t = 0; t < TILES; t += 2) load_right<W>(keys, right_place, t * MMA_COLS, column, right[t / 2]);
#pragma unroll
            for (i32 a = 0; a < Shape::ATOMS; a++) load_left<W>(high, left_place, a * MMA_ROWS, column, top[a]);
#pragma unroll
            for (i32 t = 0; t < TILES; t++) {
#pragma unroll
                for (i32 a = 0; a < Shape::ATOMS; a++) {
                    const u32* b = &right[t / 2][t % 2 * 2];
                    if (step == 0) {
                        mma_f16_first(part[a][t], rest[a], b[0], b[1]);
                    } else {
                        mma_f16(part[a][t], rest[a], b[0], b[1]);
                    }
                }
            }
#pragma unroll
            for (i32 t = 0; t < TILES; t++) {
#pragma unroll
                for (i32 a = 0; a < Shape::ATOMS; a++) {
                    mma_f16(part[a][t], top[a], right[t / 2][t % 2 * 2], right[t / 2][t % 2 * 2 + 1]);
                }
            }
        }
#pragma unroll
        for (i32 t = 0; t < TILES; t++) {
            Words2 pair = {};
            if (Shape::CODES) pair = *(const Words2*)(scales + block * Shape::KEYS + t * MMA_COLS + 2 * (lane % 4));
#pragma unroll
            for (i32 a = 0; a < Shape::ATOMS; a++) {
#pragma unroll
                for (i32 i = 0; i < 4; i++) {
                    if (!Shape::CODES) {
                        scores[a][t][i] = part[a][t][i];
                    } else if (block == 0) {
                        scores[a][t][i] = part[a][t][i] * bits_f32(pair.word[i % 2]);
                    } else {
                        scores[a][t][i] = fmaf(part[a][t][i], bits_f32(pair.word[i % 2]), scores[a][t][i]);
                    }
                }
            }
        }
    }
}

// What a lane knows of its slots over a span; sums are those of its own keys until the span ends.
template <i32 ATOMS> struct Running {
    f32 max[ATOMS][2];
    f32 sum[ATOMS][2];
};

// Finds the largest scores of a tile, and scales what was summed before where one has grown.
template <i32 ATOMS, i32 TILES, i32 COLS> DEVICE void make_room(
    const f32 (&scores)[ATOMS][TILES][4], const f32* factors, Running<ATOMS>& running, f32 (&acc)[ATOMS][COLS][4]) {
    f32 shrink[ATOMS][2];
    bool grows = false;
#pragma unroll
    for (i32 a = 0; a < ATOMS; a++) {
#pragma unroll
        for (i32 h = 0; h < 2; h++) {
            f32 max = fmaxf(scores[a][0][2 * h], scores[a][0][2 * h + 1]);
#pragma unroll
            for (i32 t = 1; t < TILES; t++) max = fmaxf(max, fmaxf(scores[a][t][2 * h], scores[a][t][2 * h + 1]));
            max = fmaxf(max, shuffle_xor(max, 1));
            max = fmaxf(max, shuffle_xor(max, 2));
            max = max * factors[a * MMA_ROWS + h * 8];
            const bool own = max > running.max[a][h] + GROW;
            shrink[a][h] = own ? exp2_near(running.max[a][h] - max) : 1.0f;
            running.max[a][h] = own ? max : running.max[a][h];
            grows = grows || own;
        }
    }
    if (warp_any(grows)) {
#pragma unroll
        for (i32 a = 0; a < ATOMS; a++) {
#pragma unroll
            for (i32 h = 0; h < 2; h++) {
                running.sum[a][h] = running.sum[a][h] * shrink[a][h];
#pragma unroll
                for (i32 c = 0; c < COLS; c++) {
                    acc[a][c][2 * h] = acc[a][c][2 * h] * shrink[a][h];
                    acc[a][c][2 * h + 1] = acc[a][c][2 * h + 1] * shrink[a][h];
                }
            }
        }
    }
}

// Turns four scores of a lane into weights, two pairs as tensor cores take them.
template <i32 ATOMS> DEVICE void weigh(
    const f32 (&scores)[4], i32 a, const f32* factors, Running<ATOMS>& running, u32 (&weights)[2]) {
#pragma unroll
    for (i32 h = 0; h < 2; h++) {
        const f32 factor = factors[a * MMA_ROWS + h * 8];
        const f32 shift = HEAD - running.max[a][h];
        const f32 first = exp2_near(fmaf(scores[2 * h], factor, shift));
        const f32 second = exp2_near(fmaf(scores[2 * h + 1], factor, shift));
        running.sum[a][h] = running.sum[a][h] + first;
        running.sum[a][h] = running.sum[a][h] + second;
        weights[h] = f32_f16x2(first, second);
    }
}

// acc += weights times a tile of values.
template <i32 W, i32 ATOMS, i32 TILES, i32 COLS> DEVICE void add_values(
    const u16* values, const u32 (&weights)[ATOMS][TILES][2], f32 (&acc)[ATOMS][COLS][4]) {
    const i32 place = left_at<W>();
#pragma unroll
    for (i32 t = 0; t < TILES; t += 2) {
#pragma unroll
        for (i32 c = 0; c < COLS; c += 2) {
            u32 right[4];
            load_right_turned<W>(values, place, t * MMA_COLS, c * MMA_COLS, right);
#pragma unroll
            for (i32 a = 0; a < ATOMS; a++) {
                const u32 left[4] = {weights[a][t][0], weights[a][t][1], weights[a][t + 1][0], weights[a][t + 1][1]};
                mma_f16(acc[a][c], left, right[0], right[1]);
                mma_f16(acc[a][c + 1], left, right[2], right[3]);
            }
        }
    }
}

// How what spans left is put together: the factors of both sides under a common maximum.
struct SpanMerge {
    f32 max;
    f32 left;
    f32 right;

    DEVICE SpanMerge(f32 left_max, f32 right_max)
        : max(fmaxf(left_max, right_max)), left(exp2_near(left_max - max)), right(exp2_near(right_max - max)) {}

    DEVICE f32 join(f32 left_value, f32 right_value) const { return fmaf(right_value, right, left_value * left); }
    DEVICE static f32 share(f32 acc, f32 sum) { return acc * (1.0f / sum); }
};

// The first of the lane's slots.
template <class Shape> DEVICE i32 slot_of() {
    const i32 thread = (i32) threadIdx.x;
    return thread / SHORT_LANES * Shape::WARP_SLOTS + thread % SHORT_LANES / 4;
}

// Fills the block's slots with its rows' query heads; without a row, with zeros.
template <class Shape, i32 W> DEVICE void load_queries(
    const PromptCall& call, const PromptRoom<Shape>& room, i32 slot) {
    const i32 group = call.q_heads / call.kv_heads;
    const i32 tile_rows = Shape::SLOTS / group;
    // Those with the most keys first.
    const i32 first = (i32) (gridDim.x - 1 - blockIdx.x) * tile_rows;
    const i32 rows = call.n - first < tile_rows ? call.n - first : tile_rows;
    if (threadIdx.x == 0) {
        room.run->group = group;
        room.run->first = first;
        room.run->rows = rows;
    }
#pragma unroll 2
    for (i32 s = 0; s < Shape::WARP_SLOTS; s++) {
        const i32 row = (slot + s) / group;
        const i32 head = (i32) blockIdx.y * group + (slot + s) % group;
        const f32* query = call.q + (i64) (first + row) * call.q_stride + (i64) head * call.key_width;
        room.rows[s] = row;
        query = row < rows ? query : nullptr;
        split_query<W>(query, call.key_width, call.scale, slot + s, room.high, room.low, room.factors + s);
    }
}

// Takes the neighbouring rows of one state from row `begin` of the tile on; `room` has the places of the warp.
template <class Form, class Shape> DEVICE void begin_run(
    const PromptCall& call, const PromptRoom<Shape>& room, i32 begin) {
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
    const i32 rows = room.run->rows;
    const i32 first = room.run->first;
    const u32 state = call.states[first + begin];
    i32 others = 0;
    for (i32 row = begin + lane; row < rows; row += SHORT_LANES) {
        const i32 behind = call.states[first + row] != state ? rows - row : 0;
        others = behind > others ? behind : others;
    }
    const i32 end = rows - warp_max(others);
    __syncthreads();  // nobody reads what the run before left
    const i32 row = room.rows[lane % Shape::WARP_SLOTS];
    const i32 limit = row >= begin && row < end ? (i32) call.positions[first + row] : -1;
    room.limits[lane % Shape::WARP_SLOTS] = limit;
    const i32 last = warp_max(limit);
    const i32 first_end = -warp_max(limit < 0 ? -0x7fffffff : -limit);
    if (lane == 0) *room.reach = WarpReach{last, first_end};
    if (threadIdx.x == 0) {
        const HeadRows<Form> at(call.kv_heads, (i32) blockIdx.y, call.key_width, call.value_width);
        PromptRun& run = *room.run;
        run.keys = call.pool + at.keys_at;
        run.values = call.pool + at.values_at;
        run.pages = call.pages + (i64) state * call.pages_per_state;
        run.page_bytes = call.page_bytes;
        run.key_bytes = (i32) at.key_bytes;
        run.value_bytes = (i32) at.value_bytes;
        run.end = end;
        run.last = (i32) call.positions[first + end - 1];
    }
    __syncthreads();
}

// Where a tile lies among those of its kind.
template <class Shape, i32 W> DEVICE i32 stage_at(i32 tile) {
    return Shape::STAGES == 2 ? tile % 2 * Shape::KEYS * W : 0;
}

// Starts copying a tile of keys and values.
template <class Shape, i32 W> DEVICE void fetch_tile(const PromptRoom<Shape>& room, i32 tile) {
    constexpr i32 KEYS = Shape::KEYS;
    const PromptRun& run = *room.run;
    const u8* keys = run.keys_at(tile * KEYS);
    const u8* values = run.values_at(tile * KEYS);
    if (Shape::CODES) {
        copy_stored(room.stored_keys, keys, KEYS * run.key_bytes);
        copy_stored(room.stored_values, values, KEYS * run.value_bytes);
    } else {
        const i32 present = run.last + 1 - tile * KEYS;
        const i32 stage = stage_at<Shape, W>(tile);
        copy_tile<W, KEYS>(room.key_tile + stage, keys, run.key_bytes, present);
        copy_tile<W, KEYS>(room.value_tile + stage, values, run.value_bytes, present);
    }
}

// Waits for a tile.
template <class Shape, i32 W> DEVICE void take_tile(const PromptCall& call, const PromptRoom<Shape>& room, i32 tile) {
    constexpr i32 KEYS = Shape::KEYS;
    close_copies();
    wait_copies<0>();
    __syncthreads();  // all copies are there, and nobody reads the tile before
    if (!Shape::CODES) return;
    const i32 present = room.run->last + 1 - tile * KEYS;
    unpack_tile<W, KEYS>(room.key_tile, room.stored_keys, call.key_width, present, room.key_scales);
    unpack_tile<W, KEYS>(room.value_tile, room.stored_values, call.value_width, present, nullptr);
    __syncthreads();
}

// Takes away the scores of keys behind a slot's own position.
template <i32 ATOMS, i32 TILES> DEVICE void hide_later_keys(
    f32 (&scores)[ATOMS][TILES][4], const i32* limits, i32 first) {
    const i32 key = first + 2 * ((i32) threadIdx.x % 4);
#pragma unroll
    for (i32 a = 0; a < ATOMS; a++) {
#pragma unroll
        for (i32 i = 0; i < 4; i++) {
            const i32 limit = limits[a * MMA_ROWS + i / 2 * 8];
#pragma unroll
            for (i32 t = 0; t < TILES; t++) {
                if (key + t * MMA_COLS + i % 2 > limit) scores[a][t][i] = bits_f32(MINUS_INFINITY_BITS);
            }
        }
    }
}

// A span ends: what it leaves goes to the work, or to the row, where it meets the spans before.
template <class Shape, i32 ATOMS, i32 COLS> DEVICE void leave_span(
    const PromptCall& call, const PromptRoom<Shape>& room, i32 span, const Running<ATOMS>& running,
    const f32 (&acc)[ATOMS][COLS][4]) {
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
    const bool begins = call.work != nullptr || span == 0;
#pragma unroll
    for (i32 a = 0; a < ATOMS; a++) {
#pragma unroll
        for (i32 h = 0; h < 2; h++) {
            const i32 slot = a * MMA_ROWS + h * 8;
            const i32 limit = room.limits[slot];
            const bool own = limit >= span * PROMPT_SPAN;
            const bool ends = call.work == nullptr && limit / PROMPT_SPAN == span;
            f32 max = running.max[a][h];
            f32 sum = running.sum[a][h];
            sum = sum + shuffle_xor(sum, 1);
            sum = sum + shuffle_xor(sum, 2);
            sum = sum + room.factors[slot] * 0.0f;  // no number where q is not finite
            const i64 row = room.run->first + room.rows[slot];
            const i32 head = ((i32) blockIdx.y - room.rows[slot]) * room.run->group + slot_of<Shape>() + slot;
            f32* target = call.out + row * call.out_stride + (i64) head * call.value_width;
            if (call.work != nullptr) {
                target = call.work + ((row * call.q_heads + head) * call.spans_max + span) * (call.value_width + 2);
                if (own && lane % 4 == 0) {
                    target[0] = max;
                    target[1] = sum;
                }
                target += 2;
            }
            const SpanMerge merge(begins ? max : room.kept_max[slot], max);
            if (!begins) {
                max = merge.max;
                sum = merge.join(room.kept_sum[slot], sum);
            }
            warp_barrier();  // the four lanes of a slot have read what the first of them replaces
            if (own && lane % 4 == 0) {
                room.kept_max[slot] = max;
                room.kept_sum[slot] = sum;
            }
            warp_barrier();
            const f32 share = ends ? 1.0f / sum : 1.0f;
#pragma unroll
            for (i32 i = 0; i < 2 * COLS; i++) {
                const i32 d = i / 2 * MMA_COLS + 2 * (lane % 4) + i % 2;
                if (!own || d >= call.value_width) continue;
                f32 value = acc[a][i / 2][2 * h + i % 2];
                if (!begins) value = merge.join(target[d], value);
                target[d] = value * share;
            }
        }
    }
}

template <class Form, i32 W> DEVICE void attend_prompt(const PromptCall& call) {
    typedef PromptShape<Form, W> Shape;
    constexpr i32 ATOMS = Shape::ATOMS;
    constexpr i32 KEYS = Shape::KEYS;
    constexpr i32 TILES = KEYS / MMA_COLS;
    constexpr i32 COLS = W / MMA_COLS;
    if constexpr (Shape::BYTES > SHARED_BYTES_MAX) return;  // never launched there
    DYNAMIC_SHARED(u8, shared);
    const i32 warp_slot = (i32) threadIdx.x / SHORT_LANES * Shape::WARP_SLOTS;
    const PromptRoom<Shape> of_warp(shared, warp_slot);
    const PromptRoom<Shape> room(shared, slot_of<Shape>());
    wait_for_previous();
    let_next_start();
    load_queries<Shape, W>(call, of_warp, warp_slot);
    __syncthreads();
    // A tile mostly has one run.
    for (i32 begin = 0; begin < room.run->rows; begin = room.run->end) {
        begin_run<Form>(call, of_warp, begin);
        const i32 first_tile = (i32) blockIdx.z * Shape::SPAN_KEY_TILES;
        i32 tiles = room.run->last / KEYS + 1;
        if (call.work != nullptr && tiles > first_tile + Shape::SPAN_KEY_TILES) tiles = first_tile + Shape::SPAN_KEY_TILES;
        if (first_tile < tiles) fetch_tile<Shape, W>(room, first_tile);
        for (i32 tile = first_tile; tile < tiles;) {
            const i32 span = tile / Shape::SPAN_KEY_TILES;
            const i32 next_span = (span + 1) * Shape::SPAN_KEY_TILES;
            const i32 span_tiles = tiles < next_span ? tiles : next_span;
            f32 acc[ATOMS][COLS][4] = {};
            Running<ATOMS> running;
#pragma unroll
            for (i32 i = 0; i < 2 * ATOMS; i++) {
                running.max[i / 2][i % 2] = LOWEST;
                running.sum[i / 2][i % 2] = 0.0f;
            }
            for (; tile < hidden(span_tiles); tile++) {  // a known count costs registers
                take_tile<Shape, W>(call, room, tile);
                if (tile + 1 < tiles) fetch_tile<Shape, W>(room, tile + 1);
                const i32 key = tile * KEYS;
                if (key > room.reach->last) continue;
                const i32 stage = stage_at<Shape, W>(tile);
                f32 scores[ATOMS][TILES][4];
                make_scores<Shape, W>(room.high, room.low, room.key_tile + stage, room.key_scales, warp_slot, scores);
                if (key + KEYS - 1 > room.reach->first_end) hide_later_keys(scores, room.limits, key);
                make_room(scores, room.factors, running, acc);
                u32 weights[ATOMS][TILES][2];
#pragma unroll
                for (i32 i = 0; i < ATOMS * TILES; i++) {
                    const i32 a = i % ATOMS;
                    weigh<ATOMS>(scores[a][i / ATOMS], a, room.factors, running, weights[a][i / ATOMS]);
                }
                add_values<W>(room.value_tile + stage, weights, acc);
            }
            leave_span(call, room, span, running, acc);
        }
    }
}

#define ATTEND_PROMPT(NAME, FORM, WIDTH)                                                                               \
    extern "C" __global__ void __launch_bounds__(PROMPT_BLOCK, 2)                                                      \
    NAME(const f32* q, i32 q_stride, i32 q_heads, i32 kv_heads, i32 key_width, i32 value_width, f32 scale,             \
         const u32* positions, const u32* states, const u32* pages, i32 pages_per_state, const u8* pool,               \
         i64 page_bytes, f32* work, i32 spans_max, f32* out, i32 out_stride, i32 n) {                                  \
        attend_prompt<FORM, WIDTH>(PromptCall{q, q_stride, q_heads, kv_heads, key_width, value_width, scale,           \
                                              positions, states, pages, pages_per_state, pool, page_bytes, work,       \
                                              spans_max, out, out_stride, n});                                         \
    }

// f32 has no exception to its bits; q8_0 of 256 has no registers left on some architectures: both run as a window does.
#define PROMPT_f32(FORM)
#define PROMPT_f16(FORM)                                                                                               \
    ATTEND_PROMPT(attend_prompt_64_f16, FORM, 64)                                                                      \
    ATTEND_PROMPT(attend_prompt_128_f16, FORM, 128)                                                                    \
    ATTEND_PROMPT(attend_prompt_256_f16, FORM, 256)
#define PROMPT_q8_0(FORM)                                                                                              \
    ATTEND_PROMPT(attend_prompt_64_q8_0, FORM, 64)                                                                     \
    ATTEND_PROMPT(attend_prompt_128_q8_0, FORM, 128)
#define PROMPT_KERNELS(T, FORM) PROMPT_##T(FORM)

KV_FORMATS(PROMPT_KERNELS)

// Merges the spans of each row and head from left to right, as a block does that has them all.
extern "C" __global__ void __launch_bounds__(PROMPT_MERGE_BLOCK)
attend_prompt_merge(const f32* work, i32 spans_max, const u32* positions, f32* out, i32 out_stride, i32 q_heads,
                    i32 value_width, i32 n) {
    merge_spans<SpanMerge, PROMPT_SPAN, PROMPT_MERGE_BLOCK>(work, spans_max, positions, out, out_stride, q_heads, value_width,
                                                            n);
}
