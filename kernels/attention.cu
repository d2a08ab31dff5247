// attention.cu: keys and values into their pages, and attention of one query row over them.
//
// shapes   q [n] rows of q_heads * key_width f32; k, v rows with their heads side by side; pages[state *
//          pages_per_state + position / 64]; a page holds keys [kv_heads][64][key bytes], then values
//          [kv_heads][64][value bytes]; value_width + 2 floats of work for each row, head and span: max, sum, acc; as
//          many for each row, head and tile, as TileWork says. pool and page_bytes are multiples of 16
// launch   append: grid (kv_heads, n), block 64; attend_span: grid (spans_max, q_heads, n), block 512, a span of 1,024
//          positions for a block; attend_merge: grid (q_heads, n), block 128; copy_page: grid (64), block 256
//          place_heads: grid (all heads / 4 rounded up + tiles asked for, n), block 128; attend_tile_H: grid (tiles,
//          kv_heads * (query heads of one / H rounded up), n), block 256; merge_images: grid (values / 256 rounded up,
//          n), block 64 for each span, at most 512
// order    scores lanes(32); a tile of 64 positions: exact maximum, sum lanes(32), acc a chain over its keys; tiles
//          merge left to right inside their span, spans left to right; the first is taken as it is
// moves    each stored key and value up to the row's position once for every query head; by tiles once for H of them
// twin     src/device/cpu/plain/{attention,stored}.rs, equal bit for bit
#include "device/copies.cuh"
#include "device/functions.cuh"
#include "device/images.cuh"
#include "device/pages.cuh"
#include "device/reduce.cuh"
#include "device/stored.cuh"

constexpr i32 APPEND_BLOCK = 64;
constexpr i32 APPEND_AHEAD = 4;
constexpr i32 SPAN_BLOCK = 512;
constexpr i32 SPAN_WARPS = SPAN_BLOCK / SHORT_LANES;
constexpr i32 MERGE_BLOCK = 128;
constexpr i32 COPY_BLOCK = 256;
constexpr i32 HEADS_BLOCK = 128;
constexpr i32 HEADS_WARPS = HEADS_BLOCK / SHORT_LANES;
constexpr i32 TILE_BLOCK = 256;
// Bytes of a tile that `attend_tile` brings into shared memory: values, and keys where both fit; others stay where they are.
constexpr i32 NEAR_BYTES = 36 << 10;
// Keys of a tile whose values are in flight together.
constexpr i32 ACC_AHEAD = 16;
// Threads of `merge_images` for 256 values, values of each, and the most spans that are merged at a time.
constexpr i32 MERGE_THREADS = 64;
constexpr i32 MERGE_EACH = A256_VALUES / MERGE_THREADS;
constexpr i32 MERGE_SLICES = 8;
// Heads that 256 neighbouring values of an output touch: heads have at least 32.
constexpr i32 MERGE_HEADS = A256_VALUES / 32;
constexpr i32 TILE_POSITIONS = 64;
constexpr i32 SPAN_TILES = 16;
constexpr i32 SPAN_POSITIONS = TILE_POSITIONS * SPAN_TILES;
// Values of a query that a block keeps at hand, and values of acc that it makes at a time.
constexpr i32 QUERY_MAX = 1024;
constexpr i32 ACC_VALUES = 256;
// The widest head of `place_heads` and `attend_tile`, and a lane's values of it.
constexpr i32 HEAD_MAX = 256;
constexpr i32 HEAD_EACH = HEAD_MAX / SHORT_LANES;
// Lanes that share a key: each has EIGHT of its 32 partial sums.
constexpr i32 KEY_LANES = SHORT_LANES / EIGHT;
constexpr i32 WARP_KEYS = SHORT_LANES / KEY_LANES;

static_assert(TILE_POSITIONS == PAGE_POSITIONS, "a tile reads one page");
static_assert(TILE_POSITIONS == 2 * SHORT_LANES, "a lane has two keys of a tile");
static_assert(QUERY_MAX >= SPAN_BLOCK, "a thread keeps a value of the query");
static_assert(SPAN_TILES <= SPAN_WARPS, "a warp weighs one tile of a span");
static_assert(TILE_POSITIONS % WARP_KEYS == 0, "the keys of a warp lie in one tile");

// One head of a key or value on its way into the pool; the first values of a thread are loaded ahead.
struct Incoming {
    const f32* x;
    i32 width;
    f32 ahead[APPEND_AHEAD];

    DEVICE Incoming(const f32* head, i32 head_width) : x(head), width(head_width) {
#pragma unroll
        for (i32 k = 0; k < APPEND_AHEAD; k++) {
            const i32 i = (i32) threadIdx.x + k * APPEND_BLOCK;
            ahead[k] = i < width ? x[i] : 0.0f;
        }
    }

    // Whether all that the thread saw fits the form.
    template <class Form> DEVICE bool store(u8* row) const {
        bool fits = true;
#pragma unroll
        for (i32 k = 0; k < APPEND_AHEAD; k++) {
            const i32 i = (i32) threadIdx.x + k * APPEND_BLOCK;
            if (i < width) fits = Form::store(row, i, ahead[k]) && fits;
        }
#pragma unroll 1
        for (i32 i = (i32) threadIdx.x + APPEND_AHEAD * APPEND_BLOCK; i < width; i += APPEND_BLOCK) {
            fits = Form::store(row, i, x[i]) && fits;
        }
        return fits;
    }
};

// Writes the keys and values of one head of one row at the row's position.
template <class Form> DEVICE void append(
    const f32* k, i32 k_stride, const f32* v, i32 v_stride, i32 kv_heads, i32 key_width, i32 value_width,
    const u32* positions, const u32* states, const u32* pages, i32 pages_per_state, u8* pool, i64 page_bytes, i32 n,
    u32* fault, u32 fault_id) {
    const i32 head = (i32) blockIdx.x;
    const i64 row = (i64) blockIdx.y;
    if (row >= n) return;
    let_next_start();
    wait_for_previous();
    const u32 position = positions[row];
    const u32 state = states[row];
    const Incoming key(k + row * k_stride + (i64) head * key_width, key_width);
    const Incoming value(v + row * v_stride + (i64) head * value_width, value_width);
    const i64 slot = position % PAGE_POSITIONS;
    const i64 page = pages[(i64) state * pages_per_state + position / PAGE_POSITIONS];
    const HeadRows<Form> at(kv_heads, head, key_width, value_width);
    u8* base = pool + page * page_bytes;
    const bool key_fits = key.template store<Form>(base + at.keys_at + slot * at.key_bytes);
    const bool value_fits = value.template store<Form>(base + at.values_at + slot * at.value_bytes);
    if (!key_fits || !value_fits) report_fault(fault, fault_id);
}

// A warp takes a head of a query, key or value between product and attention: RMS norm (no weight: none), rope (no pairs:
// none), in place; keys and values go into the pool as well. No head is wider than 32 * EACH. Blocks behind those of
// the heads ask for the first `tiles_ahead` tiles of the row's state, which attention reads next.
template <class Form, i32 EACH> DEVICE void place_heads(
    f32* q, i32 q_stride, i32 q_heads, f32* k, i32 k_stride, const f32* v, i32 v_stride, i32 kv_heads, i32 key_width,
    i32 value_width, const f32* q_weight, const f32* k_weight, f32 eps, const f32* cos_sin, i32 pairs, i32 neox,
    const u32* positions, const u32* states, const u32* pages, i32 pages_per_state, u8* pool, i64 page_bytes, i32 n,
    i32 tiles_ahead, u32* fault, u32 fault_id) {
    __shared__ f32 near[HEADS_WARPS][EACH * SHORT_LANES];
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
    const i32 warp = (i32) threadIdx.x / SHORT_LANES;
    const i32 number = (i32) blockIdx.x * HEADS_WARPS + warp;
    const i64 row = (i64) blockIdx.y;
    const i32 heads_blocks = (q_heads + 2 * kv_heads + HEADS_WARPS - 1) / HEADS_WARPS;
    if (row >= n) return;
    if ((i32) blockIdx.x >= heads_blocks) {
        const i32 tile = (i32) blockIdx.x - heads_blocks;
        let_next_start();
        wait_for_previous();
        if (tile >= tiles_ahead || tile * TILE_POSITIONS >= (i32) positions[row]) return;
        const u8* page = pool + pages[(i64) states[row] * pages_per_state + tile] * page_bytes;
        const i64 bytes = kv_heads * PAGE_POSITIONS * (Form::row_bytes(key_width) + Form::row_bytes(value_width));
        for (i64 i = (i32) threadIdx.x * LINE_BYTES; i < bytes; i += HEADS_BLOCK * LINE_BYTES) prefetch(page + i);
        return;
    }
    if (number >= q_heads + 2 * kv_heads) return;
    const bool is_query = number < q_heads;
    const bool is_key = !is_query && number < q_heads + kv_heads;
    const i32 head = is_query ? number : is_key ? number - q_heads : number - q_heads - kv_heads;
    const i32 width = is_query || is_key ? key_width : value_width;
    const f32* weight = is_query ? q_weight : is_key ? k_weight : nullptr;
    if (!is_query && !is_key) pairs = 0;

    f32 value[EACH], factor[EACH];
    if (weight != nullptr) {
#pragma unroll
        for (i32 i = 0; i < EACH; i++) factor[i] = lane + i * SHORT_LANES < width ? weight[lane + i * SHORT_LANES] : 0.0f;
    }
    let_next_start();
    wait_for_previous();

    const f32* x = is_query ? q + row * q_stride : is_key ? k + row * k_stride : v + row * v_stride;
    x += (i64) head * width;
#pragma unroll
    for (i32 i = 0; i < EACH; i++) value[i] = lane + i * SHORT_LANES < width ? x[lane + i * SHORT_LANES] : 0.0f;
    f32 cosine[EACH / 2], sine[EACH / 2];
    cos_sin += row * (2 * (i64) pairs);
#pragma unroll
    for (i32 i = 0; i < EACH / 2; i++) {
        const i32 pair = lane + i * SHORT_LANES;
        cosine[i] = pair < pairs ? cos_sin[pair] : 0.0f;
        sine[i] = pair < pairs ? cos_sin[pairs + pair] : 0.0f;
    }
    i64 page = 0;
    u32 position = 0;
    if (!is_query) {
        position = positions[row];
        page = pages[(i64) states[row] * pages_per_state + position / PAGE_POSITIONS];
    }

    if (weight != nullptr) {
        f32 sum = 0.0f;
#pragma unroll
        for (i32 i = 0; i < EACH; i++) {
            sum = fmaf(value[i], value[i], sum);  // values that do not exist are 0 and change nothing
        }
        const f32 root = 1.0f / sqrtf(mean_of(warp_tree_all(sum), width) + eps);
#pragma unroll
        for (i32 i = 0; i < EACH; i++) value[i] = (value[i] * root) * factor[i];
    }
    if (pairs > 0) {
        f32* mine = near[warp];
#pragma unroll
        for (i32 i = 0; i < EACH; i++) mine[lane + i * SHORT_LANES] = value[i];
        warp_barrier();
#pragma unroll
        for (i32 i = 0; i < EACH / 2; i++) {
            const i32 pair = lane + i * SHORT_LANES;
            if (pair >= pairs) break;
            const i32 first = neox ? pair : 2 * pair;
            const i32 second = neox ? pair + pairs : 2 * pair + 1;
            const f32 x0 = mine[first];
            const f32 x1 = mine[second];
            mine[first] = x0 * cosine[i] - x1 * sine[i];
            mine[second] = x0 * sine[i] + x1 * cosine[i];
        }
        warp_barrier();
#pragma unroll
        for (i32 i = 0; i < EACH; i++) value[i] = mine[lane + i * SHORT_LANES];
    }

    if (is_query || is_key) {
        f32* to = is_query ? q + row * q_stride : k + row * k_stride;
        to += (i64) head * width;
#pragma unroll
        for (i32 i = 0; i < EACH; i++)
            if (lane + i * SHORT_LANES < width) to[lane + i * SHORT_LANES] = value[i];
    }
    if (is_query) return;
    const HeadRows<Form> at(kv_heads, head, key_width, value_width);
    const i64 slot = position % PAGE_POSITIONS;
    u8* stored = pool + page * page_bytes + (is_key ? at.keys_at + slot * at.key_bytes : at.values_at + slot * at.value_bytes);
    bool fits = true;
#pragma unroll
    for (i32 i = 0; i < EACH; i++)
        if (lane + i * SHORT_LANES < width) fits = Form::store(stored, lane + i * SHORT_LANES, value[i]) && fits;
    if (!fits) report_fault(fault, fault_id);
}

// What attention over some keys leaves before the division; acc lies in memory.
struct Partial {
    f32 max;
    f32 sum;
};

// The factors by which two neighbours are scaled when they are merged.
struct Merge {
    f32 max;
    f32 left;
    f32 right;

    DEVICE Merge(f32 left_max, f32 right_max)
        : max(right_max > left_max ? right_max : left_max), left(exp_f32(left_max - max)),
          right(exp_f32(right_max - max)) {}

    DEVICE f32 join(f32 left_value, f32 right_value) const { return fmaf(right_value, right, left_value * left); }
};

// Adds N strides of 32 values, of which a lane has eight each, to the partial sums: all loads before the first fma.
template <class Form, i32 N> DEVICE void add_strides(const u8* stored, const f32* query, i32 i, f32 (&part)[EIGHT]) {
    typename Form::Eight ahead[N];
#pragma unroll
    for (i32 s = 0; s < N; s++) ahead[s] = Form::load_eight(stored, i + s * SHORT_LANES);
#pragma unroll
    for (i32 s = 0; s < N; s++) {
        const Words4* asked = (const Words4*)(query + i + s * SHORT_LANES);
        const Words4 words[2] = {asked[0], asked[1]};
#pragma unroll
        for (i32 j = 0; j < EIGHT; j++) part[j] = fmaf(ahead[s].value(j), bits_f32(words[j / 4].word[j % 4]), part[j]);
    }
}

// q.k for the key of this lane and its neighbours; width is a multiple of 8, `query` lies in shared memory at a multiple
// of 16. All lanes of a warp call.
template <class Form> DEVICE f32 key_dot(const u8* stored, const f32* query, i32 width, i32 lane_of_key) {
    f32 part[EIGHT] = {};
    i32 i = EIGHT * lane_of_key;
    constexpr i32 STRIDES = Form::STRIDES;
    for (; i + (STRIDES - 1) * SHORT_LANES < width; i += STRIDES * SHORT_LANES) {
        add_strides<Form, STRIDES>(stored, query, i, part);
    }
    if (STRIDES > 2 && i + SHORT_LANES < width) {
        add_strides<Form, 2>(stored, query, i, part);
        i += 2 * SHORT_LANES;
    }
    if (i < width) add_strides<Form, 1>(stored, query, i, part);
    // The tree: partial sum 8 * lane_of_key + j. Lanes past the half get what their partner gets.
#pragma unroll
    for (i32 bit = KEY_LANES / 2; bit > 0; bit /= 2) {
#pragma unroll
        for (i32 j = 0; j < EIGHT; j++) part[j] = part[j] + shuffle_xor(part[j], bit);
    }
#pragma unroll
    for (i32 half = EIGHT / 2; half > 0; half /= 2) {
#pragma unroll
        for (i32 j = 0; j < half; j++) part[j] = part[j] + part[j + half];
    }
    return part[0];
}

// One value of acc of a tile: the chain over its keys, whose loads go ahead of it. `stored` is the row of key 0.
template <class Form> DEVICE f32 tile_acc(const u8* stored, i32 row_bytes, const f32* weights, i32 count, i32 d) {
    f32 acc = 0.0f;
    i32 start = 0;
    for (; start + Form::AHEAD <= count; start += Form::AHEAD) {
        typename Form::One ahead[Form::AHEAD];
#pragma unroll
        for (i32 k = 0; k < Form::AHEAD; k++) ahead[k] = Form::load_one(stored + (start + k) * row_bytes, d);
#pragma unroll
        for (i32 k = 0; k < Form::AHEAD; k++) acc = fmaf(weights[start + k], ahead[k].value(), acc);
    }
    if (start < count) {
        typename Form::One ahead[Form::AHEAD];
#pragma unroll
        for (i32 k = 0; k < Form::AHEAD; k++) {
            const i32 key = start + k < count ? start + k : start;
            ahead[k] = Form::load_one(stored + key * row_bytes, d);
        }
#pragma unroll
        for (i32 k = 0; k < Form::AHEAD; k++) {
            const f32 next = fmaf(weights[start + k], ahead[k].value(), acc);
            acc = start + k < count ? next : acc;
        }
    }
    return acc;
}

// One span of one row and query head: all scores, then a warp for each tile's weights, then a warp for 32 values of a
// tile's acc, then the tiles merged.
template <class Form> DEVICE void attend_span(
    const f32* q, i32 q_stride, i32 q_heads, i32 kv_heads, i32 key_width, i32 value_width, f32 scale,
    const u32* positions, const u32* states, const u32* pages, i32 pages_per_state, const u8* pool, i64 page_bytes,
    f32* work, i32 spans_max, i32 n) {
    alignas(16) __shared__ f32 query_near[QUERY_MAX];
    alignas(16) __shared__ f32 weights[SPAN_POSITIONS];  // scores before
    __shared__ f32 accs[SPAN_TILES][ACC_VALUES];
    __shared__ u32 tile_page[SPAN_TILES];
    __shared__ f32 tile_max[SPAN_TILES];
    __shared__ f32 tile_sum[SPAN_TILES];
    __shared__ f32 left[SPAN_TILES];
    __shared__ f32 right[SPAN_TILES];
    const i32 thread = (i32) threadIdx.x;
    const i32 lane = thread % SHORT_LANES;
    const i32 warp = thread / SHORT_LANES;
    const i32 span = (i32) blockIdx.x;
    const i32 head = (i32) blockIdx.y;
    const i64 row = (i64) blockIdx.z;
    if (row >= n) return;
    const i32 first = span * SPAN_POSITIONS;
    const f32* query = q + row * q_stride + (i64) head * key_width;
    const bool wide = key_width % EIGHT == 0 && key_width <= QUERY_MAX;
    let_next_start();
    wait_for_previous();

    // What does not depend on another load is asked for at once.
    const u32 position = positions[row];
    const f32 asked = thread < key_width ? query[thread] : 0.0f;
    if (thread < SPAN_TILES && first / PAGE_POSITIONS + thread < pages_per_state) {
        tile_page[thread] = pages[(i64) states[row] * pages_per_state + first / PAGE_POSITIONS + thread];
    }
    if (wide) {
        query_near[thread] = asked;
#pragma unroll 1
        for (i32 i = SPAN_BLOCK + thread; i < key_width; i += SPAN_BLOCK) query_near[i] = query[i];
    }
    const i32 keys = (i32) position + 1 - first;
    if (keys <= 0) return;
    __syncthreads();
    const i32 span_keys = keys < SPAN_POSITIONS ? keys : SPAN_POSITIONS;
    const i32 tiles = (span_keys + TILE_POSITIONS - 1) / TILE_POSITIONS;
    const HeadRows<Form> at(kv_heads, head / (q_heads / kv_heads), key_width, value_width);
    const u8* keys_of_head = pool + at.keys_at;
    const u8* values_of_head = pool + at.values_at;

    if (warp < tiles) {
        const i32 count = span_keys - warp * TILE_POSITIONS;
        const i64 bytes = (count < TILE_POSITIONS ? count : TILE_POSITIONS) * at.value_bytes;
        const u8* values = values_of_head + tile_page[warp] * page_bytes;
        for (i64 i = lane * LINE_BYTES; i < bytes; i += SHORT_LANES * LINE_BYTES) prefetch(values + i);
    }

    // Scores. Lanes past the last key repeat it.
    if (wide) {
        for (i32 start = warp * WARP_KEYS; start < span_keys; start += SPAN_WARPS * WARP_KEYS) {
            const i32 key = start + lane / KEY_LANES;
            const i32 slot = (key < span_keys ? key : span_keys - 1) % TILE_POSITIONS;
            const u8* stored = keys_of_head + tile_page[start / TILE_POSITIONS] * page_bytes + slot * at.key_bytes;
            const f32 dot = key_dot<Form>(stored, query_near, key_width, lane % KEY_LANES);
            if (lane % KEY_LANES == 0 && key < span_keys) weights[key] = dot * scale;
        }
    } else {
#pragma unroll 1
        for (i32 key = warp; key < span_keys; key += SPAN_WARPS) {
            const u8* stored =
                keys_of_head + tile_page[key / TILE_POSITIONS] * page_bytes + (key % TILE_POSITIONS) * at.key_bytes;
            f32 part = 0.0f;
#pragma unroll 4
            for (i32 i = lane; i < key_width; i += SHORT_LANES) {
                part = fmaf(Form::load_one(stored, i).value(), query[i], part);
            }
            const f32 dot = warp_tree(part);
            if (lane == 0) weights[key] = dot * scale;
        }
    }
    __syncthreads();

    // A warp turns the scores of its tile into weights and sums them, lane = position mod 32. Lanes without a key repeat
    // key 0, which changes no maximum, and add nothing to their sum.
    if (warp < tiles) {
        f32* mine = weights + warp * TILE_POSITIONS;
        const i32 count = span_keys - warp * TILE_POSITIONS;
        const f32 low = mine[lane < count ? lane : 0];
        const f32 high = mine[lane + SHORT_LANES < count ? lane + SHORT_LANES : 0];
        const f32 max = warp_max(high > low ? high : low);
        const f32 low_weight = exp_f32(low - max);
        const f32 high_weight = exp_f32(high - max);
        warp_barrier();  // every lane that repeats key 0 has read it
        f32 part = 0.0f;
        if (lane < count) {
            mine[lane] = low_weight;
            part = part + low_weight;
        }
        if (lane + SHORT_LANES < count) {
            mine[lane + SHORT_LANES] = high_weight;
            part = part + high_weight;
        }
        const f32 sum = warp_tree(part);
        if (lane == 0) {
            tile_max[warp] = max;
            tile_sum[warp] = sum;
        }
    }
    __syncthreads();

    // The factors of tile t when it is merged; the last warps have the least to do.
    if (thread >= SPAN_BLOCK - SPAN_TILES && SPAN_BLOCK - 1 - thread < tiles) {
        const i32 tile = SPAN_BLOCK - 1 - thread;
        f32 before = tile_max[0];
        for (i32 t = 1; t < tile; t++) before = tile_max[t] > before ? tile_max[t] : before;
        const Merge merge(before, tile_max[tile]);
        left[tile] = merge.left;
        right[tile] = merge.right;
    }
    work += ((row * q_heads + head) * spans_max + span) * (value_width + 2);
    for (i32 begin = 0; begin < value_width; begin += ACC_VALUES) {
        const i32 here = value_width - begin < ACC_VALUES ? value_width - begin : ACC_VALUES;
        const i32 slices = (here + SHORT_LANES - 1) / SHORT_LANES;
        for (i32 part = warp; part < tiles * slices; part += SPAN_WARPS) {
            const i32 tile = part / slices;
            const i32 d = (part - tile * slices) * SHORT_LANES + lane;
            const i32 count = span_keys - tile * TILE_POSITIONS;
            if (d < here) {
                accs[tile][d] = tile_acc<Form>(values_of_head + tile_page[tile] * page_bytes, (i32) at.value_bytes,
                                               weights + tile * TILE_POSITIONS,
                                               count < TILE_POSITIONS ? count : TILE_POSITIONS, begin + d);
            }
        }
        __syncthreads();
        if (thread < here) {
            f32 acc = accs[0][thread];
            for (i32 tile = 1; tile < tiles; tile++) {
                acc = fmaf(accs[tile][thread], right[tile], acc * left[tile]);
            }
            work[2 + begin + thread] = acc;
        }
        if (begin == 0 && thread == SPAN_BLOCK - 1) {
            f32 max = tile_max[0];
            f32 sum = tile_sum[0];
            for (i32 tile = 1; tile < tiles; tile++) {
                max = tile_max[tile] > max ? tile_max[tile] : max;
                sum = fmaf(tile_sum[tile], right[tile], sum * left[tile]);
            }
            work[0] = max;
            work[1] = sum;
        }
        if (begin + ACC_VALUES < value_width) __syncthreads();
    }
}

// The halving trees over the 32 partial sums of COUNT dots, of which each of four neighbouring lanes has eight: sums
// 8 * (lane % 4) + j. In place c a lane has dot c ^ `own`; its first EACH become whole.
template <i32 COUNT> struct FourLanes {
    static constexpr i32 HALF = COUNT > 1 ? COUNT / 2 : 1;
    static constexpr i32 EACH = HALF > 1 ? HALF / 2 : 1;

    // A lane gives its partner the sums that the partner keeps.
    DEVICE static i32 own(i32 lane) {
        const i32 upper = (lane & 2) != 0 && HALF < COUNT ? HALF : 0;
        return upper | ((lane & 1) != 0 && EACH < HALF ? EACH : 0);
    }

    template <i32 FROM, i32 TO> DEVICE static void fold(f32 (&part)[COUNT][EIGHT], i32 bit) {
#pragma unroll
        for (i32 c = 0; c < TO; c++) {
#pragma unroll
            for (i32 j = 0; j < EIGHT; j++) part[c][j] = part[c][j] + shuffle_xor(part[FROM == TO ? c : c + TO][j], bit);
        }
    }

    DEVICE static void sum(f32 (&part)[COUNT][EIGHT]) {
        fold<COUNT, HALF>(part, 2);
        fold<HALF, EACH>(part, 1);
#pragma unroll
        for (i32 c = 0; c < EACH; c++) {
#pragma unroll
            for (i32 half = EIGHT / 2; half > 0; half /= 2) {
#pragma unroll
                for (i32 j = 0; j < half; j++) part[c][j] = part[c][j] + part[c][j + half];
            }
        }
    }
};

// Adds STRIDES strides of 32 values, of which a lane has eight each from `first` on, to the partial sums of KEYS keys with
// HEADS heads.
template <class Form, i32 HEADS, i32 KEYS, i32 STRIDES>
DEVICE void add_scores(const u8* const (&stored)[KEYS], const f32* query, i32 key_width, i32 part_heads, i32 own, i32 first,
                       f32 (&part)[HEADS * KEYS][EIGHT]) {
    typename Form::Eight ahead[STRIDES][KEYS];
#pragma unroll
    for (i32 s = 0; s < STRIDES; s++) {
#pragma unroll
        for (i32 k = 0; k < KEYS; k++) ahead[s][k] = Form::load_eight(stored[k], first + s * SHORT_LANES);
    }
#pragma unroll
    for (i32 s = 0; s < STRIDES; s++) {
        f32 key[KEYS][EIGHT];
#pragma unroll
        for (i32 k = 0; k < KEYS; k++) {
#pragma unroll
            for (i32 j = 0; j < EIGHT; j++) key[k][j] = ahead[s][k].value(j);
        }
#pragma unroll
        for (i32 h = 0; h < HEADS; h++) {
            const i32 head = part_heads + (h ^ own % HEADS);
            const Words4* words = (const Words4*)(query + head * key_width + first + s * SHORT_LANES);
            const Words4 both[2] = {words[0], words[1]};
#pragma unroll
            for (i32 k = 0; k < KEYS; k++) {
#pragma unroll
                for (i32 j = 0; j < EIGHT; j++) {
                    f32& to = part[k * HEADS + h][j];
                    to = fmaf(key[k][j], bits_f32(both[j / 4].word[j % 4]), to);
                }
            }
        }
    }
}

// Adds ACC_AHEAD keys of a tile, or the first `count` of them, to DIMS values of acc of HEADS heads from d on: all loads
// before the first fma. Weight k of head h is weights[k / 4 * stride + 4 * h + k % 4].
template <class Form, i32 HEADS, i32 DIMS, bool WHOLE>
DEVICE void add_keys(const u8* values, i32 row_bytes, const f32* weights, i32 stride, i32 count, i32 d,
                     f32 (&acc)[HEADS][DIMS]) {
    typename Form::template Few<DIMS> ahead[ACC_AHEAD];
#pragma unroll
    for (i32 k = 0; k < ACC_AHEAD; k++) {
        ahead[k] = Form::template load_few<DIMS>(values + (WHOLE || k < count ? k : 0) * row_bytes, d);
    }
#pragma unroll
    for (i32 k = 0; k < ACC_AHEAD; k += 4) {
        Words4 weight[HEADS];
#pragma unroll
        for (i32 h = 0; h < HEADS; h++) weight[h] = *(const Words4*)(weights + k / 4 * stride + 4 * h);
#pragma unroll
        for (i32 j = 0; j < 4; j++) {
            if (!WHOLE && k + j >= count) break;
#pragma unroll
            for (i32 i = 0; i < DIMS; i++) {
                const f32 value = ahead[k + j].value(i);
#pragma unroll
                for (i32 h = 0; h < HEADS; h++) acc[h][i] = fmaf(bits_f32(weight[h].word[j]), value, acc[h][i]);
            }
        }
    }
}

template <class Form, i32 HEADS, i32 DIMS>
DEVICE void tile_accs(const u8* values, i32 row_bytes, const f32* weights, i32 stride, i32 count, i32 d,
                      f32 (&acc)[HEADS][DIMS]) {
    i32 start = 0;
#pragma unroll 1
    for (; start + ACC_AHEAD <= count; start += ACC_AHEAD) {
        add_keys<Form, HEADS, DIMS, true>(values + start * row_bytes, row_bytes, weights + start / 4 * stride, stride,
                                          count, d, acc);
    }
    if (start < count) {
        add_keys<Form, HEADS, DIMS, false>(values + start * row_bytes, row_bytes, weights + start / 4 * stride, stride,
                                           count - start, d, acc);
    }
}

// What the tiles of a row's heads leave, from `first_head` on: acc of each [n][q_heads][tiles_max][value_width], and behind
// them maximum and sum [n][q_heads][tiles_max][2].
struct TileWork {
    f32* accs;
    Words2* partials;
    i32 width;
    i32 tiles;

    DEVICE TileWork(f32* work, i32 value_width, i32 tiles_max, i32 q_heads, i32 n, i64 row, i32 first_head)
        : width(value_width), tiles(tiles_max) {
        const i64 first = (row * q_heads + first_head) * tiles_max;
        accs = work + first * value_width;
        partials = (Words2*)(work + (i64) n * q_heads * tiles_max * value_width) + first;
    }

    DEVICE f32* acc(i32 head, i32 tile) const { return accs + ((i64) head * tiles + tile) * width; }
    DEVICE Words2* partial(i32 head, i32 tile) const { return partials + (i64) head * tiles + tile; }
};

// Starts bringing `count` floats into shared memory, and zeros behind them up to `all`, both multiples of 4.
DEVICE void copy_floats(f32* near, const f32* from, i32 count, i32 all) {
    const bool is_aligned = (u64) from % 16 == 0;
    for (i32 i = 4 * (i32) threadIdx.x; i < all; i += 4 * TILE_BLOCK) {
        if (is_aligned || i >= count) {
            start_copy((u8*)(near + i), (const u8*)(i < count ? from + i : from - (u64) from % 16 / 4), i < count ? 16 : 0);
        } else {
            for (i32 j = i; j < i + 4; j++) near[j] = from[j];
        }
    }
}

// One tile of one row for HEADS * KEYS query heads of one K/V head: a thread makes the scores of KEYS keys with HEADS
// heads, four lanes together; then a warp the weights of a head; then a thread ACC_DIMS values of acc of ACC_HEADS heads.
// Widths are multiples of 32, and at most HEAD_MAX.
template <class Form, i32 HEADS, i32 KEYS, i32 ACC_HEADS, i32 ACC_DIMS> DEVICE void attend_tile(
    const f32* q, i32 q_stride, i32 q_heads, i32 kv_heads, i32 key_width, i32 value_width, f32 scale,
    const u32* positions, const u32* states, const u32* pages, i32 pages_per_state, const u8* pool, i64 page_bytes,
    f32* work, i32 tiles_max, i32 n) {
    constexpr i32 ALL = HEADS * KEYS;
    constexpr i32 SLOTS = TILE_POSITIONS / KEYS;
    constexpr i32 WEIGHT_STRIDE = 4 * ALL + 4;
    constexpr i32 STRIDES = KEYS > 1 ? Form::STRIDES / 2 : Form::STRIDES;
    typedef FourLanes<HEADS * KEYS> Tree;
    static_assert(ALL <= TILE_BLOCK / SHORT_LANES, "a warp weighs the keys of a head");
    static_assert(KEYS * SLOTS * KEY_LANES == TILE_BLOCK, "four lanes for KEYS keys and HEADS heads");
    alignas(16) __shared__ f32 query[ALL * HEAD_MAX];
    alignas(16) __shared__ f32 weights[TILE_POSITIONS / 4 * WEIGHT_STRIDE];  // scores before
    alignas(16) __shared__ u8 near[NEAR_BYTES];
    const i32 thread = (i32) threadIdx.x;
    const i32 lane = thread % SHORT_LANES;
    const i32 warp = thread / SHORT_LANES;
    const i32 tile = (i32) blockIdx.x;
    const i32 group = q_heads / kv_heads;
    const i32 blocks = (group + ALL - 1) / ALL;
    const i32 kv_head = (i32) blockIdx.y / blocks;
    const i32 in_group = ((i32) blockIdx.y - kv_head * blocks) * ALL;
    const i32 first_head = kv_head * group + in_group;
    const i32 heads = group - in_group < ALL ? group - in_group : ALL;
    const i64 row = (i64) blockIdx.z;
    if (row >= n) return;
    const HeadRows<Form> at(kv_heads, kv_head, key_width, value_width);
    let_next_start();
    wait_for_previous();

    // What does not depend on another load is asked for at once.
    const i32 left = (i32) positions[row] + 1 - tile * TILE_POSITIONS;
    const i64 state = states[row];
    const f32* asked = q + row * q_stride + (i64) first_head * key_width;
    if (left <= 0) return;
    copy_floats(query, asked, heads * key_width, ALL * key_width);
    const u8* page = pool + pages[state * pages_per_state + tile] * page_bytes;
    const i32 count = left < TILE_POSITIONS ? left : TILE_POSITIONS;
    const u8* values = page + at.values_at;
    const i32 value_bytes = (i32) at.value_bytes;
    const i32 key_bytes = (i32) at.key_bytes;
    // Rows of whole 128 bytes lie 64 apart: two neighbours are read at once, 64 bytes of each.
    const bool is_padded = key_bytes % 128 == 0;
    const i32 near_key_bytes = is_padded ? key_bytes + 64 : key_bytes;
    const bool is_near = TILE_POSITIONS * value_bytes <= NEAR_BYTES;
    const bool is_key_near = TILE_POSITIONS * (value_bytes + near_key_bytes) <= NEAR_BYTES;
    u8* near_keys = near + TILE_POSITIONS * value_bytes;
    const u8* keys = page + at.keys_at;
    if (is_key_near && is_padded) {
        const i32 key = thread / (TILE_BLOCK / TILE_POSITIONS);
        if (key < count) {
            for (i32 i = 16 * (thread % (TILE_BLOCK / TILE_POSITIONS)); i < key_bytes; i += 16 * TILE_BLOCK / TILE_POSITIONS)
                start_copy(near_keys + key * near_key_bytes + i, keys + key * key_bytes + i, 16);
        }
    } else if (is_key_near) {
        for (i32 i = 16 * thread; i < count * key_bytes; i += 16 * TILE_BLOCK) start_copy(near_keys + i, keys + i, 16);
    }
    if (is_near) {
        for (i32 i = 16 * thread; i < count * value_bytes; i += 16 * TILE_BLOCK) start_copy(near + i, values + i, 16);
    }

    // Scores. Slots without a key repeat the last.
    const i32 part_heads = thread / (SLOTS * KEY_LANES) * HEADS;
    const i32 slot = thread % (SLOTS * KEY_LANES) / KEY_LANES;
    const i32 own = Tree::own(thread % KEY_LANES);
    const u8* stored[KEYS];
#pragma unroll
    for (i32 k = 0; k < KEYS; k++) {
        const i32 key = slot + (k ^ own / HEADS) * SLOTS;
        const i32 there = key < count ? key : count - 1;
        stored[k] = is_key_near ? near_keys + there * near_key_bytes : keys + there * key_bytes;
    }
    f32 part[HEADS * KEYS][EIGHT] = {};
    close_copies();
    wait_copies<0>();
    __syncthreads();
    const i32 first = thread % KEY_LANES * EIGHT;
    if (key_width % (STRIDES * SHORT_LANES) == 0) {
#pragma unroll 1
        for (i32 start = 0; start < key_width; start += STRIDES * SHORT_LANES)
            add_scores<Form, HEADS, KEYS, STRIDES>(stored, query, key_width, part_heads, own, start + first, part);
    } else {
#pragma unroll 1
        for (i32 start = 0; start < key_width; start += SHORT_LANES)
            add_scores<Form, HEADS, KEYS, 1>(stored, query, key_width, part_heads, own, start + first, part);
    }
    Tree::sum(part);
#pragma unroll
    for (i32 c = 0; c < Tree::EACH; c++) {
        const i32 key = slot + (c ^ own) / HEADS * SLOTS;
        const i32 head = part_heads + (c ^ own) % HEADS;
        if (key < count) weights[key / 4 * WEIGHT_STRIDE + 4 * head + key % 4] = part[c][0] * scale;
    }
    __syncthreads();

    // Weights, and their sum: lane = position mod 32. Lanes without a key repeat key 0 and add nothing.
    const TileWork to(work, value_width, tiles_max, q_heads, n, row, first_head);
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
        if (is_near) {
            tile_accs<Form>(near, value_bytes, weight, WEIGHT_STRIDE, count, d, acc);
        } else {
            tile_accs<Form>(values, value_bytes, weight, WEIGHT_STRIDE, count, d, acc);
        }
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

#define APPEND(NAME, FORM)                                                                                             \
    extern "C" __global__ void __launch_bounds__(APPEND_BLOCK)                                                         \
    NAME(const f32* k, i32 k_stride, const f32* v, i32 v_stride, i32 kv_heads, i32 key_width, i32 value_width,         \
         const u32* positions, const u32* states, const u32* pages, i32 pages_per_state, u8* pool, i64 page_bytes,     \
         i32 n, u32* fault, u32 fault_id) {                                                                            \
        append<FORM>(k, k_stride, v, v_stride, kv_heads, key_width, value_width, positions, states, pages,             \
                     pages_per_state, pool, page_bytes, n, fault, fault_id);                                           \
    }

#define ATTEND_SPAN(NAME, FORM)                                                                                        \
    extern "C" __global__ void __launch_bounds__(SPAN_BLOCK, 2)                                                        \
    NAME(const f32* q, i32 q_stride, i32 q_heads, i32 kv_heads, i32 key_width, i32 value_width, f32 scale,             \
         const u32* positions, const u32* states, const u32* pages, i32 pages_per_state, const u8* pool,               \
         i64 page_bytes, f32* work, i32 spans_max, i32 n) {                                                            \
        attend_span<FORM>(q, q_stride, q_heads, kv_heads, key_width, value_width, scale, positions, states, pages,     \
                          pages_per_state, pool, page_bytes, work, spans_max, n);                                      \
    }

#define PLACE_HEADS(NAME, FORM)                                                                                        \
    extern "C" __global__ void __launch_bounds__(HEADS_BLOCK)                                                          \
    NAME(f32* q, i32 q_stride, i32 q_heads, f32* k, i32 k_stride, const f32* v, i32 v_stride, i32 kv_heads,            \
         i32 key_width, i32 value_width, const f32* q_weight, const f32* k_weight, f32 eps, const f32* cos_sin,        \
         i32 pairs, i32 neox, const u32* positions, const u32* states, const u32* pages, i32 pages_per_state,          \
         u8* pool, i64 page_bytes, i32 n, i32 tiles_ahead, u32* fault, u32 fault_id) {                                 \
        if (key_width <= HEAD_MAX / 2 && value_width <= HEAD_MAX / 2) {                                                \
            place_heads<FORM, HEAD_EACH / 2>(q, q_stride, q_heads, k, k_stride, v, v_stride, kv_heads, key_width,      \
                                             value_width, q_weight, k_weight, eps, cos_sin, pairs, neox, positions,    \
                                             states, pages, pages_per_state, pool, page_bytes, n, tiles_ahead, fault,  \
                                             fault_id);                                                                \
        } else {                                                                                                       \
            place_heads<FORM, HEAD_EACH>(q, q_stride, q_heads, k, k_stride, v, v_stride, kv_heads, key_width,          \
                                         value_width, q_weight, k_weight, eps, cos_sin, pairs, neox, positions,        \
                                         states, pages, pages_per_state, pool, page_bytes, n, tiles_ahead, fault,      \
                                         fault_id);                                                                    \
        }                                                                                                              \
    }

#define ATTEND_TILE(NAME, FORM, BLOCKS, HEADS, KEYS, ACC_HEADS, ACC_DIMS)                                              \
    extern "C" __global__ void __launch_bounds__(TILE_BLOCK, BLOCKS)                                                      \
    NAME(const f32* q, i32 q_stride, i32 q_heads, i32 kv_heads, i32 key_width, i32 value_width, f32 scale,             \
         const u32* positions, const u32* states, const u32* pages, i32 pages_per_state, const u8* pool,               \
         i64 page_bytes, f32* work, i32 tiles_max, i32 n) {                                                            \
        attend_tile<FORM, HEADS, KEYS, ACC_HEADS, ACC_DIMS>(q, q_stride, q_heads, kv_heads, key_width, value_width,    \
                                                            scale, positions, states, pages, pages_per_state, pool,    \
                                                            page_bytes, work, tiles_max, n);                           \
    }

APPEND(append_f32, StoredF32)
APPEND(append_f16, StoredF16)
APPEND(append_q8_0, StoredQ8)
ATTEND_SPAN(attend_span_f32, StoredF32)
ATTEND_SPAN(attend_span_f16, StoredF16)
ATTEND_SPAN(attend_span_q8_0, StoredQ8)
PLACE_HEADS(place_heads_f32, StoredF32)
PLACE_HEADS(place_heads_f16, StoredF16)
PLACE_HEADS(place_heads_q8_0, StoredQ8)
ATTEND_TILE(attend_tile_2_f32, StoredF32, 2, 2, 1, 1, 2)
ATTEND_TILE(attend_tile_2_f16, StoredF16, 2, 2, 1, 1, 2)
ATTEND_TILE(attend_tile_2_q8_0, StoredQ8, 2, 2, 1, 1, 2)
ATTEND_TILE(attend_tile_8_f32, StoredF32, 1, 2, 4, 2, 4)
ATTEND_TILE(attend_tile_8_f16, StoredF16, MORE_REGISTERS ? 1 : 2, 2, 4, 2, 4)
ATTEND_TILE(attend_tile_8_q8_0, StoredQ8, 1, 2, 4, 2, 4)

// Merges the spans of each row and head from left to right and divides by the sum.
extern "C" __global__ void __launch_bounds__(MERGE_BLOCK)
attend_merge(const f32* work, i32 spans_max, const u32* positions, f32* out, i32 out_stride, i32 q_heads,
             i32 value_width, i32 n) {
    let_next_start();
    wait_for_previous();
    const i32 head = (i32) blockIdx.x;
    const i64 row = (i64) blockIdx.y;
    if (row >= n) return;
    const i32 spans = (i32) positions[row] / SPAN_POSITIONS + 1;
    const i64 span_floats = value_width + 2;
    work += (row * q_heads + head) * spans_max * span_floats;
    out += row * out_stride + (i64) head * value_width;
    for (i32 d = (i32) threadIdx.x; d < value_width; d += MERGE_BLOCK) {
        Partial merged = {work[0], work[1]};
        f32 acc = work[2 + d];
        for (i32 span = 1; span < spans; span++) {
            const f32* right = work + span * span_floats;
            const Merge merge(merged.max, right[0]);
            merged = Partial{merge.max, merge.join(merged.sum, right[1])};
            acc = merge.join(acc, right[2 + d]);
        }
        out[d] = acc / merged.sum;
    }
}

// What a tile of a span is merged with: the factors, its sum, and the maximum up to it.
struct TileFactors {
    f32 left;
    f32 right;
    f32 sum;
    f32 max;
};

// Of the first `tiles` tiles of a span of `heads` heads, by a slice of threads: sixteen lanes a head.
DEVICE void write_factors(TileFactors (*factors)[SPAN_TILES], const TileWork& work, i32 first_head, i32 heads, i32 first,
                          i32 tiles) {
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
    const i32 tile = lane % SPAN_TILES;
    for (i32 start = (i32) threadIdx.x % MERGE_THREADS - lane; start < heads * SPAN_TILES; start += MERGE_THREADS) {
        const i32 number = (start + lane) / SPAN_TILES;
        const i32 head = number < heads ? number : heads - 1;
        const Words2 partial = *work.partial(first_head + head, first + (tile < tiles ? tile : tiles - 1));
        const f32 own = bits_f32(partial.word[0]);
        f32 upto = own;
#pragma unroll
        for (i32 distance = 1; distance < SPAN_TILES; distance *= 2) {
            const f32 other = shuffle(upto, tile < distance ? lane : lane - distance);
            upto = other > upto ? other : upto;
        }
        const Merge merge(shuffle(upto, tile == 0 ? lane : lane - 1), own);
        if (number < heads) factors[head][tile] = TileFactors{merge.left, merge.right, bits_f32(partial.word[1]), upto};
    }
}

// Merges the tiles that `attend_tile` left, span by span, divides by the sum, and makes the row as floats (out null: nobody
// reads them) and as images. A block has 256 values; its slices of 64 threads take a span each, in turns. value_width is a
// multiple of 32.
extern "C" __global__ void __launch_bounds__(MERGE_SLICES * MERGE_THREADS)
merge_images(f32* work, i32 tiles_max, const u32* positions, f32* out, i32 out_stride, i32 q_heads, i32 value_width,
             i8* codes32, f32* scales32, i8* codes256, f32* scales256, i32 n, u32* fault, u32 fault_id) {
    alignas(16) __shared__ TileFactors factors[MERGE_SLICES][MERGE_HEADS][SPAN_TILES];
    __shared__ f32 maxes[MERGE_SLICES][MERGE_THREADS];
    __shared__ f32 sums[MERGE_SLICES][MERGE_THREADS];
    alignas(16) __shared__ f32 accs[MERGE_SLICES][MERGE_EACH * MERGE_THREADS];
    const i32 thread = (i32) threadIdx.x % MERGE_THREADS;
    const i32 slice = (i32) threadIdx.x / MERGE_THREADS;
    const i32 slices = (i32) blockDim.x / MERGE_THREADS;
    const i64 row = (i64) blockIdx.y;
    if (row >= n) return;
    const i32 width = q_heads * value_width;
    const i32 begin = (i32) blockIdx.x * A256_VALUES;
    const i32 i = begin + thread * MERGE_EACH;
    const bool is_there = slice == 0 && i < width;
    const i32 mine = i < width ? i : width - MERGE_EACH;
    const i32 head = mine / value_width;
    const i32 d = mine - head * value_width;
    const i32 first_head = begin / value_width;
    const i32 last = begin + A256_VALUES < width ? begin + A256_VALUES - 1 : width - 1;
    const i32 heads = last / value_width - first_head + 1;
    const TileWork tile_work(work, value_width, tiles_max, q_heads, n, row, 0);
    let_next_start();
    wait_for_previous();

    const i32 tiles = (i32) positions[row] / TILE_POSITIONS + 1;
    f32 max = 0.0f, sum = 0.0f, acc[MERGE_EACH] = {};
    for (i32 start = 0; start < tiles; start += slices * SPAN_TILES) {
        const i32 first = start + slice * SPAN_TILES;
        const i32 here = tiles - first < SPAN_TILES ? tiles - first : SPAN_TILES;
        Words<MERGE_EACH> ahead[SPAN_TILES];
        if (here > 0) {
            const f32* from = tile_work.acc(head, first) + d;
#pragma unroll
            for (i32 t = 0; t < SPAN_TILES; t++)
                ahead[t] = *(const Words<MERGE_EACH>*)(from + (t < here ? t : 0) * value_width);
            write_factors(factors[slice], tile_work, first_head, heads, first, here);
        }
        __syncthreads();
        if (here > 0) {
            const TileFactors* of_head = factors[slice][head - first_head];
            f32 span_sum = of_head[0].sum, span_acc[MERGE_EACH];
#pragma unroll
            for (i32 j = 0; j < MERGE_EACH; j++) span_acc[j] = bits_f32(ahead[0].word[j]);
#pragma unroll
            for (i32 t = 1; t < SPAN_TILES; t++) {
                if (t >= here) break;
                const TileFactors tile = of_head[t];
                span_sum = fmaf(tile.sum, tile.right, span_sum * tile.left);
#pragma unroll
                for (i32 j = 0; j < MERGE_EACH; j++)
                    span_acc[j] = fmaf(bits_f32(ahead[t].word[j]), tile.right, span_acc[j] * tile.left);
            }
            if (start == 0 && slice == 0) {
                max = of_head[here - 1].max;
                sum = span_sum;
#pragma unroll
                for (i32 j = 0; j < MERGE_EACH; j++) acc[j] = span_acc[j];
            } else {
                maxes[slice][thread] = of_head[here - 1].max;
                sums[slice][thread] = span_sum;
#pragma unroll
                for (i32 j = 0; j < MERGE_EACH; j++) accs[slice][j * MERGE_THREADS + thread] = span_acc[j];
            }
        }
        if (tiles <= SPAN_TILES) break;
        __syncthreads();
        for (i32 s = start == 0 ? 1 : 0; slice == 0 && s < slices && start + s * SPAN_TILES < tiles; s++) {
            const Merge merge(max, maxes[s][thread]);
            max = merge.max;
            sum = merge.join(sum, sums[s][thread]);
#pragma unroll
            for (i32 j = 0; j < MERGE_EACH; j++) acc[j] = merge.join(acc[j], accs[s][j * MERGE_THREADS + thread]);
        }
        __syncthreads();
    }
    if (slice == 0) {
#pragma unroll
        for (i32 j = 0; j < MERGE_EACH; j++) {
            acc[j] = acc[j] / sum;
            if (out != nullptr && is_there) out[row * out_stride + i + j] = acc[j];
            accs[0][thread * MERGE_EACH + j] = acc[j];
        }
    }
    if (codes32 == nullptr && codes256 == nullptr) return;
    __syncthreads();
    if (threadIdx.x >= SHORT_LANES) return;
    const Words4* words = (const Words4*)(accs[0] + thread * LANE_VALUES);
    const Words4 both[2] = {words[0], words[1]};
    f32 values[LANE_VALUES];
#pragma unroll
    for (i32 j = 0; j < LANE_VALUES; j++) values[j] = bits_f32(both[j / 4].word[j % 4]);
    const Images images = {codes32, scales32, codes256, scales256};
    const u32 largest = images.write(values, row * width + begin, width - begin);
    if (!is_finite(largest) && thread == 0) report_fault(fault, fault_id);
}

// Copies one page. page_bytes is a multiple of 8: a head has 64 rows.
extern "C" __global__ void __launch_bounds__(COPY_BLOCK) copy_page(u8* pool, i64 page_bytes, i32 from, i32 to) {
    let_next_start();
    wait_for_previous();
    const u64* source = (const u64*)(pool + from * page_bytes);
    u64* target = (u64*)(pool + to * page_bytes);
    for (i64 i = (i64) blockIdx.x * COPY_BLOCK + threadIdx.x; i < page_bytes / 8; i += (i64) gridDim.x * COPY_BLOCK) {
        target[i] = source[i];
    }
}
