//! Packed bytes as sources of the 512-bit kernels: codes are unpacked in registers (layouts: `pack.rs`).
//!
//! For few activation rows, where weights stream from memory once and a panel would cost more than it saves.
//! Invariant: each source gives the codes and scales that `unpack.rs` gives (both are tested against the oracle).

use std::arch::x86_64::*;

use super::avx512::{Steps, Supers, add_steps, add_super, fill_steps, fill_super, four, with_sums};
use super::panel::{Extra, Form, Panel, ScaleCols};
use super::unpack::{E2M1, NL4};
use super::{Place, Sums, Tile, even_blocks};
use crate::device::cpu::image::{ImageKind, START_8_AT, START_128_AT};
use crate::device::cpu::pack::GROUP_COLS;
use crate::device::cpu::simd::tier::Avx512;
use crate::gguf::TensorType;

/// A group of packed blocks.
#[derive(Clone, Copy)]
pub struct Packed<F>(*const u8, F);

impl<F> Packed<F> {
    /// # Safety
    /// `bytes` begins a group of packed blocks of the format `F`, and outlives the value.
    #[inline(always)]
    pub unsafe fn new(bytes: *const u8, format: F) -> Packed<F> {
        Packed(bytes, format)
    }
}

/// How far ahead of a load memory is asked for: the hardware's own reading ahead is too short where a core computes
/// for long between two lines.
const AHEAD_BYTES: usize = 4096;

#[inline(always)]
unsafe fn load(at: *const u8) -> __m512i {
    // SAFETY: the caller's: 64 bytes.
    unsafe {
        ahead(at, 64);
        _mm512_loadu_si512(at.cast())
    }
}

/// Asks for the memory that lies ahead of `bytes` bytes at `at`.
#[inline(always)]
fn ahead(at: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: a prefetch reads nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD_BYTES + line).cast()) };
    }
}

#[inline(always)]
unsafe fn halves(at: *const u8) -> __m512 {
    ahead(at, 32);
    // SAFETY: the caller's: 32 bytes.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
}

#[inline(always)]
unsafe fn low(v: __m512i) -> __m512i {
    // SAFETY: the caller's features.
    unsafe { _mm512_and_si512(v, _mm512_set1_epi8(15)) }
}

#[inline(always)]
unsafe fn high(v: __m512i) -> __m512i {
    // SAFETY: the caller's features.
    unsafe { low(_mm512_srli_epi16::<4>(v)) }
}

#[inline(always)]
unsafe fn lookup(table: &[u8; 16], v: __m512i) -> __m512i {
    // SAFETY: the caller's features; a table is 16 bytes.
    unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), v) }
}

#[inline(always)]
unsafe fn fifth(codes: __m512i, mask: *const u8) -> __m512i {
    // SAFETY: the caller's: eight bytes of mask.
    unsafe {
        let mask = mask.cast::<u64>().read_unaligned();
        _mm512_mask_add_epi8(codes, mask, codes, _mm512_set1_epi8(16))
    }
}

/// A format in steps of 32 columns: bytes of a packed block, where its fields lie, what its nibbles mean.
macro_rules! steps {
    ($name:ident $doc:literal, $bytes:literal, $extra:expr, codes($p:ident, $v:ident) $codes:block,
     d($q:ident) $d:block, $start:expr) => {
        #[doc = $doc]
        #[derive(Clone, Copy)]
        pub struct $name;

        impl Steps for Packed<$name> {
            const EXTRA: Extra = $extra;

            #[inline(always)]
            unsafe fn codes(self, b: usize, $v: usize) -> (__m512i, __m512i) {
                let $p = self.0.wrapping_add(16 * $bytes * b);
                // SAFETY: the caller's: the features, and block `b` exists with all its fields.
                unsafe { $codes }
            }

            #[inline(always)]
            unsafe fn d(self, b: usize) -> __m512 {
                let $q = self.0.wrapping_add(16 * $bytes * b);
                // SAFETY: as above.
                unsafe { $d }
            }

            #[inline(always)]
            unsafe fn e(self, b: usize) -> __m512 {
                // SAFETY: as above; a format without an offset has codes there, which nothing reads.
                unsafe { halves(self.0.add(16 * $bytes * b + 32)) }
            }

            #[inline(always)]
            unsafe fn start(self, row: *const u8, at: usize) -> __m512i {
                let start: Option<usize> = $start;
                // SAFETY: the caller's; a record has a start value there.
                unsafe { start.map_or(_mm512_setzero_si512(), |start| four(row, at + start)) }
            }
        }
    };
}

steps!(Q4_0 "Q4_0", 18, Extra::Nothing,
    codes(p, v) { let w = load(p.add(32 + 64 * v)); (low(w), high(w)) },
    d(p) { halves(p) }, Some(START_8_AT));
steps!(Q4_1 "Q4_1", 20, Extra::Offset,
    codes(p, v) { let w = load(p.add(64 + 64 * v)); (low(w), high(w)) },
    d(p) { halves(p) }, None);
steps!(Q5_0 "Q5_0", 22, Extra::Nothing,
    codes(p, v) {
        // The code is 16 less than its five bits; stored plus 128.
        let (w, base) = (load(p.add(96 + 64 * v)), _mm512_set1_epi8(112));
        let (first, second) = (_mm512_or_si512(low(w), base), _mm512_or_si512(high(w), base));
        (fifth(first, p.add(32 + 8 * v)), fifth(second, p.add(64 + 8 * v)))
    },
    d(p) { halves(p) }, Some(START_128_AT));
steps!(Q5_1 "Q5_1", 24, Extra::Offset,
    codes(p, v) {
        let w = load(p.add(128 + 64 * v));
        (fifth(low(w), p.add(64 + 8 * v)), fifth(high(w), p.add(96 + 8 * v)))
    },
    d(p) { halves(p) }, None);
steps!(Q8_0 "Q8_0", 34, Extra::Nothing,
    codes(p, v) { (load(p.add(32 + 64 * v)), load(p.add(288 + 64 * v))) },
    d(p) { halves(p) }, Some(START_128_AT));
steps!(Iq4Nl "IQ4_NL", 18, Extra::Nothing,
    codes(p, v) { let w = load(p.add(32 + 64 * v)); (lookup(&NL4, low(w)), lookup(&NL4, high(w))) },
    d(p) { halves(p) }, Some(START_128_AT));
steps!(Mxfp4 "MXFP4", 17, Extra::Nothing,
    codes(p, v) { let w = load(p.add(16 + 64 * v)); (lookup(&E2M1, low(w)), lookup(&E2M1, high(w))) },
    d(p) {
        let e = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
        let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
        let denormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
        let tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
        _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, tiny, denormal))
    },
    Some(START_128_AT));

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

/// Activation rows that a kernel for steps keeps in registers beside the codes.
const STEPS_ROWS: usize = 12;

/// The same of a kernel for integer scales; more rows are faster from a panel.
const SUPER_ROWS: usize = 8;

/// The same where four runs are unpacked together.
const SUPER_16_ROWS: usize = 4;

/// Calls `$steps` or `$supers` with the format of a packed type.
macro_rules! by_format {
    ($ty:expr, $steps:ident, $supers:ident, $args:tt) => {
        match $ty {
            TensorType::Q4_0 => by_format!(@ $steps, Q4_0, $args),
            TensorType::Q4_1 => by_format!(@ $steps, Q4_1, $args),
            TensorType::Q5_0 => by_format!(@ $steps, Q5_0, $args),
            TensorType::Q5_1 => by_format!(@ $steps, Q5_1, $args),
            TensorType::Q8_0 => by_format!(@ $steps, Q8_0, $args),
            TensorType::IQ4_NL => by_format!(@ $steps, Iq4Nl, $args),
            TensorType::MXFP4 => by_format!(@ $steps, Mxfp4, $args),
            TensorType::Q4_K => by_format!(@ $supers, Q45K::<0>, $args),
            TensorType::Q5_K => by_format!(@ $supers, Q45K::<32>, $args),
            TensorType::Q6_K => by_format!(@ $supers, Q6K, $args),
            TensorType::Q2_K => by_format!(@ $supers, Q2K, $args),
            TensorType::Q3_K => by_format!(@ $supers, Q3K, $args),
            TensorType::IQ4_XS => by_format!(@ $supers, Iq4Xs, $args),
            TensorType::TQ2_0 => by_format!(@ $supers, Tq2_0, $args),
            ty => unreachable!("invariant: {ty} stays in file order"),
        }
    };
    (@ $function:ident, $format:expr, ($($arg:expr),*)) => { $function($format, $($arg),*) };
}

/// Unpacks a group to a panel.
pub fn unpack(_: Avx512, ty: TensorType, bytes: &[u8], panel: &mut Panel) {
    // SAFETY: the witness says that this CPU has the features; the bytes are whole blocks of the type.
    unsafe {
        by_format!(ty, unpack_steps, unpack_super, (bytes, bytes.len() / (16 * ty.block_bytes()), panel))
    }
}

/// # Safety
/// The tier's features; `bytes` are `count` packed blocks of format `F`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn unpack_steps<F: Copy>(format: F, bytes: &[u8], count: usize, panel: &mut Panel)
where
    Packed<F>: Steps,
{
    // SAFETY: the caller's.
    unsafe { fill_steps(Packed::new(bytes.as_ptr(), format), count, &mut panel.steps) }
}

/// # Safety
/// The tier's features; `bytes` are one packed block of format `F`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn unpack_super<F: Copy>(format: F, bytes: &[u8], _count: usize, panel: &mut Panel)
where
    Packed<F>: Supers,
{
    // SAFETY: the caller's.
    unsafe { fill_super(Packed::new(bytes.as_ptr(), format), &mut panel.block) }
}

/// Computes the sums of a whole tile.
pub fn tile(_: Avx512, tile: &Tile<'_>, rows: &[&[u8]], sums: &mut [Sums]) {
    let most = match tile.form {
        Form::Steps { .. } => STEPS_ROWS,
        Form::Super { scale_cols: ScaleCols::C32, .. } => SUPER_ROWS,
        Form::Super { scale_cols: ScaleCols::C16, .. } => SUPER_16_ROWS,
    };
    for (rows, sums) in even_blocks(rows, sums, most) {
        // SAFETY: the witness says that this CPU has the features; the tile is a whole one of its type, and the
        // images have its shape, so that every row holds the places of all groups.
        unsafe { by_format!(tile.ty, rows_of_steps, rows_of_super, (tile, rows, sums)) }
    }
}

/// Whether packed bytes or panels serve `rows` activation rows faster.
pub fn pays(form: Form, rows: usize) -> bool {
    form.image() == ImageKind::A32 || rows <= SUPER_ROWS
}

/// # Safety
/// As [`tile_steps`].
unsafe fn rows_of_steps<F: Copy>(format: F, tile: &Tile<'_>, rows: &[&[u8]], sums: &mut [Sums])
where
    Packed<F>: Steps,
{
    // SAFETY: the caller's.
    unsafe {
        match rows.len() {
            1 => tile_steps::<F, 1>(format, tile, rows, sums),
            2 => tile_steps::<F, 2>(format, tile, rows, sums),
            3 => tile_steps::<F, 3>(format, tile, rows, sums),
            4 => tile_steps::<F, 4>(format, tile, rows, sums),
            5 => tile_steps::<F, 5>(format, tile, rows, sums),
            6 => tile_steps::<F, 6>(format, tile, rows, sums),
            7 => tile_steps::<F, 7>(format, tile, rows, sums),
            8 => tile_steps::<F, 8>(format, tile, rows, sums),
            9 => tile_steps::<F, 9>(format, tile, rows, sums),
            10 => tile_steps::<F, 10>(format, tile, rows, sums),
            11 => tile_steps::<F, 11>(format, tile, rows, sums),
            12 => tile_steps::<F, 12>(format, tile, rows, sums),
            rows => unreachable!("invariant: at most {STEPS_ROWS} rows, not {rows}"),
        }
    }
}

/// # Safety
/// As [`tile_super`].
unsafe fn rows_of_super<F: Copy>(format: F, tile: &Tile<'_>, rows: &[&[u8]], sums: &mut [Sums])
where
    Packed<F>: Supers,
{
    // SAFETY: the caller's.
    unsafe {
        match rows.len() {
            1 => tile_super::<F, 1>(format, tile, rows, sums),
            2 => tile_super::<F, 2>(format, tile, rows, sums),
            3 => tile_super::<F, 3>(format, tile, rows, sums),
            4 => tile_super::<F, 4>(format, tile, rows, sums),
            5 => tile_super::<F, 5>(format, tile, rows, sums),
            6 => tile_super::<F, 6>(format, tile, rows, sums),
            7 => tile_super::<F, 7>(format, tile, rows, sums),
            8 => tile_super::<F, 8>(format, tile, rows, sums),
            rows => unreachable!("invariant: at most {SUPER_ROWS} rows, not {rows}"),
        }
    }
}

/// # Safety
/// The tier's features; the tile is of format `F`; `R` image rows of its shape.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn tile_steps<F: Copy, const R: usize>(
    format: F,
    tile: &Tile<'_>,
    rows: &[&[u8]],
    sums: &mut [Sums],
) where
    Packed<F>: Steps,
{
    let cols = tile.shape.cols();
    // SAFETY: the caller's; groups lie behind each other in the tile.
    unsafe {
        with_sums(rows, sums, |rows: &[_; R], sums| {
            for group in 0..cols.div_ceil(GROUP_COLS) {
                let count = 8.min((cols - GROUP_COLS * group) / 32);
                let bytes = tile.group_bytes(group, 32 * count);
                let source = Packed::new(bytes.as_ptr(), format);
                add_steps(source, count, rows, Place::of(tile.shape, group), sums);
            }
        });
    }
}

/// # Safety
/// The tier's features; the tile is of format `F`; `R` image rows of its shape.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn tile_super<F: Copy, const R: usize>(
    format: F,
    tile: &Tile<'_>,
    rows: &[&[u8]],
    sums: &mut [Sums],
) where
    Packed<F>: Supers,
{
    // SAFETY: the caller's; groups lie behind each other in the tile.
    unsafe {
        with_sums(rows, sums, |rows: &[_; R], sums| {
            for group in 0..tile.shape.cols() / GROUP_COLS {
                let bytes = tile.group_bytes(group, GROUP_COLS);
                let source = Packed::new(bytes.as_ptr(), format);
                add_super(source, rows, Place::of(tile.shape, group), sums);
            }
        });
    }
}
