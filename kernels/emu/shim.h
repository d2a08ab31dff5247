// shim.h: CUDA's names for kernels that are compiled for the host, over one fiber a thread.
//
// Invariants: it defines every name that device/vendor.h defines for CUDA, with the same bits; kernels see no difference
// but time. Does not know: ops, formats, drivers.
#pragma once
#include <chrono>
#include <cmath>
#include <cstring>
#include <immintrin.h>
#include <sched.h>

#include "device/types.h"
#include "emu/fibers.h"

#define __device__
#define __constant__
#define __forceinline__ inline
// A block never leaves its OS thread.
#define __shared__ static thread_local
#if !TANDEM_EMU_LISTING  // the list of kernels is read from text in which these are still written
#define __global__
#define __launch_bounds__(...)
#endif
#define DEVICE inline
#define DYNAMIC_SHARED(T, name) T* const name = static_cast<T*>(emu::dynamic_shared())

#define threadIdx (emu::thread_index())
#define blockIdx (emu::block_index())
#define blockDim (emu::block_dim())
#define gridDim (emu::grid_dim())

constexpr i32 SHARED_BYTES_MAX = i32(emu::DYNAMIC_BYTES_MAX);
constexpr i32 WARP = i32(emu::WARP_LANES);

inline void __syncthreads() { emu::sync_block(); }

template <class T> T emu_exchange(T value, u32 source, emu::Meeting kind) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a lane gives at most eight bytes");
    uint64_t word = 0;
    memcpy(&word, &value, sizeof value);
    word = emu::exchange(word, source, kind, sizeof value);
    memcpy(&value, &word, sizeof value);
    return value;
}

template <class T> T shuffle(T v, i32 lane) { return emu_exchange(v, u32(lane), emu::Meeting::Shuffle); }
template <class T> T shuffle_xor(T v, i32 bits) {
    return emu_exchange(v, emu::lane() ^ u32(bits), emu::Meeting::ShuffleXor);
}
template <class T> T shuffle_down(T v, i32 distance) {
    const u32 own = emu::lane(), source = own + u32(distance);
    return emu_exchange(v, source < u32(WARP) ? source : own, emu::Meeting::ShuffleDown);
}
inline u32 lanes_where(bool condition) {
    u32 bits = u32(condition) << emu::lane();
    for (i32 lanes = 1; lanes < WARP; lanes *= 2) bits |= shuffle_xor(bits, lanes);
    return bits;
}
inline i32 count_bits(u32 bits) { return __builtin_popcount(bits); }
inline u32 warp_largest(u32 v) {
    for (i32 bit = WARP / 2; bit > 0; bit /= 2) {
        const u32 other = shuffle_xor(v, bit);
        v = other > v ? other : v;
    }
    return v;
}
inline void warp_barrier() { emu_exchange(0, 0, emu::Meeting::Barrier); }

inline i32 dp4a(u32 a, u32 b, i32 c) {
    for (i32 shift = 0; shift < 32; shift += 8) c += i32(i8(a >> shift)) * i32(i8(b >> shift));
    return c;
}

inline u32 byte_permute(u32 a, u32 b, u32 selector) {
    const u64 bytes = u64(b) << 32 | a;
    u32 out = 0;
    for (u32 i = 0; i < 4; i++) out |= u32(u8(bytes >> 8 * (selector >> 4 * i & 7))) << 8 * i;
    return out;
}

inline u32 f32_bits(f32 v) {
    u32 bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}
inline f32 bits_f32(u32 v) {
    f32 value;
    memcpy(&value, &v, sizeof value);
    return value;
}
inline f32 f16_f32(u16 v) { return _cvtsh_ss(v); }
inline u16 f32_f16(f32 v) { return _cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline i32 f32_i32_even(f32 v) { return _mm_cvtss_si32(_mm_set_ss(v)); }

// Each lane shows the others where it keeps its operands, while all of them wait inside `use`.
template <class T, class F> void emu_show(const T* own, F use) {
    static thread_local const void* shown[emu::BLOCK_THREADS_MAX];
    const u32 thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    shown[thread] = own;
    warp_barrier();
    const void* const* lanes = shown + thread / u32(WARP) * u32(WARP);
    use([lanes](u32 lane) { return static_cast<const T*>(lanes[lane]); });
    warp_barrier();
}

inline bool warp_any(bool own) {
    bool any = false;
    emu_show(&own, [&](auto of) {
        for (u32 lane = 0; lane < u32(WARP); lane++) any = any || *of(lane);
    });
    return any;
}

inline u32 f32_f16x2(f32 low, f32 high) { return u32(f32_f16(low)) | u32(f32_f16(high)) << 16; }

inline i32 hidden(i32 v) { return v; }

inline void load_pieces(const void* row, u32 (&to)[4]) {
    const u32 own = emu::lane();
    emu_show(static_cast<const u32*>(row), [&](auto of) {
        for (u32 m = 0; m < 4; m++) to[m] = of(8 * m + own / 4)[own % 4];
    });
}
inline void load_pieces_turned(const void* row, u32 (&to)[4]) {
    const u32 own = emu::lane();
    emu_show(static_cast<const u16*>(row), [&](auto of) {
        for (u32 m = 0; m < 4; m++) {
            const u32 first = 8 * m + own % 4 * 2;
            to[m] = u32(of(first)[own / 4]) | u32(of(first + 1)[own / 4]) << 16;
        }
    });
}

// One order of sums among those that hardware may have: rising depth.
inline void mma_f16(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    struct Operands {
        u32 a[4];
        u32 b[2];
    } const mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const u32 own = emu::lane();
    const auto half = [](u32 pair, u32 which) { return f16_f32(u16(pair >> 16 * which)); };
    emu_show(&mine, [&](auto of) {
        for (u32 i = 0; i < 4; i++) {
            const u32 row = own / 4, column = own % 4 * 2 + i % 2;
            for (u32 k = 0; k < 16; k++) {
                const u32 left = of(4 * row + k % 8 / 2)->a[k / 8 * 2 + i / 2], right = of(4 * column + k % 8 / 2)->b[k / 8];
                c[i] = fmaf(half(left, k % 2), half(right, k % 2), c[i]);
            }
        }
    });
}

inline void mma_f16_first(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    for (f32& value : c) value = 0.0f;
    mma_f16(c, a, b0, b1);
}

constexpr i32 LINE_BYTES = 128;
constexpr bool MORE_REGISTERS = false;
inline void prefetch(const void*) {}

// A stream of the host runs its kernels one after another; who was to wait and did not is told, and with kernels_emu.sh
// --reads also who reads early what a kernel that may still run wrote.
inline void wait_for_previous() { emu::note_wait(); }
inline void let_next_start() { emu::note_let(); }

inline u32 load_fresh(const u32* place) { return *place; }
inline void add_one(u32* place) { __atomic_fetch_add(place, 1u, __ATOMIC_RELAXED); }

inline void set_once(u32* place, u32 value) {
    u32 zero = 0;
    __atomic_compare_exchange_n(place, &zero, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

inline u32 count_around(u32* place, u32 limit) {
    u32 before = __atomic_load_n(place, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(place, &before, before >= limit ? 0 : before + 1, true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED)) {
    }
    return before;
}

inline void fence_system() {
    emu::note_fence();
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline u32 load_acquire_system(const u32* place) { return __atomic_load_n(place, __ATOMIC_ACQUIRE); }
inline void store_release_system(u32* place, u32 value) { __atomic_store_n(place, value, __ATOMIC_RELEASE); }

inline i64 clock_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A block that waits keeps its OS thread; what it waits for runs on another.
inline void pause_shortly() { sched_yield(); }
