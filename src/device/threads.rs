//! Threads for the length of a call, any of which the system may refuse (a limit on processes, no memory for a stack).
//!
//! Invariants: work that threads only make faster is done without them where they are refused; all others get the refusal
//! as a value; a panic of a thread goes on in the caller. `tests/tidy.rs` sees that no thread is started otherwise.
//! Does not know: what the work is.

use std::thread::{Builder, Scope, ScopedJoinHandle};

/// The system gives no thread.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the system refuses a thread: {cause}; raise the limit of processes (ulimit -u), or end other programs"
)]
pub struct Refused {
    cause: String,
}

/// Starts a thread without which the caller cannot go on.
pub fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Refused> {
    start_as(Builder::new(), scope, work)
}

fn start_as<'scope, T: Send + 'scope>(
    builder: Builder,
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Refused> {
    builder.spawn_scoped(scope, work).map_err(|error| Refused { cause: error.to_string() })
}

/// What a thread gave.
pub fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Does `work` on the caller's thread and on so many others as there are, up to `count` in all.
pub fn together<T: Send>(count: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    together_as(&Builder::new, count, &work)
}

fn together_as<T: Send>(
    builder: &dyn Fn() -> Builder,
    count: usize,
    work: &(impl Fn() -> T + Sync),
) -> Vec<T> {
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..count).map_while(|_| start_as(builder(), scope, work).ok()).collect();
        let own = work();
        std::iter::once(own).chain(others.into_iter().map(joined)).collect()
    })
}

/// Does `there` on another thread beside `here`, or after it where there is none.
pub fn beside<A: Send, B>(there: impl Fn() -> A + Sync, here: impl FnOnce() -> B) -> (A, B) {
    beside_as(Builder::new(), &there, here)
}

fn beside_as<A: Send, B>(
    builder: Builder,
    there: &(impl Fn() -> A + Sync),
    here: impl FnOnce() -> B,
) -> (A, B) {
    std::thread::scope(|scope| {
        let thread = start_as(builder, scope, there);
        let here = here();
        (thread.map_or_else(|_| there(), joined), here)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A stack that no system gives.
    fn impossible() -> Builder {
        Builder::new().stack_size(1 << 60)
    }

    #[test]
    fn a_refused_thread_is_a_value_that_says_what_to_do() {
        std::thread::scope(|scope| {
            let refused = start_as(impossible(), scope, || ()).map(joined).unwrap_err().to_string();
            assert!(
                refused.starts_with("the system refuses a thread: ") && refused.contains("ulimit -u"),
                "{refused}"
            );
            assert_eq!(start(scope, || 7).map(joined), Ok(7));
        });
    }

    #[test]
    fn work_is_done_by_the_caller_where_threads_are_refused() {
        let calls = AtomicUsize::new(0);
        let work = || calls.fetch_add(1, Ordering::Relaxed);
        assert_eq!(together_as(&impossible, 4, &work), [0]);
        let mut all = together(4, work);
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4]);
        assert_eq!(together(0, work), [5]);
        assert_eq!(beside_as(impossible(), &|| "there", || "here"), ("there", "here"));
        assert_ne!(beside(|| std::thread::current().id(), || ()).0, std::thread::current().id());
    }

    #[test]
    #[should_panic(expected = "of a thread")]
    fn a_panic_goes_on_in_the_caller() {
        beside(|| panic!("of a thread"), || ());
    }
}
