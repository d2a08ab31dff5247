//! Any bytes as a model file: a directory or an error, and what a directory promises holds.
//!
//! Invariants checked: each tensor lies inside the file behind the one before it, and its first block decodes.
//! Does not know: split sets and mapping, which need files.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem::gguf::{formats, reader};

fuzz_target!(|bytes: &[u8]| {
    let Ok(directory) = reader::parse(bytes) else { return };
    let mut end = directory.data_start;
    for t in &directory.tensors {
        assert!(t.offset >= end && t.offset % directory.alignment == 0, "tensors lie in order");
        end = t.offset + t.byte_len;
        assert!(end <= bytes.len() as u64, "a tensor lies inside the file");
        if t.ty.is_float() || t.ty.is_quantised() {
            let block = &bytes[t.offset as usize..][..t.ty.block_bytes()];
            formats::dequantize_row(t.ty, block, &mut vec![0.0; t.ty.block_values()]);
        }
    }
});
