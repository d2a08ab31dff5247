//! Products with 512-bit vectors: a vector holds four codes of each of 16 rows, `vpdpbusd` multiplies it with four
//! broadcast activation codes.
//!
//! Two kernels serve every format: [`add_steps`] (float scales per 32 columns) and [`add_super`] (integer scales,
//! floats once per 256). What they read comes from a source: a [`panel`](super::panel) for many activation rows, or
//! the packed bytes themselves (`direct.rs`), unpacked in registers, for few.
//! Order: inside a group integers; between groups and steps the chain of `docs/numerics.md`. Twin: `plain.rs`.

use std::arch::x86_64::*;

use super::panel::{Extra, Form, Pairs, Panel, ScaleCols, Step, Stored, Super};
use super::{Place, Sums, even_blocks};
use crate::device::cpu::image::{RECORD_BYTES, START_8_AT, START_128_AT, SUM_AT};
use crate::device::cpu::simd::tier::Avx512;

/// A group in steps of 32 columns.
pub trait Steps: Copy {
    /// What `e` is.
    const EXTRA: Extra;
    /// Codes of quads `v` and `v + 4` of step `b`, `v < 4`.
    ///
    /// # Safety
    /// The tier's features; step `b` exists.
    unsafe fn codes(self, b: usize, v: usize) -> (__m512i, __m512i);
    /// The scales of step `b`.
    ///
    /// # Safety
    /// As `codes`.
    unsafe fn d(self, b: usize) -> __m512;
    /// The second floats of step `b`.
    ///
    /// # Safety
    /// As `codes`.
    unsafe fn e(self, b: usize) -> __m512;
    /// The start value for codes stored with an offset, from an A32 record `at` bytes into the image row.
    ///
    /// # Safety
    /// The tier's features; the record lies in the row.
    unsafe fn start(self, row: *const u8, at: usize) -> __m512i;
}

/// A group with integer scales.
pub trait Supers: Copy {
    /// Runs of columns with a scale: 8 or 16.
    const RUNS: usize;
    /// Runs whose codes are unpacked together.
    const TOGETHER: usize;
    /// True where `pairs` are minima, false where they are scales.
    const MINIMA: bool;
    /// Unpacked scales.
    type Scales;
    /// Unpacks the scales.
    ///
    /// # Safety
    /// The tier's features; the block exists.
    unsafe fn scales(self) -> Self::Scales;
    /// Codes of quad `w` of the runs of unit `u` (the first `TOGETHER` count).
    ///
    /// # Safety
    /// As `scales`.
    unsafe fn codes(self, u: usize, w: usize) -> [__m512i; 4];
    /// Run `k` of unit `u`.
    fn run(u: usize, k: usize) -> usize;
    /// The scales of a run.
    ///
    /// # Safety
    /// As `scales`.
    unsafe fn scale(self, scales: &Self::Scales, run: usize) -> __m512i;
    /// The pairs of runs `2 p` and `2 p + 1`.
    ///
    /// # Safety
    /// As `scales`.
    unsafe fn pair(self, scales: &Self::Scales, p: usize) -> __m512i;
    /// The scales of the rows.
    ///
    /// # Safety
    /// As `scales`.
    unsafe fn d(self) -> __m512;
    /// The scales of the rows' minima.
    ///
    /// # Safety
    /// As `scales`.
    unsafe fn dmin(self) -> __m512;
    /// The sum of pairs times the codes' offset.
    ///
    /// # Safety
    /// The tier's features.
    unsafe fn offset(self, paired: __m512i) -> __m512i;
}

#[inline(always)]
pub unsafe fn four(row: *const u8, at: usize) -> __m512i {
    // SAFETY: the caller's place lies in the row.
    unsafe { _mm512_set1_epi32(row.add(at).cast::<i32>().read_unaligned()) }
}

#[inline(always)]
unsafe fn float(row: *const u8, at: usize) -> __m512 {
    // SAFETY: the caller's place lies in the row.
    unsafe { _mm512_set1_ps(row.add(at).cast::<f32>().read_unaligned()) }
}

/// Adds the values of a group of `count` steps to the sums of `R` activation rows.
///
/// # Safety
/// The tier's features; `source` has `count` steps; every row is an image row in which `at` is the place of a group.
#[inline(always)]
pub unsafe fn add_steps<S: Steps, const R: usize>(
    source: S,
    count: usize,
    rows: &[*const u8; R],
    at: Place,
    sums: &mut [__m512; R],
) {
    // SAFETY: as the function's.
    unsafe {
        let mut g = [_mm512_setzero_ps(); R];
        for b in 0..count {
            let halves = matches!(S::EXTRA, Extra::SecondHalf);
            let mut low = [_mm512_setzero_si512(); R];
            let mut high = [_mm512_setzero_si512(); R];
            let record = at.scales + RECORD_BYTES * b;
            for r in 0..R {
                if halves {
                    low[r] = four(rows[r], at.sums16 + 8 * b);
                    high[r] = four(rows[r], at.sums16 + 8 * b + 4);
                } else {
                    low[r] = source.start(rows[r], record);
                }
            }
            for v in 0..4 {
                let (first, second) = source.codes(b, v);
                for r in 0..R {
                    let q = four(rows[r], at.codes + 32 * b + 4 * v);
                    low[r] = _mm512_dpbusd_epi32(low[r], first, q);
                }
                for r in 0..R {
                    let q = four(rows[r], at.codes + 32 * b + 4 * v + 16);
                    let sum = if halves { &mut high[r] } else { &mut low[r] };
                    *sum = _mm512_dpbusd_epi32(*sum, second, q);
                }
            }
            let (d, e) = (source.d(b), source.e(b));
            for r in 0..R {
                let a = float(rows[r], record);
                g[r] = _mm512_fmadd_ps(_mm512_mul_ps(d, a), _mm512_cvtepi32_ps(low[r]), g[r]);
                match S::EXTRA {
                    Extra::Nothing => {}
                    Extra::Offset => {
                        g[r] = _mm512_fmadd_ps(_mm512_mul_ps(e, a), float(rows[r], record + SUM_AT), g[r]);
                    }
                    Extra::SecondHalf => {
                        g[r] = _mm512_fmadd_ps(_mm512_mul_ps(e, a), _mm512_cvtepi32_ps(high[r]), g[r]);
                    }
                }
            }
        }
        for r in 0..R {
            sums[r] = _mm512_add_ps(sums[r], g[r]);
        }
    }
}

/// Adds the values of a group to the sums of `R` activation rows.
///
/// # Safety
/// The tier's features; the block exists; every row is an image row in which `at` is the place of a group.
#[expect(clippy::needless_range_loop, reason = "the index also numbers a run of columns")]
#[inline(always)]
pub unsafe fn add_super<S: Supers, const R: usize>(
    source: S,
    rows: &[*const u8; R],
    at: Place,
    sums: &mut [__m512; R],
) {
    // SAFETY: as the function's.
    unsafe {
        let zero = _mm512_setzero_si512();
        let quads = 64 / S::RUNS;
        let scales = source.scales();
        let mut total = [zero; R];
        for u in 0..S::RUNS / S::TOGETHER {
            let mut part = [[zero; R]; 4];
            for w in 0..quads {
                let codes = source.codes(u, w);
                for k in 0..S::TOGETHER {
                    let place = at.codes + 4 * (quads * S::run(u, k) + w);
                    for r in 0..R {
                        part[k][r] = _mm512_dpbusd_epi32(part[k][r], codes[k], four(rows[r], place));
                    }
                }
            }
            for k in 0..S::TOGETHER {
                let scale = source.scale(&scales, S::run(u, k));
                for r in 0..R {
                    total[r] = _mm512_add_epi32(total[r], _mm512_mullo_epi32(part[k][r], scale));
                }
            }
        }
        let sums_at = if S::RUNS == 16 { at.sums16 } else { at.sums32 };
        let mut paired = [zero; R];
        for p in 0..S::RUNS / 2 {
            let pair = source.pair(&scales, p);
            for r in 0..R {
                paired[r] = _mm512_dpwssd_epi32(paired[r], pair, four(rows[r], sums_at + 4 * p));
            }
        }
        let (d, dmin) = (source.d(), source.dmin());
        for r in 0..R {
            let a = float(rows[r], at.scales);
            let da = _mm512_mul_ps(d, a);
            let g = if S::MINIMA {
                let minima = _mm512_mul_ps(_mm512_mul_ps(dmin, a), _mm512_cvtepi32_ps(paired[r]));
                _mm512_fmsub_ps(da, _mm512_cvtepi32_ps(total[r]), minima)
            } else {
                let total = _mm512_sub_epi32(total[r], source.offset(paired[r]));
                _mm512_mul_ps(da, _mm512_cvtepi32_ps(total))
            };
            sums[r] = _mm512_add_ps(sums[r], g);
        }
    }
}

/// Steps of a panel.
#[derive(Clone, Copy)]
pub struct PanelSteps<'a, const EXTRA: u8> {
    steps: &'a [Step; 8],
    /// Where a record has the start value, and the lanes that take it.
    start_at: usize,
    starts: __mmask16,
}

/// Values of [`PanelSteps`]' parameter.
pub const NOTHING: u8 = 0;
/// See [`Extra::Offset`].
pub const OFFSET: u8 = 1;
/// See [`Extra::SecondHalf`].
pub const SECOND_HALF: u8 = 2;

impl<'a, const EXTRA: u8> PanelSteps<'a, EXTRA> {
    /// The steps of a panel.
    #[inline(always)]
    pub fn new(steps: &'a [Step; 8], stored: Stored) -> Self {
        let (start_at, starts) = match stored {
            Stored::Plain => (0, 0),
            Stored::Plus8 => (START_8_AT, 0xFFFF),
            Stored::Plus128 => (START_128_AT, 0xFFFF),
        };
        PanelSteps { steps, start_at, starts }
    }
}

impl<const EXTRA: u8> Steps for PanelSteps<'_, EXTRA> {
    const EXTRA: Extra = match EXTRA {
        NOTHING => Extra::Nothing,
        OFFSET => Extra::Offset,
        _ => Extra::SecondHalf,
    };

    #[inline(always)]
    unsafe fn codes(self, b: usize, v: usize) -> (__m512i, __m512i) {
        let codes = self.steps.as_ptr().wrapping_add(b).cast::<__m512i>();
        // SAFETY: the caller's: step `b` exists; its codes come first and are eight aligned vectors.
        unsafe { (_mm512_load_si512(codes.add(v)), _mm512_load_si512(codes.add(v + 4))) }
    }

    #[inline(always)]
    unsafe fn d(self, b: usize) -> __m512 {
        // SAFETY: the caller's; the field is 64 bytes.
        unsafe { _mm512_loadu_ps((*self.steps.as_ptr().add(b)).d.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn e(self, b: usize) -> __m512 {
        // SAFETY: the caller's; the field is 64 bytes.
        unsafe { _mm512_loadu_ps((*self.steps.as_ptr().add(b)).e.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn start(self, row: *const u8, at: usize) -> __m512i {
        // SAFETY: the caller's.
        unsafe { _mm512_maskz_mov_epi32(self.starts, four(row, at + self.start_at)) }
    }
}

/// A panel with integer scales of `RUNS` runs.
#[derive(Clone, Copy)]
pub struct PanelSuper<'a, const RUNS: usize, const MINIMA: bool> {
    /// The panel's block.
    pub block: &'a Super,
    /// Codes are stored plus `2^shift`, where `MINIMA` is false.
    pub shift: u32,
}

impl<const RUNS: usize, const MINIMA: bool> Supers for PanelSuper<'_, RUNS, MINIMA> {
    const RUNS: usize = RUNS;
    const TOGETHER: usize = 1;
    const MINIMA: bool = MINIMA;
    type Scales = ();

    #[inline(always)]
    unsafe fn scales(self) {}

    #[inline(always)]
    unsafe fn codes(self, u: usize, w: usize) -> [__m512i; 4] {
        // SAFETY: the features are the caller's; the panel has 64 aligned vectors, 64 / RUNS a run.
        unsafe {
            let vector = self.block.codes.as_ptr().cast::<__m512i>().add(64 / RUNS * u + w);
            [
                _mm512_load_si512(vector),
                _mm512_setzero_si512(),
                _mm512_setzero_si512(),
                _mm512_setzero_si512(),
            ]
        }
    }

    #[inline(always)]
    fn run(u: usize, _: usize) -> usize {
        u
    }

    #[inline(always)]
    unsafe fn scale(self, _: &(), run: usize) -> __m512i {
        // SAFETY: the features are the caller's; a run has 16 scales.
        unsafe { _mm512_load_si512(self.block.scales.as_ptr().add(run).cast()) }
    }

    #[inline(always)]
    unsafe fn pair(self, _: &(), p: usize) -> __m512i {
        // SAFETY: the features are the caller's; a pair is 64 bytes.
        unsafe { _mm512_load_si512(self.block.pairs.as_ptr().add(p).cast()) }
    }

    #[inline(always)]
    unsafe fn d(self) -> __m512 {
        // SAFETY: the features are the caller's; the field is 64 bytes.
        unsafe { _mm512_loadu_ps(self.block.d.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn dmin(self) -> __m512 {
        // SAFETY: the features are the caller's; the field is 64 bytes.
        unsafe { _mm512_loadu_ps(self.block.dmin.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn offset(self, paired: __m512i) -> __m512i {
        // SAFETY: the caller's.
        unsafe { _mm512_sllv_epi32(paired, _mm512_set1_epi32(self.shift as i32)) }
    }
}

/// Calls a kernel with the number of rows as its last parameter.
macro_rules! by_rows {
    (@one $kernel:ident, [$($p:tt),*], $args:tt, $n:literal) => { $kernel::<$($p,)* $n> $args };
    (@all $rows:expr, $kernel:ident, $p:tt, $args:tt, $($n:literal)*) => {
        match $rows {
            $($n => by_rows!(@one $kernel, $p, $args, $n),)*
            rows => unreachable!("invariant: blocks of at most {ROWS_MAX} rows, not {rows}"),
        }
    };
    ($rows:expr, $kernel:ident :: <$($p:tt),*> $args:tt) => {
        by_rows!(@all $rows, $kernel, [$($p),*], $args, 1 2 3 4 5 6 7 8 9 10 11 12)
    };
}

/// Activation rows that a kernel keeps in registers beside the codes.
const ROWS_MAX: usize = 12;

/// Writes a group to the panel.
///
/// # Safety
/// The tier's features; `source` has `count` steps, at most eight.
#[inline(always)]
pub unsafe fn fill_steps<S: Steps>(source: S, count: usize, steps: &mut [Step; 8]) {
    for (b, step) in steps[..count].iter_mut().enumerate() {
        let to = step.codes.as_mut_ptr().cast::<__m512i>();
        // SAFETY: the caller's; all fields are aligned vectors.
        unsafe {
            for v in 0..4 {
                let (first, second) = source.codes(b, v);
                _mm512_store_si512(to.add(v), first);
                _mm512_store_si512(to.add(v + 4), second);
            }
            _mm512_storeu_ps(step.d.as_mut_ptr(), source.d(b));
            _mm512_storeu_ps(step.e.as_mut_ptr(), source.e(b));
        }
    }
}

/// Writes a block to the panel.
///
/// # Safety
/// The tier's features; the block exists.
#[expect(clippy::needless_range_loop, reason = "the index also numbers a run of columns")]
#[inline(always)]
pub unsafe fn fill_super<S: Supers>(source: S, block: &mut Super) {
    let quads = 64 / S::RUNS;
    // SAFETY: the caller's; all fields are aligned vectors.
    unsafe {
        let scales = source.scales();
        let to = block.codes.as_mut_ptr().cast::<__m512i>();
        for u in 0..S::RUNS / S::TOGETHER {
            for w in 0..quads {
                let codes = source.codes(u, w);
                for k in 0..S::TOGETHER {
                    _mm512_store_si512(to.add(quads * S::run(u, k) + w), codes[k]);
                }
            }
        }
        for run in 0..S::RUNS {
            _mm512_storeu_si512(block.scales.as_mut_ptr().add(run).cast(), source.scale(&scales, run));
        }
        for p in 0..S::RUNS / 2 {
            _mm512_storeu_si512(block.pairs.as_mut_ptr().add(p).cast(), source.pair(&scales, p));
        }
        _mm512_storeu_ps(block.d.as_mut_ptr(), source.d());
        _mm512_storeu_ps(block.dmin.as_mut_ptr(), source.dmin());
    }
}

/// Adds the values of a panel of `cols` columns to the sums of all rows.
pub fn add(_: Avx512, form: Form, panel: &Panel, cols: usize, rows: &[&[u8]], at: Place, sums: &mut [Sums]) {
    for (rows, sums) in even_blocks(rows, sums, ROWS_MAX) {
        let (steps, block) = (&panel.steps, &panel.block);
        // SAFETY: the witness says that this CPU has the features; the images have the form's shape, so that every
        // row holds the place of the group, and the panel holds all of the group.
        unsafe {
            match form {
                Form::Steps { extra: Extra::Nothing, stored } => {
                    by_rows!(rows.len(), panel_steps::<NOTHING>(steps, stored, cols / 32, rows, at, sums))
                }
                Form::Steps { extra: Extra::Offset, stored } => {
                    by_rows!(rows.len(), panel_steps::<OFFSET>(steps, stored, cols / 32, rows, at, sums))
                }
                Form::Steps { extra: Extra::SecondHalf, stored } => {
                    by_rows!(rows.len(), panel_steps::<SECOND_HALF>(steps, stored, cols / 32, rows, at, sums))
                }
                Form::Super { scale_cols: ScaleCols::C16, pairs: Pairs::Minima } => {
                    by_rows!(rows.len(), panel_super::<16, true>(block, 0, rows, at, sums))
                }
                Form::Super { scale_cols: ScaleCols::C32, pairs: Pairs::Minima } => {
                    by_rows!(rows.len(), panel_super::<8, true>(block, 0, rows, at, sums))
                }
                Form::Super { scale_cols: ScaleCols::C16, pairs: Pairs::Scales { shift } } => {
                    by_rows!(rows.len(), panel_super::<16, false>(block, shift, rows, at, sums))
                }
                Form::Super { scale_cols: ScaleCols::C32, pairs: Pairs::Scales { shift } } => {
                    by_rows!(rows.len(), panel_super::<8, false>(block, shift, rows, at, sums))
                }
            }
        }
    }
}

/// # Safety
/// As [`add_steps`]; `R` rows and sums.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn panel_steps<const EXTRA: u8, const R: usize>(
    steps: &[Step; 8],
    stored: Stored,
    count: usize,
    rows: &[&[u8]],
    at: Place,
    sums: &mut [Sums],
) {
    // SAFETY: the caller's.
    unsafe {
        let source = PanelSteps::<EXTRA>::new(steps, stored);
        with_sums(rows, sums, |rows: &[_; R], sums| add_steps(source, count, rows, at, sums));
    }
}

/// # Safety
/// As [`add_super`]; `R` rows and sums.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn panel_super<const RUNS: usize, const MINIMA: bool, const R: usize>(
    block: &Super,
    shift: u32,
    rows: &[&[u8]],
    at: Place,
    sums: &mut [Sums],
) {
    // SAFETY: the caller's.
    unsafe {
        let source = PanelSuper::<RUNS, MINIMA> { block, shift };
        with_sums(rows, sums, |rows: &[_; R], sums| add_super(source, rows, at, sums));
    }
}

/// Runs `kernel` on vectors of the sums.
///
/// # Safety
/// The tier's features.
#[inline(always)]
pub unsafe fn with_sums<const R: usize>(
    rows: &[&[u8]],
    sums: &mut [Sums],
    kernel: impl FnOnce(&[*const u8; R], &mut [__m512; R]),
) {
    assert!(rows.len() == R && sums.len() >= R, "invariant: a kernel's rows");
    let rows: [*const u8; R] = std::array::from_fn(|r| rows[r].as_ptr());
    // SAFETY: the features are the caller's; sums of a row are 64 bytes.
    unsafe {
        let mut vectors = [_mm512_setzero_ps(); R];
        for r in 0..R {
            vectors[r] = _mm512_loadu_ps(sums[r].as_ptr());
        }
        kernel(&rows, &mut vectors);
        for r in 0..R {
            _mm512_storeu_ps(sums[r].as_mut_ptr(), vectors[r]);
        }
    }
}
