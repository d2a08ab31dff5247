//! What a GPU keeps beside weights and K/V: rows of a batch, images, expert pairs, attention's work, logits.
//!
//! Every place is an array over the rows of a batch and begins on a cache line of its own, so sizes are sums over
//! places, not a figure a row.
//! Invariant: a card cuts its buffers by these very widths, so that what is planned is what is allocated.
//! Does not know: kernels, devices.

use super::{image_of, kept};
use crate::gguf::formats::ImageKind;
use crate::model::facts::{Activations, BEST_MAX, PAGE_POSITIONS, WINDOW_ROWS_MAX};
use crate::model::program::{Op, Product, Program, StateKind};

/// Positions of a span of attention (`docs/numerics.md`, Attention).
pub const SPAN_POSITIONS: usize = 1024;

/// Values of a row among which a launch looks for the best tokens.
pub const BEST_PIECE: usize = 2048;

/// What a card keeps of its turns with the host.
pub const CONTROL_BYTES: usize = 16;

/// Activation rows of a tile of a chunk's products.
pub const TILE_COLUMNS: usize = 64;

/// Bytes of a tile's entry in the list of a chunk's experts; its head has as many.
const TILE_BYTES: usize = 16;

/// Rows whose spans are kept at once where a context is full; more rows take turns.
pub const ATTENTION_ROWS: usize = 64;

/// In front of the rows of a slot: sequence number and fault word.
pub const SLOT_HEADER_BYTES: u64 = 128;

/// Bytes of a slot that only GPUs reach, for so many values.
pub fn slot_bytes(values: usize) -> u64 {
    SLOT_HEADER_BYTES + kept(4 * values as u64)
}

/// Widths of an image's two arrays, in bytes a row: signed bytes, and f32 scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ImageBytes {
    /// One a value.
    pub codes: usize,
    /// Four a block.
    pub scales: usize,
}

impl ImageBytes {
    /// Of `cols` values; nothing for none.
    pub fn of(kind: ImageKind, cols: usize) -> ImageBytes {
        ImageBytes { codes: cols, scales: 4 * (cols / block_values(kind)) }
    }

    fn widest(self, other: ImageBytes) -> ImageBytes {
        ImageBytes { codes: self.codes.max(other.codes), scales: self.scales.max(other.scales) }
    }
}

/// Values under one scale.
pub fn block_values(kind: ImageKind) -> usize {
    match kind {
        ImageKind::A32 => 32,
        ImageKind::A256 => 256,
    }
}

/// What a mixture needs for one (row, rank) pair, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PairBytes {
    /// Gate and the activated inner row; up has as many.
    pub inner: usize,
    /// The image of the inner row.
    pub image: ImageBytes,
    /// Output.
    pub out: usize,
}

/// Widths of all places, in bytes a batch row where nothing else is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct GpuSizes {
    /// The declared rows.
    pub rows: Vec<usize>,
    /// The A32 image of a product's input.
    pub a32: ImageBytes,
    /// The A256 image.
    pub a256: ImageBytes,
    /// Cosines and sines, one for each rope.
    pub angles: Vec<usize>,
    /// Ids of a choice; weights have as many; one for each choice.
    pub choices: Vec<usize>,
    /// The most experts of a row.
    pub experts_used: usize,
    /// The most experts that rows choose among.
    pub experts: usize,
    /// Of the experts.
    pub pair: PairBytes,
    /// Of one span of one row: maximum, sum and values of every query head.
    pub span: usize,
    /// The residual row.
    pub residual: usize,
    /// Logits.
    pub vocab: usize,
}

impl GpuSizes {
    /// Reads them off the program.
    pub fn of(program: &Program, activations: Activations) -> GpuSizes {
        let image = |p: &Product| {
            let weight = program.weight(p.weight);
            image_of(weight.ty, activations).map(|kind| (kind, ImageBytes::of(kind, weight.cols)))
        };
        let mut sizes = GpuSizes {
            rows: program.rows.iter().map(|r| 4 * r.width).collect(),
            angles: program.ropes.iter().map(|r| 8 * r.frequencies.len()).collect(),
            choices: program.choices.iter().map(|c| 4 * c.used).collect(),
            residual: 4 * program.rows[program.residual.0].width,
            vocab: 4 * program.facts.vocab,
            ..GpuSizes::default()
        };
        for (_, op) in program.ops() {
            let outer = match op {
                Op::Experts { choice, down, inner_width, out, .. } => {
                    sizes.experts_used = sizes.experts_used.max(program.choices[choice.0].used);
                    sizes.experts = sizes.experts.max(program.choices[choice.0].experts);
                    sizes.pair.inner = sizes.pair.inner.max(4 * inner_width);
                    sizes.pair.out = sizes.pair.out.max(4 * out.len());
                    let inner = image(down).map_or(ImageBytes::default(), |(_, bytes)| bytes);
                    sizes.pair.image = sizes.pair.image.widest(inner);
                    Some(down.weight)
                }
                Op::Attend { q, state, .. } => {
                    if let StateKind::Paged { value_width, .. } = program.states[state.0].kind {
                        sizes.span = sizes.span.max(4 * q.count * (value_width + 2));
                    }
                    None
                }
                _ => None,
            };
            // The image of an inner row has a place of its own.
            for product in op.products().iter().filter(|p| Some(p.weight) != outer) {
                match image(product) {
                    Some((ImageKind::A32, bytes)) => sizes.a32 = sizes.a32.widest(bytes),
                    Some((ImageKind::A256, bytes)) => sizes.a256 = sizes.a256.widest(bytes),
                    None => {}
                }
            }
        }
        sizes
    }

    /// Everything but attention's work and logits, for batches of up to `rows_max` rows.
    pub fn rows_bytes(&self, rows_max: usize, kv_pages: usize) -> u64 {
        let image = |i: ImageBytes| [i.codes, i.scales];
        let pair = [self.pair.inner, self.pair.inner, self.pair.out];
        let of_rows = self.rows.iter().copied().chain(image(self.a32)).chain(image(self.a256));
        let of_rows = of_rows.chain(self.choices.iter().flat_map(|&bytes| [bytes, bytes]));
        let of_pairs = pair.into_iter().chain(image(self.pair.image)).map(|b| b * self.experts_used);
        let order = 4 * self.experts_used;
        let of_rows = of_rows.chain(of_pairs).chain([order]);
        let places: u64 = of_rows.map(|bytes| kept((bytes * rows_max) as u64)).sum();
        let control = kept(CONTROL_BYTES as u64);
        places + kept(self.tiles_bytes(rows_max)) + control + self.block_bytes(rows_max, kv_pages)
    }

    /// The tiles of `pairs` pairs of rows and experts, at most: one that is not full for each expert that is chosen.
    pub fn tiles_max(&self, pairs: usize) -> usize {
        pairs / TILE_COLUMNS + self.experts.min(pairs)
    }

    /// The list of tiles; nothing without experts.
    pub fn tiles_bytes(&self, rows_max: usize) -> u64 {
        if self.experts == 0 {
            return 0;
        }
        (TILE_BYTES * (1 + self.tiles_max(self.experts_used * rows_max))) as u64
    }

    /// The block that the host sends with every batch: the words of faults and links, then token, position, state and
    /// source of each row, the page tables, the angles.
    pub fn block_bytes(&self, rows_max: usize, kv_pages: usize) -> u64 {
        let words = 4 * kept(4 * rows_max as u64);
        let angles: u64 = self.angles.iter().map(|&bytes| kept((bytes * rows_max) as u64)).sum();
        kept(4) + words + kept(4 * kv_pages as u64) + angles
    }

    /// What the spans of a row leave at the end of a context, for as many rows as run together; or what the tiles of a
    /// row leave.
    pub fn attention_bytes(&self, context: usize, rows_max: usize) -> u64 {
        let spans = context.div_ceil(SPAN_POSITIONS).max(1);
        let rows = rows_max.clamp(SPAN_POSITIONS / PAGE_POSITIONS, ATTENTION_ROWS);
        kept((self.span * spans * rows) as u64)
    }

    /// The rows that want something side by side, their logits, and the keys of the best tokens.
    pub fn logits_bytes(&self, logits_rows_max: usize) -> u64 {
        let keys: u64 = self.keys_bytes(logits_rows_max).map(|bytes| kept(bytes as u64)).iter().sum();
        kept((self.residual * logits_rows_max) as u64) + kept((self.vocab * logits_rows_max) as u64) + keys
    }

    /// Keys of a window's rows that the launches which look for the best tokens give, the first and the second in turn.
    pub fn keys_bytes(&self, logits_rows_max: usize) -> [usize; 2] {
        let pieces = (self.vocab / 4).div_ceil(BEST_PIECE);
        let of = |pieces: usize| 8 * BEST_MAX * pieces * logits_rows_max.min(WINDOW_ROWS_MAX);
        [of(pieces), of((BEST_MAX * pieces).div_ceil(BEST_PIECE))]
    }
}
