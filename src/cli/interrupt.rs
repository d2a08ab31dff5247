//! Ctrl-C: the first ends what runs within one window, the second ends the process.
//!
//! Invariant: the flag only rises. Does not know: what is running.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::handle::RequestCanceller;

static HAPPENED: AtomicBool = AtomicBool::new(false);
static REQUEST: OnceLock<RequestCanceller> = OnceLock::new();

/// Starts watching.
pub(super) fn watch() {
    // Without a handler Ctrl-C ends the process the system's way, which is good enough.
    let _ = ctrlc::set_handler(|| {
        if HAPPENED.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(super::INTERRUPTED));
        }
        if let Some(request) = REQUEST.get() {
            request.cancel();
        }
    });
}

/// True after Ctrl-C.
pub(super) fn happened() -> bool {
    HAPPENED.load(Ordering::SeqCst)
}

/// Ends this request at Ctrl-C.
pub(super) fn ends(request: RequestCanceller) {
    let request = REQUEST.get_or_init(|| request);
    if happened() {
        request.cancel();
    }
}
