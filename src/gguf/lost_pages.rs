//! Pages of a mapped file that are not there any more, since the file became shorter or its disk failed: who reads one ends
//! the process with one line, in place of the system's SIGBUS without any.
//!
//! Invariants: only addresses inside a mapping of ours are answered for, all others go to whoever was asked before; what
//! the handler does is safe inside a signal: it reads atomics, writes and exits. Does not know: files, the reader.
//! Source: signal-safety(7), sigaction(2). This is a fence for unsafe code: a signal's handler.

#![allow(unsafe_code, reason = "a handler of SIGBUS, which no safe crate offers")]

use std::sync::atomic::{AtomicUsize, Ordering};

/// Mappings that are answered for; a split set of more files has some that end the system's way.
const MAPPINGS_MAX: usize = 512;

/// Addresses of a mapping: none while `end` is 0; free while `start` is.
struct Mapping {
    start: AtomicUsize,
    end: AtomicUsize,
}

static MAPPINGS: [Mapping; MAPPINGS_MAX] =
    [const { Mapping { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; MAPPINGS_MAX];

/// A mapping that is answered for until this is dropped.
#[derive(Debug)]
pub(super) struct Answered(Option<usize>);

impl Answered {
    pub(super) fn of(bytes: &[u8]) -> Answered {
        let range = bytes.as_ptr_range();
        let (start, end) = (range.start as usize, range.end as usize);
        let is_free = |mapping: &Mapping| {
            mapping.start.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let place = MAPPINGS.iter().position(is_free);
        if let Some(place) = place {
            MAPPINGS[place].end.store(end, Ordering::Release);
        }
        Answered(place)
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            MAPPINGS[place].end.store(0, Ordering::Release);
            MAPPINGS[place].start.store(0, Ordering::Release);
        }
    }
}

#[cfg(unix)]
fn is_answered(address: usize) -> bool {
    let holds = |mapping: &Mapping| {
        address < mapping.end.load(Ordering::Acquire) && address >= mapping.start.load(Ordering::Acquire)
    };
    MAPPINGS.iter().any(holds)
}

/// From now on such a read ends the process with one line and exit code 1.
pub fn watch() {
    #[cfg(unix)]
    handler::install();
}

#[cfg(unix)]
mod handler {
    use std::sync::OnceLock;

    use libc::{c_int, c_void, siginfo_t};

    const LINE: &[u8] =
        b"tandem: error: the model's file became shorter, or could not be read any more, while it was \
                          mapped; put it back and start again\n";

    /// Who was asked before.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    pub(super) fn install() {
        // SAFETY: all zeros are a `sigaction`: no handler, no flags, no signals.
        let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_bus_error as *const () as usize;
        // On the stack that each thread has for signals.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both targets outlive the calls; the handler has the type that SA_SIGINFO asks for, and calls only what
        // signal-safety(7) lists. Without a handler the process ends the system's way.
        unsafe {
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) == 0 && BEFORE.set(before).is_ok()
            {
                libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
            }
        }
    }

    extern "C" fn on_bus_error(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: the system hands over a valid description of the signal, of which SIGBUS has an address.
        let address = unsafe { (*info).si_addr() } as usize;
        if super::is_answered(address) {
            // SAFETY: both calls may stand in a handler; the line lives as long as the program.
            unsafe {
                libc::write(libc::STDERR_FILENO, LINE.as_ptr().cast(), LINE.len());
                libc::_exit(1)
            }
        }
        if let Some(before) = BEFORE.get() {
            // SAFETY: `before` was given by the same call. The instruction runs again, and meets whoever was asked before.
            unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
        }
    }
}
