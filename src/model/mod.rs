//! A model as data: its program, its sizes, and the families that write programs.
//!
//! Invariant: nothing here allocates weights, opens files or knows a device.

pub mod arch;
pub mod facts;
pub mod footprint;
pub mod program;
pub mod synth;

use crate::gguf::{GgufError, TensorType};

/// Why a file is not a model that can run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A family that has no file in `arch/`.
    #[error("general.architecture: `{found}` is not supported; supported are {supported}")]
    Architecture {
        /// In the file.
        found: String,
        /// All families.
        supported: String,
    },
    /// A required key is missing.
    #[error("{key}: the file does not have this key, which `{architecture}` needs; convert the model again")]
    MissingKey {
        /// Whole key.
        key: String,
        /// Family.
        architecture: String,
    },
    /// A key's value makes no sense.
    #[error("{key}: {what}")]
    Key {
        /// Whole key.
        key: String,
        /// Found and expected.
        what: String,
    },
    /// A required tensor is missing.
    #[error("tensor {name}: missing; `{architecture}` needs it, the file is incomplete")]
    MissingTensor {
        /// Name.
        name: String,
        /// Family.
        architecture: String,
    },
    /// A tensor's dimensions contradict the metadata.
    #[error("tensor {name}: dimensions {found}, the metadata ask for {expected}; the file is damaged")]
    Shape {
        /// Name.
        name: String,
        /// In the file.
        found: String,
        /// From the metadata.
        expected: String,
    },
    /// A tensor's type cannot be used where it stands.
    #[error("tensor {name}: type {ty} cannot be used {place}; supported are {supported}")]
    Type {
        /// Name.
        name: String,
        /// In the file.
        ty: TensorType,
        /// For what.
        place: &'static str,
        /// Types that can.
        supported: &'static str,
    },
    /// The metadata could not be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}
