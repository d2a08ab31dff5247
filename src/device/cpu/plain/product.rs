//! Products of one weight row with one activation row: block formats in the 8-bit and the float order, float rows.
//!
//! Invariants: integers are exact inside a group's terms; groups of 256 values have one f32 value each, and the row's
//! result is their chain, then the companion scale, then the bias. Does not know: matrices, layouts of blocks.
//! Source: `docs/numerics.md`, Dot product with a quantised row.

use super::image::{A32_VALUES, A256_VALUES, Image};
use super::reduce::{SHORT_LANES, chain_sum, lanes_dot};
use crate::gguf::TensorType;
use crate::gguf::formats::{self, Codes, Format, dequantize_row};

/// Values of a group.
pub const GROUP_VALUES: usize = 256;

/// One float step of a product: the integers of neighbouring values that share their scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// The block's float scale.
    pub d: f32,
    /// The image's scale.
    pub activation: f32,
    /// Sum of (integer scale *) code * activation code: I.
    pub codes: i32,
    /// Where the format has an offset: its float scale, and the sum of (integer minimum *) activation codes: M or S.
    pub offset: Option<(f32, i32)>,
}

/// Values that share a scale in the images that products with this format read.
pub fn image_values(format: &Format) -> usize {
    match format.image {
        formats::ImageKind::A32 => A32_VALUES,
        formats::ImageKind::A256 => A256_VALUES,
    }
}

/// The blocks of a row as integers and scales.
pub fn decode(format: &Format, row: &[u8]) -> Vec<Codes> {
    let blocks = row.chunks_exact(format.ty.block_bytes());
    blocks
        .map(|block| {
            let mut codes = Codes::default();
            (format.codes)(block, &mut codes);
            codes
        })
        .collect()
}

/// The terms of a decoded row with an image, in order.
pub fn terms(format: &Format, row: &[Codes], image: &Image) -> Vec<Term> {
    assert_eq!(image.block_values, image_values(format), "{}: the image of its products", format.ty);
    assert_eq!(row.len() * format.ty.block_values(), image.codes.len(), "{}: values of a row", format.ty);
    let blocks = row.iter().zip(image.codes.chunks_exact(format.ty.block_values()));
    match format.image {
        formats::ImageKind::A256 => {
            blocks.zip(&image.scales).map(|((block, q), &a)| superblock_term(block, q, a)).collect()
        }
        formats::ImageKind::A32 => {
            let step_values = |block: &Codes| format.ty.block_values() / block.steps;
            blocks
                .flat_map(|(block, q)| {
                    q.chunks_exact(step_values(block)).enumerate().map(move |s| (block, s))
                })
                .scan(0, |first, (block, (step, q))| {
                    let activation = image.scales[*first / A32_VALUES];
                    *first += q.len();
                    Some(step_term(block, step, q, activation))
                })
                .collect()
        }
    }
}

/// 256 values with integer scales for each 16.
fn superblock_term(block: &Codes, q: &[i8], activation: f32) -> Term {
    let (mut codes, mut minima) = (0, 0);
    for (i, (&code, &q)) in block.code.iter().zip(q).enumerate() {
        let (scale, min) = (i32::from(block.scale[i / 16]), i32::from(block.min[i / 16]));
        codes += scale * i32::from(code) * i32::from(q);
        minima += min * i32::from(q);
    }
    Term { d: block.d[0], activation, codes, offset: block.has_min.then_some((block.m[0], minima)) }
}

/// The values of a block that share one float scale.
fn step_term(block: &Codes, step: usize, q: &[i8], activation: f32) -> Term {
    let code = &block.code[step * q.len()..][..q.len()];
    let codes = code.iter().zip(q).map(|(&c, &q)| i32::from(c) * i32::from(q)).sum();
    let sum = q.iter().map(|&q| i32::from(q)).sum();
    Term { d: block.d[step], activation, codes, offset: block.has_min.then_some((block.m[step], sum)) }
}

/// The f32 values of a row's groups.
pub fn groups(format: &Format, row: &[Codes], image: &Image) -> Vec<f32> {
    let terms = terms(format, row, image);
    match format.image {
        formats::ImageKind::A256 => terms.iter().map(superblock_value).collect(),
        formats::ImageKind::A32 => {
            let per_group = terms.len() * GROUP_VALUES / image.codes.len();
            terms.chunks(per_group).map(|group| group.iter().fold(0.0, step_value)).collect()
        }
    }
}

fn superblock_value(t: &Term) -> f32 {
    let scaled = t.d * t.activation;
    match t.offset {
        None => scaled * t.codes as f32,
        Some((m, sum)) => scaled.mul_add(t.codes as f32, -((m * t.activation) * sum as f32)),
    }
}

fn step_value(g: f32, t: &Term) -> f32 {
    let g = (t.d * t.activation).mul_add(t.codes as f32, g);
    match t.offset {
        None => g,
        Some((m, sum)) => (m * t.activation).mul_add(sum as f32, g),
    }
}

/// A decoded row times an image (`--activations int8`).
pub fn dot(format: &Format, row: &[Codes], image: &Image) -> f32 {
    chain_sum(&groups(format, row, image))
}

/// A row of any float or block type times float activations: values as the file means them, `lanes(32)`. The order
/// of float weights, and of all weights under `--activations f32`.
pub fn dot_f32(ty: TensorType, row: &[u8], x: &[f32]) -> f32 {
    let mut values = vec![0.0; x.len()];
    dequantize_row(ty, row, &mut values);
    dot_float(&values, x)
}

/// A row of float values times float activations.
pub fn dot_float(row: &[f32], x: &[f32]) -> f32 {
    lanes_dot::<SHORT_LANES>(row, x)
}

/// The companion scale, then the bias, where they exist.
pub fn finish(result: f32, scale: Option<f32>, bias: Option<f32>) -> f32 {
    let result = scale.map_or(result, |s| result * s);
    bias.map_or(result, |b| result + b)
}
