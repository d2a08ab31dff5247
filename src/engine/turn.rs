//! The turn of virtual cards that share one team of compute threads: who holds it computes.
//!
//! Invariants: one holder; first come, first served; a wait ends by the cancel flag or its deadline.
//! Does not know: cards, batches.

use std::time::{Duration, Instant};

use parking_lot::{FairMutex, FairMutexGuard};

use crate::transport::wait::{Wait, WaitEnded};

/// How long a wait sleeps between looks at the cancel flag. Each look costs the place in line, so it is long beside
/// any run of a window.
const LOOK: Duration = Duration::from_millis(200);

/// Shared by the stages whose cards compute on the same threads.
#[derive(Debug, Default)]
pub struct Turn(FairMutex<()>);

impl Turn {
    /// A turn that nobody holds.
    pub fn new() -> Turn {
        Turn::default()
    }

    /// Waits for the turn, and holds it until the guard is dropped.
    pub(super) fn take(&self, wait: &Wait<'_>) -> Result<FairMutexGuard<'_, ()>, WaitEnded> {
        loop {
            if wait.cancel.is_raised() {
                return Err(WaitEnded::Cancelled);
            }
            let now = Instant::now();
            if let Some(turn) = self.0.try_lock_until(wait.deadline.min(now + LOOK)) {
                return Ok(turn);
            }
            if now >= wait.deadline {
                return Err(WaitEnded::Deadline);
            }
        }
    }
}
