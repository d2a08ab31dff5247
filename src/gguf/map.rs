//! A model file as read-only memory, giving parts of it back, and reading parts without it.
//!
//! Invariant: the length is the one taken from the opened descriptor; nothing writes through the mapping.
//! Does not know: what the bytes mean. This is a fence for unsafe code: mapping and `madvise`.

#![allow(unsafe_code, reason = "mapping a file, and releasing pages of the mapping")]

use std::fs::File;
use std::io;
use std::ops::Range;

use memmap2::{Mmap, MmapOptions};

use super::lost_pages::Answered;

/// A whole file, mapped read-only.
#[derive(Debug)]
pub(super) struct Map {
    // Before the mapping goes.
    _answered: Answered,
    map: Mmap,
    file: File,
}

impl Map {
    /// Maps the first `len_bytes` of the file.
    pub(super) fn open(file: &File, len_bytes: u64) -> io::Result<Map> {
        let len = usize::try_from(len_bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: the mapping is read-only and lives in `Map` as long as any slice of it. That no other process
        // truncates or rewrites the file meanwhile is the user's part, as with every engine that maps its models: a
        // truncated file ends the process (`lost_pages`), a rewritten one changes weights, never our own memory.
        let map = unsafe { MmapOptions::new().len(len).map(file)? };
        Ok(Map { _answered: Answered::of(&map), map, file: file.try_clone()? })
    }

    /// The file's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Reads the bytes from `at` on. Several threads do so side by side, which pages of the mapping would hinder.
    pub(super) fn read(&self, at: usize, to: &mut [u8]) -> io::Result<()> {
        #[cfg(unix)]
        return match std::os::unix::fs::FileExt::read_exact_at(&self.file, to, at as u64) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(io::Error::new(error.kind(), "the file became shorter while it was read"))
            }
            read => read,
        };
        #[cfg(not(unix))]
        {
            to.copy_from_slice(&self.map[at..at + to.len()]);
            Ok(())
        }
    }

    /// Gives the whole pages inside `bytes` back to the system. They can be read again (from the page cache or the
    /// disk). A hint: a system that refuses it only keeps the memory.
    pub(super) fn release(&self, bytes: Range<usize>) {
        let page = page_bytes();
        let start = bytes.start.next_multiple_of(page);
        let end = if bytes.end >= self.map.len() { self.map.len() } else { bytes.end / page * page };
        if start >= end {
            return;
        }
        #[cfg(unix)]
        {
            use memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: MADV_DONTNEED on a shared, read-only file mapping loses nothing: a later read faults the same
            // bytes in again from the file. The range lies inside the mapping (checked above), which `self` keeps.
            let _refused = unsafe { self.map.unchecked_advise_range(DontNeed, start, end - start) };
        }
    }
}

/// Rounds ranges for [`Map::release`]. 64 KiB is a multiple of every page size in use (4, 16 and 64 KiB).
fn page_bytes() -> usize {
    64 * 1024
}
