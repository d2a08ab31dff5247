//! The GGUF file: reader, tensor directory, block formats.
//!
//! [`File::open`] checks a whole directory before it maps anything, so what exists is right: later code looks up
//! keys and tensors and never validates again. `reader` has the container, `formats/` the blocks.
//! Does not know: model families, devices. Source: the format's specification, as read by llama.cpp.

mod consistency;
mod cursor;
mod error;
mod file;
pub mod formats;
pub mod lost_pages;
mod map;
mod metadata;
pub mod reader;
mod tensor_type;
#[cfg(test)]
mod tests;
pub mod writer;

pub use error::GgufError;
pub use file::File;
pub use metadata::{Metadata, Value};
pub use reader::{Directory, Limits, TensorInfo};
pub use tensor_type::TensorType;

/// What a file begins with.
pub const MAGIC: [u8; 4] = *b"GGUF";
