// attention_window.cu: attention of the rows of a window, tile by tile, for several heads of a K/V head at once; norm, rope
// and append of their heads on the way.
//
// shapes   q, k, v [n] rows with their heads side by side, as products leave them; k null: heads are placed already; pages
//          and pool as in append.cu; states null: all rows are of state 0; work as TileWork says; head widths are multiples
//          of 32, at most 256; pool and page_bytes are multiples of 16; out, images: [rows] of q_heads * value_width
// launch   attend_tile_H, and attend_128_H for heads of 128 values of which rope turns all or none: grid (kv_heads * (query
//          heads of one / H rounded up), tiles, rows), block 256, of rows `first` on of a batch of n; the tile that a row
//          itself stands in comes first in attend_128_8, else last; dynamic shared memory for 64 values and keys, with 64 bytes
//          behind keys of whole 128 bytes; merge_images: grid (values / 256 rounded up, rows), block 64 for each span, 256 to
//          512
// order    scores lanes(32); a tile of 64 positions: exact maximum, sum lanes(32), acc a chain over its keys; tiles
//          merge left to right inside their span, spans left to right; the first is taken as it is
// moves    each stored key and value up to the row's position once for H query heads; keys of earlier batches while the
//          kernels before still run, values while scores are made
// twin     src/device/cpu/plain/{norm,rope,attention,stored}.rs, equal bit for bit
#include "attention/chosen.cuh"
#include "attention/head.cuh"
#include "attention/tile.cuh"
#include "attention/work.cuh"
#include "device/copies.cuh"
#include "device/images.cuh"

constexpr i32 TILE_BLOCK = 256;
constexpr i32 TILE_WARPS = TILE_BLOCK / SHORT_LANES;
// Threads of `merge_images` for a span of 256 values, values of each, and the most spans that are merged at a time.
constexpr i32 MERGE_THREADS = 64;
constexpr i32 MERGE_EACH = A256_VALUES / MERGE_THREADS;
constexpr i32 MERGE_SLICES = 8;
// Heads that 256 neighbouring values of an output touch: heads have at least 32.
constexpr i32 MERGE_HEADS = A256_VALUES / 32;
// Heads whose tiles' factors are made at a time.
constexpr i32 MERGE_ROUND_HEADS = MERGE_THREADS / SPAN_TILES;
constexpr i32 MERGE_ROUNDS = MERGE_HEADS / MERGE_ROUND_HEADS;

// What a window asks, and where its rows stand.
struct WindowCall {
    Heads heads;
    f32 scale;
    const u32* positions;
    const u32* states;
    const u32* pages;
    i32 pages_per_state;
    u8* pool;
    i64 page_bytes;
    f32* work;
    i32 tiles_max;
    i32 first;
    i32 n;
    u32* fault;
    u32 fault_id;
};

// Where the keys and values of one tile of a K/V head lie: in the pool, and near, in shared memory.
struct NearTile {
    u8* pool_keys;
    u8* pool_values;
    u8* keys;
    u8* values;
    i32 key_bytes;
    i32 value_bytes;
    i32 stride;  // of keys near

    // Rows of whole 128 bytes lie `apart` bytes from each other: what lanes read of one at once, so that they find its
    // neighbours in other banks.
    template <class Form> DEVICE NearTile(const HeadRows<Form>& at, u8* page, u8* near, i32 apart)
        : pool_keys(page + at.keys_at), pool_values(page + at.values_at), values(near), key_bytes((i32) at.key_bytes),
          value_bytes((i32) at.value_bytes) {
        stride = key_bytes % 128 == 0 ? key_bytes + apart : key_bytes;
        keys = near + TILE_POSITIONS * value_bytes;
    }

    // Starts bringing the keys of rows `begin` to `end`.
    DEVICE void bring_keys(i32 begin, i32 end) const {
        const i32 thread = (i32) threadIdx.x;
        if (stride != key_bytes) {
            constexpr i32 EACH = TILE_BLOCK / TILE_POSITIONS;
            const i32 key = begin + thread / EACH;
            if (key < end) {
                for (i32 i = 16 * (thread % EACH); i < key_bytes; i += 16 * EACH)
                    start_copy(keys + key * stride + i, pool_keys + key * key_bytes + i, 16);
            }
        } else {
            bring_rows(keys, pool_keys, begin * key_bytes, end * key_bytes);
        }
    }

    // Starts bringing their values.
    DEVICE void bring_values(i32 begin, i32 end) const {
        bring_rows(values, pool_values, begin * value_bytes, end * value_bytes);
    }

    // Whole sixteens, of which the first may begin before `begin`; what is left before `end` at once.
    DEVICE static void bring_rows(u8* to, const u8* from, i32 begin, i32 end) {
        const i32 thread = (i32) threadIdx.x;
        const i32 whole = end / 16 * 16;
        for (i32 i = begin / 16 * 16 + 16 * thread; i < whole; i += 16 * TILE_BLOCK) start_copy(to + i, from + i, 16);
        if (whole + 2 * thread < end) *(u16*)(to + whole + 2 * thread) = *(const u16*)(from + whole + 2 * thread);
    }

    // Puts a row into the pool.
    DEVICE void keep(i32 row) const {
        for (i32 i = 2 * (i32) threadIdx.x; i < key_bytes + value_bytes; i += 2 * TILE_BLOCK) {
            const i32 of_value = i - key_bytes;
            u8* kept = of_value < 0 ? pool_keys + row * key_bytes + i : pool_values + row * value_bytes + of_value;
            *(u16*) kept = *(const u16*)(of_value < 0 ? keys + row * stride + i : values + row * value_bytes + of_value);
        }
    }
};

// Starts bringing the floats of queries that are placed already.
template <class Share> DEVICE void bring_floats(f32* near, const f32* from, i32 count) {
    const bool is_aligned = Share::RUNS == 1 && (u64) from % 16 == 0;
    for (i32 i = 4 * (i32) threadIdx.x; i < count; i += 4 * TILE_BLOCK) {
        if (is_aligned) {
            start_copy((u8*)(near + i), (const u8*)(from + i), 16);
        } else {
            for (i32 j = i; j < i + 4; j++) near[j / SHORT_LANES * SHORT_LANES + Share::place(j % SHORT_LANES)] = from[j];
        }
    }
}

// What a block has of a row: query heads of one K/V head.
struct TileBlock {
    i64 row;
    i32 kv_head;
    i32 first_head;
    i32 heads;
    bool is_first;  // of the blocks of its K/V head
};

// A block's queries, and keys and values that the batch itself brings into the tile: bit r of `rows` says that row r brings
// one. Numbered: queries, then key and value of each row.
struct Items {
    const TileBlock& block;
    u32 rows;

    DEVICE i32 count() const { return block.heads + 2 * count_bits(rows); }
    DEVICE HeadKind kind(i32 item) const {
        const i32 behind = item - block.heads;
        return behind < 0 ? HeadKind::QUERY : behind % 2 == 0 ? HeadKind::KEY : HeadKind::VALUE;
    }
    DEVICE i32 head(i32 item) const { return item < block.heads ? block.first_head + item : block.kv_head; }
    DEVICE i32 row(i32 item) const {
        if (item < block.heads) return (i32) block.row;
        u32 left = rows;
        for (i32 k = (item - block.heads) / 2; k > 0; k--) left &= left - 1;
        return count_bits((left & (0u - left)) - 1);
    }
};

// Brings them near, a warp one, in turns, and unless they come LATE the values of `fresh` rows: where registers allow, behind
// the first ones' loads, for they are not needed before the scores are there, and would only keep the queries waiting. Lane r
// has the position of row r.
template <class Form, class Share, i32 EACH, bool WHOLE, bool LATE> DEVICE void place_near(
    const WindowCall& call, const Items& items, const NearTile& near, i32 fresh, f32* query, u32 position) {
    const i32 count = items.count();
    const i32 first = (i32) threadIdx.x / SHORT_LANES;
    const i32 place = Share::place((i32) threadIdx.x % SHORT_LANES);
    if (!WHOLE) near.bring_values(0, fresh);
#pragma unroll 1
    for (i32 item = first; item < count; item += TILE_WARPS) {
        const HeadKind kind = items.kind(item);
        const i32 row = items.row(item);
        const WarpHead<EACH, WHOLE> head(call.heads, kind, items.head(item), row);
        wait_for_previous();
        f32 value[EACH];
        head.load(value);
        if (WHOLE && !LATE && item == first) near.bring_values(0, fresh);
        head.make(value);
        if (kind == HeadKind::QUERY) {
            write_head<EACH, WHOLE>(query + item * head.width, value, head.width, place);
        } else {
            const i32 slot = (i32) shuffle(position, row) % TILE_POSITIONS;
            u8* to = kind == HeadKind::KEY ? near.keys + slot * near.stride : near.values + slot * near.value_bytes;
            if (!store_head<Form, EACH, WHOLE>(to, value, head.width)) report_fault(call.fault, call.fault_id);
        }
    }
    if (first < count) return;
    wait_for_previous();
    if (WHOLE && !LATE) near.bring_values(0, fresh);
}

// How lanes share the sums of a dot. Shared memory gives 128 bytes a cycle, counted for each lane also where lanes read the
// same: scores of eight heads are bound by it as much as by instructions, and eight lanes, of which each has four keys and four
// heads, read least. Other kernels have registers for four lanes alone, or too few scores.
typedef Share<4, 8> FourLanes;
typedef Share<8, 2> EightLanes;

// One tile of one row for ALL query heads of one K/V head: the lanes of a Share make the scores of KEYS keys with HEADS
// heads; then a warp the weights of a head; then a thread ACC_DIMS values of acc of ACC_HEADS heads.
// WIDTH: of keys and values, of which rope turns all or none; 0: any.
template <class Form, i32 WIDTH, class Share, i32 ALL, i32 HEADS, i32 KEYS, i32 ACC_HEADS, i32 ACC_DIMS>
DEVICE void attend_tile(const WindowCall& call) {
    constexpr i32 SLOTS = TILE_POSITIONS / KEYS;
    constexpr i32 WEIGHT_STRIDE = 4 * ALL + 4;
    constexpr i32 STRIDES = KEYS > 1 ? Form::STRIDES / 2 : Form::STRIDES;
    // Blocks of eight heads fill the card. Then all wait for the block of the row's own tile, which has most to do before its
    // scores, so it comes first; and values wait until a block has its queries, for those of its neighbour would come behind.
    // Where widths are not known there are no registers left for this.
    constexpr bool FULL = ALL == TILE_WARPS && WIDTH > 0;
    typedef Trees<Share, HEADS * KEYS> Tree;
    static_assert(ALL <= TILE_WARPS, "a warp weighs the keys of a head");
    static_assert(ALL / HEADS * SLOTS * Share::LANES == TILE_BLOCK, "the lanes of a Share for KEYS keys and HEADS heads");
    alignas(16) __shared__ f32 query[ALL * (WIDTH > 0 ? WIDTH : HEAD_MAX)];
    alignas(16) __shared__ f32 weights[TILE_POSITIONS / 4 * WEIGHT_STRIDE];  // scores before
    DYNAMIC_SHARED(u8, room);
    const i32 thread = (i32) threadIdx.x;
    const i32 lane = thread % SHORT_LANES;
    const i32 warp = thread / SHORT_LANES;
    const i32 key_width = WIDTH > 0 ? WIDTH : call.heads.key_width;
    const i32 value_width = WIDTH > 0 ? WIDTH : call.heads.value_width;
    const i32 group = call.heads.q_heads / call.heads.kv_heads;
    const i32 blocks = (group + ALL - 1) / ALL;
    const i32 in_group = (i32) blockIdx.x % blocks * ALL;
    TileBlock block;
    block.row = call.first + (i64) blockIdx.z;
    block.kv_head = (i32) blockIdx.x / blocks;
    block.first_head = block.kv_head * group + in_group;
    block.heads = group - in_group < ALL ? group - in_group : ALL;
    block.is_first = in_group == 0;
    const i32 heads = block.heads;
    let_next_start();

    // Where rows stand is known before the wait; what the batch itself brings comes last in each state.
    const u32 position = lane < call.n ? load_fresh(call.positions + lane) : 0;
    const u32 state = call.states != nullptr && lane < call.n ? load_fresh(call.states + lane) : 0;
    const i32 asked_tile = (i32) blockIdx.y - (FULL ? 1 : 0);  // -1: the row's own
    u32 number = call.states == nullptr && asked_tile >= 0 ? load_fresh(call.pages + asked_tile) : 0;
    const u32 own = shuffle(position, (i32) block.row);
    const u32 own_state = shuffle(state, (i32) block.row);
    const i32 own_tile = (i32) own / TILE_POSITIONS;
    if ((i32) blockIdx.y > own_tile) return;
    const i32 tile = asked_tile < 0 ? own_tile : asked_tile;
    const i32 left = (i32) own + 1 - tile * TILE_POSITIONS;
    if (call.states != nullptr || asked_tile < 0) number = load_fresh(call.pages + (i64) own_state * call.pages_per_state + tile);
    u8* page = call.pool + number * call.page_bytes;
    const u32 rows = lanes_where(lane < call.n && state == own_state && position <= own);
    const u32 rows_here = lanes_where((rows >> lane & 1) != 0 && (i32) position / TILE_POSITIONS == tile);
    const i32 count = left < TILE_POSITIONS ? left : TILE_POSITIONS;
    const i32 earlier = left - count_bits(rows);
    const i32 fresh = earlier < 0 ? 0 : earlier < count ? earlier : count;
    const HeadRows<Form> at(call.heads.kv_heads, block.kv_head, key_width, value_width);
    const NearTile near(at, page, room, Share::RUN == EIGHT ? 64 : (i32) Form::row_bytes(Share::RUN * Share::LANES));
    near.bring_keys(0, fresh);
    close_copies();
    const bool is_placed = call.heads.k == nullptr;
    if (is_placed) {
        wait_for_previous();
        const f32* asked = call.heads.q + block.row * call.heads.q_stride + (i64) block.first_head * key_width;
        bring_floats<Share>(query, asked, heads * key_width);
        if (fresh < count) near.bring_keys(fresh, count);
        close_copies();
        near.bring_values(0, count);
    } else {
        const Items items = {block, rows_here};
        if constexpr (WIDTH > 0) {
            place_near<Form, Share, WIDTH / SHORT_LANES, true, FULL>(call, items, near, fresh, query, position);
        } else if (key_width <= HEAD_MAX / 2 && value_width <= HEAD_MAX / 2) {
            place_near<Form, Share, HEAD_EACH / 2, false, FULL>(call, items, near, fresh, query, position);
        } else {
            place_near<Form, Share, HEAD_EACH, false, FULL>(call, items, near, fresh, query, position);
        }
    }
    close_copies();

    // Scores. Slots without a key repeat the last.
    const i32 part_heads = thread / (SLOTS * Share::LANES) * HEADS;
    const i32 slot = thread % (SLOTS * Share::LANES) / Share::LANES;
    const i32 own_part = Tree::own(thread % Share::LANES);
    const u8* stored[KEYS];
#pragma unroll
    for (i32 k = 0; k < KEYS; k++) {
        const i32 key = slot + (k ^ own_part / HEADS) * SLOTS;
        stored[k] = near.keys + (key < count ? key : count - 1) * near.stride;
    }
    f32 part[HEADS * KEYS][Share::SUMS] = {};
    wait_copies<1>();  // values may be on their way
    __syncthreads();
    if (FULL && !is_placed) {
        near.bring_values(0, fresh);
        close_copies();
    }
    // The first block of the row's own tile keeps what the row brings.
    if (!is_placed && block.is_first && left <= TILE_POSITIONS) near.keep(left - 1);
    if (key_width % (STRIDES * SHORT_LANES) == 0) {
#pragma unroll 1
        for (i32 start = 0; start < key_width; start += STRIDES * SHORT_LANES)
            add_scores<Form, Share, HEADS, KEYS, STRIDES>(stored, query, key_width, part_heads, own_part, start, part);
    } else {
#pragma unroll 1
        for (i32 start = 0; start < key_width; start += SHORT_LANES)
            add_scores<Form, Share, HEADS, KEYS, 1>(stored, query, key_width, part_heads, own_part, start, part);
    }
    Tree::sum(part);
#pragma unroll
    for (i32 c = 0; c < Tree::EACH; c++) {
        const i32 key = slot + (c ^ own_part) / HEADS * SLOTS;
        const i32 head = part_heads + (c ^ own_part) % HEADS;
        if (key < count) weights[key / 4 * WEIGHT_STRIDE + 4 * head + key % 4] = part[c][0] * call.scale;
    }
    __syncthreads();

    // Weights, and their sum: lane = position mod 32. Lanes without a key repeat key 0 and add nothing.
    const TileWork to(call.work, value_width, call.tiles_max, call.heads.q_heads, (i32) gridDim.z, blockIdx.z, block.first_head);
    f32 sum = 0.0f, max = 0.0f;
    if (warp < heads) {
        f32* mine = weights + 4 * warp + lane / 4 * WEIGHT_STRIDE + lane % 4;
        constexpr i32 HIGH = SHORT_LANES / 4 * WEIGHT_STRIDE;
        const f32 zero = weights[4 * warp];
        const f32 low = lane < count ? mine[0] : zero;
        const f32 high = lane + SHORT_LANES < count ? mine[HIGH] : zero;
        max = from_rising(warp_largest(rising(high > low ? high : low)));
        const f32 low_weight = exp_f32(low - max);
        const f32 high_weight = exp_f32(high - max);
        warp_barrier();  // every lane that repeats key 0 has read it
        if (lane < count) {
            mine[0] = low_weight;
            sum = sum + low_weight;
        }
        if (lane + SHORT_LANES < count) {
            mine[HIGH] = high_weight;
            sum = sum + high_weight;
        }
    }
    wait_copies<0>();
    __syncthreads();
    if (warp < heads) {
        sum = warp_tree(sum);
        if (lane == 0) *to.partial(warp, tile) = Words2{{f32_bits(max), f32_bits(sum)}};
    }

    const i32 lanes_of_head = value_width / ACC_DIMS;
    for (i32 item = thread; item < ALL / ACC_HEADS * lanes_of_head; item += TILE_BLOCK) {
        const i32 part_of = item / lanes_of_head;
        const i32 d = (item - part_of * lanes_of_head) * ACC_DIMS;
        const f32* weight = weights + 4 * part_of * ACC_HEADS;
        f32 acc[ACC_HEADS][ACC_DIMS] = {};
        tile_accs<Form>(near.values, near.value_bytes, weight, WEIGHT_STRIDE, count, d, acc);
#pragma unroll
        for (i32 h = 0; h < ACC_HEADS; h++) {
            if (part_of * ACC_HEADS + h >= heads) break;
            Words<ACC_DIMS> words;
#pragma unroll
            for (i32 i = 0; i < ACC_DIMS; i++) words.word[i] = f32_bits(acc[h][i]);
            *(Words<ACC_DIMS>*)(to.acc(part_of * ACC_HEADS + h, tile) + d) = words;
        }
    }
}

#define ATTEND_TILE(NAME, FORM, WIDTH, BLOCKS, SHARE, ALL, HEADS, KEYS, ACC_HEADS, ACC_DIMS)                           \
    extern "C" __global__ void __launch_bounds__(TILE_BLOCK, BLOCKS)                                                   \
    NAME(f32* q, i32 q_stride, i32 q_heads, f32* k, i32 k_stride, const f32* v, i32 v_stride, i32 kv_heads,            \
         i32 key_width, i32 value_width, const f32* q_weight, const f32* k_weight, f32 eps, const f32* cos_sin,        \
         i32 pairs, i32 neox, f32 scale, const u32* positions, const u32* states, const u32* pages,                    \
         i32 pages_per_state, u8* pool, i64 page_bytes, f32* work, i32 tiles_max, i32 first, i32 n, u32* fault,        \
         u32 fault_id) {                                                                                               \
        const Heads heads = {q, q_stride, q_heads, k, k_stride, v, v_stride, kv_heads, key_width, value_width,         \
                             q_weight, k_weight, eps, cos_sin, pairs, neox};                                           \
        attend_tile<FORM, WIDTH, SHARE, ALL, HEADS, KEYS, ACC_HEADS, ACC_DIMS>(                                        \
            WindowCall{heads, scale, positions, states, pages, pages_per_state, pool, page_bytes, work, tiles_max,     \
                       first, n, fault, fault_id});                                                                    \
    }

// Blocks of eight heads that a processor's registers hold.
template <class Form> constexpr i32 TILE_8_BLOCKS = 1;
template <> constexpr i32 TILE_8_BLOCKS<StoredF16> = MORE_REGISTERS ? 1 : 2;

#define TILE_KERNELS(T, FORM)                                                                                          \
    ATTEND_TILE(attend_tile_1_##T, FORM, 0, 2, FourLanes, 1, 1, 1, 1, 1)                                               \
    ATTEND_TILE(attend_tile_2_##T, FORM, 0, 2, FourLanes, 2, 2, 1, 1, 2)                                               \
    ATTEND_TILE(attend_tile_4_##T, FORM, 0, 2, FourLanes, 4, 2, 2, 2, 2)                                               \
    ATTEND_TILE(attend_tile_8_##T, FORM, 0, TILE_8_BLOCKS<FORM>, FourLanes, 8, 2, 4, 4, 2)                             \
    ATTEND_TILE(attend_128_1_##T, FORM, 128, 2, FourLanes, 1, 1, 1, 1, 1)                                              \
    ATTEND_TILE(attend_128_2_##T, FORM, 128, 2, FourLanes, 2, 2, 1, 1, 2)                                              \
    ATTEND_TILE(attend_128_4_##T, FORM, 128, 2, FourLanes, 4, 2, 2, 2, 2)                                              \
    ATTEND_TILE(attend_128_8_##T, FORM, 128, TILE_8_BLOCKS<FORM>, EightLanes, 8, 4, 4, 4, 2)

KV_FORMATS(TILE_KERNELS)

// What a tile of a span is merged with: the factors, its sum, and the maximum up to it.
struct TileFactors {
    f32 left;
    f32 right;
    f32 sum;
    f32 max;
};

// The factors of a span and of what stands before it.
struct SpanFactors {
    f32 left;
    f32 right;
};

// Of the tiles of a span, one for each of sixteen neighbouring lanes, the last of which may repeat the last.
DEVICE TileFactors tile_factors(Words2 partial) {
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
    const i32 tile = lane % SPAN_TILES;
    const f32 own = bits_f32(partial.word[0]);
    f32 upto = own;
#pragma unroll
    for (i32 distance = 1; distance < SPAN_TILES; distance *= 2) {
        const f32 other = shuffle(upto, tile < distance ? lane : lane - distance);
        upto = other > upto ? other : upto;
    }
    const Merge merge(shuffle(upto, tile == 0 ? lane : lane - 1), own);
    return TileFactors{merge.left, merge.right, bits_f32(partial.word[1]), upto};
}

// Merges the tiles that `attend_tile` left, span by span, divides by the sum, and makes the row as floats (out null: nobody
// reads them) and as images. A block has 256 values; its slices of 64 threads take a span each, in turns, then its first
// 256 threads a value each.
extern "C" __global__ void __launch_bounds__(MERGE_SLICES * MERGE_THREADS)
merge_images(f32* work, i32 tiles_max, const u32* positions, f32* out, i32 out_stride, i32 q_heads, i32 value_width,
             i8* codes32, f32* scales32, i8* codes256, f32* scales256, i32 n, u32* fault, u32 fault_id) {
    alignas(16) __shared__ TileFactors factors[MERGE_SLICES][MERGE_HEADS][SPAN_TILES];
    alignas(16) __shared__ f32 accs[MERGE_SLICES][A256_VALUES];
    __shared__ Partial spans[MERGE_SLICES][MERGE_THREADS];
    __shared__ SpanFactors joins[MERGE_SLICES][MERGE_THREADS];
    __shared__ u32 largest[A256_VALUES / SHORT_LANES];
    const i32 thread = (i32) threadIdx.x % MERGE_THREADS;
    const i32 slice = (i32) threadIdx.x / MERGE_THREADS;
    const i32 slices = (i32) blockDim.x / MERGE_THREADS;
    const i64 row = (i64) blockIdx.y;
    if (row >= n) return;
    const i32 width = q_heads * value_width;
    const i32 begin = (i32) blockIdx.x * A256_VALUES;
    const i32 here = width - begin < A256_VALUES ? width - begin : A256_VALUES;
    const i32 first = begin + (thread * MERGE_EACH < here ? thread * MERGE_EACH : here - MERGE_EACH);
    const i32 first_head = begin / value_width;
    const i32 heads = (begin + here - 1) / value_width - first_head + 1;
    const i32 head = first / value_width;
    const TileWork tile_work(work, value_width, tiles_max, q_heads, n, row, 0);
    let_next_start();
    const i32 tiles = (i32) load_fresh(positions + row) / TILE_POSITIONS + 1;
    wait_for_previous();

    f32 upto = 0.0f;  // the largest maximum of the spans before
    f32 sum = 0.0f, acc = 0.0f;
    for (i32 start = 0; start < tiles; start += slices * SPAN_TILES) {
        const i32 first_tile = start + slice * SPAN_TILES;
        const i32 span_tiles = tiles - first_tile < SPAN_TILES ? tiles - first_tile : SPAN_TILES;
        Words<MERGE_EACH> ahead[SPAN_TILES];
        if (span_tiles > 0) {
            // Sixteen lanes a head, in whole warps.
            Words2 partial[MERGE_ROUNDS];
#pragma unroll
            for (i32 k = 0; k < MERGE_ROUNDS; k++) {
                const i32 of = k * MERGE_ROUND_HEADS + thread / SPAN_TILES;
                const i32 tile = thread % SPAN_TILES;
                partial[k] = *tile_work.partial(first_head + (of < heads ? of : heads - 1),
                                                first_tile + (tile < span_tiles ? tile : span_tiles - 1));
            }
            const f32* from = tile_work.acc(head, first_tile) + (first - head * value_width);
#pragma unroll
            for (i32 t = 0; t < SPAN_TILES; t++)
                if (t < span_tiles) ahead[t] = *(const Words<MERGE_EACH>*)(from + t * value_width);
#pragma unroll
            for (i32 k = 0; k < MERGE_ROUNDS; k++) {
                if (k * MERGE_ROUND_HEADS >= heads) break;
                factors[slice][k * MERGE_ROUND_HEADS + thread / SPAN_TILES][thread % SPAN_TILES] = tile_factors(partial[k]);
            }
        }
        __syncthreads();
        if (span_tiles > 0) {
            const TileFactors* of_head = factors[slice][head - first_head];
            f32 span_sum = of_head[0].sum, span_acc[MERGE_EACH];
#pragma unroll
            for (i32 j = 0; j < MERGE_EACH; j++) span_acc[j] = bits_f32(ahead[0].word[j]);
            const auto join = [&](i32 t) {
                const TileFactors tile = of_head[t];
                span_sum = fmaf(tile.sum, tile.right, span_sum * tile.left);
#pragma unroll
                for (i32 j = 0; j < MERGE_EACH; j++)
                    span_acc[j] = fmaf(bits_f32(ahead[t].word[j]), tile.right, span_acc[j] * tile.left);
            };
            if (span_tiles == SPAN_TILES) {
                // Without branches, so that no step waits for its factors.
#pragma unroll
                for (i32 t = 1; t < SPAN_TILES; t++) join(t);
            } else {
#pragma unroll
                for (i32 t = 1; t < SPAN_TILES; t++) {
                    if (t >= span_tiles) break;
                    join(t);
                }
            }
            spans[slice][thread] = Partial{of_head[span_tiles - 1].max, span_sum};
            Words<MERGE_EACH> words;
#pragma unroll
            for (i32 j = 0; j < MERGE_EACH; j++) words.word[j] = f32_bits(span_acc[j]);
            *(Words<MERGE_EACH>*)(accs[slice] + thread * MERGE_EACH) = words;
        }
        __syncthreads();
        const i32 left_spans = (tiles - start + SPAN_TILES - 1) / SPAN_TILES;
        const i32 here_spans = left_spans < slices ? left_spans : slices;
        if (start + here_spans > 1) {
            // What a span is merged with, by the slice that made it.
            if (slice < here_spans) {
                f32 before = start == 0 ? spans[0][thread].max : upto;
                for (i32 s = 0; s < slice; s++) before = spans[s][thread].max > before ? spans[s][thread].max : before;
                const Merge merge(before, spans[slice][thread].max);
                joins[slice][thread] = SpanFactors{merge.left, merge.right};
            }
            if (here_spans < left_spans) {
                if (start == 0) upto = spans[0][thread].max;
                for (i32 s = 0; s < slices; s++) upto = spans[s][thread].max > upto ? spans[s][thread].max : upto;
            }
            __syncthreads();
        }
        if (threadIdx.x < A256_VALUES) {
            const i32 value = (i32) threadIdx.x;
            if (start == 0) {
                sum = spans[0][value / MERGE_EACH].sum;
                acc = accs[0][value];
            }
#pragma unroll
            for (i32 s = 0; s < MERGE_SLICES; s++) {
                if (s >= here_spans) break;
                if (start + s == 0) continue;
                const SpanFactors join = joins[s][value / MERGE_EACH];
                sum = fmaf(spans[s][value / MERGE_EACH].sum, join.right, sum * join.left);
                acc = fmaf(accs[s][value], join.right, acc * join.left);
            }
        }
        if (here_spans < left_spans) __syncthreads();
    }
    const i32 value = (i32) threadIdx.x;
    const f32 made = acc / sum;
    if (value < here && out != nullptr) out[row * out_stride + begin + value] = made;
    if (codes32 == nullptr && codes256 == nullptr) return;
    const Images images = {codes32, scales32, codes256, scales256};
    if (!images.write_one(made, row * width + begin, here, largest)) report_fault(fault, fault_id);
}
