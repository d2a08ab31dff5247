//! Products of panels with 256-bit vectors, eight rows of the tile at a time.
//!
//! `vpmaddubsw` multiplies unsigned with signed bytes and saturates sums of two products at 32,767: codes up to 63
//! stay far below it; wider codes are made signed, and their magnitude (at most 128) meets the activation codes with
//! the sign moved over (at most 127), two products at most 32,512. Twin: `plain.rs`.

use std::arch::x86_64::*;

use super::panel::{Extra, Form, Pairs, Panel, ScaleCols, Step, Stored, Super};
use super::unpack::Wide;
use super::{Place, Sums};
use crate::device::cpu::image::{RECORD_BYTES, START_8_AT, SUM_AT};
use crate::device::cpu::simd::tier::Avx2;
use crate::gguf::TensorType;

/// Activation rows that a kernel keeps in registers.
const ROWS_MAX: usize = 4;

/// Codes stored plus this power of two use all eight bits.
const WIDE_SHIFT: u32 = 7;

/// Unpacks a group.
pub fn unpack(witness: Avx2, ty: TensorType, bytes: &[u8], panel: &mut Panel) {
    // SAFETY: the witness says that this CPU has the features.
    unsafe { unpack_group(witness, ty, bytes, panel) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn unpack_group(witness: Avx2, ty: TensorType, bytes: &[u8], panel: &mut Panel) {
    super::unpack::group(ty, witness, bytes, panel);
}

impl Wide for Avx2 {
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], bytes: &[u8; 64]) -> ([u8; 64], [u8; 64]) {
        let (mut low, mut high) = ([0; 64], [0; 64]);
        // SAFETY: the witness says that this CPU has the features; all arrays have two vectors, the table half of one.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            let nibble = _mm256_set1_epi8(15);
            for half in [0, 32] {
                let v = _mm256_loadu_si256(bytes.as_ptr().add(half).cast());
                let (a, b) =
                    (_mm256_and_si256(v, nibble), _mm256_and_si256(_mm256_srli_epi16::<4>(v), nibble));
                _mm256_storeu_si256(low.as_mut_ptr().add(half).cast(), _mm256_shuffle_epi8(table, a));
                _mm256_storeu_si256(high.as_mut_ptr().add(half).cast(), _mm256_shuffle_epi8(table, b));
            }
        }
        (low, high)
    }

    #[inline(always)]
    fn halves(self, bytes: &[u8; 32]) -> [f32; 16] {
        let mut out = [0.0; 16];
        // SAFETY: the witness says that this CPU has the features; 16 halves become two vectors.
        unsafe {
            for i in [0, 8] {
                let eight = _mm_loadu_si128(bytes.as_ptr().add(2 * i).cast());
                _mm256_storeu_ps(out.as_mut_ptr().add(i), _mm256_cvtph_ps(eight));
            }
        }
        out
    }
}

/// Adds the values of a panel of `cols` columns to the sums of all rows.
pub fn add(_: Avx2, form: Form, panel: &Panel, cols: usize, rows: &[&[u8]], at: Place, sums: &mut [Sums]) {
    for (rows, sums) in rows.chunks(ROWS_MAX).zip(sums.chunks_mut(ROWS_MAX)) {
        // SAFETY: the witness says that this CPU has the features; the images have the form's shape, so that every
        // row holds the place of the group, and the panel holds all of the group.
        unsafe {
            match form {
                Form::Steps { extra, stored } => {
                    let steps = &panel.steps[..cols / 32];
                    let wide = stored == Stored::Plus128;
                    match (rows.len(), wide) {
                        (1, false) => add_steps::<false, 1>(steps, extra, stored, rows, at, sums),
                        (2, false) => add_steps::<false, 2>(steps, extra, stored, rows, at, sums),
                        (3, false) => add_steps::<false, 3>(steps, extra, stored, rows, at, sums),
                        (_, false) => add_steps::<false, 4>(steps, extra, stored, rows, at, sums),
                        (1, true) => add_steps::<true, 1>(steps, extra, stored, rows, at, sums),
                        (2, true) => add_steps::<true, 2>(steps, extra, stored, rows, at, sums),
                        (3, true) => add_steps::<true, 3>(steps, extra, stored, rows, at, sums),
                        (_, true) => add_steps::<true, 4>(steps, extra, stored, rows, at, sums),
                    }
                }
                Form::Super { scale_cols, pairs } => {
                    let block = &panel.block;
                    let wide = pairs == Pairs::Scales { shift: WIDE_SHIFT };
                    match (rows.len(), wide) {
                        (1, false) => add_super::<false, 1>(block, scale_cols, pairs, rows, at, sums),
                        (2, false) => add_super::<false, 2>(block, scale_cols, pairs, rows, at, sums),
                        (3, false) => add_super::<false, 3>(block, scale_cols, pairs, rows, at, sums),
                        (_, false) => add_super::<false, 4>(block, scale_cols, pairs, rows, at, sums),
                        (1, true) => add_super::<true, 1>(block, scale_cols, pairs, rows, at, sums),
                        (2, true) => add_super::<true, 2>(block, scale_cols, pairs, rows, at, sums),
                        (3, true) => add_super::<true, 3>(block, scale_cols, pairs, rows, at, sums),
                        (_, true) => add_super::<true, 4>(block, scale_cols, pairs, rows, at, sums),
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn four(row: *const u8, at: usize) -> __m256i {
    // SAFETY: the caller's place lies in the row.
    unsafe { _mm256_set1_epi32(row.add(at).cast::<i32>().read_unaligned()) }
}

#[inline(always)]
unsafe fn float(row: *const u8, at: usize) -> __m256 {
    // SAFETY: the caller's place lies in the row.
    unsafe { _mm256_set1_ps(row.add(at).cast::<f32>().read_unaligned()) }
}

/// Adds the products of some quads of eight rows, from `codes` on, to `acc`.
///
/// # Safety
/// The tier's features; `codes` has `quads` vectors of 64 bytes; every row has that many quads at `place`.
#[inline(always)]
unsafe fn dot<const WIDE: bool, const R: usize>(
    codes: *const u8,
    quads: usize,
    rows: &[*const u8; R],
    place: usize,
    acc: &mut [__m256i; R],
) {
    // SAFETY: the caller's.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        for v in 0..quads {
            let code = _mm256_loadu_si256(codes.add(64 * v).cast());
            let signed = _mm256_xor_si256(code, _mm256_set1_epi8(-128));
            let magnitude = if WIDE { _mm256_abs_epi8(signed) } else { code };
            for r in 0..R {
                let q = four(rows[r], place + 4 * v);
                let q = if WIDE { _mm256_sign_epi8(q, signed) } else { q };
                let two = _mm256_maddubs_epi16(magnitude, q);
                acc[r] = _mm256_add_epi32(acc[r], _mm256_madd_epi16(two, ones));
            }
        }
    }
}

/// # Safety
/// The tier's features; `R` image rows, in which `at` is the place of a group with these steps.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_steps<const WIDE: bool, const R: usize>(
    steps: &[Step],
    extra: Extra,
    stored: Stored,
    rows: &[&[u8]],
    at: Place,
    sums: &mut [Sums],
) {
    let rows: [*const u8; R] = std::array::from_fn(|r| rows[r].as_ptr());
    // SAFETY: the caller's; fields of a step are arrays of 16 rows, of which each half is a vector.
    unsafe {
        let zero = _mm256_setzero_si256();
        for half in 0..2 {
            let mut g = [_mm256_setzero_ps(); R];
            let scaled = |factor: &[f32; 16], b: usize, values: [__m256i; R], g: &mut [__m256; R]| {
                let factor = _mm256_loadu_ps(factor.as_ptr().add(8 * half));
                for r in 0..R {
                    let a = float(rows[r], at.scales + RECORD_BYTES * b);
                    g[r] = _mm256_fmadd_ps(_mm256_mul_ps(factor, a), _mm256_cvtepi32_ps(values[r]), g[r]);
                }
            };
            for (b, step) in steps.iter().enumerate() {
                let codes = step.codes.as_ptr().cast::<u8>().add(32 * half);
                let place = at.codes + 32 * b;
                let mut acc = [zero; R];
                if extra == Extra::SecondHalf {
                    dot::<WIDE, R>(codes, 4, &rows, place, &mut acc);
                    scaled(&step.d, b, acc, &mut g);
                    acc = [zero; R];
                    dot::<WIDE, R>(codes.add(256), 4, &rows, place + 16, &mut acc);
                    scaled(&step.e, b, acc, &mut g);
                    continue;
                }
                let record = at.scales + RECORD_BYTES * b;
                // Codes stored plus 128 are made signed; see `dot`.
                if stored == Stored::Plus8 {
                    acc = std::array::from_fn(|r| four(rows[r], record + START_8_AT));
                }
                dot::<WIDE, R>(codes, 8, &rows, place, &mut acc);
                scaled(&step.d, b, acc, &mut g);
                if extra == Extra::Offset {
                    let m = _mm256_loadu_ps(step.e.as_ptr().add(8 * half));
                    for r in 0..R {
                        let ma = _mm256_mul_ps(m, float(rows[r], record));
                        g[r] = _mm256_fmadd_ps(ma, float(rows[r], record + SUM_AT), g[r]);
                    }
                }
            }
            for r in 0..R {
                add_half(&mut sums[r], half, g[r]);
            }
        }
    }
}

/// # Safety
/// The tier's features.
#[inline(always)]
unsafe fn add_half(sums: &mut Sums, half: usize, g: __m256) {
    // SAFETY: the caller's; `half` is 0 or 1, half of the sums a vector.
    unsafe {
        let at = sums.as_mut_ptr().add(8 * half);
        _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), g));
    }
}

/// # Safety
/// The tier's features; `R` image rows, in which `at` is the place of a group.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_super<const WIDE: bool, const R: usize>(
    block: &Super,
    scale_cols: ScaleCols,
    pairs: Pairs,
    rows: &[&[u8]],
    at: Place,
    sums: &mut [Sums],
) {
    let rows: [*const u8; R] = std::array::from_fn(|r| rows[r].as_ptr());
    let (runs, sums_at) = match scale_cols {
        ScaleCols::C16 => (16, at.sums16),
        ScaleCols::C32 => (8, at.sums32),
    };
    let quads = 64 / runs;
    // SAFETY: the caller's; fields of a block are arrays of 16 rows, of which each half is a vector.
    unsafe {
        let zero = _mm256_setzero_si256();
        for half in 0..2 {
            let mut total = [zero; R];
            for run in 0..runs {
                let mut part = [zero; R];
                let codes = block.codes.as_ptr().add(quads * run).cast::<u8>().add(32 * half);
                dot::<WIDE, R>(codes, quads, &rows, at.codes + 4 * quads * run, &mut part);
                let scale = _mm256_loadu_si256(block.scales[run].as_ptr().add(8 * half).cast());
                for r in 0..R {
                    total[r] = _mm256_add_epi32(total[r], _mm256_mullo_epi32(part[r], scale));
                }
            }
            let mut paired = [zero; R];
            if !WIDE {
                for p in 0..runs / 2 {
                    let pair = _mm256_loadu_si256(block.pairs[p].as_ptr().add(8 * half).cast());
                    for r in 0..R {
                        let products = _mm256_madd_epi16(pair, four(rows[r], sums_at + 4 * p));
                        paired[r] = _mm256_add_epi32(paired[r], products);
                    }
                }
            }
            let d = _mm256_loadu_ps(block.d.as_ptr().add(8 * half));
            let dmin = _mm256_loadu_ps(block.dmin.as_ptr().add(8 * half));
            for r in 0..R {
                let a = float(rows[r], at.scales);
                let da = _mm256_mul_ps(d, a);
                let g = match pairs {
                    Pairs::Minima => {
                        let minima = _mm256_mul_ps(_mm256_mul_ps(dmin, a), _mm256_cvtepi32_ps(paired[r]));
                        _mm256_fmsub_ps(da, _mm256_cvtepi32_ps(total[r]), minima)
                    }
                    Pairs::Scales { shift } => {
                        let offset = _mm256_sll_epi32(paired[r], _mm_cvtsi32_si128(shift as i32));
                        _mm256_mul_ps(da, _mm256_cvtepi32_ps(_mm256_sub_epi32(total[r], offset)))
                    }
                };
                add_half(&mut sums[r], half, g);
            }
        }
    }
}
