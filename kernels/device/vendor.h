// vendor.h: what differs between NVIDIA's compiler, that for AMD cards and the build for the host, under one name each.
//
// Invariants: outside this folder no file of kernels has an `#if`; every function gives the same bits in each build; a name
// that all builds know as CUDA spells it (`__global__`, `threadIdx`, `fmaf`, `sqrtf`, `__syncthreads`) is used as it is.
// Includes of all kernels are named from `kernels/` (`#include "device/vendor.h"`), as a run-time compiler wants them.
// Does not know: formats, ops.
#pragma once
#include "device/types.h"

#if TANDEM_EMU

// The host build defines there every name of the section below, over one fiber a thread.
#include "../emu/shim.h"

#elif __HIP__

#include "device/hip.h"

#else  // CUDA, run-time compiled with --fmad=false

#define DEVICE __device__ __forceinline__

// Bytes that a prefetch brings nearer.
constexpr i32 LINE_BYTES = 128;

// Shared memory whose size the launch gives: `DYNAMIC_SHARED(f32, scores);`. One a kernel.
#define DYNAMIC_SHARED(T, name) extern __shared__ __align__(16) u8 name##_bytes[]; T* const name = (T*) name##_bytes

// Shared memory that a block can have on every card of a generation.
#if __CUDA_ARCH__ >= 800
constexpr i32 SHARED_BYTES_MAX = 99 * 1024;
#else
constexpr i32 SHARED_BYTES_MAX = 64 * 1024;
#endif

// Whether the compiler needs more registers for a source than for most architectures.
#if __CUDA_ARCH__ < 860 || __CUDA_ARCH__ >= 1000
constexpr bool MORE_REGISTERS = true;
#else
constexpr bool MORE_REGISTERS = false;
#endif

// Threads that exchange values by shuffles. Kernels hold their shapes to this width.
constexpr i32 WARP = 32;

// The value of another lane; all lanes of the warp take part.
template <class T> DEVICE T shuffle(T v, i32 lane) { return __shfl_sync(0xffffffffu, v, lane); }
template <class T> DEVICE T shuffle_xor(T v, i32 bits) { return __shfl_xor_sync(0xffffffffu, v, bits); }
// The value of lane + distance; the last lanes get their own.
template <class T> DEVICE T shuffle_down(T v, i32 distance) { return __shfl_down_sync(0xffffffffu, v, distance); }

// A bit for each lane of the warp whose condition holds.
DEVICE u32 lanes_where(bool condition) { return __ballot_sync(0xffffffffu, condition); }

// Bits that are 1.
DEVICE i32 count_bits(u32 bits) { return __popc(bits); }
// The largest value of the warp, for every lane.
DEVICE u32 warp_largest(u32 v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, v);
#else
    for (i32 bit = WARP / 2; bit > 0; bit /= 2) {
        const u32 other = shuffle_xor(v, bit);
        v = other > v ? other : v;
    }
    return v;
#endif
}

// All lanes of the warp arrive, and see what the others wrote to shared memory before.
DEVICE void warp_barrier() { __syncwarp(0xffffffffu); }

// c + the dot product of four signed bytes.
DEVICE i32 dp4a(u32 a, u32 b, i32 c) { return __dp4a((i32) a, (i32) b, c); }

// Four bytes chosen from the eight of (b, a): nibble i of `selector`, 0..7, says which is byte i.
DEVICE u32 byte_permute(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }

DEVICE u32 f32_bits(f32 v) { return __float_as_uint(v); }
DEVICE f32 bits_f32(u32 v) { return __uint_as_float(v); }

// binary16 to f32, exact.
DEVICE f32 f16_f32(u16 v) {
    f32 out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(v));
    return out;
}

// f32 to binary16, to nearest even.
DEVICE u16 f32_f16(f32 v) {
    u16 out;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(v));
    return out;
}

// f32 to the nearest integer, ties to even; the value must fit.
DEVICE i32 f32_i32_even(f32 v) { return __float2int_rn(v); }

// The same value, of which the compiler no longer knows where it came from.
DEVICE i32 hidden(i32 v) {
    asm volatile("" : "+r"(v));
    return v;
}

// Asks for the line of `p`, which will be read soon.
DEVICE void prefetch(const void* p) { asm volatile("prefetch.L2 [%0];" : : "l"(p)); }

// Waits until the kernels queued before have ended and what they wrote can be seen. A launch may begin before that (on
// cards of compute capability 9.0 on): a kernel calls this before it reads what a kernel of its batch makes, and before it
// writes. What it may read earlier: weights; keys and values of earlier batches; by `load_fresh`, the batch's block, which
// is whole before any kernel begins but the one behind `take_block`.
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

// Lets the next kernel's blocks begin, up to their own `wait_for_previous`, as soon as multiprocessors have room.
DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

// A word of which an older value may be near, from before the kernel that wrote it.
DEVICE u32 load_fresh(const u32* place) {
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(place) : "memory");
    return value;
}

// Adds 1, whoever else does.
DEVICE void add_one(u32* place) { atomicAdd(place, 1u); }
// Whether any lane of the warp says so, for every lane.
DEVICE bool warp_any(bool own) { return __any_sync(0xffffffffu, own) != 0; }

// Two f32 to binary16, to nearest even; the first is the low half.
DEVICE u32 f32_f16x2(f32 low, f32 high) {
#if __CUDA_ARCH__ >= 800
    u32 out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
#else
    return (u32) f32_f16(low) | (u32) f32_f16(high) << 16;
#endif
}

// Four 8 x 8 pieces of binary16 in shared memory; lane 8 m + r gives the address of row r of piece m, 16 bytes. A lane
// gets values (row lane / 4, columns 2 (lane % 4) and the next) of each piece, or, turned, of each piece's transpose.
DEVICE void load_pieces(const void* row, u32 (&to)[4]) {
    const u32 at = (u32) __cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}
DEVICE void load_pieces_turned(const void* row, u32 (&to)[4]) {
    const u32 at = (u32) __cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

// c += a b on tensor cores: a 16 x 16, b 16 x 8 of binary16, c 16 x 8 of f32. A lane has in `a` the pieces (rows 0-7,
// columns 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15), in b0 and b1 those of b's transpose (columns 0-7, 8-15), in c
// (row lane / 4, columns 2 (lane % 4) and the next), then the same of row 8 + lane / 4. Exact products; the order of the
// sums is the hardware's, the same for every row and column.
DEVICE void mma_f16(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// c = a b.
DEVICE void mma_f16_first(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
#else
    c[0] = c[1] = c[2] = c[3] = 0.0f;
    mma_f16(c, a, b0, b1);
#endif
}

// Writes `value` where 0 stands.
DEVICE void set_once(u32* place, u32 value) { atomicCAS(place, 0u, value); }

// Counts up to `limit`, then begins at 0 again; gives the count before.
DEVICE u32 count_around(u32* place, u32 limit) { return atomicInc(place, limit); }

// What this thread wrote, and what it saw written, is seen by other cards and the host before what it writes from here on.
DEVICE void fence_system() { __threadfence_system(); }

// A word that another card or the host writes; with it comes what was written before it.
DEVICE u32 load_acquire_system(const u32* place) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(place) : "memory");
    return value;
}
DEVICE void store_release_system(u32* place, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(place), "r"(value) : "memory");
}

// Nanoseconds of the card's clock.
DEVICE i64 clock_ns() {
    i64 ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

// Leaves the memory to others for a moment, between two looks at a word.
DEVICE void pause_shortly() { __nanosleep(20); }

#endif
