//! Reading stored rows as f32 vectors: f32, f16, bf16 and q8_0, one row after another.
//!
//! Invariants: a value reads back exactly (q8_0: scale times code, rounded once, as in `plain::stored`); any
//! alignment. Does not know: what the rows are (weights, keys, values).

#![allow(unsafe_code, reason = "loads at computed places inside rows")]

use super::vector::{SUM_LANES, Vector};
use crate::device::cpu::plain::stored::Q8_0_BLOCK_BYTES;

/// A form in which rows are kept. Rows follow each other without gaps, so values are numbered through all of them.
pub(super) trait Stored {
    /// `LANES` values from number `index` on, a multiple of `LANES`.
    ///
    /// # Safety
    /// These values lie inside the rows that start at `rows`.
    unsafe fn load<V: Vector>(w: V::Witness, rows: *const u8, index: usize) -> V;
}

/// 4 bytes a value.
pub(super) struct F32;

/// 2 bytes a value.
pub(super) struct F16;

/// 2 bytes a value, the upper half of an f32.
pub(super) struct Bf16;

/// 34 bytes for 32 values.
pub(super) struct Q8;

#[allow(clippy::inline_always, reason = "part of a kernel's inner loop")]
impl Stored for F32 {
    #[inline(always)]
    unsafe fn load<V: Vector>(w: V::Witness, rows: *const u8, index: usize) -> V {
        // SAFETY: the caller answers for the place.
        unsafe { V::load_at(w, rows.cast::<f32>().add(index)) }
    }
}

#[allow(clippy::inline_always, reason = "part of a kernel's inner loop")]
impl Stored for F16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(w: V::Witness, rows: *const u8, index: usize) -> V {
        // SAFETY: the caller answers for the place.
        unsafe { V::load_f16_at(w, rows.cast::<u16>().add(index)) }
    }
}

#[allow(clippy::inline_always, reason = "part of a kernel's inner loop")]
impl Stored for Bf16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(w: V::Witness, rows: *const u8, index: usize) -> V {
        // SAFETY: the caller answers for the place.
        unsafe { V::load_bf16_at(w, rows.cast::<u16>().add(index)) }
    }
}

#[allow(clippy::inline_always, reason = "part of a kernel's inner loop")]
impl Stored for Q8 {
    #[inline(always)]
    unsafe fn load<V: Vector>(w: V::Witness, rows: *const u8, index: usize) -> V {
        // SAFETY: the caller answers for the place; a vector never leaves its block, since `LANES` divides 32 and
        // `index`. A block starts with its scale.
        unsafe {
            let block = rows.add(index / SUM_LANES * Q8_0_BLOCK_BYTES);
            let codes = V::load_i8_at(w, block.add(2 + index % SUM_LANES).cast());
            codes.mul(V::splat_f16_at(w, block.cast()))
        }
    }
}
