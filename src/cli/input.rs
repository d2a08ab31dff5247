//! What a user hands in as a file or on standard input: read whole, up to a limit.
//!
//! Invariant: a source without an end costs no more memory than the limit.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context as _, bail};

/// Far more than any context holds.
const LIMIT_MIB: u64 = 64;

/// All bytes of the file.
pub(super) fn read_file(flag: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    let what = || format!("{flag} {}", path.display());
    read(File::open(path).with_context(what)?, &what())
}

/// All bytes of `source`, named `what` in errors.
pub(super) fn read(source: impl Read, what: &str) -> anyhow::Result<Vec<u8>> {
    let limit = LIMIT_MIB << 20;
    let mut bytes = Vec::new();
    source.take(limit + 1).read_to_end(&mut bytes).with_context(|| format!("{what} cannot be read"))?;
    if bytes.len() as u64 > limit {
        bail!("{what}: more than {LIMIT_MIB} MiB, which no context holds; give less");
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_without_an_end_is_refused() {
        assert_eq!(read(&b"text"[..], "it").unwrap(), b"text");
        let error = read(std::io::repeat(0), "standard input").unwrap_err().to_string();
        assert!(error.starts_with("standard input: more than 64 MiB"), "{error}");
    }
}
