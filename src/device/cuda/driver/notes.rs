//! Launches as a stream was given them, to be given again: how long they take alone can be measured.
//!
//! Invariants: a note keeps the code of its kernel loaded; its spans are names, as in every launch.
//! Does not know: what a launch computes.

use super::{Argument, Event, Kernel, Span, Stream};
use crate::device::cuda::CudaError;

/// One launch.
#[derive(Clone, Debug)]
pub struct Note {
    pub(super) kernel: Kernel,
    pub(super) grid: [usize; 3],
    pub(super) block: usize,
    pub(super) arguments: Vec<Argument>,
}

impl Note {
    /// The kernel's name.
    pub fn kernel(&self) -> &str {
        &self.kernel.name
    }

    /// The memory that its arguments name.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        self.arguments.iter().filter_map(|argument| match *argument {
            Argument::Pointer(span) => span,
            _ => None,
        })
    }
}

impl Span {
    /// Whether both begin at the same place.
    pub fn begins_with(&self, other: &Span) -> bool {
        self.address == other.address
    }
}

impl Stream {
    /// Notes what is launched from now on; nothing is launched otherwise than without notes.
    pub fn take_notes(&self) {
        *self.0.notes.lock() = Some(Vec::new());
    }

    /// What was launched since then. Notes end.
    pub fn notes(&self) -> Vec<Note> {
        self.0.notes.lock().take().unwrap_or_default()
    }

    /// Queues a launch again.
    pub fn repeat(&self, note: &Note) -> Result<(), CudaError> {
        self.launch(&note.kernel, note.grid, note.block, &note.arguments)
    }

    /// Nanoseconds of the card between the begin and the end of what `queue` gives this stream. The stream is idle before
    /// and after.
    pub fn timed_ns(&self, queue: impl FnOnce() -> Result<(), CudaError>) -> Result<u64, CudaError> {
        let context = self.context();
        let (mut begun, mut ended) = (Event::timed(context)?, Event::timed(context)?);
        self.wait()?;
        begun.record(self)?;
        queue()?;
        ended.record(self)?;
        ended.wait()?;
        Ok(ended.ns_since(&begun).unwrap_or(0))
    }
}
