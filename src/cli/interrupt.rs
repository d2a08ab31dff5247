//! Ctrl-C: the first ends what runs within one window, the second ends the process. While nothing runs that could
//! end in order (input is read, a plan is made), the first ends the process.
//!
//! Invariants: the flag only rises; a [`Watched`] section ends by itself once the flag is raised.
//! Does not know: what is running.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::engine::handle::RequestCanceller;

static HAPPENED: AtomicBool = AtomicBool::new(false);

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
            std::process::exit(i32::from(super::INTERRUPTED));
        }
        sections.iter().filter_map(|(_, request)| request.as_ref()).for_each(RequestCanceller::cancel);
    });
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
