//! The thread of the coordinator: carries out what its machine asks for.
//!
//! Invariants: it never waits but for its own mail; when it ends, however it ends, every request has ended.
//! Does not know: cards, links.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::clock::Clock;
use super::coordinator::{Coordinator, CoordinatorAction, CoordinatorEvent};
use super::handle::Outbox;
use super::queue::Queue;
use super::request::{Request, RequestEvent, RequestId};
use super::stage::StageCommand;
use super::timeline::StageTimeline;
use crate::model::facts::CardId;
use crate::transport::wait::{Cancel, Patience, Wait, WaitEnded};

/// How long the coordinator sleeps without mail and without a deadline.
const IDLE: Duration = Duration::from_secs(3600);

/// What reaches the coordinator. Its queue has no fixed capacity, and needs none: mail comes from batches in flight
/// and from requests that have not ended, and both are bounded.
#[derive(Debug)]
pub(super) enum Mail {
    /// For the machine as it is.
    Event(CoordinatorEvent),
    /// A request, and where its events go.
    Submit(RequestId, Box<Request>, Arc<Outbox>),
}

/// Everything that the coordinator's thread owns.
pub(super) struct CoordinatorShell {
    pub machine: Coordinator,
    pub inbox: Arc<Queue<Mail>>,
    /// In pipeline order.
    pub commands: Vec<Arc<Queue<StageCommand>>>,
    pub buffers: Arc<Queue<Vec<f32>>>,
    /// In pipeline order.
    pub timelines: Vec<(CardId, Arc<Mutex<StageTimeline>>)>,
    pub outboxes: HashMap<RequestId, Arc<Outbox>>,
    /// Requests that have not ended, as the engine's face counts them.
    pub alive: Arc<AtomicUsize>,
    pub clock: Clock,
    pub patience: Patience,
    /// Raised when a stage is lost.
    pub stages_cancel: Cancel,
    /// Never raised.
    pub never: Cancel,
}

impl CoordinatorShell {
    /// Runs until the engine is shut down.
    pub fn run(mut self) {
        let mut actions = Vec::new();
        let mut events = VecDeque::new();
        let mut has_stopped = false;
        while !has_stopped {
            events.push_back(self.next());
            while let Some(event) = events.pop_front() {
                self.machine.step(event, self.clock.now_ns(), &mut actions);
                // Cards first: to wake who reads a token takes longer than to post the next window.
                actions.sort_by_key(|action| matches!(action, CoordinatorAction::Deliver(..)));
                for action in actions.drain(..) {
                    has_stopped |= self.perform(action, &mut events);
                }
            }
        }
        // Requests that were submitted meanwhile are refused by the machine.
        while let Some(mail) = self.inbox.try_pop() {
            let event = self.open(mail);
            self.machine.step(event, self.clock.now_ns(), &mut actions);
            for action in actions.drain(..) {
                self.perform(action, &mut events);
            }
        }
    }

    fn next(&mut self) -> CoordinatorEvent {
        let deadline = match self.machine.deadline_ns() {
            Some(ns) => self.clock.at(ns),
            None => Instant::now() + IDLE,
        };
        // The coordinator ends by mail, after what is in flight; nothing ends its waits early.
        // No card works for a pipeline of one stage until the answer has been read.
        let is_due = self.machine.oldest().is_some();
        let patience = if is_due { self.patience.eager() } else { self.patience };
        let wait = Wait { deadline, patience, cancel: &self.never };
        match self.inbox.pop(&wait) {
            Ok(mail) => self.open(mail),
            Err(WaitEnded::Deadline | WaitEnded::Cancelled) => {
                CoordinatorEvent::Tick { suspect: self.suspect() }
            }
        }
    }

    /// The first card that has not handed on the batch that is due.
    fn suspect(&self) -> Option<CardId> {
        let oldest = self.machine.oldest()?;
        self.timelines.iter().find(|(_, timeline)| !timeline.lock().has_passed(oldest)).map(|(card, _)| *card)
    }

    fn open(&mut self, mail: Mail) -> CoordinatorEvent {
        match mail {
            Mail::Event(event) => event,
            Mail::Submit(id, request, outbox) => {
                self.outboxes.insert(id, outbox);
                CoordinatorEvent::Submit(id, request)
            }
        }
    }

    /// True where the machine has stopped.
    fn perform(&mut self, action: CoordinatorAction, events: &mut VecDeque<CoordinatorEvent>) -> bool {
        match action {
            CoordinatorAction::Post(command) => self.post(command, events),
            CoordinatorAction::Deliver(id, event) => self.deliver(id, event, events),
            CoordinatorAction::Recycle(buffer) => {
                if self.buffers.push(buffer).is_err() {
                    events.push_back(CoordinatorEvent::Broken("one logits buffer too many".to_owned()));
                }
            }
            CoordinatorAction::Abort => self.stages_cancel.raise(),
            CoordinatorAction::Stopped => return true,
        }
        false
    }

    fn post(&mut self, command: StageCommand, events: &mut VecDeque<CoordinatorEvent>) {
        // A later stage sleeps until the stage before posts rows for it, so that a batch wakes each thread once; a
        // rollback or a release costs no wake at all, it is read before the next batch.
        let runs = matches!(command, StageCommand::Run(_));
        let stops = command == StageCommand::Stop;
        for (stage, commands) in self.commands.iter().enumerate().rev() {
            if commands.push_quietly(command.clone()).is_err() {
                let what = format!("the commands of stage {stage} exceed their queue");
                events.push_back(CoordinatorEvent::Broken(what));
            } else if stops || (runs && stage == 0) {
                commands.ring();
            }
        }
    }

    fn deliver(&mut self, id: RequestId, event: RequestEvent, events: &mut VecDeque<CoordinatorEvent>) {
        let ends = matches!(event, RequestEvent::Finished { .. });
        if let RequestEvent::Finished { finish, counters } = &event {
            let (prompt, generated) = (counters.prompt_tokens, counters.generated_tokens);
            tracing::info!(request = id.0, ?finish, prompt, generated, "a request ended");
        }
        let Some(outbox) = self.outboxes.get(&id) else { return };
        if outbox.push(event) && !ends {
            events.push_back(CoordinatorEvent::Full(id));
        }
        if ends {
            self.outboxes.remove(&id);
            self.alive.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for CoordinatorShell {
    /// Nobody may wait for a coordinator that is gone, not even after a panic.
    fn drop(&mut self) {
        self.outboxes.values().for_each(|outbox| outbox.close());
        self.stages_cancel.raise();
    }
}
