//! Packed bytes as sources of the 512-bit kernels: codes are unpacked in registers (layouts: `pack.rs`).
//!
//! For few activation rows, where weights stream from memory once and a panel would cost more than it saves.
//! Invariant: each source gives the codes and scales that `unpack.rs` gives (both are tested against the oracle).

use std::arch::x86_64::*;

use super::avx512::{Steps, Supers, add_steps, add_super, fill_steps, fill_super, four, with_sums};
use super::direct_super::{Iq4Xs, Q2K, Q3K, Q6K, Q45K, Tq2_0};
use super::panel::{Extra, Form, Panel, ScaleCols};
use super::unpack::{E2M1, NL4};
use super::{Place, Sums, Tile, even_blocks};
use crate::device::cpu::image::{START_8_AT, START_128_AT};
use crate::device::cpu::pack::GROUP_COLS;
use crate::device::cpu::simd::tier::Avx512;
use crate::gguf::TensorType;
use crate::gguf::formats::ImageKind;

/// A group of packed blocks.
#[derive(Clone, Copy)]
pub struct Packed<F>(pub(super) *const u8, F);

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
pub(super) unsafe fn load(at: *const u8) -> __m512i {
    // SAFETY: the caller's: 64 bytes.
    unsafe {
        ahead(at, 64);
        _mm512_loadu_si512(at.cast())
    }
}

/// Asks for the memory that lies ahead of `bytes` bytes at `at`.
#[inline(always)]
pub(super) fn ahead(at: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: a prefetch reads nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD_BYTES + line).cast()) };
    }
}

#[inline(always)]
pub(super) unsafe fn halves(at: *const u8) -> __m512 {
    ahead(at, 32);
    // SAFETY: the caller's: 32 bytes.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
}

#[inline(always)]
pub(super) unsafe fn low(v: __m512i) -> __m512i {
    // SAFETY: the caller's features.
    unsafe { _mm512_and_si512(v, _mm512_set1_epi8(15)) }
}

#[inline(always)]
pub(super) unsafe fn high(v: __m512i) -> __m512i {
    // SAFETY: the caller's features.
    unsafe { low(_mm512_srli_epi16::<4>(v)) }
}

#[inline(always)]
pub(super) unsafe fn lookup(table: &[u8; 16], v: __m512i) -> __m512i {
    // SAFETY: the caller's features; a table is 16 bytes.
    unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), v) }
}

#[inline(always)]
pub(super) unsafe fn fifth(codes: __m512i, mask: *const u8) -> __m512i {
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
unsafe fn tile_steps<F: Copy, const R: usize>(format: F, tile: &Tile<'_>, rows: &[&[u8]], sums: &mut [Sums])
where
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
unsafe fn tile_super<F: Copy, const R: usize>(format: F, tile: &Tile<'_>, rows: &[&[u8]], sums: &mut [Sums])
where
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
