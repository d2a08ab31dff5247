//! Activation images: rows of input values as 8-bit codes with scales, in the form that the product kernels read.
//!
//! An image row is one run of bytes: the codes of the row, then its scales, then sums of its codes. A32 has a record
//! for each 32 values: the scale, two start values for codes that are stored with an offset (the sum of the codes
//! times -8 and -128), the sum as a float; and start values per 16 for the format with scales per 16. A256 has a
//! scale per 256, and sums per 32 and per 16 as 16-bit pairs.
//! Invariants: bits of codes and scales are those of `docs/numerics.md`, on every tier; the stride is an odd multiple
//! of 64 bytes, so that many rows do not fall into one set of a cache. Does not know: weights, threads.

use super::simd::products::quantise;
use super::simd::tier::Tier;
use crate::gguf::formats::ImageKind;
use crate::model::footprint::image_row_bytes;

/// Kind and size of image rows; says where things lie in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    kind: ImageKind,
    cols: usize,
}

impl ImageShape {
    /// The shape of images of rows of `cols` values.
    ///
    /// # Panics
    /// If `cols` is no multiple of the values that share a scale.
    pub fn new(kind: ImageKind, cols: usize) -> ImageShape {
        let shape = ImageShape { kind, cols };
        assert_eq!(
            cols % shape.scale_values(),
            0,
            "image: {cols} columns do not divide into scales of {kind:?}"
        );
        shape
    }

    /// Kind of image.
    pub fn kind(self) -> ImageKind {
        self.kind
    }

    /// Values of a row.
    pub fn cols(self) -> usize {
        self.cols
    }

    /// Values that share a scale.
    pub fn scale_values(self) -> usize {
        match self.kind {
            ImageKind::A32 => 32,
            ImageKind::A256 => 256,
        }
    }

    /// Bytes from one row to the next.
    pub fn row_bytes(self) -> usize {
        image_row_bytes(self.kind, self.cols)
    }

    /// Where the scales begin (A32: the records); the codes are at 0.
    pub(super) fn scales_at(self) -> usize {
        self.cols
    }

    /// Where the sums per 32 values begin (A256 only: i16).
    pub(super) fn sums32_at(self) -> usize {
        let scale_bytes = match self.kind {
            ImageKind::A32 => RECORD_BYTES,
            ImageKind::A256 => 4,
        };
        self.scales_at() + self.cols / self.scale_values() * scale_bytes
    }

    /// Where those per 16 values begin: i32 times -128 in A32, i16 in A256.
    pub(super) fn sums16_at(self) -> usize {
        match self.kind {
            ImageKind::A32 => self.sums32_at(),
            ImageKind::A256 => self.sums32_at() + self.cols / 32 * 2,
        }
    }

    #[cfg(test)]
    fn end(self) -> usize {
        let sum_bytes = match self.kind {
            ImageKind::A32 => 4,
            ImageKind::A256 => 2,
        };
        self.sums16_at() + self.cols / 16 * sum_bytes
    }
}

/// Bytes of an A32 record: f32 scale, i32 -8 x sum, i32 -128 x sum, f32 sum.
pub(super) const RECORD_BYTES: usize = 16;

/// Where a record has the start value of codes stored plus 8.
pub(super) const START_8_AT: usize = 4;

/// Where a record has the start value of codes stored plus 128.
pub(super) const START_128_AT: usize = 8;

/// Where a record has the sum.
pub(super) const SUM_AT: usize = 12;

/// Whether a row of activations can be used (rule 6 of `docs/numerics.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Finite {
    /// All values are finite.
    Yes,
    /// One is infinite or not a number; the image is worthless.
    No,
}

impl Finite {
    /// `No` if one of the two is.
    pub fn and(self, other: Finite) -> Finite {
        if self == Finite::Yes { other } else { Finite::No }
    }
}

/// Makes the image of row `x` in `image`, `shape.row_bytes()` bytes.
///
/// # Panics
/// If `x` is not a row of the shape, or `image` has another size.
pub fn quantise_row(tier: Tier, shape: ImageShape, x: &[f32], image: &mut [u8]) -> Finite {
    assert_eq!(x.len(), shape.cols(), "image: values of a row");
    assert_eq!(image.len(), shape.row_bytes(), "image: bytes of a row");
    quantise::row(tier, shape, x, image)
}

/// Image rows that lie behind each other.
#[derive(Clone, Copy, Debug)]
pub struct Images<'a> {
    shape: ImageShape,
    bytes: &'a [u8],
}

impl<'a> Images<'a> {
    /// A view of whole image rows.
    ///
    /// # Panics
    /// If `bytes` is not whole rows.
    pub fn new(shape: ImageShape, bytes: &'a [u8]) -> Images<'a> {
        assert_eq!(bytes.len() % shape.row_bytes(), 0, "images: {} bytes are no rows", bytes.len());
        Images { shape, bytes }
    }

    /// Kind and size of the rows.
    pub fn shape(&self) -> ImageShape {
        self.shape
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.bytes.len() / self.shape.row_bytes()
    }

    /// The bytes of one row.
    pub(super) fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.shape.row_bytes()..][..self.shape.row_bytes()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_as_long_as_the_plan_says_up_to_a_cache_line() {
        for (kind, step) in [(ImageKind::A32, 32), (ImageKind::A256, 256)] {
            for blocks in 1..100 {
                let shape = ImageShape::new(kind, step * blocks);
                let spare = shape.row_bytes().checked_sub(shape.end());
                assert!(spare.is_some_and(|s| s < 128), "{kind:?} of {} values", step * blocks);
                assert_eq!(shape.row_bytes() / 64 % 2, 1, "rows of {} values", step * blocks);
            }
        }
    }
}
