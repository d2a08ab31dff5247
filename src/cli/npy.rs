//! `.npy` files of float32 rows, written as they come.
//!
//! Invariant: the header names the rows that were written; a file that was not finished does not exist under its
//! name. Source: the NumPy format, version 1.0.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// A file of `[rows, width]`.
pub(super) struct NpyWriter {
    out: BufWriter<File>,
    part: PathBuf,
    path: PathBuf,
    left_values: usize,
}

impl NpyWriter {
    /// Opens `path` for exactly `rows` rows.
    pub(super) fn create(path: &Path, rows: usize, width: usize) -> anyhow::Result<NpyWriter> {
        let mut name = path.as_os_str().to_owned();
        name.push(".part");
        let part = PathBuf::from(name);
        let file =
            File::create(&part).with_context(|| format!("--out {}: cannot be written", path.display()))?;
        let mut out = BufWriter::new(file);
        let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
        // Magic, version, length: 10 bytes; the data begin at a multiple of 64.
        let padding = (64 - (10 + header.len() + 1) % 64) % 64;
        header.push_str(&" ".repeat(padding));
        header.push('\n');
        out.write_all(b"\x93NUMPY\x01\x00")?;
        out.write_all(&(header.len() as u16).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        Ok(NpyWriter { out, part, path: path.to_owned(), left_values: rows * width })
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
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        assert_eq!(self.left_values, 0, "values are missing");
        self.out.flush()?;
        std::fs::rename(&self.part, &self.path)
            .with_context(|| format!("--out {}: cannot be renamed into place", self.path.display()))
    }
}

impl Drop for NpyWriter {
    fn drop(&mut self) {
        // Gone already where the file was finished.
        let _ = std::fs::remove_file(&self.part);
    }
}
