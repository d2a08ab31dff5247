//! Ctrl-C: the first ends what runs within one window, the second ends the process, and so does the first after
//! [`PATIENCE`] where something does not come to its end (output that nobody reads). While nothing runs that could end
//! in order (input is read, a plan is made), the first ends the process at once.
//!
//! Invariants: the flag only rises; a [`Watched`] section ends by itself once the flag is raised.
//! Does not know: what is running.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::handle::RequestCanceller;

static HAPPENED: AtomicBool = AtomicBool::new(false);

/// How long what runs may take to end.
const PATIENCE: Duration = Duration::from_secs(3);

/// Files that are not finished.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Sections that end by themselves, with the request that each waits for.
static SECTIONS: Mutex<Vec<(u64, Option<RequestCanceller>)>> = Mutex::new(Vec::new());

/// A section that ends in order at Ctrl-C, until it is dropped.
#[must_use = "the section lasts as long as this value"]
pub(super) struct Watched(u64);

impl Drop for Watched {
    fn drop(&mut self) {
        SECTIONS.lock().retain(|(id, _)| *id != self.0);
    }
}

/// Starts watching.
pub(super) fn watch() {
    // Without a handler Ctrl-C ends the process the system's way, which is good enough.
    let _ = ctrlc::set_handler(|| {
        let again = HAPPENED.swap(true, Ordering::SeqCst);
        let sections = SECTIONS.lock();
        if again || sections.is_empty() {
            end();
        }
        sections.iter().filter_map(|(_, request)| request.as_ref()).for_each(RequestCanceller::cancel);
        let late = || {
            std::thread::sleep(PATIENCE);
            end()
        };
        // Without this thread the second Ctrl-C still ends the process.
        let _ = std::thread::Builder::new().spawn(late);
    });
}

/// Ends the process; nothing unfinished is left behind.
fn end() -> ! {
    for path in UNFINISHED.lock().drain(..) {
        // Gone already, or in a folder that is.
        let _ = std::fs::remove_file(path);
    }
    std::process::exit(i32::from(super::INTERRUPTED))
}

/// A file that goes with the process at Ctrl-C, until [`finished`].
pub(super) fn unfinished(path: &Path) {
    UNFINISHED.lock().push(path.to_owned());
}

/// The file has its name, or is gone.
pub(super) fn finished(path: &Path) {
    UNFINISHED.lock().retain(|p| p != path);
}

/// True after Ctrl-C.
pub(super) fn happened() -> bool {
    HAPPENED.load(Ordering::SeqCst)
}

/// A section that looks at [`happened`] often.
pub(super) fn looks() -> Watched {
    section(None)
}

/// A section that waits for this request, which Ctrl-C cancels.
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
