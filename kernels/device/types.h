// types.h: the names of numbers in kernels.
//
// Invariant: the sizes asserted below, on every compiler; no system header is read, since run-time compilers find none.
// Does not know: vendors, kernels.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;

static_assert(sizeof(u8) == 1 && sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "integers");
static_assert(sizeof(f32) == 4 && sizeof(void*) == 8, "floats and pointers");

// N words that one load moves: 1, 2 or 4. The address is a multiple of their bytes.
template <i32 N>
struct alignas(4 * N) Words {
    u32 word[N];
};
typedef Words<2> Words2;
typedef Words<4> Words4;
