//! A team of compute threads: one leader (the stage's own thread) and its workers, which share the parts of a step.
//!
//! Invariants: each part of a step is claimed by exactly one thread; when [`Team::run`] returns, no thread touches
//! the step any more; a worker that sleeps is never waited for. Idle workers spin at most `spin_us`, then park.
//! Does not know: ops, rows, cards. This module is a fence: it lends a step to threads and cuts slices for them.
#![allow(unsafe_code, reason = "lends borrowed steps and disjoint slices to the workers of a running step")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How a team waits and where its workers run.
#[derive(Clone, Debug, Default)]
pub struct TeamSettings {
    /// Threads in all, the leader among them; at least 1.
    pub threads: usize,
    /// Idle workers spin this long before they park.
    pub spin_us: u64,
    /// CPUs of the workers; empty: not pinned.
    pub worker_cpus: Vec<core_affinity::CoreId>,
}

/// Step number in the high half; below it the closed mark and the count of workers that entered.
const STEP_SHIFT: u32 = 32;
const CLOSED: u64 = 1 << 31;
const ENTERED: u64 = CLOSED - 1;

/// A borrowed step with its lifetime erased; valid while its gate is open or an entered worker has not left.
type Step<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    gate: AtomicU64,
    /// Points to the leader's `Step` on its stack.
    step: AtomicPtr<()>,
    parts: AtomicUsize,
    next: AtomicUsize,
    left: AtomicUsize,
    panicked: AtomicBool,
    resting: AtomicBool,
    quit: AtomicBool,
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
    spin: Duration,
}

/// The leader's handle.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    step_number: u64,
}

impl Team {
    /// Starts `settings.threads - 1` workers. The caller is the leader.
    pub fn new(settings: &TeamSettings) -> std::io::Result<Team> {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(CLOSED),
            step: AtomicPtr::new(std::ptr::null_mut()),
            parts: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            resting: AtomicBool::new(false),
            quit: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            bell: Condvar::new(),
            spin: Duration::from_micros(settings.spin_us),
        });
        let mut team = Team { shared, workers: Vec::new(), step_number: 0 };
        for i in 1..settings.threads {
            let (shared, cpu) = (team.shared.clone(), settings.worker_cpus.get(i - 1).copied());
            let worker = std::thread::Builder::new().name(format!("compute-{i}")).spawn(move || {
                if let Some(cpu) = cpu {
                    core_affinity::set_for_current(cpu);
                }
                shared.work();
            })?;
            team.workers.push(worker);
        }
        Ok(team)
    }

    /// Threads, the leader among them.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `step(part)` once for every part in `0..parts`, on any of the team's threads, and returns when all have
    /// ended. Panics where a part panicked.
    pub fn run(&mut self, parts: usize, step: Step<'_>) {
        if self.workers.is_empty() || parts <= 1 {
            (0..parts).for_each(step);
            return;
        }
        let s = &*self.shared;
        s.step.store((&raw const step).cast_mut().cast(), Ordering::Relaxed);
        s.parts.store(parts, Ordering::Relaxed);
        s.next.store(0, Ordering::Relaxed);
        s.left.store(0, Ordering::Relaxed);
        self.step_number = (self.step_number + 1) & (u64::MAX >> STEP_SHIFT);
        s.resting.store(false, Ordering::Relaxed);
        // Sequentially consistent with `sleepers`: either the leader sees the sleeper or the sleeper sees the step.
        s.gate.store(self.step_number << STEP_SHIFT, Ordering::SeqCst);
        if s.sleepers.load(Ordering::SeqCst) > 0 {
            s.ring();
        }
        let own = catch_unwind(AssertUnwindSafe(|| s.claim_parts(step, parts)));
        let entered = (s.gate.fetch_or(CLOSED, Ordering::AcqRel) & ENTERED) as usize;
        let mut spins = 0u32;
        while s.left.load(Ordering::Acquire) < entered {
            spins += 1;
            // A worker may have lost its CPU: give it ours.
            if spins > 4096 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        if let Err(cause) = own {
            std::panic::resume_unwind(cause);
        }
        assert!(
            !s.panicked.swap(false, Ordering::Relaxed),
            "a compute worker panicked; its message is above"
        );
    }

    /// [`Team::run`] over neighbouring pieces of `chunk` values: `step(i, piece)` has piece i to itself.
    pub fn chunks<T: Send>(&mut self, data: &mut [T], chunk: usize, step: impl Fn(usize, &mut [T]) + Sync) {
        assert!(chunk > 0, "pieces of no values");
        let (len, base) = (data.len(), AtomicPtr::new(data.as_mut_ptr()));
        self.run(len.div_ceil(chunk), &|i| {
            let start = i * chunk;
            let piece_len = chunk.min(len - start);
            // SAFETY: `run` calls each i once, so the pieces are disjoint; they lie inside `data`, which is borrowed
            // mutably until `run` has returned.
            let piece =
                unsafe { std::slice::from_raw_parts_mut(base.load(Ordering::Relaxed).add(start), piece_len) };
            step(i, piece);
        });
    }

    /// Lets idle workers park at once, for teams that take turns on the same CPUs.
    pub fn rest(&self) {
        self.shared.resting.store(true, Ordering::Relaxed);
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::SeqCst);
        self.shared.ring();
        for worker in self.workers.drain(..) {
            // A worker's panic was reported by the step that it spoiled.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn ring(&self) {
        drop(self.bed.lock());
        self.bell.notify_all();
    }

    fn claim_parts(&self, step: Step<'_>, parts: usize) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= parts {
                return;
            }
            step(part);
        }
    }

    fn work(&self) {
        let mut seen = 0;
        while let Some(gate) = self.await_step(seen) {
            seen = gate >> STEP_SHIFT;
            if !self.enter(seen) {
                continue;
            }
            // SAFETY: this worker entered the step's gate while it was open, so the leader waits in `run` until
            // `left` counts this worker; until then the `Step` on its stack and all that it borrows are alive. The
            // pointer was stored before the gate, and the gate was read with acquire ordering.
            let step: Step<'_> = unsafe { *self.step.load(Ordering::Relaxed).cast::<Step<'_>>() };
            let parts = self.parts.load(Ordering::Relaxed);
            if catch_unwind(AssertUnwindSafe(|| self.claim_parts(step, parts))).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.left.fetch_add(1, Ordering::Release);
        }
    }

    /// Counts this worker into step `number`, unless the step has closed or given way to another.
    fn enter(&self, number: u64) -> bool {
        let mut gate = self.gate.load(Ordering::Acquire);
        while gate >> STEP_SHIFT == number && gate & CLOSED == 0 {
            match self.gate.compare_exchange_weak(gate, gate + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }

    /// Waits for a step other than `seen`; `None` when the team ends.
    fn await_step(&self, seen: u64) -> Option<u64> {
        let news = |order| Some(self.gate.load(order)).filter(|g| g >> STEP_SHIFT != seen);
        loop {
            let start = Instant::now();
            let mut spins = 0u32;
            loop {
                if self.quit.load(Ordering::Relaxed) {
                    return None;
                }
                if let Some(gate) = news(Ordering::Acquire) {
                    return Some(gate);
                }
                spins = spins.wrapping_add(1);
                if self.resting.load(Ordering::Relaxed)
                    || spins.is_multiple_of(64) && start.elapsed() >= self.spin
                {
                    break;
                }
                std::hint::spin_loop();
            }
            let mut bed = self.bed.lock();
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            while !self.quit.load(Ordering::SeqCst) && news(Ordering::SeqCst).is_none() {
                self.bell.wait(&mut bed);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(threads: usize, spin_us: u64) -> Team {
        Team::new(&TeamSettings { threads, spin_us, worker_cpus: Vec::new() }).unwrap()
    }

    #[test]
    fn every_part_runs_exactly_once_whatever_the_team() {
        for (threads, spin_us) in [(1, 0), (2, 0), (2, 50), (4, 10)] {
            let mut t = team(threads, spin_us);
            for round in 0..500 {
                let parts = round % 37;
                let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                t.run(parts, &|p| {
                    counts[p].fetch_add(1, Ordering::Relaxed);
                });
                if round % 50 == 0 {
                    t.rest();
                }
                assert!(
                    counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                    "{threads} threads, round {round}"
                );
            }
        }
    }

    #[test]
    fn pieces_are_disjoint_and_cover_the_slice() {
        let mut t = team(3, 20);
        for len in [0usize, 1, 7, 64, 1000] {
            let mut data = vec![0u32; len];
            t.chunks(&mut data, 9, |i, piece| piece.iter_mut().for_each(|v| *v += 1 + i as u32));
            let expected: Vec<u32> = (0..len).map(|i| 1 + (i / 9) as u32).collect();
            assert_eq!(data, expected, "{len} values");
        }
    }

    #[test]
    fn a_panic_in_a_part_reaches_the_leader_and_the_team_goes_on() {
        let mut t = team(2, 20);
        let bad = catch_unwind(AssertUnwindSafe(|| t.run(64, &|p| assert!(p != 40, "part 40"))));
        assert!(bad.is_err(), "the panic was lost");
        let sum = AtomicUsize::new(0);
        t.run(64, &|p| {
            sum.fetch_add(p, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 64 * 63 / 2);
    }
}
