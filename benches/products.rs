//! Speed of products with quantised weights on one thread, after a check of their bits.
//!
//! Prints, for each tier and format: decode (one row) in GB/s of weights streamed from a buffer larger than the
//! caches, beside the rate of a plain read of the same buffer; a window of eight rows likewise; and a prompt of 512
//! rows at 1,024 columns in 10^9 multiply-adds a second. `cargo bench --bench products -- [TIER] [TYPE...]`.

use std::time::Instant;

use tandem::device::cpu::columns::ColumnsMut;
use tandem::device::cpu::image::{Finite, ImageShape, Images, quantise_row};
use tandem::device::cpu::pack::{Matrix, pack_tile, packed_bytes, tile_bytes, tile_count};
use tandem::device::cpu::simd::products::{Finish, Rows, product};
use tandem::device::cpu::simd::tier::Tier;
use tandem::gguf::TensorType;
use tandem::model::facts::Activations;
use tandem::model::footprint::image_of;

const STREAM_BYTES: usize = 160 << 20;
/// Parts of the buffer that are timed one by one.
const PARTS: usize = 64;
const COLS: usize = 1024;
const PROMPT_ROWS: usize = 512;
const PROMPT_OUT: usize = 768;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let (tiers, names): (Vec<_>, Vec<_>) = words.into_iter().partition(|w| Tier::NAMES.contains(&w.as_str()));
    let tiers: Vec<Tier> = match tiers.first() {
        Some(name) => Tier::named(name).into_iter().collect(),
        None => vec![Tier::detect()],
    };
    let x: Vec<f32> = floats(PROMPT_ROWS * COLS);
    println!("plain read of {} MiB: {:.1} GB/s", STREAM_BYTES >> 20, read_rate());
    println!("type     tier     decode GB/s  8 rows GB/s  512 rows GMAC/s  images us/row");
    for tier in tiers {
        for &ty in TensorType::ALL.iter().filter(|ty| ty.is_quantised()) {
            if names.is_empty() || names.iter().any(|name| name == ty.name()) {
                bench(tier, ty, &x);
            }
        }
    }
}

fn bench(tier: Tier, ty: TensorType, x: &[f32]) {
    let shape = ImageShape::new(image_of(ty, Activations::Int8).expect("a quantised type"), COLS);
    let mut image = vec![0; PROMPT_ROWS * shape.row_bytes()];
    let image_s = best(|| {
        for (x, image) in x.chunks_exact(COLS).zip(image.chunks_exact_mut(shape.row_bytes())) {
            assert_eq!(quantise_row(tier, shape, x, image), Finite::Yes);
        }
    });
    let images = Images::new(shape, &image);

    let packed = pack(ty, PROMPT_OUT, COLS);
    let matrix = Matrix::new(ty, PROMPT_OUT, COLS, &packed);
    let all = Rows::Range(0..PROMPT_ROWS);
    check(tier, &matrix, &images);
    let mut out = vec![0.0; PROMPT_ROWS * PROMPT_OUT];
    let prompt_s = best(|| run(tier, &matrix, &images, &all, &mut out));

    // Many copies of one tile are as good as many tiles: the time is that of memory.
    let rows = STREAM_BYTES / ty.row_bytes(COLS) / 16 * 16;
    let tile = &packed[tile_bytes(ty, PROMPT_OUT, COLS, 0)];
    let stream = tile.repeat(rows / 16);
    let matrix = Matrix::new(ty, rows, COLS, &stream);
    let mut out = vec![0.0; 8 * rows];
    let decode_s = sweep(tier, &matrix, &images, &Rows::Range(0..1), &mut out[..rows]);
    let window_s = sweep(tier, &matrix, &images, &Rows::Range(0..8), &mut out);

    let gb = stream.len() as f64 / 1e9 / PARTS as f64;
    println!(
        "{:8} {:8} {:11.1}  {:11.1}  {:15.1}  {:13.2}",
        ty.name(),
        tier.name(),
        gb / decode_s,
        gb / window_s,
        (PROMPT_ROWS * PROMPT_OUT * COLS) as f64 / prompt_s / 1e9,
        image_s * 1e6 / PROMPT_ROWS as f64,
    );
}

/// Sweeps over the matrix in parts, one after the other, so that none is in a cache when its turn comes; the shortest
/// time of a part.
fn sweep(tier: Tier, matrix: &Matrix<'_>, images: &Images<'_>, rows: &Rows<'_>, out: &mut [f32]) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..2 {
        let columns = ColumnsMut::new(out, matrix.rows(), PARTS);
        for part in 0..PARTS {
            let start = Instant::now();
            product(tier, matrix, images, rows, Finish::default(), &mut columns.claim(part));
            best = best.min(start.elapsed().as_secs_f64());
        }
    }
    best
}

fn run(tier: Tier, matrix: &Matrix<'_>, images: &Images<'_>, rows: &Rows<'_>, out: &mut [f32]) {
    let columns = ColumnsMut::new(out, matrix.rows(), 1);
    product(tier, matrix, images, rows, Finish::default(), &mut columns.claim(0));
}

/// The tier's bits are those of the plain tier, for one row, a window and many.
fn check(tier: Tier, matrix: &Matrix<'_>, images: &Images<'_>) {
    for rows in [0..1, 3..11, 7..24] {
        let bits = |tier| {
            let mut out = vec![f32::NAN; rows.len() * matrix.rows()];
            run(tier, matrix, images, &Rows::Range(rows.clone()), &mut out);
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert!(bits(tier) == bits(Tier::Plain), "{}: the bits of the plain tier", matrix.ty());
    }
}

/// Random bytes with the scales of a file: every half becomes a small finite number.
fn pack(ty: TensorType, rows: usize, cols: usize) -> Vec<u8> {
    let mut file: Vec<u8> = noise(rows * ty.row_bytes(cols));
    for block in file.chunks_exact_mut(ty.block_bytes()) {
        // Which bytes are scales differs by format; all exponents of halves at even places stay below infinity.
        for pair in block.chunks_exact_mut(2) {
            pair[1] &= 0xBF;
        }
    }
    let mut packed = vec![0; packed_bytes(ty, rows, cols)];
    for (tile, src) in file.chunks(16 * ty.row_bytes(cols)).enumerate().take(tile_count(rows)) {
        pack_tile(ty, cols, src, &mut packed[tile_bytes(ty, rows, cols, tile)]);
    }
    packed
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 88172645463325252u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn floats(len: usize) -> Vec<f32> {
    noise(2 * len).chunks_exact(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 8192.0).collect()
}

fn read_rate() -> f64 {
    let words = vec![1u64; STREAM_BYTES / 8];
    let mut best = f64::INFINITY;
    for part in words.chunks_exact(words.len() / PARTS) {
        let start = Instant::now();
        let mut sums = [0u64; 32];
        for line in std::hint::black_box(part).as_chunks::<32>().0 {
            for (sum, word) in sums.iter_mut().zip(line) {
                *sum |= word;
            }
        }
        std::hint::black_box(sums);
        best = best.min(start.elapsed().as_secs_f64());
    }
    (STREAM_BYTES / PARTS) as f64 / 1e9 / best
}

/// The shortest of some runs, in seconds.
fn best(mut run: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..15 {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
