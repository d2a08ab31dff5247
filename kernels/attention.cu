// attention.cu: attention of one query row over the keys and values of its state, span by span.
//
// shapes   q [n] rows of q_heads * key_width f32; pages and pool as in append.cu; value_width + 2 floats of work for each
//          row, head and span: max, sum, acc
// launch   attend_span: grid (spans_max, q_heads, n), block 512, a span of 1,024 positions for a block; attend_merge: grid
//          (q_heads, n), block 128
// order    scores lanes(32); a tile of 64 positions: exact maximum, sum lanes(32), acc a chain over its keys; tiles
//          merge left to right inside their span, spans left to right; the first is taken as it is
// moves    each stored key and value up to the row's position once for every query head
// twin     src/device/cpu/plain/{attention,stored}.rs, equal bit for bit
#include "attention/chosen.cuh"
#include "attention/parts.cuh"

constexpr i32 SPAN_BLOCK = 512;
constexpr i32 SPAN_WARPS = SPAN_BLOCK / SHORT_LANES;
constexpr i32 MERGE_BLOCK = 128;
// Values of a query that a block keeps at hand, and values of acc that it makes at a time.
constexpr i32 QUERY_MAX = 1024;
constexpr i32 ACC_VALUES = 256;
constexpr i32 WARP_KEYS = SHORT_LANES / KEY_LANES;

static_assert(QUERY_MAX >= SPAN_BLOCK, "a thread keeps a value of the query");
static_assert(SPAN_TILES <= SPAN_WARPS, "a warp weighs one tile of a span");
static_assert(TILE_POSITIONS % WARP_KEYS == 0, "the keys of a warp lie in one tile");

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

#define ATTEND_SPAN(T, FORM)                                                                                           \
    extern "C" __global__ void __launch_bounds__(SPAN_BLOCK, 2)                                                        \
    attend_span_##T(const f32* q, i32 q_stride, i32 q_heads, i32 kv_heads, i32 key_width, i32 value_width, f32 scale,  \
                    const u32* positions, const u32* states, const u32* pages, i32 pages_per_state, const u8* pool,    \
                    i64 page_bytes, f32* work, i32 spans_max, i32 n) {                                                 \
        attend_span<FORM>(q, q_stride, q_heads, kv_heads, key_width, value_width, scale, positions, states, pages,     \
                          pages_per_state, pool, page_bytes, work, spans_max, n);                                      \
    }

KV_FORMATS(ATTEND_SPAN)

// Merges the spans of each row and head.
extern "C" __global__ void __launch_bounds__(MERGE_BLOCK)
attend_merge(const f32* work, i32 spans_max, const u32* positions, f32* out, i32 out_stride, i32 q_heads,
             i32 value_width, i32 n) {
    merge_spans<Merge, SPAN_POSITIONS, MERGE_BLOCK>(work, spans_max, positions, out, out_stride, q_heads, value_width, n);
}
