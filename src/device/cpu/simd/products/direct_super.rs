//! Packed super blocks as sources of the 512-bit kernels (layouts: `pack.rs`): formats with integer scales.
//!
//! Invariant: as in `direct.rs`, each source gives what `unpack.rs` gives.

use std::arch::x86_64::*;

use super::avx512::Supers;
use super::direct::{Packed, ahead, fifth, halves, high, load, lookup, low};
use super::unpack::NL4;

/// Scales and minima of Q4_K and Q5_K, run after run, a byte a row.
#[repr(C, align(64))]
pub struct KScales([u8; 256]);

/// The twelve scale bytes at `s`, unpacked four runs at a time.
#[inline(always)]
unsafe fn k_scales(s: *const u8) -> KScales {
    let mut out = KScales([0; 256]);
    // SAFETY: the caller's: features, 192 bytes; `out` has four aligned vectors.
    unsafe {
        let (a, b, c) = (load(s), load(s.add(64)), load(s.add(128)));
        let six = _mm512_set1_epi8(63);
        let upper = |v: __m512i| _mm512_and_si512(_mm512_srli_epi16::<2>(v), _mm512_set1_epi8(48));
        let to = out.0.as_mut_ptr().cast::<__m512i>();
        _mm512_store_si512(to, _mm512_and_si512(a, six));
        _mm512_store_si512(to.add(1), _mm512_or_si512(low(c), upper(a)));
        _mm512_store_si512(to.add(2), _mm512_and_si512(b, six));
        _mm512_store_si512(to.add(3), _mm512_or_si512(high(c), upper(b)));
    }
    out
}

/// Bytes of two runs, interleaved.
#[inline(always)]
unsafe fn interleave(first: *const u8, second: *const u8) -> __m256i {
    // SAFETY: the caller's: features, 16 bytes each.
    unsafe {
        let (first, second) = (_mm_loadu_si128(first.cast()), _mm_loadu_si128(second.cast()));
        _mm256_set_m128i(_mm_unpackhi_epi8(first, second), _mm_unpacklo_epi8(first, second))
    }
}

/// Q4_K (`QH_BYTES` 0) and Q5_K (32).
#[derive(Clone, Copy)]
pub struct Q45K<const QH_BYTES: usize>;

impl<const QH_BYTES: usize> Supers for Packed<Q45K<QH_BYTES>> {
    const RUNS: usize = 8;
    const TOGETHER: usize = 2;
    const MINIMA: bool = true;
    type Scales = KScales;

    #[inline(always)]
    unsafe fn scales(self) -> KScales {
        ahead(self.0.wrapping_add(256), 16 * QH_BYTES);
        // SAFETY: the caller's; the bytes lie behind d and dmin.
        unsafe { k_scales(self.0.add(64)) }
    }

    #[inline(always)]
    unsafe fn codes(self, u: usize, w: usize) -> [__m512i; 4] {
        // SAFETY: the caller's; fields as in `pack.rs`.
        unsafe {
            let word = load(self.0.add(256 + 16 * QH_BYTES + 64 * (8 * u + w)));
            let (mut first, mut second) = (low(word), high(word));
            if QH_BYTES > 0 {
                let masks = self.0.add(256 + 8 * (16 * u + w));
                (first, second) = (fifth(first, masks), fifth(second, masks.add(64)));
            }
            [first, second, first, first]
        }
    }

    #[inline(always)]
    fn run(u: usize, k: usize) -> usize {
        2 * u + k
    }

    #[inline(always)]
    unsafe fn scale(self, scales: &KScales, run: usize) -> __m512i {
        // SAFETY: the caller's; run is below 8.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(scales.0.as_ptr().add(16 * run).cast())) }
    }

    #[inline(always)]
    unsafe fn pair(self, scales: &KScales, p: usize) -> __m512i {
        let minima = scales.0.as_ptr().wrapping_add(128 + 32 * p);
        // SAFETY: the caller's; p is below 4.
        unsafe { _mm512_cvtepu8_epi16(interleave(minima, minima.add(16))) }
    }

    #[inline(always)]
    unsafe fn d(self) -> __m512 {
        // SAFETY: the caller's.
        unsafe { halves(self.0) }
    }

    #[inline(always)]
    unsafe fn dmin(self) -> __m512 {
        // SAFETY: the caller's.
        unsafe { halves(self.0.add(32)) }
    }

    #[inline(always)]
    unsafe fn offset(self, paired: __m512i) -> __m512i {
        paired
    }
}

/// The parts of a source with signed codes that do not depend on the format but by their place.
macro_rules! signed {
    ($d_at:literal, $shift:literal) => {
        #[inline(always)]
        unsafe fn d(self) -> __m512 {
            // SAFETY: the caller's; fields as in `pack.rs`.
            unsafe { halves(self.0.add($d_at)) }
        }

        #[inline(always)]
        unsafe fn dmin(self) -> __m512 {
            // SAFETY: the caller's features; nothing reads it.
            unsafe { _mm512_setzero_ps() }
        }

        #[inline(always)]
        unsafe fn offset(self, paired: __m512i) -> __m512i {
            // SAFETY: the caller's features.
            unsafe { _mm512_slli_epi32::<$shift>(paired) }
        }
    };
}

/// Q6_K.
#[derive(Clone, Copy)]
pub struct Q6K;

impl Supers for Packed<Q6K> {
    const RUNS: usize = 16;
    const TOGETHER: usize = 4;
    const MINIMA: bool = false;
    type Scales = ();

    #[inline(always)]
    unsafe fn scales(self) {
        ahead(self.0.wrapping_add(3072), 256);
    }

    #[inline(always)]
    unsafe fn codes(self, u: usize, w: usize) -> [__m512i; 4] {
        // Unit u: half u >> 1 of the block; runs of its lower (u even) or upper 16 columns of each 32.
        let three = self.0.wrapping_add(192 * (4 * u + w));
        // SAFETY: the caller's; fields as in `pack.rs`.
        unsafe {
            let (a, b, upper) = (load(three), load(three.add(64)), load(three.add(128)));
            let nibble = _mm512_set1_epi8(15);
            // Selects the low four bits of the first, the others of the second, and keeps six.
            let join = |four: __m512i, two: __m512i| {
                let bits = _mm512_ternarylogic_epi32::<0xCA>(nibble, four, two);
                _mm512_and_si512(bits, _mm512_set1_epi8(63))
            };
            [
                join(a, _mm512_slli_epi16::<4>(upper)),
                join(b, _mm512_slli_epi16::<2>(upper)),
                join(_mm512_srli_epi16::<4>(a), upper),
                join(_mm512_srli_epi16::<4>(b), _mm512_srli_epi16::<2>(upper)),
            ]
        }
    }

    #[inline(always)]
    fn run(u: usize, k: usize) -> usize {
        run_of_16(u, k)
    }

    #[inline(always)]
    unsafe fn scale(self, _: &(), run: usize) -> __m512i {
        // SAFETY: the caller's; run is below 16.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(self.0.add(3072 + 16 * run).cast())) }
    }

    #[inline(always)]
    unsafe fn pair(self, _: &(), p: usize) -> __m512i {
        let scales = self.0.wrapping_add(3072 + 32 * p);
        // SAFETY: the caller's; p is below 8.
        unsafe { _mm512_cvtepi8_epi16(interleave(scales, scales.add(16))) }
    }

    signed!(3328, 5);
}

/// The four codes of two bits in each byte.
#[inline(always)]
unsafe fn crumbs(v: __m512i) -> [__m512i; 4] {
    // SAFETY: the caller's features.
    unsafe {
        let three = _mm512_set1_epi8(3);
        [
            _mm512_and_si512(v, three),
            _mm512_and_si512(_mm512_srli_epi16::<2>(v), three),
            _mm512_and_si512(_mm512_srli_epi16::<4>(v), three),
            _mm512_and_si512(_mm512_srli_epi16::<6>(v), three),
        ]
    }
}

/// Run `k` of unit `u` where four runs of 16 columns, 32 columns apart, share their bytes.
#[inline(always)]
fn run_of_16(u: usize, k: usize) -> usize {
    8 * (u >> 1) + 2 * k + (u & 1)
}

/// Signed scales, run after run, a byte a row.
#[repr(C, align(64))]
pub struct SignedScales([i8; 256]);

impl SignedScales {
    #[inline(always)]
    unsafe fn scale(&self, run: usize) -> __m512i {
        // SAFETY: the caller's features; run is below 16.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(self.0.as_ptr().add(16 * run).cast())) }
    }

    #[inline(always)]
    unsafe fn pair(&self, p: usize) -> __m512i {
        let scales = self.0.as_ptr().wrapping_add(32 * p).cast::<u8>();
        // SAFETY: the caller's features; p is below 8.
        unsafe { _mm512_cvtepi8_epi16(interleave(scales, scales.add(16))) }
    }
}

/// Q2_K.
#[derive(Clone, Copy)]
pub struct Q2K;

impl Supers for Packed<Q2K> {
    const RUNS: usize = 16;
    const TOGETHER: usize = 4;
    const MINIMA: bool = true;
    type Scales = ();

    #[inline(always)]
    unsafe fn scales(self) {}

    #[inline(always)]
    unsafe fn codes(self, u: usize, w: usize) -> [__m512i; 4] {
        // SAFETY: the caller's; fields as in `pack.rs`.
        unsafe { crumbs(load(self.0.add(256 + 64 * (8 * (u >> 1) + 4 * (u & 1) + w)))) }
    }

    #[inline(always)]
    fn run(u: usize, k: usize) -> usize {
        run_of_16(u, k)
    }

    #[inline(always)]
    unsafe fn scale(self, _: &(), run: usize) -> __m512i {
        // SAFETY: the caller's; run is below 16.
        unsafe {
            let both = _mm512_cvtepu8_epi32(_mm_loadu_si128(self.0.add(16 * run).cast()));
            _mm512_and_si512(both, _mm512_set1_epi32(15))
        }
    }

    #[inline(always)]
    unsafe fn pair(self, _: &(), p: usize) -> __m512i {
        let both = self.0.wrapping_add(32 * p);
        // SAFETY: the caller's; p is below 8.
        unsafe { _mm512_srli_epi16::<4>(_mm512_cvtepu8_epi16(interleave(both, both.add(16)))) }
    }

    #[inline(always)]
    unsafe fn d(self) -> __m512 {
        // SAFETY: the caller's.
        unsafe { halves(self.0.add(1280)) }
    }

    #[inline(always)]
    unsafe fn dmin(self) -> __m512 {
        // SAFETY: the caller's.
        unsafe { halves(self.0.add(1312)) }
    }

    #[inline(always)]
    unsafe fn offset(self, paired: __m512i) -> __m512i {
        paired
    }
}

/// Q3_K.
#[derive(Clone, Copy)]
pub struct Q3K;

impl Supers for Packed<Q3K> {
    const RUNS: usize = 16;
    const TOGETHER: usize = 4;
    const MINIMA: bool = false;
    type Scales = SignedScales;

    #[inline(always)]
    unsafe fn scales(self) -> SignedScales {
        let mut out = SignedScales([0; 256]);
        // SAFETY: the caller's; twelve bytes a row, `out` has four aligned vectors.
        unsafe {
            let s = self.0.add(1536);
            let (a, b, upper) = (load(s), load(s.add(64)), load(s.add(128)));
            let two = crumbs(upper);
            let join = |four: __m512i, two: __m512i| {
                let six = _mm512_or_si512(four, _mm512_slli_epi16::<4>(two));
                _mm512_sub_epi8(six, _mm512_set1_epi8(32))
            };
            let to = out.0.as_mut_ptr().cast::<__m512i>();
            _mm512_store_si512(to, join(low(a), two[0]));
            _mm512_store_si512(to.add(1), join(low(b), two[1]));
            _mm512_store_si512(to.add(2), join(high(a), two[2]));
            _mm512_store_si512(to.add(3), join(high(b), two[3]));
        }
        out
    }

    #[inline(always)]
    unsafe fn codes(self, u: usize, w: usize) -> [__m512i; 4] {
        let word = 4 * (u & 1) + w;
        // SAFETY: the caller's; fields as in `pack.rs`.
        unsafe {
            let two = crumbs(load(self.0.add(512 + 64 * (8 * (u >> 1) + word))));
            // Bits 4 (u >> 1) .. of the mask belong to this half of the block.
            let third = load(self.0.add(64 * word));
            let third = if u < 2 { low(third) } else { high(third) };
            let (four, base) = (_mm512_set1_epi8(4), _mm512_set1_epi8(28));
            let join = |two: __m512i, third: __m512i| {
                _mm512_add_epi8(_mm512_or_si512(two, _mm512_and_si512(third, four)), base)
            };
            [
                join(two[0], _mm512_slli_epi16::<2>(third)),
                join(two[1], _mm512_slli_epi16::<1>(third)),
                join(two[2], third),
                join(two[3], _mm512_srli_epi16::<1>(third)),
            ]
        }
    }

    #[inline(always)]
    fn run(u: usize, k: usize) -> usize {
        run_of_16(u, k)
    }

    #[inline(always)]
    unsafe fn scale(self, scales: &SignedScales, run: usize) -> __m512i {
        // SAFETY: the caller's.
        unsafe { scales.scale(run) }
    }

    #[inline(always)]
    unsafe fn pair(self, scales: &SignedScales, p: usize) -> __m512i {
        // SAFETY: the caller's.
        unsafe { scales.pair(p) }
    }

    signed!(1728, 5);
}

/// IQ4_XS.
#[derive(Clone, Copy)]
pub struct Iq4Xs;

impl Supers for Packed<Iq4Xs> {
    const RUNS: usize = 8;
    const TOGETHER: usize = 1;
    const MINIMA: bool = false;
    type Scales = SignedScales;

    #[inline(always)]
    unsafe fn scales(self) -> SignedScales {
        let mut out = SignedScales([0; 256]);
        // SAFETY: the caller's; two bytes of upper and four of lower bits a row; 16 bytes of `out` a run.
        unsafe {
            let upper = _mm256_loadu_si256(self.0.add(32).cast());
            for run in 0..8 {
                let lower = _mm_loadu_si128(self.0.add(64 + 16 * (run / 2)).cast());
                let lower =
                    _mm256_srl_epi16(_mm256_cvtepu8_epi16(lower), _mm_cvtsi32_si128(4 * (run as i32 & 1)));
                let two = _mm256_srl_epi16(upper, _mm_cvtsi32_si128(2 * run as i32));
                let two = _mm256_slli_epi16::<4>(_mm256_and_si256(two, _mm256_set1_epi16(3)));
                let six = _mm256_or_si256(_mm256_and_si256(lower, _mm256_set1_epi16(15)), two);
                let scale = _mm256_cvtepi16_epi8(_mm256_sub_epi16(six, _mm256_set1_epi16(32)));
                _mm_storeu_si128(out.0.as_mut_ptr().add(16 * run).cast(), scale);
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn codes(self, u: usize, w: usize) -> [__m512i; 4] {
        // SAFETY: the caller's; fields as in `pack.rs`.
        unsafe {
            let word = load(self.0.add(128 + 64 * (4 * u + (w & 3))));
            let codes = lookup(&NL4, if w < 4 { low(word) } else { high(word) });
            [codes, codes, codes, codes]
        }
    }

    #[inline(always)]
    fn run(u: usize, _: usize) -> usize {
        u
    }

    #[inline(always)]
    unsafe fn scale(self, scales: &SignedScales, run: usize) -> __m512i {
        // SAFETY: the caller's.
        unsafe { scales.scale(run) }
    }

    #[inline(always)]
    unsafe fn pair(self, scales: &SignedScales, p: usize) -> __m512i {
        // SAFETY: the caller's.
        unsafe { scales.pair(p) }
    }

    signed!(0, 7);
}

/// TQ2_0.
#[derive(Clone, Copy)]
pub struct Tq2_0;

impl Supers for Packed<Tq2_0> {
    const RUNS: usize = 8;
    const TOGETHER: usize = 4;
    const MINIMA: bool = false;
    type Scales = ();

    #[inline(always)]
    unsafe fn scales(self) {}

    #[inline(always)]
    unsafe fn codes(self, u: usize, w: usize) -> [__m512i; 4] {
        // SAFETY: the caller's; fields as in `pack.rs`.
        unsafe {
            let two = crumbs(load(self.0.add(64 * (8 * u + w))));
            two.map(|v| _mm512_add_epi8(v, _mm512_set1_epi8(31)))
        }
    }

    #[inline(always)]
    fn run(u: usize, k: usize) -> usize {
        4 * u + k
    }

    #[inline(always)]
    unsafe fn scale(self, _: &(), _run: usize) -> __m512i {
        // SAFETY: the caller's features.
        unsafe { _mm512_set1_epi32(1) }
    }

    #[inline(always)]
    unsafe fn pair(self, _: &(), _p: usize) -> __m512i {
        // SAFETY: the caller's features.
        unsafe { _mm512_set1_epi16(1) }
    }

    signed!(1024, 5);
}
