//! Sixteen f32 lanes with AVX-512.
//!
//! Invariant: a vector holds the witness of its tier, so `detect` saw every instruction that its methods use.
//! Does not know: kernels.

#![allow(unsafe_code, reason = "the fence around the vector instructions of float kernels")]

use std::arch::x86_64::*;

use super::super::tier::Avx512;
use super::Vector;
use super::avx2::{largest8, tree8};

/// Sixteen values, with AVX-512.
#[derive(Clone, Copy)]
pub struct F32x16(__m512, Avx512);

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
#[allow(clippy::inline_always, reason = "one instruction of a kernel")]
#[inline(always)]
fn first_mask(count: usize) -> u16 {
    if count >= 16 { u16::MAX } else { (1 << count) - 1 }
}
