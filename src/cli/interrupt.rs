//! Ctrl-C, SIGTERM and SIGHUP: the first ends what runs within one window, the second ends the process, and so does the
//! first after [`PATIENCE`] where something does not come to its end (output that nobody reads). While nothing runs that
//! could end in order (input is read, a plan is made, a library is opened), the first ends the process at once.
//!
//! Invariants: the first signal stays; a [`Watched`] section ends by itself behind it; [`Unfinished`] files are gone with
//! the process; one line says what ended it; its end waits for no other thread. Does not know: what is running.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{exit, signal_name};

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
    // With a handler, a file that would pass the limit on sizes (`ulimit -f`) is a failed write, not the process's end.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    // A program that was started to outlive its terminal does so.
    let heeded = SIGNALS.into_iter().filter(|&signal| signal != SIGHUP || !ignores(SIGHUP));
    // Without a handler a signal ends the process the system's way, which is good enough.
    let Ok(mut signals) = Signals::new(heeded) else { return };
    let (begin, begun) = channel();
    // Both threads start here: a new one could wait for the library that another thread opens.
    let late = move || {
        if begun.recv().is_ok() {
            std::thread::sleep(PATIENCE);
            end()
        }
    };
    // Without this one the second signal still ends the process.
    let _ = std::thread::Builder::new().spawn(late);
    let _ = std::thread::Builder::new().spawn(move || signals.forever().for_each(|s| take(s, &begin)));
}

/// Whether this signal was to be ignored when the process began, where the system tells.
fn ignores(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn take(signal: i32, patience: &Sender<()>) {
    let is_first = HAPPENED.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    // The lock is free again where the process ends.
    let is_idle = {
        let sections = SECTIONS.lock();
        sections.iter().filter_map(|(_, request)| request.as_ref()).for_each(RequestCanceller::cancel);
        sections.is_empty()
    };
    if !is_first || is_idle {
        end();
    }
    let _ = patience.send(());
}

/// Ends the process; nothing unfinished is left behind. Commands flush what they write, so nothing waits for that.
fn end() -> ! {
    for path in UNFINISHED.lock().drain(..) {
        // Gone already, or in a folder that is.
        let _ = std::fs::remove_file(path);
    }
    tell();
    // Not `std::process::exit`, which runs the ends of libraries and so waits for a thread that opens one.
    exit(exit_code().map_or(1, i32::from))
}

/// Says once which signal ended the run: past the lock of the stream, which a thread that writes may hold, and only
/// where the stream takes the line at once.
pub(super) fn tell() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if TOLD.swap(true, Ordering::SeqCst) {
        return;
    }
    let name = signal_name(HAPPENED.load(Ordering::SeqCst)).unwrap_or("a signal");
    let stream = std::io::stderr();
    let mut room = [PollFd::new(&stream, PollFlags::OUT)];
    if poll(&mut room, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
        let _ = rustix::io::write(stream.as_fd(), format!("tandem: interrupted by {name}\n").as_bytes());
    }
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
