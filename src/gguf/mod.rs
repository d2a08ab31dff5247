//! The GGUF file: reader, tensor directory, block formats.

mod tensor_type;

pub use tensor_type::TensorType;

/// An opened model file (placeholder until the reader lands in this module).
pub struct File;
