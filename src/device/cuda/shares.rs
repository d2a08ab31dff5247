//! Work on numbered things by several threads, each of which takes the next.
//!
//! Invariants: results come in the order of the numbers; after an error nothing new is begun, and one is given; a panic goes
//! on in the caller. Does not know: what the work is.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::device::{CardError, threads};

/// What each thread does: begins with something of its own, works with that on the things it takes, ends.
pub(super) struct Work<B, W, E> {
    pub(super) begin: B,
    pub(super) work: W,
    pub(super) end: E,
}

/// Works on things 0 to `count` by `thread_count` threads, the caller's among them, or fewer where the system refuses some.
pub(super) fn share<S, T: Send>(
    thread_count: usize,
    count: usize,
    doing: &Work<
        impl Fn() -> Result<S, CardError> + Sync,
        impl Fn(&mut S, usize) -> Result<T, CardError> + Sync,
        impl Fn(S) -> Result<(), CardError> + Sync,
    >,
) -> Result<Vec<T>, CardError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let (next, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    let thread = || -> Result<Vec<(usize, T)>, CardError> {
        let (mut own, mut results) = ((doing.begin)()?, Vec::new());
        while !ended.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            results.push((index, (doing.work)(&mut own, index)?));
        }
        (doing.end)(own).map(|()| results)
    };
    let watched = || thread().inspect_err(|_| ended.store(true, Ordering::Relaxed));
    let results = threads::together(thread_count.min(count), watched);
    let results = results.into_iter().collect::<Result<Vec<_>, CardError>>()?;
    let mut results: Vec<(usize, T)> = results.into_iter().flatten().collect();
    results.sort_by_key(|(index, _)| *index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// As many threads as the system lets this process use.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_an_error_ends_the_work() {
        let begun = AtomicUsize::new(0);
        let doing = |wrong: usize| Work {
            begin: || Ok(0usize),
            work: {
                let begun = &begun;
                move |own: &mut usize, index: usize| {
                    begun.fetch_add(1, Ordering::Relaxed);
                    *own += 1;
                    if index == wrong { Err(CardError::Cancelled) } else { Ok(index * index) }
                }
            },
            end: |own: usize| if own > 0 { Ok(()) } else { Err(CardError::Cancelled) },
        };
        for threads in [1, 3] {
            assert_eq!(share(1, 5, &doing(99)).unwrap(), [0, 1, 4, 9, 16]);
            begun.store(0, Ordering::Relaxed);
            assert!(share(threads, 100_000, &doing(10)).is_err());
            assert!(begun.load(Ordering::Relaxed) < 100_000);
        }
        assert!(share(4, 0, &doing(99)).unwrap().is_empty());
    }
}
