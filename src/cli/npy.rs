//! `.npy` files of float32 rows, written as they come.
//!
//! Invariant: the header names the rows that were written. Source: the NumPy format, version 1.0.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::out_file::{Models, OutFile};

/// A file of `[rows, width]`.
pub(super) struct NpyWriter {
    out: OutFile,
    left_values: usize,
}

impl NpyWriter {
    /// Opens `path` for exactly `rows` rows; `inputs` are files that it must not be.
    pub(super) fn create(
        path: &Path,
        inputs: &[PathBuf],
        models: Models,
        [rows, width]: [usize; 2],
    ) -> anyhow::Result<NpyWriter> {
        let mut out = OutFile::create(path, inputs, models)?;
        let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
        // Magic, version, length: 10 bytes; the data begin at a multiple of 64.
        let padding = (64 - (10 + header.len() + 1) % 64) % 64;
        header.push_str(&" ".repeat(padding));
        header.push('\n');
        out.write_all(b"\x93NUMPY\x01\x00")?;
        out.write_all(&(header.len() as u16).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        Ok(NpyWriter { out, left_values: rows * width })
    }

    /// Appends values.
    pub(super) fn write(&mut self, values: &[f32]) -> anyhow::Result<()> {
        assert!(values.len() <= self.left_values, "more values than the header names");
        self.left_values -= values.len();
        for v in values {
            self.out.write_all(&v.to_le_bytes())?;
        }
        Ok(())
    }

    /// Ends the file and gives it its name.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        assert_eq!(self.left_values, 0, "values are missing");
        self.out.finish()
    }
}
