//! The engine's clock: nanoseconds since it started, the same for all its threads.
//!
//! Does not know: virtual time; the machines are given numbers.

use std::time::{Duration, Instant};

/// Copies show the same time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now_ns(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    /// When the clock will show `ns`.
    pub fn at(self, ns: u64) -> Instant {
        self.0 + Duration::from_nanos(ns)
    }
}
