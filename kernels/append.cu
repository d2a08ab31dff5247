// append.cu: keys and values into their pages.
//
// shapes   q, k, v rows with their heads side by side; pages[state * pages_per_state + position / 64]; a page holds keys
//          [kv_heads][64][key bytes], then values [kv_heads][64][value bytes]; page_bytes is a multiple of 16
// launch   append: grid (kv_heads, n), block 64; place_heads: grid (all heads / 4 rounded up + tiles asked for, n), block
//          128; copy_page: grid (64), block 256
// order    norms of heads: lanes(256) or lanes(32), as rms_norm
// moves    each head once in and once out
// twin     src/device/cpu/plain/{norm,rope,stored}.rs, equal bit for bit
#include "attention/chosen.cuh"
#include "attention/head.cuh"
#include "device/pages.cuh"

constexpr i32 APPEND_BLOCK = 64;
constexpr i32 APPEND_AHEAD = 4;
constexpr i32 HEADS_BLOCK = 128;
constexpr i32 HEADS_WARPS = HEADS_BLOCK / SHORT_LANES;
constexpr i32 COPY_BLOCK = 256;

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

// A warp takes a head of a query, key or value between product and attention: norm and rope in place; keys and values go
// into the pool as well.
template <class Form, i32 EACH> DEVICE void place_heads(
    const Heads& heads, const u32* positions, const u32* states, const u32* pages, i32 pages_per_state, u8* pool,
    i64 page_bytes, i32 n, u32* fault, u32 fault_id) {
    const i32 number = (i32) (blockIdx.x * HEADS_WARPS + threadIdx.x / SHORT_LANES);
    const i64 row = (i64) blockIdx.y;
    let_next_start();
    if (row >= n || number >= heads.q_heads + 2 * heads.kv_heads) return;
    const bool is_query = number < heads.q_heads;
    const bool is_key = !is_query && number < heads.q_heads + heads.kv_heads;
    const i32 head = is_query ? number : (number - heads.q_heads) % heads.kv_heads;
    const HeadKind kind = is_query ? HeadKind::QUERY : is_key ? HeadKind::KEY : HeadKind::VALUE;
    const WarpHead<EACH> placed(heads, kind, head, row);
    const u32 position = load_fresh(positions + row);
    const i64 state = is_query ? 0 : load_fresh(states + row);
    const i64 page = is_query ? 0 : load_fresh(pages + state * pages_per_state + position / PAGE_POSITIONS);
    wait_for_previous();

    f32 value[EACH];
    placed.load(value);
    placed.make(value);
    if (is_query || is_key) write_head(placed.from, value, placed.width, (i32) threadIdx.x % SHORT_LANES);
    if (is_query) return;
    const HeadRows<Form> at(heads.kv_heads, head, heads.key_width, heads.value_width);
    const i64 slot = position % PAGE_POSITIONS;
    u8* stored = pool + page * page_bytes + (is_key ? at.keys_at + slot * at.key_bytes : at.values_at + slot * at.value_bytes);
    if (!store_head<Form>(stored, value, placed.width)) report_fault(fault, fault_id);
}

#define APPEND(T, FORM)                                                                                                \
    extern "C" __global__ void __launch_bounds__(APPEND_BLOCK)                                                         \
    append_##T(const f32* k, i32 k_stride, const f32* v, i32 v_stride, i32 kv_heads, i32 key_width, i32 value_width,   \
               const u32* positions, const u32* states, const u32* pages, i32 pages_per_state, u8* pool,               \
               i64 page_bytes, i32 n, u32* fault, u32 fault_id) {                                                      \
        append<FORM>(k, k_stride, v, v_stride, kv_heads, key_width, value_width, positions, states, pages,             \
                     pages_per_state, pool, page_bytes, n, fault, fault_id);                                           \
    }

#define PLACE_HEADS(T, FORM)                                                                                           \
    extern "C" __global__ void __launch_bounds__(HEADS_BLOCK)                                                          \
    place_heads_##T(f32* q, i32 q_stride, i32 q_heads, f32* k, i32 k_stride, const f32* v, i32 v_stride,               \
                    i32 kv_heads, i32 key_width, i32 value_width, const f32* q_weight, const f32* k_weight, f32 eps,   \
                    const f32* cos_sin, i32 pairs, i32 neox, const u32* positions, const u32* states,                  \
                    const u32* pages, i32 pages_per_state, u8* pool, i64 page_bytes, i32 n, u32* fault,                \
                    u32 fault_id) {                                                                                    \
        const Heads heads = {q, q_stride, q_heads, k, k_stride, v, v_stride, kv_heads, key_width, value_width,         \
                             q_weight, k_weight, eps, cos_sin, pairs, neox};                                           \
        const bool is_narrow = key_width <= HEAD_MAX / 2 && value_width <= HEAD_MAX / 2;                               \
        if (is_narrow) {                                                                                               \
            place_heads<FORM, HEAD_EACH / 2>(heads, positions, states, pages, pages_per_state, pool, page_bytes, n,    \
                                             fault, fault_id);                                                         \
        } else {                                                                                                       \
            place_heads<FORM, HEAD_EACH>(heads, positions, states, pages, pages_per_state, pool, page_bytes, n, fault, \
                                         fault_id);                                                                    \
        }                                                                                                              \
    }

KV_FORMATS(APPEND)
KV_FORMATS(PLACE_HEADS)

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
