//! Activation images: rows of input values as 8-bit codes with scales, in the form that the product kernels read.
//!
//! An image row is one run of bytes: the codes of the row, then its scales, then sums of its codes. A32 has a scale
//! and a sum per 32 values (sums negated, since they are start values for codes stored with an offset) and sums
//! per 16 for the format with scales per 16; A256 has a scale per 256, sums per 16 and per 32 as 16-bit pairs.
//! Invariants: bits of codes and scales are those of `docs/numerics.md`, on every tier; the stride is an odd multiple
//! of 64 bytes, so that many rows do not fall into one set of a cache. Does not know: weights, threads.

use super::simd::products::quantise;
use super::simd::tier::Tier;
pub use crate::model::footprint::ImageKind;
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

    /// Where the f32 scales begin; the codes are at 0.
    pub(super) fn scales_at(self) -> usize {
        self.cols
    }

    /// Where the sums per 32 values begin: negated i32 in A32, i16 in A256.
    pub(super) fn sums32_at(self) -> usize {
        self.scales_at() + self.cols / self.scale_values() * 4
    }

    /// Where the sums per 16 values begin, of the same type.
    pub(super) fn sums16_at(self) -> usize {
        self.sums32_at() + self.cols / 32 * self.sum16_bytes()
    }

    fn sum16_bytes(self) -> usize {
        match self.kind {
            ImageKind::A32 => 4,
            ImageKind::A256 => 2,
        }
    }
}

/// Bytes of one image row of `cols` values.
pub fn image_bytes_per_row(kind: ImageKind, cols: usize) -> usize {
    ImageShape::new(kind, cols).row_bytes()
}

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
