//! How a thread waits for another: it spins for a short while, then parks.
//!
//! Invariants: every wait has a deadline and a cancel flag, and ends by whichever comes first; a bell that rings
//! between a look and the wait for it is never lost. Does not know: what is waited for.

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long a thread spins before it parks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    spin_us: u32,
}

impl Patience {
    /// Beyond this, parking is cheaper than the CPU that spinning takes from others.
    pub const SPIN_US_MAX: u32 = 100;

    /// Parks at once.
    pub const NONE: Patience = Patience { spin_us: 0 };

    /// The longest spin for an answer that is under way: most windows are back before.
    const EAGER_US: u32 = 5_000;

    /// Spins for `spin_us`, at most [`Patience::SPIN_US_MAX`].
    pub fn new(spin_us: u32) -> Patience {
        Patience { spin_us: spin_us.min(Self::SPIN_US_MAX) }
    }

    /// The longest spin where every thread has a CPU for itself, none where they share: there a spinning thread
    /// keeps the very thread it waits for from running.
    pub fn for_threads(threads: usize, cpus: usize) -> Patience {
        if threads <= cpus { Patience::new(Self::SPIN_US_MAX) } else { Patience::NONE }
    }

    /// The same for a thread on whose wake a batch waits: where it spins at all it spins past a window's time, since
    /// waking it up takes tens of microseconds of every token.
    pub fn eager(self) -> Patience {
        Patience { spin_us: if self.spin_us == 0 { 0 } else { Self::EAGER_US } }
    }

    /// Microseconds of spinning.
    pub fn spin_us(self) -> u32 {
        self.spin_us
    }
}

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitEnded {
    /// The cancel flag was raised.
    #[error("cancelled")]
    Cancelled,
    /// The deadline passed.
    #[error("the deadline passed")]
    Deadline,
}

/// A flag that ends waits everywhere; clones are the same flag. It is never lowered.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<Raised>);

#[derive(Debug, Default)]
struct Raised {
    flag: AtomicBool,
    /// Bells that someone parked at under this flag.
    bells: Mutex<Vec<Weak<Bell>>>,
}

impl Cancel {
    /// A flag that is not raised.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Raises the flag and wakes everyone who waits under it.
    pub fn raise(&self) {
        self.0.flag.store(true, Ordering::SeqCst);
        for bell in self.0.bells.lock().drain(..).filter_map(|bell| bell.upgrade()) {
            bell.ring();
        }
    }

    /// Whether it is raised.
    pub fn is_raised(&self) -> bool {
        self.0.flag.load(Ordering::SeqCst)
    }

    /// Lets [`Cancel::raise`] ring `bell`. A bell already known is not added again.
    fn watch(&self, bell: &Arc<Bell>) {
        let mut bells = self.0.bells.lock();
        let known = |b: &Weak<Bell>| std::ptr::eq(b.as_ptr(), Arc::as_ptr(bell));
        if !bells.iter().any(known) {
            bells.retain(|b| b.strong_count() > 0);
            bells.push(Arc::downgrade(bell));
        }
    }
}

/// Rung by whoever changes something that others wait for, after the change.
#[derive(Debug, Default)]
pub struct Bell {
    rings: AtomicU64,
    parked: AtomicU32,
    gate: Mutex<()>,
    wake: Condvar,
}

impl Bell {
    /// A silent bell.
    pub fn new() -> Arc<Bell> {
        Arc::default()
    }

    /// Wakes everyone who waits. Costs one atomic addition where nobody is parked.
    pub fn ring(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        // Either this sees the parking thread's count, or that thread sees the new number of rings: both are
        // sequentially consistent, and each side writes its own before it reads the other's.
        if self.parked.load(Ordering::SeqCst) > 0 {
            drop(self.gate.lock());
            self.wake.notify_all();
        }
    }

    fn rings(&self) -> u64 {
        self.rings.load(Ordering::SeqCst)
    }
}

/// The terms of one wait.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    /// When it ends without success.
    pub deadline: Instant,
    /// How it passes the time.
    pub patience: Patience,
    /// What ends it early.
    pub cancel: &'a Cancel,
}

impl<'a> Wait<'a> {
    /// A wait of at most `limit` from now.
    pub fn within(limit: Duration, patience: Patience, cancel: &'a Cancel) -> Wait<'a> {
        Wait { deadline: Instant::now() + limit, patience, cancel }
    }

    /// Calls `attempt` now and after every ring of `bell` until it answers. A raised flag wins over an answer, an
    /// answer over a passed deadline.
    pub fn until<T>(&self, bell: &Arc<Bell>, mut attempt: impl FnMut() -> Option<T>) -> Result<T, WaitEnded> {
        loop {
            if self.cancel.is_raised() {
                return Err(WaitEnded::Cancelled);
            }
            let seen = bell.rings();
            if let Some(answer) = attempt() {
                return Ok(answer);
            }
            if !self.spin(bell, seen) && !self.park(bell, seen) {
                return Err(WaitEnded::Deadline);
            }
        }
    }

    /// True where there is a reason to look again.
    fn spin(&self, bell: &Bell, seen: u64) -> bool {
        if self.patience.spin_us == 0 {
            return false;
        }
        let end = self.deadline.min(Instant::now() + Duration::from_micros(u64::from(self.patience.spin_us)));
        loop {
            // The clock costs as much as a dozen looks.
            for _ in 0..16 {
                if bell.rings() != seen || self.cancel.is_raised() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= end {
                return false;
            }
        }
    }

    /// False where the deadline passed.
    fn park(&self, bell: &Arc<Bell>, seen: u64) -> bool {
        self.cancel.watch(bell);
        let mut gate = bell.gate.lock();
        bell.parked.fetch_add(1, Ordering::SeqCst);
        let mut in_time = true;
        while in_time && bell.rings() == seen && !self.cancel.is_raised() {
            in_time = !bell.wake.wait_until(&mut gate, self.deadline).timed_out();
        }
        let rung = bell.rings() != seen || self.cancel.is_raised();
        bell.parked.fetch_sub(1, Ordering::SeqCst);
        drop(gate);
        in_time || rung
    }
}

#[cfg(test)]
mod tests {
    use super::{Bell, Cancel, Patience, Wait, WaitEnded};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    /// A wait that should succeed and takes this long has missed its wake-up.
    const LIMIT: Duration = Duration::from_secs(20);

    /// Returns once `threads` threads sleep at the bell: those counted let go of the gate only by falling asleep.
    fn parked(bell: &Bell, threads: u32) {
        while bell.parked.load(Ordering::SeqCst) < threads {
            std::thread::yield_now();
        }
        drop(bell.gate.lock());
    }

    /// Waits in a second thread until that thread is parked, then does `act`; the answer of the wait comes back.
    fn parked_then(act: impl FnOnce(&Bell, &Cancel, &AtomicBool)) -> Result<(), WaitEnded> {
        let (bell, cancel, ready) = (Bell::new(), Cancel::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let wait = Wait::within(LIMIT, Patience::NONE, &cancel);
                wait.until(&bell, || ready.load(Ordering::SeqCst).then_some(()))
            });
            parked(&bell, 1);
            act(&bell, &cancel, &ready);
            let (start, answer) = (Instant::now(), waiter.join().unwrap());
            assert!(start.elapsed() < LIMIT, "the wake-up was lost");
            answer
        })
    }

    #[test]
    fn a_ring_wakes_a_parked_thread() {
        let answer = parked_then(|bell, _, ready| {
            ready.store(true, Ordering::SeqCst);
            bell.ring();
        });
        assert_eq!(answer, Ok(()));
    }

    #[test]
    fn a_ring_for_nothing_lets_a_parked_thread_wait_on() {
        let answer = parked_then(|bell, _, ready| {
            (0..100).for_each(|_| bell.ring());
            ready.store(true, Ordering::SeqCst);
            bell.ring();
        });
        assert_eq!(answer, Ok(()));
    }

    #[test]
    fn a_raised_flag_wakes_a_parked_thread() {
        assert_eq!(parked_then(|_, cancel, _| cancel.raise()), Err(WaitEnded::Cancelled));
    }

    #[test]
    fn a_raised_flag_wakes_everyone_at_every_bell() {
        let (cancel, bells) = (Cancel::new(), [Bell::new(), Bell::new()]);
        std::thread::scope(|scope| {
            let wait = Wait::within(LIMIT, Patience::NONE, &cancel);
            let waiters: Vec<_> = bells
                .iter()
                .flat_map(|bell| [bell, bell])
                .map(|bell| scope.spawn(move || wait.until(bell, || None::<()>)))
                .collect();
            bells.iter().for_each(|bell| parked(bell, 2));
            let start = Instant::now();
            cancel.raise();
            waiters.into_iter().for_each(|w| assert_eq!(w.join().unwrap(), Err(WaitEnded::Cancelled)));
            assert!(start.elapsed() < LIMIT, "a wake-up was lost");
        });
    }

    #[test]
    fn a_ring_between_the_look_and_the_wait_is_not_lost() {
        let (bell, cancel) = (Bell::new(), Cancel::new());
        for patience in [Patience::NONE, Patience::new(100)] {
            let mut looks = 0;
            let wait = Wait::within(LIMIT, patience, &cancel);
            let answer = wait.until(&bell, || {
                looks += 1;
                bell.ring();
                (looks == 3).then_some(looks)
            });
            assert_eq!(answer, Ok(3));
        }
    }

    #[test]
    fn every_wait_ends_at_its_deadline_having_looked_once() {
        let (bell, cancel) = (Bell::new(), Cancel::new());
        for (patience, limit_us) in [(0, 0), (100, 0), (0, 500), (100, 50), (100, 500)] {
            let (limit, mut looks) = (Duration::from_micros(limit_us), 0);
            let (start, wait) = (Instant::now(), Wait::within(limit, Patience::new(patience), &cancel));
            let answer = wait.until(&bell, || {
                looks += 1;
                None::<()>
            });
            assert_eq!((answer, looks), (Err(WaitEnded::Deadline), 1));
            assert!(start.elapsed() >= limit, "{patience} us of spinning: ended before {limit_us} us");
        }
    }

    #[test]
    fn a_flag_remembers_each_living_bell_once() {
        let (cancel, bell) = (Cancel::new(), Bell::new());
        for _ in 0..10 {
            cancel.watch(&bell);
            cancel.watch(&Bell::new());
        }
        assert!(cancel.0.bells.lock().len() <= 2);
    }

    #[test]
    fn threads_that_share_cpus_do_not_spin() {
        assert_eq!(Patience::for_threads(3, 2), Patience::NONE);
        assert_eq!(Patience::for_threads(2, 2).spin_us(), Patience::SPIN_US_MAX);
        assert_eq!(Patience::new(5_000).spin_us(), Patience::SPIN_US_MAX);
    }
}
