//! Compiled kernels between two runs: files named by a hash of everything that they depend on.
//!
//! Invariants: a file appears whole or not at all, and is taken only with the sum of its bytes; a cache that cannot be
//! read or written costs a compilation, never an error. Does not know: compilers, cards.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// FNV-1a over 128 bits: the same on every machine and in every version of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(u128);

impl Hash {
    /// Of nothing.
    pub const fn new() -> Hash {
        Hash(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    /// Goes on over `bytes` and their length, so that neighbours cannot trade bytes.
    pub fn with(self, bytes: &[u8]) -> Hash {
        let length = (bytes.len() as u64).to_le_bytes();
        let all = bytes.iter().chain(&length);
        Hash(all.fold(self.0, |hash, &byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        }))
    }
}

impl Default for Hash {
    fn default() -> Hash {
        Hash::new()
    }
}

/// A folder of compiled kernels; without one nothing is kept.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// In `folder`, which is made when it is needed.
    pub fn new(folder: Option<PathBuf>) -> Cache {
        Cache { folder }
    }

    /// The folder, for people.
    pub fn shown(&self) -> String {
        self.folder.as_ref().map_or("(none)".to_owned(), |f| f.display().to_string())
    }

    fn path(&self, key: Hash) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{:032x}.cubin", key.0)))
    }

    /// What was kept under `key`, if it is whole.
    pub fn read(&self, key: Hash) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.path(key)?).ok()?;
        let sum = bytes.split_off(bytes.len().checked_sub(16)?);
        (sum == Hash::new().with(&bytes).0.to_le_bytes()).then_some(bytes)
    }

    /// Keeps `bytes` under `key`.
    pub fn write(&self, key: Hash, bytes: &[u8]) {
        let Some(path) = self.path(key) else { return };
        if let Err(error) = write_whole(&path, bytes) {
            tracing::warn!("{}: {error}; kernels are compiled again at the next start", path.display());
        }
    }
}

/// Writes beside the file and renames: a reader sees all of it or nothing.
fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Two programs, or two cards, that compile at once write two files.
    let part = path.with_extension(format!("{}-{:?}.part", std::process::id(), std::thread::current().id()));
    let written = fs::File::create(&part).and_then(|mut file| {
        file.write_all(bytes)?;
        file.write_all(&Hash::new().with(bytes).0.to_le_bytes())?;
        file.sync_all()?;
        fs::rename(&part, path)
    });
    if written.is_err() {
        // Of two errors the first tells more.
        let _ = fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one_and_keeps_neighbours_apart() {
        // FNV-1a of no bytes is its start; the length that follows is eight zero bytes.
        let zeros =
            (0..8).fold(Hash::new().0, |h, _| h.wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b));
        assert_eq!(Hash::new().with(b"").0, zeros);
        assert_ne!(Hash::new().with(b"ab").with(b"c"), Hash::new().with(b"a").with(b"bc"));
    }

    #[test]
    fn what_is_kept_comes_back_and_what_is_damaged_does_not() {
        let folder = std::env::temp_dir().join(format!("tandem-cubins-{}", std::process::id()));
        let cache = Cache::new(Some(folder.join("deep")));
        let key = Hash::new().with(b"a source");
        assert_eq!(cache.read(key), None);
        cache.write(key, b"machine code");
        assert_eq!(cache.read(key).as_deref(), Some(&b"machine code"[..]));
        assert_eq!(cache.read(Hash::new().with(b"another")), None);
        assert_eq!(fs::read_dir(folder.join("deep")).unwrap().count(), 1);
        let path = cache.path(key).unwrap();
        let whole = fs::read(&path).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[..3], &[]] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(cache.read(key), None);
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let cache = Cache::new(None);
        cache.write(Hash::new(), b"machine code");
        assert_eq!(cache.read(Hash::new()), None);
    }
}
