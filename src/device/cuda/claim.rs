//! Who makes a file that several programs want at once: one claims it, the others wait for its end and look again.
//!
//! Invariants: a claim is a lock of the system's, which ends with its process; a wait ends at a deadline and as soon as the
//! waiting one is told to; where files cannot be locked, everybody makes the file. Nothing is right because of a claim:
//! without any, work is done twice. Does not know: what the file is.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Ending of the files that are locked.
pub const ENDING: &str = "lock";

/// Between two looks at a lock that another one holds.
const LOOKS_APART: Duration = Duration::from_millis(20);

/// The right to make a file, until it is dropped.
#[derive(Debug)]
#[must_use = "others make the file as soon as this is dropped"]
pub struct Claim(Option<(File, PathBuf)>);

impl Claim {
    /// To make what nobody else looks for.
    pub fn free() -> Claim {
        Claim(None)
    }

    /// To make the file at `path`; while another one has it, `waits` is asked whether to go on. At the deadline the file
    /// is made all the same: what holds the lock may have been stopped.
    pub fn take<E>(
        path: &Path,
        deadline: Instant,
        mut waits: impl FnMut() -> Result<(), E>,
    ) -> Result<Claim, E> {
        let path = path.with_extension(ENDING);
        if let Some(folder) = path.parent() {
            // Where it cannot be made, the lock cannot either.
            let _ = std::fs::create_dir_all(folder);
        }
        // Reading too: a pipe of this name would be waited for by one that only writes.
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let Ok(file) = opened else { return Ok(Claim::free()) };
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Claim(Some((file, path)))),
                Err(TryLockError::Error(_)) => return Ok(Claim::free()),
                Err(TryLockError::WouldBlock) => waits()?,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Claim::free());
            }
            std::thread::sleep(left.min(LOOKS_APART));
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some((_locked, path)) = &self.0 {
            // Those who wait have it open, and lock what has no name any more; whoever comes next finds what was made.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn never() -> Result<(), String> {
        panic!("nobody else has it")
    }

    #[test]
    fn others_wait_for_what_one_makes_and_the_lock_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join("made");
        let first = Claim::take(&path, Instant::now() + LONG, never).unwrap();
        let (waiting, told) = channel();
        let second = {
            let path = path.clone();
            let waits = move || waiting.send(()).map_err(|e| e.to_string());
            std::thread::spawn(move || {
                let claim = Claim::take(&path, Instant::now() + LONG, waits).unwrap();
                let found = std::fs::read(&path);
                drop(claim);
                found.unwrap()
            })
        };
        told.recv_timeout(LONG).expect("the second one does not wait");
        std::fs::write(&path, b"whole").unwrap();
        drop(first);
        // Kept until here: `waits` may still send.
        assert_eq!(second.join().unwrap(), b"whole");
        drop(told);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_wait_ends_when_it_is_told_to_and_at_its_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made");
        let _first = Claim::take(&path, Instant::now() + LONG, never).unwrap();
        let cancelled = Claim::take(&path, Instant::now() + LONG, || Err("cancelled"));
        assert_eq!(cancelled.unwrap_err(), "cancelled");
        let begun = Instant::now();
        let late = Claim::take(&path, begun + 3 * LOOKS_APART, || Ok::<(), String>(())).unwrap();
        assert!(late.0.is_none() && begun.elapsed() >= 3 * LOOKS_APART);
        // What the late one drops is not the other's lock.
        drop(late);
        assert!(Claim::take(&path, Instant::now() + LONG, || Err("still there")).is_err());
    }

    #[test]
    fn what_a_dead_process_left_and_what_cannot_be_locked_stop_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made");
        std::fs::write(path.with_extension(ENDING), b"").unwrap();
        assert!(Claim::take(&path, Instant::now(), never).unwrap().0.is_some());
        std::fs::write(&path, b"no folder").unwrap();
        assert!(Claim::take(&path.join("made"), Instant::now(), never).unwrap().0.is_none());
    }
}
