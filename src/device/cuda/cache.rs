//! Compiled kernels between two runs: files named by a hash of everything that they depend on.
//!
//! Invariants: a file appears whole or not at all, and is taken only with the sum of its bytes; a cache that cannot be
//! read or written costs a compilation, never an error. Does not know: compilers, cards.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

use super::claim::{self, Claim};

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

/// Bytes of a unit's code, at most: a unit has less than 2 MB.
const FILE_MAX: u64 = 64 << 20;

/// Nobody writes a file for so long.
const LEFTOVER_AGE: Duration = Duration::from_secs(3600);

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
        let path = self.path(key)?;
        // Not a pipe that nobody writes to, and nothing large.
        fs::metadata(&path).ok().filter(|found| found.is_file() && found.len() <= FILE_MAX)?;
        let mut bytes = fs::read(path).ok()?;
        let sum = bytes.split_off(bytes.len().checked_sub(16)?);
        (sum == Hash::new().with(&bytes).0.to_le_bytes()).then_some(bytes)
    }

    /// Keeps `bytes` under `key`.
    pub fn write(&self, key: Hash, bytes: &[u8]) {
        static SAID: Once = Once::new();
        let Some(path) = self.path(key) else { return };
        if let Err(error) = write_whole(&path, bytes) {
            // What is wrong with one file is wrong with all of them: the folder, the disk.
            SAID.call_once(|| {
                let folder = self.shown();
                tracing::warn!(
                    "{folder}: {error}; kernels are not kept there and compiled again at the next start"
                );
            });
        }
    }

    /// The right to make what is kept under `key`, as [`Claim::take`] gives it.
    pub fn claim<E>(
        &self,
        key: Hash,
        deadline: Instant,
        waits: impl FnMut() -> Result<(), E>,
    ) -> Result<Claim, E> {
        self.path(key).map_or_else(|| Ok(Claim::free()), |path| Claim::take(&path, deadline, waits))
    }

    /// Removes what killed programs left half written, and their locks; what another one writes now stays.
    pub fn remove_leftovers(&self) {
        let entries = self.folder.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let is_left =
            |path: PathBuf| path.extension().is_some_and(|end| end == "part" || end == claim::ENDING);
        for entry in entries.filter(|e| is_left(e.path())) {
            let modified = entry.metadata().and_then(|found| found.modified()).ok();
            if modified.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > LEFTOVER_AGE) {
                // Gone already, or not ours: it stays.
                let _ = fs::remove_file(entry.path());
            }
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
    fn what_killed_programs_left_half_written_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let old = std::time::SystemTime::now() - 2 * LEFTOVER_AGE;
        for (name, is_old) in
            [("a.1.part", true), ("b.2.part", false), ("c.cubin", true), ("d.lock", true), ("e.lock", false)]
        {
            let file = fs::File::create(at(name)).unwrap();
            if is_old {
                file.set_modified(old).unwrap();
            }
        }
        Cache::new(Some(folder.path().to_owned())).remove_leftovers();
        let left = ["a.1.part", "b.2.part", "c.cubin", "d.lock", "e.lock"].map(|name| at(name).exists());
        assert_eq!(left, [false, true, true, false, true]);
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(Some(folder.path().to_owned()));
        let key = Hash::new();
        let path = cache.path(key).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(cache.read(key)));
        assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(None), "the reader waits");
        let large = fs::File::create(folder.path().join("large")).unwrap();
        large.set_len(FILE_MAX + 1).unwrap();
        fs::rename(folder.path().join("large"), &path).unwrap();
        assert_eq!(Cache::new(Some(folder.path().to_owned())).read(key), None);
    }

    /// Counts what is logged.
    struct Counted(std::sync::Arc<std::sync::atomic::AtomicUsize>);

    impl tracing::Subscriber for Counted {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::WARN
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_told_of_once() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), b"").unwrap();
        let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        tracing::subscriber::with_default(Counted(count.clone()), || {
            for card in 0..2u8 {
                let cache = Cache::new(Some(folder.path().join("file").join("kernels")));
                (0..9u8).for_each(|unit| cache.write(Hash::new().with(&[card, unit]), b"code"));
            }
        });
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 1);
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let cache = Cache::new(None);
        cache.write(Hash::new(), b"machine code");
        assert_eq!(cache.read(Hash::new()), None);
    }
}
