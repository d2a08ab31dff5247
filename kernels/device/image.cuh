// Activation images: a block of values as signed 8-bit codes with one f32 scale, and the check of rule 6.
//
// Invariants: the scale is amax / 127 and stays f32; codes lie in -127 .. 127; a block below 2^-120 is all zeros.
// Does not know: rows, weights. Source: docs/numerics.md, Activation images.
// twin: src/device/cpu/plain/image.rs.
#pragma once
#include "device/vendor.h"

// Values of a block of an A32 image, and of a q8_0 block of keys and values.
constexpr i32 A32_VALUES = 32;
// Values of a block of an A256 image.
constexpr i32 A256_VALUES = 256;

// |x| as an integer. Among these integers the order is that of the values, and what is not finite lies above all that
// is, so one maximum finds both amax and the fault.
DEVICE u32 magnitude(f32 x) { return f32_bits(x) & 0x7fffffffu; }
DEVICE bool is_finite(u32 magnitude) { return magnitude < 0x7f800000u; }

// An integer that rises with x (-0 before +0), and back.
DEVICE u32 rising(f32 x) { return (f32_bits(x) >> 31) != 0 ? ~f32_bits(x) : f32_bits(x) | 0x80000000u; }
DEVICE f32 from_rising(u32 r) { return bits_f32((r >> 31) != 0 ? r & 0x7fffffffu : ~r); }

// Notes that a value is not finite; the first to note wins.
DEVICE void report_fault(u32* fault, u32 fault_id) { set_once(fault, fault_id); }

// What a block's largest absolute value decides: its scale, and what turns its values into codes. Both are 0 for a
// block of zeros.
struct ImageScale {
    f32 scale;
    f32 per_unit;
};

// x / 127 for x from 2^-120 on: a quotient of the reciprocal, then its remainder, gives the rounded quotient for every
// significand; where what it gives might be denormal, the division itself does.
DEVICE f32 per_127(f32 x) {
    if (x < 0x1p-100f) return x / 127.0f;
    const f32 reciprocal = 1.0f / 127.0f;
    const f32 quotient = x * reciprocal;
    return fmaf(fmaf(-127.0f, quotient, x), reciprocal, quotient);
}

// A block that is not finite becomes zeros; its caller reports the fault.
DEVICE ImageScale image_scale(u32 largest_magnitude) {
    const f32 amax = bits_f32(largest_magnitude);
    if (!is_finite(largest_magnitude) || amax < 0x1p-120f) return ImageScale{0.0f, 0.0f};
    return ImageScale{per_127(amax), 127.0f / amax};
}

DEVICE i32 image_code(f32 x, ImageScale scale) {
    return scale.per_unit == 0.0f ? 0 : f32_i32_even(x * scale.per_unit);
}
