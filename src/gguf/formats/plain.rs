//! F32, F16, BF16: one value each, no blocks.
//!
//! Invariant: every finite value, infinity and the payload-free NaN convert exactly. Source: gguf section 7.1.

use half::f16;

/// Values of F32.
pub(super) fn f32_values(bytes: &[u8], out: &mut [f32]) {
    for (y, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *y = f32::from_le_bytes(*b);
    }
}

/// Values of F16.
pub(super) fn f16_values(bytes: &[u8], out: &mut [f32]) {
    for (y, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *y = f16::from_le_bytes(*b).to_f32();
    }
}

/// Values of BF16: the upper half of an f32.
pub(super) fn bf16_values(bytes: &[u8], out: &mut [f32]) {
    for (y, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *y = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
    }
}
