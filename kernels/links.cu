// links.cu: rows on their way from card to card through the slots of a ring.
//
// shapes   a slot is a header of 128 bytes (sequence number, fault word), then up to (slot_bytes - 128) / 4 values; rows
//          [values] f32, dense, 16-byte aligned; turn: slot, sequence number
// launch   grid (blocks), block 256; each thread moves 16 bytes at a time. post_rows with 0 values only signals, in one
//          block; the first block of await_rows waits for the others' sake too, so it begins no later than they
// order    no sums
// moves    each value read once and written once: by post_rows from the card's memory into the ring's (of another card, or
//          of the host), by await_rows from the ring's into the card's
// twin     src/transport/local.rs: the same ring with slots of the host
#include "device/vendor.h"

constexpr i32 LINK_BLOCK = 256;
constexpr i64 HEADER_BYTES = 128;
// Words of a header.
constexpr i32 SEQUENCE = 0;
constexpr i32 FAULT = 1;
// What a wait can end with; a fault word of no card, op and layer.
constexpr u32 ARRIVED = 0;
constexpr u32 LATE = 0xfffffffeu;
constexpr u32 ENDED = 0xffffffffu;
// Looks at the sequence word between two looks at what else may end a wait.
constexpr i32 LOOKS = 32;

// Values from one place to another, the grid's threads together.
DEVICE void copy_values(const f32* from, f32* to, i64 values) {
    const i64 first = (i64) blockIdx.x * LINK_BLOCK + (i64) threadIdx.x;
    const i64 step = (i64) gridDim.x * LINK_BLOCK;
    const i64 quads = values / 4;
    for (i64 i = first; i < quads; i += 4 * step) {
        Words4 some[4];
#pragma unroll
        for (i32 k = 0; k < 4; k++) {
            if (i + k * step < quads) some[k] = ((const Words4*) from)[i + k * step];
        }
#pragma unroll
        for (i32 k = 0; k < 4; k++) {
            if (i + k * step < quads) ((Words4*) to)[i + k * step] = some[k];
        }
    }
    const i64 rest = 4 * quads + first;
    if (rest < values) to[rest] = from[rest];
}

// Puts rows into a slot, then says so: the last block to end writes the sequence number. `arrived` is 0 before and after.
extern "C" __global__ void __launch_bounds__(LINK_BLOCK)
post_rows(const f32* rows, const u32* turn, u8* ring, i64 slot_bytes, const u32* fault, u32* arrived, i64 values) {
    wait_for_previous();
    let_next_start();
    const u32 sequence = turn[1], found = *fault;
    u8* slot = ring + (i64) turn[0] * slot_bytes;
    copy_values(rows, (f32*) (slot + HEADER_BYTES), values);
    __syncthreads();
    if (threadIdx.x != 0) return;
    fence_system();  // of the whole block's values: the barrier came before
    if (count_around(arrived, gridDim.x - 1) != gridDim.x - 1) return;
    fence_system();  // of the other blocks' values: their counts came before
    u32* header = (u32*) slot;
    header[FAULT] = found;
    store_release_system(header + SEQUENCE, sequence);
}

// Waits for the sequence number, until `limit_ns` have passed or the word `ended` is set, which lies in the host's memory.
DEVICE u32 await_sequence(const u32* word, u32 sequence, const u32* ended, i64 start_ns, i64 limit_ns) {
    for (;;) {
        for (i32 look = 0; look < LOOKS; look++) {
            if (load_acquire_system(word) == sequence) return ARRIVED;
            pause_shortly();
        }
        if (load_acquire_system(ended) != 0) return ENDED;
        if (clock_ns() - start_ns > limit_ns) return LATE;
    }
}

// The same in a block that leaves clock and host to the first one: what ends that wait is its fault word.
DEVICE u32 await_behind(const u32* word, u32 sequence, const u32* fault) {
    for (;;) {
        for (i32 look = 0; look < LOOKS; look++) {
            if (load_acquire_system(word) == sequence) return ARRIVED;
            pause_shortly();
        }
        const u32 found = load_acquire_system(fault);
        if (found >= LATE) return found;
    }
}

// Takes rows out of a slot once they are there; rows that do not come are zeros. The fault word, which is 0 before, becomes
// that of the rows, or says why there are none. Of what was waited, `waited_ns` gets the nanoseconds. Where `gate` is given,
// the first block alone looks at the slot, whose words are far, and opens the gate to the others.
extern "C" __global__ void __launch_bounds__(LINK_BLOCK)
await_rows(f32* rows, const u32* turn, const u8* ring, i64 slot_bytes, u32* fault, u32* gate, const u32* ended,
           u32* waited_ns, i64 limit_ns, i64 values) {
    __shared__ u32 outcome;
    wait_for_previous();
    let_next_start();
    const u32 sequence = turn[1];
    const u8* slot = ring + (i64) turn[0] * slot_bytes;
    const u32* header = (const u32*) slot;
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        const i64 start_ns = clock_ns();
        outcome = await_sequence(header + SEQUENCE, sequence, ended, start_ns, limit_ns);
        if (outcome == ARRIVED && gate != nullptr) store_release_system(gate, sequence);
        const u32 found = outcome == ARRIVED ? load_acquire_system(header + FAULT) : outcome;
        if (found != 0) set_once(fault, found);
        const i64 ns = clock_ns() - start_ns;
        *waited_ns = ns < 0xffffffff ? (u32) ns : 0xffffffffu;
    } else if (threadIdx.x == 0) {
        outcome = await_behind(gate != nullptr ? gate : header + SEQUENCE, sequence, fault);
    }
    __syncthreads();
    if (outcome == ARRIVED) {
        copy_values((const f32*) (slot + HEADER_BYTES), rows, values);
        return;
    }
    for (i64 i = (i64) blockIdx.x * LINK_BLOCK + (i64) threadIdx.x; i < values; i += (i64) gridDim.x * LINK_BLOCK) {
        rows[i] = 0.0f;
    }
}
