//! Rates of a virtual card on this computer: what the planner's time model wants to know.
//!
//! Invariant: each figure is the best of a few short runs on one thread, so a busy machine lowers it little.
//! Does not know: plans, where figures are kept.

use std::time::Instant;

use super::columns::ColumnsMut;
use super::image::{Finite, ImageShape, Images, quantise_row};
use super::machine;
use super::pack::{Matrix, TILE_ROWS, packed_bytes};
use super::simd::products::{Finish, Rows, product};
use super::simd::tier::Tier;
use crate::device::threads::{self, Refused};
use crate::gguf::TensorType;
use crate::model::facts::{Activations, CardRates, RateSource};
use crate::model::footprint::image_of;

/// The least and the most bytes that are streamed.
const STREAM_BYTES: std::ops::RangeInclusive<u64> = 128 << 20..=2 << 30;

/// K of the products measured.
const COLS: usize = 2048;

/// Rows of a prompt.
const PROMPT_ROWS: usize = 512;

const RUNS: usize = 3;

/// Bytes of a buffer that comes from memory each time it is read: four times the largest cache, within
/// [`STREAM_BYTES`], and never more than an eighth of what is available, shared by all CPUs.
fn stream_bytes() -> usize {
    let wanted = (4 * machine::largest_cache_bytes()).clamp(*STREAM_BYTES.start(), *STREAM_BYTES.end());
    wanted.min(machine::available_bytes() / 8 / machine::allowed_cpus() as u64) as usize
}

/// What all threads together read from memory in a second where nothing was measured: two channels' order of
/// magnitude.
pub const TYPICAL_MEMORY_BYTES_PER_S: f64 = 20e9;

/// Rates of one thread where nothing was measured: what one core of a present server or desktop does, rounded to one
/// digit.
pub fn typical(tier: Tier) -> CardRates {
    let (decode_bytes_per_s, prompt_macs_per_s) = match tier {
        Tier::Plain => (1e9, 2e9),
        Tier::Avx2(_) => (10e9, 50e9),
        Tier::Avx512(_) => (10e9, 100e9),
    };
    CardRates { decode_bytes_per_s, prompt_macs_per_s, source: RateSource::Typical }
}

/// Bytes a second of a plain copy of memory, read and write counted once.
pub fn copy_bytes_per_s() -> f64 {
    let bytes = stream_bytes();
    let from = vec![1u8; bytes];
    let mut to = vec![0u8; bytes];
    best(bytes as f64, || {
        to.copy_from_slice(&from);
        std::hint::black_box(&mut to);
    })
}

/// Weight bytes a second of decode rows on Q4_0 matrices.
pub fn decode_bytes_per_s(tier: Tier) -> f64 {
    let tiles = stream_bytes() / TensorType::Q4_0.row_bytes(COLS) / TILE_ROWS;
    let rows = tiles.max(1) * TILE_ROWS;
    rate(tier, rows, 1) * TensorType::Q4_0.row_bytes(COLS) as f64 / COLS as f64
}

/// The same of `count` threads at once, each with a matrix of its own: what memory gives them together.
pub fn decode_bytes_per_s_of(tier: Tier, count: usize) -> Result<f64, Refused> {
    std::thread::scope(|scope| {
        let all = (0..count).map(|_| threads::start(scope, move || decode_bytes_per_s(tier)));
        Ok(all.collect::<Result<Vec<_>, _>>()?.into_iter().map(threads::joined).sum())
    })
}

/// Multiply-adds a second of 512 prompt rows on a Q4_0 matrix.
pub fn prompt_macs_per_s(tier: Tier) -> f64 {
    rate(tier, 1024, PROMPT_ROWS)
}

/// Multiply-adds a second of a `rows` x [`COLS`] matrix with `n` activation rows.
fn rate(tier: Tier, rows: usize, n: usize) -> f64 {
    let ty = TensorType::Q4_0;
    // Any bytes are codes, and 0x0202 as a scale is below 2^-14, which keeps sums finite.
    let packed = vec![0x02u8; packed_bytes(ty, rows, COLS)];
    let matrix = Matrix::new(ty, rows, COLS, &packed);
    let kind = image_of(ty, Activations::Int8).expect("invariant: Q4_0 is quantised");
    let shape = ImageShape::new(kind, COLS);
    let mut images = vec![0u8; n * shape.row_bytes()];
    let x: Vec<f32> = (0..COLS).map(|i| (i % 17) as f32 - 8.0).collect();
    for image in images.chunks_exact_mut(shape.row_bytes()) {
        assert_eq!(quantise_row(tier, shape, &x, image), Finite::Yes, "the row measured is finite");
    }
    let images = Images::new(shape, &images);
    let mut out = vec![0f32; n * rows];
    best((n * rows * COLS) as f64, || {
        let columns = ColumnsMut::new(&mut out, rows, 1);
        product(tier, &matrix, &images, &Rows::Range(0..n), Finish::default(), &mut columns.claim(0));
        std::hint::black_box(&columns);
    })
}

/// Units a second of the fastest run, after one that is not timed.
fn best(units: f64, mut run: impl FnMut()) -> f64 {
    run();
    let time = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    let least = (0..RUNS).map(|_| time(&mut run)).fold(f64::MAX, f64::min);
    units / least.max(1e-9)
}
