//! One f32 vector type for each instruction tier, so that a kernel is written once.
//!
//! Invariants: every operation is the IEEE one of its lanes, in any tier; a vector holds its tier's witness, so its
//! methods are safe to call. They are inlined into [`run`]'s two functions, which are compiled for the tier.
//! Does not know: orders of sums, ops. Source: `docs/numerics.md`, Ground rules.

#![allow(unsafe_code, reason = "the fence around the vector instructions of float kernels")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::tier::{Avx2, Avx512, Tier};

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

/// Eight values, with AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct F32x8(__m256, Avx2);

/// Sixteen values, with AVX-512.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct F32x16(__m512, Avx512);

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
#[allow(
    clippy::inline_always,
    reason = "the instructions must end up inside the functions compiled for the tier"
)]
impl Vector for F32x16 {
    type Witness = Avx512;
    const LANES: usize = 16;

    #[inline(always)]
    fn splat(witness: Avx512, value: f32) -> Self {
        F32x16(by_witness!(_mm512_set1_ps(value)), witness)
    }
    #[inline(always)]
    fn load_masked(witness: Avx512, from: &[f32]) -> Self {
        let mask = first_mask(from.len());
        // SAFETY: masked lanes are not read, the others lie in the slice; the witness shows the feature.
        F32x16(unsafe { _mm512_maskz_loadu_ps(mask, from.as_ptr()) }, witness)
    }
    #[inline(always)]
    unsafe fn load_at(witness: Avx512, from: *const f32) -> Self {
        // SAFETY: the caller answers for 16 values; the witness shows the feature.
        F32x16(unsafe { _mm512_loadu_ps(from) }, witness)
    }
    #[inline(always)]
    unsafe fn load_f16_at(witness: Avx512, from: *const u16) -> Self {
        // SAFETY: the caller answers for 16 values of 2 bytes; the witness shows the feature.
        F32x16(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }, witness)
    }
    #[inline(always)]
    unsafe fn load_bf16_at(witness: Avx512, from: *const u16) -> Self {
        // SAFETY: the caller answers for 16 values of 2 bytes; the witness shows the feature.
        let wide = unsafe { _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()))) };
        F32x16(by_witness!(_mm512_castsi512_ps(wide)), witness)
    }
    #[inline(always)]
    unsafe fn load_i8_at(witness: Avx512, from: *const i8) -> Self {
        // SAFETY: the caller answers for 16 bytes; the witness shows the feature.
        F32x16(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }, witness)
    }
    #[inline(always)]
    unsafe fn splat_f16_at(witness: Avx512, from: *const u16) -> Self {
        // SAFETY: the caller answers for two bytes.
        let bits = i32::from(unsafe { from.read_unaligned() });
        let value = by_witness!(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))));
        Self::splat(witness, value)
    }
    #[inline(always)]
    fn store_masked(self, to: &mut [f32]) {
        let mask = first_mask(to.len());
        // SAFETY: masked lanes are not written, the others lie in the slice; the witness in `self` shows the feature.
        unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), mask, self.0) }
    }
    #[inline(always)]
    unsafe fn store_at(self, to: *mut f32) {
        // SAFETY: the caller answers for 16 values; the witness in `self` shows the feature.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    fn store_f16(self, to: &mut [u16]) {
        assert!(to.len() >= 16, "a vector has 16 values");
        // SAFETY: the slice holds 16 values; the witness in `self` shows the feature.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm512_cvtps_ph::<0>(self.0)) }
    }
    #[inline(always)]
    fn store_i8(self, to: &mut [u8]) {
        assert!(to.len() >= 16, "a vector has 16 values");
        // SAFETY: the slice holds 16 bytes; the witness in `self` shows the feature.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(self.0))) }
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        F32x16(by_witness!(_mm512_add_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        F32x16(by_witness!(_mm512_sub_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        F32x16(by_witness!(_mm512_mul_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        F32x16(by_witness!(_mm512_div_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        F32x16(by_witness!(_mm512_fmadd_ps(self.0, b.0, c.0)), self.1)
    }
    #[inline(always)]
    fn fnma(self, b: Self, c: Self) -> Self {
        F32x16(by_witness!(_mm512_fnmadd_ps(self.0, b.0, c.0)), self.1)
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        F32x16(by_witness!(_mm512_max_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn min(self, o: Self) -> Self {
        F32x16(by_witness!(_mm512_min_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn where_less(self, limit: Self, yes: Self, no: Self) -> Self {
        let mask = by_witness!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, limit.0));
        F32x16(by_witness!(_mm512_mask_blend_ps(mask, no.0, yes.0)), self.1)
    }
    #[inline(always)]
    fn first(self, count: usize, other: Self) -> Self {
        F32x16(by_witness!(_mm512_mask_blend_ps(first_mask(count), other.0, self.0)), self.1)
    }
    #[inline(always)]
    fn round(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        F32x16(by_witness!(_mm512_roundscale_ps::<NEAREST>(self.0)), self.1)
    }
    #[inline(always)]
    fn swap_pairs(self) -> Self {
        F32x16(by_witness!(_mm512_permute_ps::<0b10_11_00_01>(self.0)), self.1)
    }
    #[inline(always)]
    fn neg(self) -> Self {
        F32x16(by_witness!(_mm512_xor_ps(self.0, _mm512_set1_ps(-0.0))), self.1)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        F32x16(by_witness!(_mm512_andnot_ps(_mm512_set1_ps(-0.0), self.0)), self.1)
    }
    #[inline(always)]
    fn bits_shl_22(self) -> Self {
        F32x16(by_witness!(_mm512_castsi512_ps(_mm512_slli_epi32::<22>(_mm512_castps_si512(self.0)))), self.1)
    }
    #[inline(always)]
    fn bits_shl_23(self) -> Self {
        F32x16(by_witness!(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(self.0)))), self.1)
    }
    #[inline(always)]
    fn bits_and(self, o: Self) -> Self {
        F32x16(by_witness!(_mm512_and_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn bits_add(self, o: Self) -> Self {
        let sum = by_witness!(_mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_castps_si512(o.0)));
        F32x16(by_witness!(_mm512_castsi512_ps(sum)), self.1)
    }
    #[inline(always)]
    fn bits_sub(self, o: Self) -> Self {
        let sum = by_witness!(_mm512_sub_epi32(_mm512_castps_si512(self.0), _mm512_castps_si512(o.0)));
        F32x16(by_witness!(_mm512_castsi512_ps(sum)), self.1)
    }
    #[inline(always)]
    fn exchange<const STEP: usize>(a: Self, b: Self) -> (Self, Self) {
        let (x, y) = (a.0, b.0);
        let (clear, set) = by_witness!(match STEP {
            8 => (_mm512_shuffle_f32x4::<0x44>(x, y), _mm512_shuffle_f32x4::<0xee>(x, y)),
            4 => {
                let clear = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
                let set = _mm512_setr_epi32(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
                (_mm512_permutex2var_ps(x, clear, y), _mm512_permutex2var_ps(x, set, y))
            }
            2 => {
                let (xd, yd) = (_mm512_castps_pd(x), _mm512_castps_pd(y));
                let (clear, set) = (_mm512_shuffle_pd::<0x00>(xd, yd), _mm512_shuffle_pd::<0xff>(xd, yd));
                (_mm512_castpd_ps(clear), _mm512_castpd_ps(set))
            }
            1 => (_mm512_mask_moveldup_ps(x, 0xaaaa, y), _mm512_mask_movehdup_ps(y, 0x5555, x)),
            _ => unreachable!("invariant: steps are 8, 4, 2, 1"),
        });
        (F32x16(clear, a.1), F32x16(set, a.1))
    }
    #[inline(always)]
    fn tree(self) -> f32 {
        by_witness!({
            let eight = _mm256_add_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            tree8(eight)
        })
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        by_witness!({
            let eight = _mm256_max_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            largest8(eight)
        })
    }
}

/// The lowest `count` bits, at most 16.
#[cfg(target_arch = "x86_64")]
#[allow(clippy::inline_always, reason = "one instruction of a kernel")]
#[inline(always)]
fn first_mask(count: usize) -> u16 {
    if count >= 16 { u16::MAX } else { (1 << count) - 1 }
}

#[cfg(target_arch = "x86_64")]
#[allow(
    clippy::inline_always,
    reason = "the instructions must end up inside the functions compiled for the tier"
)]
impl Vector for F32x8 {
    type Witness = Avx2;
    const LANES: usize = 8;

    #[inline(always)]
    fn splat(witness: Avx2, value: f32) -> Self {
        F32x8(by_witness!(_mm256_set1_ps(value)), witness)
    }
    #[inline(always)]
    fn load_masked(witness: Avx2, from: &[f32]) -> Self {
        // SAFETY: masked lanes are not read, the others lie in the slice; the witness shows the feature.
        F32x8(unsafe { _mm256_maskload_ps(from.as_ptr(), first_lanes(from.len())) }, witness)
    }
    #[inline(always)]
    unsafe fn load_at(witness: Avx2, from: *const f32) -> Self {
        // SAFETY: the caller answers for 8 values; the witness shows the feature.
        F32x8(unsafe { _mm256_loadu_ps(from) }, witness)
    }
    #[inline(always)]
    unsafe fn load_f16_at(witness: Avx2, from: *const u16) -> Self {
        // SAFETY: the caller answers for 8 values of 2 bytes; the witness shows the feature.
        F32x8(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }, witness)
    }
    #[inline(always)]
    unsafe fn load_bf16_at(witness: Avx2, from: *const u16) -> Self {
        // SAFETY: the caller answers for 8 values of 2 bytes; the witness shows the feature.
        let wide = unsafe { _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()))) };
        F32x8(by_witness!(_mm256_castsi256_ps(wide)), witness)
    }
    #[inline(always)]
    unsafe fn load_i8_at(witness: Avx2, from: *const i8) -> Self {
        // SAFETY: the caller answers for 8 bytes; the witness shows the feature.
        F32x8(unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }, witness)
    }
    #[inline(always)]
    unsafe fn splat_f16_at(witness: Avx2, from: *const u16) -> Self {
        // SAFETY: the caller answers for two bytes.
        let bits = i32::from(unsafe { from.read_unaligned() });
        let value = by_witness!(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))));
        Self::splat(witness, value)
    }
    #[inline(always)]
    fn store_masked(self, to: &mut [f32]) {
        // SAFETY: masked lanes are not written, the others lie in the slice; the witness in `self` shows the feature.
        unsafe { _mm256_maskstore_ps(to.as_mut_ptr(), first_lanes(to.len()), self.0) }
    }
    #[inline(always)]
    unsafe fn store_at(self, to: *mut f32) {
        // SAFETY: the caller answers for 8 values; the witness in `self` shows the feature.
        unsafe { _mm256_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    fn store_f16(self, to: &mut [u16]) {
        assert!(to.len() >= 8, "a vector has 8 values");
        // SAFETY: the slice holds 8 values; the witness in `self` shows the feature.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), _mm256_cvtps_ph::<0>(self.0)) }
    }
    #[inline(always)]
    fn store_i8(self, to: &mut [u8]) {
        assert!(to.len() >= 8, "a vector has 8 values");
        let words = by_witness!({
            let wide = _mm256_cvtps_epi32(self.0);
            let words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
            _mm_packs_epi16(words, words)
        });
        // SAFETY: the slice holds 8 bytes; the witness in `self` shows the feature.
        unsafe { _mm_storel_epi64(to.as_mut_ptr().cast(), words) }
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        F32x8(by_witness!(_mm256_add_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        F32x8(by_witness!(_mm256_sub_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        F32x8(by_witness!(_mm256_mul_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        F32x8(by_witness!(_mm256_div_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        F32x8(by_witness!(_mm256_fmadd_ps(self.0, b.0, c.0)), self.1)
    }
    #[inline(always)]
    fn fnma(self, b: Self, c: Self) -> Self {
        F32x8(by_witness!(_mm256_fnmadd_ps(self.0, b.0, c.0)), self.1)
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        F32x8(by_witness!(_mm256_max_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn min(self, o: Self) -> Self {
        F32x8(by_witness!(_mm256_min_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn where_less(self, limit: Self, yes: Self, no: Self) -> Self {
        let mask = by_witness!(_mm256_cmp_ps::<_CMP_LT_OQ>(self.0, limit.0));
        F32x8(by_witness!(_mm256_blendv_ps(no.0, yes.0, mask)), self.1)
    }
    #[inline(always)]
    fn first(self, count: usize, other: Self) -> Self {
        let mask = by_witness!(_mm256_castsi256_ps(first_lanes(count)));
        F32x8(by_witness!(_mm256_blendv_ps(other.0, self.0, mask)), self.1)
    }
    #[inline(always)]
    fn round(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        F32x8(by_witness!(_mm256_round_ps::<NEAREST>(self.0)), self.1)
    }
    #[inline(always)]
    fn swap_pairs(self) -> Self {
        F32x8(by_witness!(_mm256_permute_ps::<0b10_11_00_01>(self.0)), self.1)
    }
    #[inline(always)]
    fn neg(self) -> Self {
        F32x8(by_witness!(_mm256_xor_ps(self.0, _mm256_set1_ps(-0.0))), self.1)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        F32x8(by_witness!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0)), self.1)
    }
    #[inline(always)]
    fn bits_shl_22(self) -> Self {
        F32x8(by_witness!(_mm256_castsi256_ps(_mm256_slli_epi32::<22>(_mm256_castps_si256(self.0)))), self.1)
    }
    #[inline(always)]
    fn bits_shl_23(self) -> Self {
        F32x8(by_witness!(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(self.0)))), self.1)
    }
    #[inline(always)]
    fn bits_and(self, o: Self) -> Self {
        F32x8(by_witness!(_mm256_and_ps(self.0, o.0)), self.1)
    }
    #[inline(always)]
    fn bits_add(self, o: Self) -> Self {
        let sum = by_witness!(_mm256_add_epi32(_mm256_castps_si256(self.0), _mm256_castps_si256(o.0)));
        F32x8(by_witness!(_mm256_castsi256_ps(sum)), self.1)
    }
    #[inline(always)]
    fn bits_sub(self, o: Self) -> Self {
        let sum = by_witness!(_mm256_sub_epi32(_mm256_castps_si256(self.0), _mm256_castps_si256(o.0)));
        F32x8(by_witness!(_mm256_castsi256_ps(sum)), self.1)
    }
    #[inline(always)]
    fn exchange<const STEP: usize>(a: Self, b: Self) -> (Self, Self) {
        let (x, y) = (a.0, b.0);
        let (clear, set) = by_witness!(match STEP {
            4 => (_mm256_permute2f128_ps::<0x20>(x, y), _mm256_permute2f128_ps::<0x31>(x, y)),
            2 => {
                let (xd, yd) = (_mm256_castps_pd(x), _mm256_castps_pd(y));
                let (clear, set) = (_mm256_shuffle_pd::<0x0>(xd, yd), _mm256_shuffle_pd::<0xf>(xd, yd));
                (_mm256_castpd_ps(clear), _mm256_castpd_ps(set))
            }
            1 => (
                _mm256_blend_ps::<0xaa>(x, _mm256_moveldup_ps(y)),
                _mm256_blend_ps::<0xaa>(_mm256_movehdup_ps(x), y),
            ),
            _ => unreachable!("invariant: steps are 4, 2, 1"),
        });
        (F32x8(clear, a.1), F32x8(set, a.1))
    }
    #[inline(always)]
    fn tree(self) -> f32 {
        by_witness!(tree8(self.0))
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        by_witness!(largest8(self.0))
    }
}

/// All bits set in the first `count` lanes of eight.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn first_lanes(count: usize) -> __m256i {
    let limit = i32::try_from(count.min(8)).expect("invariant: at most 8");
    _mm256_cmpgt_epi32(_mm256_set1_epi32(limit), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// The halving tree over eight lanes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn tree8(v: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The largest of eight lanes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn largest8(v: __m256) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}
