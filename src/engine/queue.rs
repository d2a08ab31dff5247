//! Queues between the engine's threads: commands to a stage, answers to the coordinator, events to a request.
//!
//! Invariants: first in, first out; a push never waits; a pop waits under a deadline and a cancel flag.
//! Does not know: what is queued.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::transport::wait::{Bell, Wait, WaitEnded};

/// A queue with a bell.
#[derive(Debug)]
pub(super) struct Queue<T> {
    items: Mutex<VecDeque<T>>,
    bell: Arc<Bell>,
    capacity: usize,
}

impl<T> Queue<T> {
    /// An empty queue for at most `capacity` items.
    pub fn new(capacity: usize) -> Arc<Queue<T>> {
        Arc::new(Queue { items: Mutex::new(VecDeque::new()), bell: Bell::new(), capacity })
    }

    /// Appends an item and wakes the consumer; gives it back where the queue is full.
    pub fn push(&self, item: T) -> Result<(), T> {
        self.push_quietly(item)?;
        self.bell.ring();
        Ok(())
    }

    /// Appends an item; a consumer that is parked sleeps on until someone rings.
    pub fn push_quietly(&self, item: T) -> Result<(), T> {
        let mut items = self.items.lock();
        if items.len() == self.capacity {
            return Err(item);
        }
        items.push_back(item);
        Ok(())
    }

    /// Wakes the consumer to look.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// The oldest item, if there is one.
    pub fn try_pop(&self) -> Option<T> {
        self.items.lock().pop_front()
    }

    /// Waits for an item.
    pub fn pop(&self, wait: &Wait<'_>) -> Result<T, WaitEnded> {
        wait.until(&self.bell, || self.try_pop())
    }
}
