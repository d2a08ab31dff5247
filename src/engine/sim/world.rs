//! The world of a schedule: virtual time, the machines, and what lies between them.
//!
//! The coordinator's mail is first in, first out, as on threads; only when it is looked at is left to chance. What is
//! due at the same time runs in a seeded order.
//! Invariants: all chance comes from the seed; every event is counted, and their number is bounded.
//! Does not know: what the answers mean (the checkers do).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::card_side::CardSide;
use super::check::Listener;
use super::fault::Fault;
use super::hash_card::HashCard;
use super::rng::{Rng, mix};
use super::scenario::{Scenario, VOCAB};
use super::wire::Wire;
use crate::device::batch::BatchId;
use crate::engine::build::{Machines, StageSpec, machines, ring};
use crate::engine::coordinator::{Coordinator, CoordinatorAction, CoordinatorEvent};
use crate::engine::error::EngineError;
use crate::engine::request::{Finish, RequestEvent, RequestId};
use crate::engine::schedule::in_flight_max;
use crate::engine::stage::{StageCommand, StageEvent};
use crate::model::facts::CardId;

/// Events at which a slow consumer's request is held back, and at which it goes on.
const FULL: usize = 4;
const ROOM: usize = 1;

/// Something that is due.
#[derive(Debug)]
pub(super) enum Due {
    /// The coordinator looks at its mail.
    Mail,
    /// The oldest batch's deadline.
    Tick,
    /// A stage tries what it waits for.
    Try(usize),
    /// A stage's action is done.
    Done(usize, StageEvent),
    /// A stage's run is done: the card computes now.
    Run(usize),
    /// A stage has waited long enough for its n-th action.
    WaitEnds(usize, u64),
    /// A request comes.
    Submit(usize),
    /// A request is cancelled.
    Cancel(usize),
    /// A consumer reads one event.
    Consume(usize),
    /// The engine is shut down.
    Shutdown,
}

/// A consumer's unread events.
#[derive(Clone, Copy, Debug, Default)]
struct Unread {
    events: usize,
    is_full: bool,
}

/// The state of a schedule.
pub(super) struct World {
    pub scenario: Scenario,
    pub rng: Rng,
    pub now_ns: u64,
    pub steps: u64,
    pub trace: u64,
    pub stages: Vec<CardSide>,
    pub wires: Vec<Wire>,
    /// Free logits buffers.
    pub buffers: usize,
    /// The cancel flag of the stages.
    pub is_cancelled: bool,
    pub listeners: Vec<Listener>,
    pub violations: Vec<String>,
    pub has_stopped: bool,
    coordinator: Coordinator,
    inbox: VecDeque<CoordinatorEvent>,
    commands_max: usize,
    unread: Vec<Unread>,
    tick_ns: Option<u64>,
    is_shutting: bool,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    due: Vec<Option<Due>>,
    unused: Vec<usize>,
}

impl World {
    pub fn new(scenario: Scenario, rng: Rng) -> Result<World, EngineError> {
        let (options, stage_count) = (&scenario.options, scenario.stage_count);
        let spec = |stage| StageSpec { card: CardId::cpu(stage as u32), kv_pages: options.kv_pages() };
        let specs: Vec<StageSpec> = (0..stage_count).map(spec).collect();
        let Machines { coordinator, stages, links, commands_max, logits_buffers } =
            machines(&specs, options)?;
        let cards = stages.into_iter().enumerate().map(|(stage, machine)| {
            let cut = |s: usize| s * scenario.layers / stage_count;
            let layers = cut(stage)..cut(stage + 1);
            let card =
                HashCard::new(specs[stage].card, layers, scenario.layers, VOCAB, specs[stage].kv_pages);
            CardSide::new(machine, card)
        });
        let cut_rows = options.prompt_rows_max();
        let listeners = scenario.planned.iter().map(|planned| {
            let prompt_tokens = planned.request.as_ref().map_or(0, |r| r.prompt.len());
            Listener::new(planned.answer.clone(), prompt_tokens, cut_rows)
        });
        let mut world = World {
            stages: cards.collect(),
            wires: links.iter().map(|link| Wire::new(ring(link))).collect(),
            listeners: listeners.collect(),
            unread: vec![Unread::default(); scenario.planned.len()],
            buffers: logits_buffers,
            coordinator,
            commands_max,
            scenario,
            rng,
            now_ns: 0,
            steps: 0,
            trace: 0,
            is_cancelled: false,
            violations: Vec::new(),
            has_stopped: false,
            inbox: VecDeque::new(),
            tick_ns: None,
            is_shutting: false,
            queue: BinaryHeap::new(),
            due: Vec::new(),
            unused: Vec::new(),
        };
        world.begin();
        Ok(world)
    }

    fn begin(&mut self) {
        for stage in 0..self.stages.len() {
            self.after(0, Due::Done(stage, StageEvent::Started));
        }
        for index in 0..self.scenario.planned.len() {
            let planned = &self.scenario.planned[index];
            let (submit_ns, cancel_ns) = (planned.submit_ns, planned.cancel_ns);
            self.after(submit_ns, Due::Submit(index));
            if let Some(cancel_ns) = cancel_ns {
                self.after(cancel_ns, Due::Cancel(index));
            }
        }
        if let Some(shutdown_ns) = self.scenario.shutdown_ns {
            self.after(shutdown_ns, Due::Shutdown);
        }
    }

    /// Runs until everything has ended, or `steps_max` events have passed.
    pub fn run(&mut self, steps_max: u64) {
        while !self.is_over() {
            let Some(Reverse((at_ns, _, index))) = self.queue.pop() else {
                return self
                    .violations
                    .push("nothing is due, and requests or stages have not ended".to_owned());
            };
            if self.steps == steps_max {
                return self.violations.push(format!("not at an end after {steps_max} events"));
            }
            let due = self.due[index].take().expect("invariant: what is queued is kept until it is due");
            self.unused.push(index);
            self.now_ns = at_ns;
            self.steps += 1;
            self.trace = mix(self.trace ^ at_ns ^ mix(due.kind()));
            self.happen(due);
        }
    }

    fn is_over(&self) -> bool {
        self.has_stopped
            && self.inbox.is_empty()
            && self.listeners.iter().all(|l| l.finish().is_some())
            && self.stages.iter().all(|s| s.has_ended() || s.hangs)
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Mail => {
                if let Some(event) = self.inbox.pop_front() {
                    self.coordinate(event);
                }
            }
            Due::Tick => {
                self.tick_ns = None;
                if self.coordinator.deadline_ns().is_some_and(|ns| ns <= self.now_ns) {
                    let suspect = self.coordinator.oldest().and_then(|batch| self.suspect(batch));
                    self.coordinate(CoordinatorEvent::Tick { suspect });
                }
                self.plan_tick();
            }
            Due::Try(stage) => self.attempt(stage),
            Due::Done(stage, event) => self.advance(stage, event),
            Due::Run(stage) => self.compute(stage),
            Due::WaitEnds(stage, action) => self.wait_ends(stage, action),
            Due::Submit(index) => {
                let id = RequestId(index as u64);
                if let Some(request) = self.scenario.planned[index].request.take() {
                    self.mail(CoordinatorEvent::Submit(id, Box::new(request)));
                }
            }
            Due::Cancel(index) => {
                self.listeners[index].cancel();
                self.mail(CoordinatorEvent::Cancel(RequestId(index as u64)));
            }
            Due::Consume(index) => self.consume(index),
            Due::Shutdown => {
                self.is_shutting = true;
                self.mail(CoordinatorEvent::Shutdown);
            }
        }
    }

    /// Puts something `delay_ns` into the future.
    pub fn after(&mut self, delay_ns: u64, due: Due) {
        let index = self.unused.pop().unwrap_or_else(|| {
            self.due.push(None);
            self.due.len() - 1
        });
        self.due[index] = Some(due);
        let order = self.rng.next();
        self.queue.push(Reverse((self.now_ns + delay_ns, order, index)));
    }

    /// The time until someone notices.
    pub fn notice_ns(&mut self) -> u64 {
        let late = self.scenario.has(Fault::Late) && self.rng.one_in(8);
        if late { self.rng.within(0, 2_000_000) } else { self.rng.within(0, 20_000) }
    }

    /// Something that reaches the coordinator.
    pub fn mail(&mut self, event: CoordinatorEvent) {
        self.inbox.push_back(event);
        let delay_ns = self.notice_ns();
        self.after(delay_ns, Due::Mail);
    }

    fn coordinate(&mut self, event: CoordinatorEvent) {
        let mut events = VecDeque::from([event]);
        let mut actions = Vec::new();
        while let Some(event) = events.pop_front() {
            self.coordinator.step(event, self.now_ns, &mut actions);
            for action in actions.drain(..) {
                self.perform(action, &mut events);
            }
        }
        let (in_flight, most) = (self.coordinator.in_flight(), in_flight_max(self.stages.len()));
        if in_flight > most {
            self.violations.push(format!("{in_flight} batches in flight, at most {most} were planned"));
        }
        self.plan_tick();
        if !self.is_shutting && self.listeners.iter().all(|l| l.finish().is_some()) {
            self.is_shutting = true;
            self.mail(CoordinatorEvent::Shutdown);
        }
    }

    fn perform(&mut self, action: CoordinatorAction, events: &mut VecDeque<CoordinatorEvent>) {
        match action {
            CoordinatorAction::Post(command) => self.post(&command),
            CoordinatorAction::Deliver(id, event) => self.deliver(id, event, events),
            CoordinatorAction::Recycle(_) => {
                self.buffers += 1;
                self.notice(self.stages.len() - 1);
            }
            CoordinatorAction::Abort => {
                self.is_cancelled = true;
                (0..self.stages.len()).for_each(|stage| self.notice(stage));
            }
            CoordinatorAction::Stopped => self.has_stopped = true,
        }
    }

    fn post(&mut self, command: &StageCommand) {
        for stage in 0..self.stages.len() {
            let leaks = self.scenario.has(Fault::LeakedState) && stage == self.scenario.strike.stage;
            if leaks && matches!(command, StageCommand::Release { .. }) {
                continue;
            }
            let commands = &mut self.stages[stage].commands;
            commands.push_back(command.clone());
            if commands.len() > self.commands_max {
                let (waiting, most) = (commands.len(), self.commands_max);
                self.violations.push(format!("{waiting} commands wait at stage {stage}, {most} fit"));
            }
            self.notice(stage);
        }
    }

    /// The stage looks at what it waits for, some time from now.
    pub fn notice(&mut self, stage: usize) {
        let delay_ns = self.notice_ns();
        self.after(delay_ns, Due::Try(stage));
    }

    fn deliver(&mut self, id: RequestId, event: RequestEvent, events: &mut VecDeque<CoordinatorEvent>) {
        let (index, faulty) = (id.0 as usize, CardId::cpu(self.scenario.strike.stage as u32));
        let ends = matches!(event, RequestEvent::Finished { .. });
        self.listeners[index].hear(&event, &self.scenario.faults, faulty);
        if ends && self.scenario.has(Fault::SpeaksAfterEnd) {
            let more = RequestEvent::Finished { finish: Finish::TokensMax, counters: Default::default() };
            self.listeners[index].hear(&more, &self.scenario.faults, faulty);
        }
        let unread = &mut self.unread[index];
        unread.events += 1;
        if unread.events >= FULL && !unread.is_full && !ends {
            unread.is_full = true;
            events.push_back(CoordinatorEvent::Full(id));
        }
        let slow = self.scenario.has(Fault::Full);
        let delay_ns = if slow { self.rng.within(0, 500_000) } else { self.rng.within(0, 10_000) };
        self.after(delay_ns, Due::Consume(index));
    }

    fn consume(&mut self, index: usize) {
        let unread = &mut self.unread[index];
        unread.events -= 1;
        if unread.is_full && unread.events <= ROOM {
            unread.is_full = false;
            self.mail(CoordinatorEvent::Room(RequestId(index as u64)));
        }
    }

    /// The first card that has not handed on the batch.
    fn suspect(&self, batch: BatchId) -> Option<CardId> {
        let late = self.stages.iter().find(|stage| !stage.timeline.has_passed(batch));
        late.map(|stage| stage.machine.place().card)
    }

    fn plan_tick(&mut self) {
        if let (None, Some(at_ns)) = (self.tick_ns, self.coordinator.deadline_ns())
            && !self.scenario.has(Fault::Hang)
        {
            self.tick_ns = Some(at_ns);
            self.after(at_ns.saturating_sub(self.now_ns), Due::Tick);
        }
    }
}

impl Due {
    fn kind(&self) -> u64 {
        match self {
            Due::Mail => 1,
            Due::Tick => 2,
            Due::Try(stage) => 0x100 + *stage as u64,
            Due::Done(stage, _) => 0x200 + *stage as u64,
            Due::Run(stage) => 0x300 + *stage as u64,
            Due::WaitEnds(stage, _) => 0x400 + *stage as u64,
            Due::Submit(index) => 0x500 + *index as u64,
            Due::Cancel(index) => 0x600 + *index as u64,
            Due::Consume(index) => 0x700 + *index as u64,
            Due::Shutdown => 3,
        }
    }
}
