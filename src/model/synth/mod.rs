//! Models of a real geometry with random weights: what a file holds, before any byte of a tensor is made.
//!
//! They are for trying a computer before a long download: sizes, splits and speeds are those of the real model, text is
//! nonsense. Invariant: a [`Blueprint`] with a vocabulary is a file that the reader and the families accept.
//! Does not know: vocabularies, how bytes are made.

mod geometry;
mod like;

pub use geometry::Geometry;
pub use like::like;

use crate::gguf::writer::TensorSpec;
use crate::gguf::{Metadata, TensorType};

/// The values of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Multipliers: one, give or take a little.
    Norm,
    /// Around zero with this root mean square.
    Random(f32),
}

/// A tensor and its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Name, type, sizes.
    pub spec: TensorSpec,
    /// The type that was asked for; `spec` has another where rows are no whole blocks of this one.
    pub asked: TensorType,
    /// What fills it.
    pub fill: Fill,
}

/// A file to be made.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// Keys, without those of the tokenizer where [`Blueprint::vocab`] is given.
    pub metadata: Metadata,
    /// In file order.
    pub tensors: Vec<Planned>,
    /// Tokens, and the pre-tokenizer's name, of a vocabulary that is still to be made.
    pub vocab: Option<(usize, &'static str)>,
}

/// Tensors of a blueprint that have another type than the one that was asked for, all with rows of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Otherwise {
    /// Asked for.
    pub asked: TensorType,
    /// Taken.
    pub ty: TensorType,
    /// Values of a row, no multiple of a block's of `asked`.
    pub cols: usize,
    /// Of all such tensors.
    pub bytes: u64,
}

impl Blueprint {
    /// Bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.spec.bytes()).sum()
    }

    /// What has another type than the one that was asked for, in the order of the file.
    pub fn otherwise(&self) -> Vec<Otherwise> {
        let mut all: Vec<Otherwise> = Vec::new();
        for Planned { spec, asked, .. } in self.tensors.iter().filter(|t| t.asked != t.spec.ty) {
            let found = all.iter_mut().find(|o| (o.asked, o.ty, o.cols) == (*asked, spec.ty, spec.cols()));
            match found {
                Some(other) => other.bytes += spec.bytes(),
                None => {
                    all.push(Otherwise { asked: *asked, ty: spec.ty, cols: spec.cols(), bytes: spec.bytes() })
                }
            }
        }
        all
    }

    /// Values of all tensors.
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(|t| t.spec.dims.iter().product::<u64>()).sum()
    }
}

/// What is changed of a geometry or a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Type of the matrices; `None`: the file's own types.
    pub quant: Option<TensorType>,
    /// Layers.
    pub layers: Option<usize>,
    /// Experts of each layer.
    pub experts: Option<usize>,
}

/// Why there is no blueprint; a line that names the flag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SynthError(pub(crate) String);

/// Bits a weight below which the head gets more, as quantisers give it.
const HEAD_BITS_MIN: f64 = 6.5;

/// The type of a matrix with rows of `cols` values: the one asked for, or the nearest that has such rows.
fn matrix_type(ty: TensorType, cols: u64) -> TensorType {
    let fits = |ty: TensorType| cols.is_multiple_of(ty.block_values() as u64);
    [ty, TensorType::Q8_0].into_iter().find(|&ty| fits(ty)).unwrap_or(TensorType::F16)
}

/// The type of the head beside matrices of type `ty`, where its rows are whole blocks.
fn head_type(ty: TensorType) -> TensorType {
    let bits = 8.0 * ty.block_bytes() as f64 / ty.block_values() as f64;
    if bits < HEAD_BITS_MIN { TensorType::Q6_K } else { ty }
}

/// Values that keep the size of a row as it passes through the matrix.
fn matrix_fill(cols: u64) -> Fill {
    Fill::Random(1.0 / (cols as f32).sqrt())
}
