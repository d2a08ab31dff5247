//! Eight f32 lanes with AVX2, FMA and F16C.
//!
//! Invariant: a vector holds the witness of its tier, so `detect` saw every instruction that its methods use.
//! Does not know: kernels.

#![allow(unsafe_code, reason = "the fence around the vector instructions of float kernels")]

use std::arch::x86_64::*;

use super::super::tier::Avx2;
use super::Vector;

/// Eight values, with AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct F32x8(__m256, Avx2);

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
#[target_feature(enable = "avx2")]
#[inline]
fn first_lanes(count: usize) -> __m256i {
    let limit = i32::try_from(count.min(8)).expect("invariant: at most 8");
    _mm256_cmpgt_epi32(_mm256_set1_epi32(limit), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// The halving tree over eight lanes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn tree8(v: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The largest of eight lanes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn largest8(v: __m256) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}
