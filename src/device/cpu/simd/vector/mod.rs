//! One f32 vector type for each instruction tier, so that a kernel is written once.
//!
//! Invariants: every operation is the IEEE one of its lanes, in any tier; a vector holds its tier's witness, so its
//! methods are safe to call. They are inlined into [`run`]'s two functions, which are compiled for the tier.
//! Does not know: orders of sums, ops. Source: `docs/numerics.md`, Ground rules.

#![allow(unsafe_code, reason = "the fence around the vector instructions of float kernels")]

/// An expression of vector instructions, where a vector or a witness of their tier is at hand.
#[cfg(target_arch = "x86_64")]
macro_rules! by_witness {
    ($e:expr) => {
        // SAFETY: the instructions need a CPU feature only, and a witness of the tier is among the arguments (a vector
        // holds one), so `detect` saw the feature.
        unsafe { $e }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::tier::Tier;
#[cfg(target_arch = "x86_64")]
use super::tier::{Avx2, Avx512};
#[cfg(target_arch = "x86_64")]
pub use avx2::F32x8;
#[cfg(target_arch = "x86_64")]
pub use avx512::F32x16;

/// The lanes of every dot product with float operands.
pub const SUM_LANES: usize = 32;

/// A vector of f32 with the instructions of one tier.
#[allow(
    clippy::inline_always,
    reason = "the instructions must end up inside the functions compiled for the tier"
)]
pub trait Vector: Copy {
    /// Who says that this CPU has the instructions.
    type Witness: Copy;
    /// Values in a vector: 8 or 16.
    const LANES: usize;
    /// Vectors that hold `lanes(32)`.
    const PARTS: usize = SUM_LANES / Self::LANES;

    /// The same value in all lanes.
    fn splat(witness: Self::Witness, value: f32) -> Self;
    /// The first values of a slice, which holds at least `LANES`.
    #[inline(always)]
    fn load(witness: Self::Witness, from: &[f32]) -> Self {
        assert!(from.len() >= Self::LANES, "a vector has {} values", Self::LANES);
        // SAFETY: the slice holds a vector, as the line above says.
        unsafe { Self::load_at(witness, from.as_ptr()) }
    }
    /// The first values of a slice; lanes beyond it are +0.
    #[inline(always)]
    fn load_first(witness: Self::Witness, from: &[f32]) -> Self {
        if from.len() < Self::LANES { Self::load_masked(witness, from) } else { Self::load(witness, from) }
    }
    /// The values of a slice of fewer than `LANES`; the other lanes are +0.
    fn load_masked(witness: Self::Witness, from: &[f32]) -> Self;
    /// The values at an address.
    ///
    /// # Safety
    /// `from` is valid for reading `LANES` values; any alignment.
    unsafe fn load_at(witness: Self::Witness, from: *const f32) -> Self;
    /// The f16 values at an address.
    ///
    /// # Safety
    /// `from` is valid for reading `LANES` values; any alignment.
    unsafe fn load_f16_at(witness: Self::Witness, from: *const u16) -> Self;
    /// The bf16 values at an address.
    ///
    /// # Safety
    /// `from` is valid for reading `LANES` values; any alignment.
    unsafe fn load_bf16_at(witness: Self::Witness, from: *const u16) -> Self;
    /// The signed bytes at an address.
    ///
    /// # Safety
    /// `from` is valid for reading `LANES` values.
    unsafe fn load_i8_at(witness: Self::Witness, from: *const i8) -> Self;
    /// The f16 value at an address, in all lanes.
    ///
    /// # Safety
    /// `from` is valid for reading two bytes; any alignment.
    unsafe fn splat_f16_at(witness: Self::Witness, from: *const u16) -> Self;
    /// Writes all lanes to the start of a slice, which holds at least `LANES`.
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        assert!(to.len() >= Self::LANES, "a vector has {} values", Self::LANES);
        // SAFETY: the slice holds a vector, as the line above says.
        unsafe { self.store_at(to.as_mut_ptr()) }
    }
    /// Writes as many lanes as the slice has values, at most `LANES`.
    #[inline(always)]
    fn store_first(self, to: &mut [f32]) {
        if to.len() < Self::LANES { self.store_masked(to) } else { self.store(to) }
    }
    /// Writes as many lanes as the slice has values, fewer than `LANES`.
    fn store_masked(self, to: &mut [f32]);
    /// Writes all lanes.
    ///
    /// # Safety
    /// `to` is valid for writing `LANES` values; any alignment.
    unsafe fn store_at(self, to: *mut f32);
    /// Writes all lanes rounded to f16, nearest even.
    fn store_f16(self, to: &mut [u16]);
    /// Writes all lanes as signed bytes; they are whole and within -128 ..= 127.
    fn store_i8(self, to: &mut [u8]);

    /// Sum.
    fn add(self, other: Self) -> Self;
    /// Difference.
    fn sub(self, other: Self) -> Self;
    /// Product.
    fn mul(self, other: Self) -> Self;
    /// Quotient, correctly rounded.
    fn div(self, other: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `c - self * b`, rounded once.
    fn fnma(self, b: Self, c: Self) -> Self;
    /// `self > other ? self : other`: `other` where one is no number.
    fn max(self, other: Self) -> Self;
    /// `self < other ? self : other`: `other` where one is no number.
    fn min(self, other: Self) -> Self;
    /// `self < limit ? yes : no`, lane by lane; false for NaN.
    fn where_less(self, limit: Self, yes: Self, no: Self) -> Self;
    /// `self` in the first `count` lanes, `other` in the rest.
    fn first(self, count: usize, other: Self) -> Self;
    /// Nearest whole number, ties to even.
    fn round(self) -> Self;
    /// Neighbours exchanged: lanes 1, 0, 3, 2, ...
    fn swap_pairs(self) -> Self;
    /// The sign bit flipped.
    fn neg(self) -> Self;
    /// The sign bit cleared.
    fn abs(self) -> Self;
    /// The bits shifted left by 22.
    fn bits_shl_22(self) -> Self;
    /// The bits shifted left by 23.
    fn bits_shl_23(self) -> Self;
    /// Bitwise and.
    fn bits_and(self, other: Self) -> Self;
    /// Integer sum of the bits, modulo 2^32.
    fn bits_add(self, other: Self) -> Self;
    /// Integer difference of the bits, modulo 2^32.
    fn bits_sub(self, other: Self) -> Self;

    /// One step of a transposition: pairs the lanes of `a` and `b` whose numbers differ in the bit `STEP`. The first
    /// result takes the lanes with the bit clear (those of `b` move up by `STEP`), the second those with it set.
    fn exchange<const STEP: usize>(a: Self, b: Self) -> (Self, Self);
    /// The halving tree over all lanes.
    fn tree(self) -> f32;
    /// The largest lane.
    fn largest(self) -> f32;
}

/// Something that is computed with the vectors of a tier.
pub trait Kernel {
    /// What comes out.
    type Output;
    /// The twin without vectors.
    fn plain(self) -> Self::Output;
    /// The same bits with vectors; implementations are `#[inline(always)]`.
    fn vectors<V: Vector>(self, witness: V::Witness) -> Self::Output;
}

/// Runs a kernel with the tier's vectors.
pub fn run<K: Kernel>(tier: Tier, kernel: K) -> K::Output {
    match tier {
        Tier::Plain => kernel.plain(),
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2(witness) => {
            // SAFETY: the witness exists, so `detect` saw these features on this CPU.
            unsafe { run_avx2(kernel, witness) }
        }
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512(witness) => {
            // SAFETY: the witness exists, so `detect` saw these features on this CPU.
            unsafe { run_avx512(kernel, witness) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Tier::Avx2(_) | Tier::Avx512(_) => kernel.plain(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K, witness: Avx2) -> K::Output {
    kernel.vectors::<F32x8>(witness)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn run_avx512<K: Kernel>(kernel: K, witness: Avx512) -> K::Output {
    kernel.vectors::<F32x16>(witness)
}
