//! Fields of a block: little-endian numbers and byte runs at fixed places.
//!
//! Invariant: places are constants of a layout, so a wrong one fails the first test that decodes a block.
//! Does not know: any layout.

use half::f16;

/// `N` bytes from byte `at`.
#[inline(always)]
pub(super) fn run<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("invariant: the field lies inside its block")
}

/// A u16.
#[inline(always)]
pub(super) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*run(block, at))
}

/// A u32.
#[inline(always)]
pub(super) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*run(block, at))
}

/// A binary16, exact in f32.
#[inline(always)]
pub(super) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_bits(u16_at(block, at)).to_f32()
}
