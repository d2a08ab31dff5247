//! Ctrl-C, SIGTERM and SIGHUP: the first ends what runs within one window, the second ends the process, and so does the
//! first after [`PATIENCE`] where something does not come to its end (output that nobody reads). While nothing runs that
//! could end in order (input is read, a plan is made), the first ends the process at once.
//!
//! Invariants: the first signal stays; a [`Watched`] section ends by itself behind it; [`Unfinished`] files are gone with
//! the process. Does not know: what is running.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::engine::handle::RequestCanceller;

/// The signals that end a run.
const SIGNALS: [i32; 3] = [SIGHUP, SIGTERM, SIGINT];

/// The first of them; 0 before it.
static HAPPENED: AtomicI32 = AtomicI32::new(0);

/// How long what runs may take to end.
const PATIENCE: Duration = Duration::from_secs(3);

/// Files that are not finished.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Sections that end by themselves, with the request that each waits for.
static SECTIONS: Mutex<Vec<(u64, Option<RequestCanceller>)>> = Mutex::new(Vec::new());

/// A section that ends in order at a signal, until it is dropped.
#[must_use = "the section lasts as long as this value"]
pub(super) struct Watched(u64);

impl Drop for Watched {
    fn drop(&mut self) {
        SECTIONS.lock().retain(|(id, _)| *id != self.0);
    }
}

/// Starts watching.
pub(super) fn watch() {
    // A program that was started to outlive its terminal does so.
    let heeded = SIGNALS.into_iter().filter(|&signal| signal != SIGHUP || !ignores(SIGHUP));
    // Without a handler a signal ends the process the system's way, which is good enough.
    let Ok(mut signals) = Signals::new(heeded) else { return };
    let _ = std::thread::Builder::new().spawn(move || signals.forever().for_each(take));
}

/// Whether this signal was to be ignored when the process began, where the system tells.
fn ignores(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn take(signal: i32) {
    let is_first = HAPPENED.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let sections = SECTIONS.lock();
    if !is_first || sections.is_empty() {
        end();
    }
    sections.iter().filter_map(|(_, request)| request.as_ref()).for_each(RequestCanceller::cancel);
    let late = || {
        std::thread::sleep(PATIENCE);
        end()
    };
    // Without this thread the second signal still ends the process.
    let _ = std::thread::Builder::new().spawn(late);
}

/// Ends the process; nothing unfinished is left behind.
fn end() -> ! {
    for path in UNFINISHED.lock().drain(..) {
        // Gone already, or in a folder that is.
        let _ = std::fs::remove_file(path);
    }
    std::process::exit(exit_code().map_or(1, i32::from))
}

/// A file that goes with the process at a signal, until this is dropped: it has its name then, or is gone.
#[derive(Debug)]
#[must_use = "the file is looked after as long as this value lives"]
pub(super) struct Unfinished(PathBuf);

impl Unfinished {
    /// Looks after the file at `path`.
    pub(super) fn new(path: &Path) -> Unfinished {
        UNFINISHED.lock().push(path.to_owned());
        Unfinished(path.to_owned())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        UNFINISHED.lock().retain(|path| *path != self.0);
    }
}

/// True after a signal.
pub(super) fn happened() -> bool {
    exit_code().is_some()
}

/// After a signal: the exit code of a run that it ended, as shells count it, 130 for Ctrl-C.
pub(super) fn exit_code() -> Option<u8> {
    let signal = HAPPENED.load(Ordering::SeqCst);
    (signal != 0).then(|| 128 + signal as u8)
}

/// A section that looks at [`happened`] often.
pub(super) fn looks() -> Watched {
    section(None)
}

/// A section that waits for this request, which a signal cancels.
pub(super) fn cancels(request: RequestCanceller) -> Watched {
    section(Some(request))
}

fn section(request: Option<RequestCanceller>) -> Watched {
    let mut sections = SECTIONS.lock();
    let id = sections.last().map_or(0, |(id, _)| id + 1);
    if let (true, Some(request)) = (happened(), &request) {
        request.cancel();
    }
    sections.push((id, request));
    Watched(id)
}
