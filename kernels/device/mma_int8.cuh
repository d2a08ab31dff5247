// mma_int8.cuh: products of small matrices of signed bytes by a warp, exact in i32.
//
// A fragment is what the lanes of a warp hold of a matrix; lane 4 g + t has
//   a, 16 rows of 32 bytes: bytes 4 t .. 4 t + 3 of row g (a[0]) and row g + 8 (a[1]), the same 16 bytes further (a[2], a[3])
//   b, 8 rows of 32 bytes: bytes 4 t .. 4 t + 3 of row g, and the same 16 bytes further
//   c, 16 rows of 8 sums: row g of a with rows 2 t and 2 t + 1 of b (c[0], c[1]), row g + 8 with the same (c[2], c[3])
// Invariants: sums are those of integers, in any order; every lane of the warp takes part. With vendor.h the only files
// with `#if`. Does not know: formats, tiles.
#pragma once
#include "device/types.h"
#include "device/vendor.h"

#if !TANDEM_EMU && __CUDA_ARCH__ >= 750

// Four matrices of 8 rows of 16 bytes in shared memory: lane i says where row i % 8 of matrix i / 8 is, a multiple of 16;
// lane 4 g + t gets word t of row g of each.
DEVICE void load_matrices(const u8* row, u32 (&out)[4]) {
    const u32 at = (u32) __cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at));
}

#if __CUDA_ARCH__ >= 800

// c += a b over 32 bytes.
DEVICE void mma_int8(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c += a b over 16 bytes: the first or the second words of the fragments.
DEVICE void mma_int8_half(i32 (&c)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

#else

DEVICE void mma_int8_half(i32 (&c)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(c[0]), "+r"(c[1])
        : "r"(a0), "r"(b));
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(c[2]), "+r"(c[3])
        : "r"(a1), "r"(b));
}

DEVICE void mma_int8(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_int8_half(c, a[0], a[1], b0);
    mma_int8_half(c, a[2], a[3], b1);
}

#endif

#else  // by exchanges between lanes

DEVICE void load_matrices(const u8* row, u32 (&out)[4]) {
    const i32 lane = (i32) threadIdx.x % WARP;
#pragma unroll
    for (i32 i = 0; i < 4; i++) out[i] = ((const u32*) shuffle((u64) row, 8 * i + lane / 4))[lane % 4];
}

DEVICE void mma_int8_half(i32 (&c)[4], u32 a0, u32 a1, u32 b) {
    const i32 lane = (i32) threadIdx.x % WARP, row = lane / 4, column = 2 * (lane % 4);
    const u64 rows = (u64) a1 << 32 | a0;
#pragma unroll 1
    for (i32 t = 0; t < 4; t++) {
        const u64 pair = shuffle(rows, 4 * row + t);
        const u32 first = shuffle(b, 4 * column + t), second = shuffle(b, 4 * column + 4 + t);
        c[0] = dp4a((u32) pair, first, c[0]);
        c[1] = dp4a((u32) pair, second, c[1]);
        c[2] = dp4a((u32) (pair >> 32), first, c[2]);
        c[3] = dp4a((u32) (pair >> 32), second, c[3]);
    }
}

DEVICE void mma_int8(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_int8_half(c, a[0], a[1], b0);
    mma_int8_half(c, a[2], a[3], b1);
}

#endif
