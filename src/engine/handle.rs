//! A request as its owner sees it: a bounded stream of events, and a way to end it.
//!
//! Invariants: a consumer that falls behind holds its request back, not the engine; a dropped handle cancels; the
//! stream always ends with [`RequestEvent::Finished`], even where the engine was lost.
//! Does not know: batches, stages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::coordinator::CoordinatorEvent;
use super::coordinator_thread::Mail;
use super::error::EngineError;
use super::queue::Queue;
use super::request::{Counters, Finish, RequestEvent, RequestId};
use crate::transport::wait::{Bell, Cancel, Patience, Wait, WaitEnded};

/// Weight of events at which a request is held back. What its batches in flight make still comes.
const FULL: usize = 64;

/// Weight at which it goes on.
const ROOM: usize = 16;

/// Logits that weigh as much as any other event: a slow reader of whole prompts' logits keeps little memory.
const LOGITS_VALUES: usize = 1 << 19;

/// What an event weighs.
fn weight(event: &RequestEvent) -> usize {
    match event {
        RequestEvent::Logits { values, .. } => 1 + values.len() / LOGITS_VALUES,
        _ => 1,
    }
}

#[derive(Debug, Default)]
struct Pending {
    events: VecDeque<RequestEvent>,
    /// Of all events here.
    weight: usize,
    /// The coordinator was told that the consumer is slow.
    is_full: bool,
    is_closed: bool,
}

/// Events on their way to a request's owner.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pending: Mutex<Pending>,
    bell: Arc<Bell>,
}

impl Outbox {
    /// Appends an event; true where the request must now be held back.
    pub fn push(&self, event: RequestEvent) -> bool {
        let becomes_full = {
            let mut pending = self.pending.lock();
            pending.weight += weight(&event);
            pending.events.push_back(event);
            let becomes_full = !pending.is_full && pending.weight >= FULL;
            pending.is_full |= becomes_full;
            becomes_full
        };
        self.bell.ring();
        becomes_full
    }

    /// Nothing follows.
    pub fn close(&self) {
        self.pending.lock().is_closed = true;
        self.bell.ring();
    }
}

/// What a look at the events found.
enum Look {
    Event(RequestEvent),
    /// The event, and the request may go on.
    EventAndRoom(RequestEvent),
    Closed,
}

/// Ends a request from anywhere.
#[derive(Clone, Debug)]
pub struct RequestCanceller {
    id: RequestId,
    inbox: Arc<Queue<Mail>>,
    sent: Arc<AtomicBool>,
}

impl RequestCanceller {
    /// Asks for the end of the request: it finishes as cancelled, unless it has finished already.
    pub fn cancel(&self) {
        if !self.sent.swap(true, Ordering::SeqCst) {
            // An engine that has ended has ended the request as well.
            let _ = self.inbox.push(Mail::Event(CoordinatorEvent::Cancel(self.id)));
        }
    }
}

/// The owner's side of a request.
#[derive(Debug)]
pub struct RequestHandle {
    canceller: RequestCanceller,
    outbox: Arc<Outbox>,
    has_finished: bool,
}

impl RequestHandle {
    pub(super) fn new(id: RequestId, outbox: Arc<Outbox>, inbox: Arc<Queue<Mail>>) -> RequestHandle {
        let canceller = RequestCanceller { id, inbox, sent: Arc::default() };
        RequestHandle { canceller, outbox, has_finished: false }
    }

    /// Which request.
    pub fn id(&self) -> RequestId {
        self.canceller.id
    }

    /// Waits for the next event; `None` after [`RequestEvent::Finished`].
    pub fn next_event(&mut self) -> Option<RequestEvent> {
        loop {
            if let Ok(event) = self.next_event_within(Duration::from_secs(3600)) {
                return event;
            }
        }
    }

    /// Waits for the next event for at most `limit`; `Ok(None)` after [`RequestEvent::Finished`].
    pub fn next_event_within(&mut self, limit: Duration) -> Result<Option<RequestEvent>, WaitEnded> {
        if self.has_finished {
            return Ok(None);
        }
        let never = Cancel::new();
        let wait = Wait { deadline: Instant::now() + limit, patience: Patience::NONE, cancel: &never };
        let event = match wait.until(&self.outbox.bell, || look(&self.outbox))? {
            Look::Event(event) => event,
            Look::EventAndRoom(event) => {
                let _ = self.canceller.inbox.push(Mail::Event(CoordinatorEvent::Room(self.id())));
                event
            }
            Look::Closed => {
                let what = "the coordinator ended before its requests".to_owned();
                let finish = Finish::Failed(EngineError::Internal { what });
                RequestEvent::Finished { finish, counters: Counters::default() }
            }
        };
        self.has_finished = matches!(event, RequestEvent::Finished { .. });
        Ok(Some(event))
    }

    /// Asks for the end of the request. Events made before still come.
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// A way to cancel that can be sent elsewhere.
    pub fn canceller(&self) -> RequestCanceller {
        self.canceller.clone()
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if !self.has_finished {
            self.cancel();
        }
    }
}

fn look(outbox: &Outbox) -> Option<Look> {
    let mut pending = outbox.pending.lock();
    let Some(event) = pending.events.pop_front() else { return pending.is_closed.then_some(Look::Closed) };
    pending.weight -= weight(&event);
    if pending.is_full && pending.weight <= ROOM {
        pending.is_full = false;
        return Some(Look::EventAndRoom(event));
    }
    Some(Look::Event(event))
}
