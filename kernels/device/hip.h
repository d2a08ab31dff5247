// hip.h: CUDA's names and those of vendor.h for AMD cards, over clang's builtins: no HIP header, no device library.
//
// Invariants: it defines every name that vendor.h defines for CUDA, with the same bits; WARP is 32 on every card. Where a
// wave has 64 lanes, two warps share it: a lane gives and takes values only inside its own half, so the other half may
// have returned or stand in another branch, where reading its lanes would give 0. Nothing here waits for the other half
// but `__syncthreads`, which counts waves: kernels reach it as whole blocks, or have left.
// hiprtc puts HIP's own headers before every source, clang alone does not: what these define too has a name of its own
// here, which a macro puts in the place of theirs.
// Does not know: ops, formats. Source: the AMDGPU sections of LLVM's and clang's manuals.
#pragma once
#include "device/types.h"

#undef __launch_bounds__
#undef __forceinline__
#define __syncthreads hip_block_barrier
#define fmaf hip_fma
#define sqrtf hip_root
#define fmaxf hip_larger

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
// Blocks a multiprocessor, the second number of a bound, are left to the compiler.
#define __launch_bounds__(...) HIP_FIRST_BOUND(__VA_ARGS__, 0)
#define HIP_FIRST_BOUND(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define DEVICE __device__ __forceinline__
#define DYNAMIC_SHARED(T, name) extern __shared__ __attribute__((aligned(16))) u8 name##_bytes[]; T* const name = (T*) name##_bytes

// ---- places

struct HipPlace {
    u32 x, y, z;
};

DEVICE HipPlace hip_thread() {
    return {__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z()};
}
DEVICE HipPlace hip_block() {
    return {__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()};
}
DEVICE HipPlace hip_block_size() {
    return {__builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(), __builtin_amdgcn_workgroup_size_z()};
}
// The builtins give work items; a launch has whole blocks.
DEVICE HipPlace hip_grid() {
    const HipPlace block = hip_block_size();
    return {__builtin_amdgcn_grid_size_x() / block.x, __builtin_amdgcn_grid_size_y() / block.y,
            __builtin_amdgcn_grid_size_z() / block.z};
}

#define threadIdx (hip_thread())
#define blockIdx (hip_block())
#define blockDim (hip_block_size())
#define gridDim (hip_grid())

constexpr i32 WARP = 32;
constexpr i32 LINE_BYTES = 128;
constexpr bool MORE_REGISTERS = false;
constexpr i32 SHARED_BYTES_MAX = 64 * 1024;

// ---- lanes

DEVICE void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// The lanes of a wave that are in one branch go in step, and its accesses to shared memory are served in order: what is
// left to forbid is that the compiler moves one over this place.
DEVICE void warp_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

// The place of this lane in its wave: 0 .. 31 or 0 .. 63.
DEVICE u32 hip_wave_lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }

// The value of lane `source` of the wave, which is active.
template <class T> DEVICE T hip_from(T v, u32 source) {
    static_assert(sizeof(T) % 4 == 0, "lanes exchange words");
    struct Pieces {
        i32 word[sizeof(T) / 4];
    };
    Pieces pieces = __builtin_bit_cast(Pieces, v);
#pragma unroll
    for (u32 i = 0; i < sizeof(T) / 4; i++)
        pieces.word[i] = __builtin_amdgcn_ds_bpermute((i32) (source << 2), pieces.word[i]);
    return __builtin_bit_cast(T, pieces);
}

template <class T> DEVICE T shuffle(T v, i32 lane) {
    return hip_from(v, (hip_wave_lane() & ~(u32) (WARP - 1)) | ((u32) lane & (WARP - 1)));
}
template <class T> DEVICE T shuffle_xor(T v, i32 bits) { return hip_from(v, hip_wave_lane() ^ (u32) bits); }
template <class T> DEVICE T shuffle_down(T v, i32 distance) {
    const u32 own = hip_wave_lane();
    return hip_from(v, (own & (WARP - 1)) + (u32) distance < WARP ? own + (u32) distance : own);
}

DEVICE u32 warp_largest(u32 v) {
    for (i32 bit = WARP / 2; bit > 0; bit /= 2) {
        const u32 other = shuffle_xor(v, bit);
        v = other > v ? other : v;
    }
    return v;
}

DEVICE u32 lanes_where(bool condition) {
    return (u32) (__builtin_amdgcn_ballot_w64(condition) >> (hip_wave_lane() & WARP));
}
DEVICE bool warp_any(bool own) { return lanes_where(own) != 0; }

// ---- numbers

DEVICE f32 fmaf(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
DEVICE f32 sqrtf(f32 v) { return __builtin_sqrtf(v); }
DEVICE f32 fmaxf(f32 a, f32 b) { return __builtin_fmaxf(a, b); }

DEVICE u32 f32_bits(f32 v) { return __builtin_bit_cast(u32, v); }
DEVICE f32 bits_f32(u32 v) { return __builtin_bit_cast(f32, v); }
DEVICE f32 f16_f32(u16 v) { return (f32) __builtin_bit_cast(_Float16, v); }
DEVICE u16 f32_f16(f32 v) { return __builtin_bit_cast(u16, (_Float16) v); }
DEVICE u32 f32_f16x2(f32 low, f32 high) { return (u32) f32_f16(low) | (u32) f32_f16(high) << 16; }
DEVICE i32 count_bits(u32 bits) { return __builtin_popcount(bits); }
DEVICE i32 f32_i32_even(f32 v) { return (i32) __builtin_rintf(v); }

DEVICE i32 dp4a(u32 a, u32 b, i32 c) {
#if __gfx906__ || __gfx908__ || __gfx90a__ || __gfx942__ || __gfx1011__ || __gfx1012__ || __gfx1030__ || __gfx1031__ || \
    __gfx1032__ || __gfx1033__ || __gfx1034__ || __gfx1035__ || __gfx1036__
    return __builtin_amdgcn_sdot4((i32) a, (i32) b, c, false);
#elif __GFX11__ || __GFX12__
    return __builtin_amdgcn_sudot4(true, (i32) a, true, (i32) b, c, false);
#else  // the cards before have no such instruction
#pragma unroll
    for (i32 shift = 0; shift < 32; shift += 8) c += (i32) (i8) (a >> shift) * (i32) (i8) (b >> shift);
    return c;
#endif
}

// v_perm_b32 takes a byte for each nibble, and counts the bytes of its second word first.
DEVICE u32 byte_permute(u32 a, u32 b, u32 selector) {
    const u32 pairs = (selector | selector << 8) & 0x00ff00ffu;
    return __builtin_amdgcn_perm(b, a, (pairs | pairs << 4) & 0x07070707u);
}

DEVICE i32 hidden(i32 v) {
    asm volatile("" : "+v"(v));
    return v;
}

// ---- memory

// There is no such instruction before gfx12.
DEVICE void prefetch(const void*) {}

// The kernels of a stream do not overlap.
DEVICE void wait_for_previous() {}
DEVICE void let_next_start() {}

DEVICE u32 load_fresh(const u32* place) { return *place; }
DEVICE void add_one(u32* place) {
    __hip_atomic_fetch_add(place, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
DEVICE u32 count_around(u32* place, u32 limit) {
    return __builtin_amdgcn_atomic_inc32(place, limit, __ATOMIC_RELAXED, "agent");
}
DEVICE void set_once(u32* place, u32 value) {
    u32 zero = 0;
    __hip_atomic_compare_exchange_strong(place, &zero, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                         __HIP_MEMORY_SCOPE_AGENT);
}


// ---- other cards and the host

DEVICE void fence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }
DEVICE u32 load_acquire_system(const u32* place) {
    return __hip_atomic_load((u32*) place, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
DEVICE void store_release_system(u32* place, u32 value) {
    __hip_atomic_store(place, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}

// Nanoseconds of a tick of the clock that does not change with the card's: 25 MHz on gfx906, 100 MHz on later cards.
#if __gfx906__
constexpr i64 HIP_TICK_NS = 40;
#else
constexpr i64 HIP_TICK_NS = 10;
#endif
DEVICE i64 clock_ns() {
#if __GFX11__ || __GFX12__
    constexpr u32 REALTIME = 0x83;
    return (i64) __builtin_amdgcn_s_sendmsg_rtnl(REALTIME) * HIP_TICK_NS;
#else
    return (i64) __builtin_amdgcn_s_memrealtime() * HIP_TICK_NS;
#endif
}
DEVICE void pause_shortly() { __builtin_amdgcn_s_sleep(1); }

// ---- products of small matrices, by exchanges between lanes

DEVICE void load_pieces(const void* row, u32 (&to)[4]) {
    const i32 lane = (i32) threadIdx.x % WARP;
#pragma unroll
    for (i32 m = 0; m < 4; m++) to[m] = ((const u32*) shuffle((u64) row, 8 * m + lane / 4))[lane % 4];
}
DEVICE void load_pieces_turned(const void* row, u32 (&to)[4]) {
    const i32 lane = (i32) threadIdx.x % WARP;
#pragma unroll
    for (i32 m = 0; m < 4; m++) {
        const i32 first = 8 * m + lane % 4 * 2;
        const u16* one = (const u16*) shuffle((u64) row, first);
        const u16* other = (const u16*) shuffle((u64) row, first + 1);
        to[m] = (u32) one[lane / 4] | (u32) other[lane / 4] << 16;
    }
}

DEVICE f32 hip_half(u32 pair, i32 which) { return f16_f32((u16) (pair >> (16 * which))); }

// Sums in rising depth.
DEVICE void mma_f16(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const i32 lane = (i32) threadIdx.x % WARP, row = lane / 4, column = lane % 4 * 2;
    const u64 left[2] = {(u64) a[1] << 32 | a[0], (u64) a[3] << 32 | a[2]};
    const u32 right[2] = {b0, b1};
#pragma unroll
    for (i32 half = 0; half < 2; half++) {
#pragma unroll 1
        for (i32 t = 0; t < 4; t++) {
            const u64 rows = shuffle(left[half], 4 * row + t);
            const u32 first = shuffle(right[half], 4 * column + t), second = shuffle(right[half], 4 * column + 4 + t);
#pragma unroll
            for (i32 k = 0; k < 2; k++) {
                const f32 upper = hip_half((u32) rows, k), lower = hip_half((u32) (rows >> 32), k);
                c[0] = fmaf(upper, hip_half(first, k), c[0]);
                c[1] = fmaf(upper, hip_half(second, k), c[1]);
                c[2] = fmaf(lower, hip_half(first, k), c[2]);
                c[3] = fmaf(lower, hip_half(second, k), c[3]);
            }
        }
    }
}
DEVICE void mma_f16_first(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    c[0] = c[1] = c[2] = c[3] = 0.0f;
    mma_f16(c, a, b0, b1);
}
