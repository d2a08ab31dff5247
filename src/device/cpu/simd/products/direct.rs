//! Packed bytes as sources of the 512-bit kernels: codes are unpacked in registers (layouts: `pack.rs`).
//!
//! For few activation rows, where weights stream from memory once and a panel would cost more than it saves.
//! Invariant: each source gives the codes and scales that `unpack.rs` gives (both are tested against the oracle).

use std::arch::x86_64::*;

use super::avx512::{Steps, Supers, add_steps, add_super, with_sums};
use super::panel::Extra;
use super::unpack::{E2M1, NL4};
use super::{Place, Sums, Tile};
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

#[inline(always)]
unsafe fn load(at: *const u8) -> __m512i {
    // SAFETY: the caller's: 64 bytes.
    unsafe { _mm512_loadu_si512(at.cast()) }
}

#[inline(always)]
unsafe fn halves(at: *const u8) -> __m512 {
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
     d($q:ident) $d:block, start($negated:ident) $start:block) => {
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
            unsafe fn start(self, $negated: __m512i) -> __m512i {
                // SAFETY: the caller's features.
                unsafe { $start }
            }
        }
    };
}

steps!(Q4_0 "Q4_0", 18, Extra::Nothing,
    codes(p, v) { let w = load(p.add(32 + 64 * v)); (low(w), high(w)) },
    d(p) { halves(p) }, start(negated) { _mm512_slli_epi32::<3>(negated) });
steps!(Q4_1 "Q4_1", 20, Extra::Offset,
    codes(p, v) { let w = load(p.add(64 + 64 * v)); (low(w), high(w)) },
    d(p) { halves(p) }, start(_n) { _mm512_setzero_si512() });
steps!(Q5_0 "Q5_0", 22, Extra::Nothing,
    codes(p, v) {
        let w = load(p.add(96 + 64 * v));
        (fifth(low(w), p.add(32 + 8 * v)), fifth(high(w), p.add(64 + 8 * v)))
    },
    d(p) { halves(p) }, start(negated) { _mm512_slli_epi32::<4>(negated) });
steps!(Q5_1 "Q5_1", 24, Extra::Offset,
    codes(p, v) {
        let w = load(p.add(128 + 64 * v));
        (fifth(low(w), p.add(64 + 8 * v)), fifth(high(w), p.add(96 + 8 * v)))
    },
    d(p) { halves(p) }, start(_n) { _mm512_setzero_si512() });
steps!(Q8_0 "Q8_0", 34, Extra::Nothing,
    codes(p, v) { (load(p.add(32 + 64 * v)), load(p.add(288 + 64 * v))) },
    d(p) { halves(p) }, start(negated) { _mm512_slli_epi32::<7>(negated) });
steps!(Iq4Nl "IQ4_NL", 18, Extra::Nothing,
    codes(p, v) { let w = load(p.add(32 + 64 * v)); (lookup(&NL4, low(w)), lookup(&NL4, high(w))) },
    d(p) { halves(p) }, start(negated) { _mm512_slli_epi32::<7>(negated) });
steps!(Mxfp4 "MXFP4", 17, Extra::Nothing,
    codes(p, v) { let w = load(p.add(16 + 64 * v)); (lookup(&E2M1, low(w)), lookup(&E2M1, high(w))) },
    d(p) {
        let e = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
        let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
        let denormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
        let tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
        _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, tiny, denormal))
    },
    start(negated) { _mm512_slli_epi32::<4>(negated) });

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

/// Q6_K.
#[derive(Clone, Copy)]
pub struct Q6K;

impl Supers for Packed<Q6K> {
    const RUNS: usize = 16;
    const TOGETHER: usize = 4;
    const MINIMA: bool = false;
    type Scales = ();

    #[inline(always)]
    unsafe fn scales(self) {}

    #[inline(always)]
    unsafe fn codes(self, u: usize, w: usize) -> [__m512i; 4] {
        // Unit u: half u >> 1 of the block; runs of its lower (u even) or upper 16 columns of each 32.
        let word = 4 * (u & 1) + w;
        // SAFETY: the caller's; fields as in `pack.rs`.
        unsafe {
            let (a, b) = (self.0.add(64 * (16 * (u >> 1) + word)), self.0.add(2048 + 64 * (8 * (u >> 1) + word)));
            let (a, b, upper) = (load(a), load(a.add(512)), load(b));
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
        8 * (u >> 1) + 2 * k + (u & 1)
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

    #[inline(always)]
    unsafe fn d(self) -> __m512 {
        // SAFETY: the caller's.
        unsafe { halves(self.0.add(3328)) }
    }

    #[inline(always)]
    unsafe fn dmin(self) -> __m512 {
        // SAFETY: the caller's features; nothing reads it.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn offset(self, paired: __m512i) -> __m512i {
        // SAFETY: the caller's features.
        unsafe { _mm512_slli_epi32::<5>(paired) }
    }
}

/// The most activation rows for which unpacking in registers pays.
pub const ROWS_MAX: usize = 4;

/// Computes the sums of a whole tile; false for formats that only panels know.
pub fn tile(_: Avx512, tile: &Tile<'_>, rows: &[&[u8]], sums: &mut [Sums; ROWS_MAX]) -> bool {
    use TensorType as T;
    macro_rules! by_rows {
        ($kernel:ident, $format:expr) => {
            // SAFETY: the witness says that this CPU has the features; the tile is a whole one of this format, and
            // the images have its shape, so that every row holds the places of all groups.
            unsafe {
                match rows.len() {
                    1 => $kernel::<_, 1>($format, tile, rows, sums),
                    2 => $kernel::<_, 2>($format, tile, rows, sums),
                    3 => $kernel::<_, 3>($format, tile, rows, sums),
                    4 => $kernel::<_, 4>($format, tile, rows, sums),
                    rows => unreachable!("invariant: at most {ROWS_MAX} rows, not {rows}"),
                }
            }
        };
    }
    match tile.ty {
        T::Q4_0 => by_rows!(tile_steps, Q4_0),
        T::Q4_1 => by_rows!(tile_steps, Q4_1),
        T::Q5_0 => by_rows!(tile_steps, Q5_0),
        T::Q5_1 => by_rows!(tile_steps, Q5_1),
        T::Q8_0 => by_rows!(tile_steps, Q8_0),
        T::IQ4_NL => by_rows!(tile_steps, Iq4Nl),
        T::MXFP4 => by_rows!(tile_steps, Mxfp4),
        T::Q4_K => by_rows!(tile_super, Q45K::<0>),
        T::Q5_K => by_rows!(tile_super, Q45K::<32>),
        T::Q6_K => by_rows!(tile_super, Q6K),
        _ => return false,
    }
    true
}

/// # Safety
/// The tier's features; the tile is of format `F`; `R` image rows of its shape.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn tile_steps<F: Copy, const R: usize>(
    format: F,
    tile: &Tile<'_>,
    rows: &[&[u8]],
    sums: &mut [Sums; ROWS_MAX],
) where
    Packed<F>: Steps,
{
    let cols = tile.shape.cols();
    // SAFETY: the caller's; groups lie behind each other in the tile.
    unsafe {
        with_sums(rows, sums, |rows: &[_; R], sums| {
            for group in 0..cols.div_ceil(GROUP_COLS) {
                let count = 8.min((cols - GROUP_COLS * group) / 32);
                let source = Packed::new(tile.group_bytes(group, 32 * count).as_ptr(), format);
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
    sums: &mut [Sums; ROWS_MAX],
) where
    Packed<F>: Supers,
{
    // SAFETY: the caller's; groups lie behind each other in the tile.
    unsafe {
        with_sums(rows, sums, |rows: &[_; R], sums| {
            for group in 0..tile.shape.cols() / GROUP_COLS {
                let source = Packed::new(tile.group_bytes(group, GROUP_COLS).as_ptr(), format);
                add_super(source, rows, Place::of(tile.shape, group), sums);
            }
        });
    }
}
