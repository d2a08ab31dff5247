// plain.cuh: F32, F16, BF16: one value each, no blocks.
//
// Invariant: every finite value and infinity converts exactly. A row's address is a multiple of a value's bytes.
// Twin: src/gguf/formats/plain.rs.
#pragma once
#include "device/types.h"
#include "device/vendor.h"

struct F32 {
    static constexpr i32 BYTES = 4;
    static DEVICE f32 value(const u8* row, i32 i) { return ((const f32*) row)[i]; }
};

struct F16 {
    static constexpr i32 BYTES = 2;
    static DEVICE f32 value(const u8* row, i32 i) { return f16_f32(((const u16*) row)[i]); }
};

struct BF16 {
    static constexpr i32 BYTES = 2;
    static DEVICE f32 value(const u8* row, i32 i) { return bits_f32((u32) ((const u16*) row)[i] << 16); }
};
