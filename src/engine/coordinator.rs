//! The coordinator as a state machine: admits requests, keeps every stage busy, turns logits into tokens.
//!
//! Invariants: batches come back in the order in which they were posted; a state belongs to one request until all
//! its batches are back and its release is posted; after a request's last event nothing is delivered to it; every
//! batch in flight has a deadline; once ended, the coordinator refuses requests with the cause of its end.
//! Does not know: threads, clocks, queues, what a card is.

use std::collections::VecDeque;
use std::sync::Arc;

use super::error::EngineError;
use super::options::EngineOptions;
use super::request::{Counters, Finish, Request, RequestEvent, RequestId};
use super::sample::Sampler;
use super::schedule::{self, Load, Next};
use super::sequence::{Absorb, Part, Sequence};
use super::stage::{StageCommand, StageDeath};
use crate::device::batch::{Batch, BatchId, BatchRow, Interest, Phase};
use crate::model::facts::{CardId, StateId, WINDOW_ROWS_MAX};

/// What happens to the coordinator.
#[derive(Debug)]
pub enum CoordinatorEvent {
    /// A new request.
    Submit(RequestId, Box<Request>),
    /// The request's answers are no longer wanted.
    Cancel(RequestId),
    /// The request's consumer is slow.
    Full(RequestId),
    /// The request's consumer has caught up.
    Room(RequestId),
    /// A batch has passed the last stage.
    Done {
        /// Which.
        batch: BatchId,
        /// What its rows wanted, in row order.
        values: Vec<f32>,
    },
    /// A stage says that the rows of a batch are at fault.
    RowsFailed {
        /// Which.
        batch: BatchId,
        /// Why.
        cause: String,
    },
    /// A stage has ended.
    StageDied(StageDeath),
    /// The shell could not carry out an action.
    Broken(String),
    /// Time has passed.
    Tick {
        /// The first card that has not handed on [`Coordinator::oldest`].
        suspect: Option<CardId>,
    },
    /// End what runs, start nothing.
    Shutdown,
}

/// What the shell does, in order.
#[derive(Debug, PartialEq)]
pub enum CoordinatorAction {
    /// Tell every stage.
    Post(StageCommand),
    /// Tell the request.
    Deliver(RequestId, RequestEvent),
    /// Give the buffer back to the last stage.
    Recycle(Vec<f32>),
    /// Raise the cancel flag: a stage is lost, every wait ends.
    Abort,
    /// All batches are back and the stages were told to stop.
    Stopped,
}

/// A request in line.
#[derive(Debug)]
struct Waiting {
    id: RequestId,
    request: Box<Request>,
    since_ns: u64,
}

/// A batch on its way.
#[derive(Debug)]
struct InFlight {
    batch: Arc<Batch>,
    parts: Vec<Part>,
    phase: Phase,
    fault: Option<String>,
}

/// How the coordinator stands.
#[derive(Debug, PartialEq)]
enum Standing {
    Open,
    /// Batches in flight are awaited, then the stages stop.
    Closing,
    /// The stages were told to stop.
    Stopped,
    /// A stage is lost.
    Ended(EngineError),
}

/// The state of the coordinator.
#[derive(Debug)]
pub struct Coordinator {
    options: EngineOptions,
    stage_count: usize,
    standing: Standing,
    waiting: VecDeque<Waiting>,
    /// By state.
    sequences: Vec<Option<Sequence>>,
    in_flight: VecDeque<InFlight>,
    batches_posted: u64,
    last_phase: Phase,
    /// When a batch came back last, or was posted where none was in flight.
    progress_ns: u64,
    sampler: Sampler,
    events: Vec<RequestEvent>,
}

impl Coordinator {
    /// A coordinator without requests; the options were checked.
    pub(super) fn new(options: EngineOptions, stage_count: usize) -> Coordinator {
        let sequences = (0..options.sequences).map(|_| None).collect();
        Coordinator {
            options,
            stage_count,
            standing: Standing::Open,
            waiting: VecDeque::new(),
            sequences,
            in_flight: VecDeque::new(),
            batches_posted: 0,
            last_phase: Phase::Decode,
            progress_ns: 0,
            sampler: Sampler::default(),
            events: Vec::new(),
        }
    }

    /// When [`CoordinatorEvent::Tick`] is due at the latest.
    pub fn deadline_ns(&self) -> Option<u64> {
        // The oldest batch may have every stage before it, and one that has just begun.
        let limit_ns = self.options.batch_limit.as_nanos() as u64 * (self.stage_count as u64 + 1);
        (!self.in_flight.is_empty()).then_some(self.progress_ns.saturating_add(limit_ns))
    }

    /// Requests running and waiting.
    pub fn requests(&self) -> usize {
        self.waiting.len() + self.sequences.iter().flatten().count()
    }

    /// The batch that comes back next.
    pub fn oldest(&self) -> Option<BatchId> {
        self.in_flight.front().map(|flying| flying.batch.id)
    }

    /// Batches in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Appends what follows from `event` to `actions`.
    pub fn step(&mut self, event: CoordinatorEvent, now_ns: u64, actions: &mut Vec<CoordinatorAction>) {
        match event {
            CoordinatorEvent::Submit(id, request) => self.submit(id, request, now_ns, actions),
            CoordinatorEvent::Cancel(id) => self.cancel(id, now_ns, actions),
            CoordinatorEvent::Full(id) => self.hold(id, true),
            CoordinatorEvent::Room(id) => self.hold(id, false),
            CoordinatorEvent::Done { batch, values } => self.done(batch, values, now_ns, actions),
            CoordinatorEvent::RowsFailed { batch, cause } => {
                if let Some(flying) = self.in_flight.iter_mut().find(|f| f.batch.id == batch) {
                    flying.fault.get_or_insert(cause);
                }
            }
            CoordinatorEvent::StageDied(StageDeath { card, cause }) => {
                self.abort(EngineError::StageDied { card, cause }, now_ns, actions);
            }
            CoordinatorEvent::Broken(what) => self.abort(EngineError::Internal { what }, now_ns, actions),
            CoordinatorEvent::Tick { suspect } => self.tick(suspect, now_ns, actions),
            CoordinatorEvent::Shutdown => self.shut_down(now_ns, actions),
        }
        self.schedule(now_ns, actions);
    }

    fn submit(
        &mut self,
        id: RequestId,
        request: Box<Request>,
        now_ns: u64,
        actions: &mut Vec<CoordinatorAction>,
    ) {
        let queued = self.waiting.len();
        let refusal = match &self.standing {
            Standing::Ended(error) => Some(error.clone()),
            Standing::Closing | Standing::Stopped => Some(EngineError::ShuttingDown),
            Standing::Open if queued >= self.options.queue_max => Some(EngineError::QueueFull { queued }),
            Standing::Open => request.check(&self.options).err(),
        };
        match refusal {
            Some(error) => actions.push(refused(id, Finish::Failed(error))),
            None => self.waiting.push_back(Waiting { id, request, since_ns: now_ns }),
        }
    }

    fn cancel(&mut self, id: RequestId, now_ns: u64, actions: &mut Vec<CoordinatorAction>) {
        if let Some(place) = self.waiting.iter().position(|w| w.id == id) {
            self.waiting.remove(place);
            actions.push(refused(id, Finish::Cancelled));
        } else if let Some(state) = self.running(id) {
            self.end(state, Finish::Cancelled, now_ns, actions);
        }
    }

    fn hold(&mut self, id: RequestId, is_held: bool) {
        if let Some(sequence) = self.running(id).and_then(|state| self.sequences[state.index()].as_mut()) {
            sequence.is_held = is_held;
        }
    }

    /// The state of a request that runs and has not ended.
    fn running(&self, id: RequestId) -> Option<StateId> {
        self.sequences.iter().flatten().find(|s| s.id == id && !s.has_ended()).map(|s| s.state)
    }

    fn done(&mut self, id: BatchId, mut values: Vec<f32>, now_ns: u64, actions: &mut Vec<CoordinatorAction>) {
        if matches!(self.standing, Standing::Ended(_)) {
            return;
        }
        let Some(flying) = self.in_flight.pop_front().filter(|f| f.batch.id == id) else {
            let what = format!("batch {} came back out of turn", id.0);
            return self.abort(EngineError::Internal { what }, now_ns, actions);
        };
        let expected = flying.batch.wanted_values(self.options.vocab);
        if values.len() != expected {
            let what = format!("batch {} brought {} values instead of {expected}", id.0, values.len());
            return self.abort(EngineError::Internal { what }, now_ns, actions);
        }
        self.progress_ns = now_ns;
        for part in &flying.parts {
            self.part_done(part, &flying, &mut values, now_ns, actions);
        }
        actions.push(CoordinatorAction::Recycle(values));
    }

    fn part_done(
        &mut self,
        part: &Part,
        flying: &InFlight,
        values: &mut Vec<f32>,
        now_ns: u64,
        actions: &mut Vec<CoordinatorAction>,
    ) {
        let sequence = self.sequences[part.state.index()].as_mut();
        let sequence = sequence.expect("invariant: a state is kept until its batches are back");
        sequence.in_flight -= 1;
        if sequence.has_ended() {
            return self.release_idle(part.state, actions);
        }
        if let Some(cause) = &flying.fault {
            let error = EngineError::Rows { cause: cause.clone() };
            return self.end(part.state, Finish::Failed(error), now_ns, actions);
        }
        let Coordinator { options, sampler, events, .. } = self;
        let verdict =
            sequence.absorb(part, &flying.batch, values, &mut Absorb { options, sampler, events, now_ns });
        let id = sequence.id;
        actions.extend(events.drain(..).map(|event| CoordinatorAction::Deliver(id, event)));
        if let Some(length) = verdict.rollback {
            actions.push(CoordinatorAction::Post(StageCommand::Rollback { state: part.state, length }));
        }
        if let Some(finish) = verdict.finish {
            self.end(part.state, finish, now_ns, actions);
        }
    }

    /// Tells the request its end; its state goes when the last batch is back.
    fn end(&mut self, state: StateId, finish: Finish, now_ns: u64, actions: &mut Vec<CoordinatorAction>) {
        if let Some(sequence) = self.sequences[state.index()].as_mut().filter(|s| !s.has_ended()) {
            let event = sequence.end(finish, now_ns);
            actions.push(CoordinatorAction::Deliver(sequence.id, event));
        }
        self.release_idle(state, actions);
    }

    fn release_idle(&mut self, state: StateId, actions: &mut Vec<CoordinatorAction>) {
        let place = &mut self.sequences[state.index()];
        if let Some(sequence) = place.take_if(|s| s.has_ended() && s.in_flight == 0)
            && sequence.last_batch.is_some()
        {
            actions.push(CoordinatorAction::Post(StageCommand::Release { state }));
        }
    }

    fn tick(&mut self, suspect: Option<CardId>, now_ns: u64, actions: &mut Vec<CoordinatorAction>) {
        if self.deadline_ns().is_some_and(|deadline_ns| now_ns >= deadline_ns)
            && let Some(batch) = self.oldest()
        {
            let waited_ms = (now_ns - self.progress_ns) / 1_000_000;
            self.abort(EngineError::Late { batch, suspect, waited_ms }, now_ns, actions);
        }
    }

    /// Ends everything at once: states and batches are lost with the stage.
    fn abort(&mut self, error: EngineError, now_ns: u64, actions: &mut Vec<CoordinatorAction>) {
        if matches!(self.standing, Standing::Ended(_) | Standing::Stopped) {
            return;
        }
        for mut sequence in self.sequences.iter_mut().filter_map(Option::take) {
            if !sequence.has_ended() {
                let event = sequence.end(Finish::Failed(error.clone()), now_ns);
                actions.push(CoordinatorAction::Deliver(sequence.id, event));
            }
        }
        let waiting = self.waiting.drain(..);
        actions.extend(waiting.map(|w| refused(w.id, Finish::Failed(error.clone()))));
        self.in_flight.clear();
        actions.push(CoordinatorAction::Abort);
        // Whoever asked for the shutdown waits for its end, not for the batches that are lost.
        if self.standing == Standing::Closing {
            actions.push(CoordinatorAction::Stopped);
        }
        self.standing = Standing::Ended(error);
    }

    fn shut_down(&mut self, now_ns: u64, actions: &mut Vec<CoordinatorAction>) {
        match self.standing {
            Standing::Open => self.standing = Standing::Closing,
            Standing::Closing | Standing::Stopped => return,
            // Nothing runs any more, and nobody is left to be told to stop.
            Standing::Ended(_) => return actions.push(CoordinatorAction::Stopped),
        }
        let shutting = || Finish::Failed(EngineError::ShuttingDown);
        actions.extend(self.waiting.drain(..).map(|w| refused(w.id, shutting())));
        for state in (0..self.sequences.len() as u32).map(StateId) {
            self.end(state, shutting(), now_ns, actions);
        }
    }

    /// Admits and posts whatever can go now.
    fn schedule(&mut self, now_ns: u64, actions: &mut Vec<CoordinatorAction>) {
        match self.standing {
            Standing::Open => {}
            Standing::Closing if self.in_flight.is_empty() => {
                self.standing = Standing::Stopped;
                actions.extend([CoordinatorAction::Post(StageCommand::Stop), CoordinatorAction::Stopped]);
                return;
            }
            Standing::Closing | Standing::Stopped | Standing::Ended(_) => return,
        }
        self.admit(now_ns);
        while let Some(next) = schedule::next(&self.load()) {
            match next {
                Next::Prompt => self.post_prompt(now_ns, actions),
                Next::Window { sequences } => self.post_window(sequences, now_ns, actions),
            }
        }
    }

    fn admit(&mut self, now_ns: u64) {
        for (index, place) in self.sequences.iter_mut().enumerate().filter(|(_, place)| place.is_none()) {
            let Some(Waiting { id, request, since_ns }) = self.waiting.pop_front() else { break };
            let queued_ns = now_ns.saturating_sub(since_ns);
            *place = Some(Sequence::new(id, StateId(index as u32), *request, queued_ns, now_ns));
        }
    }

    fn load(&self) -> Load {
        let count = |f: fn(&Sequence) -> bool| self.sequences.iter().flatten().filter(|s| f(s)).count();
        let windows_in_flight = self.in_flight.iter().filter(|f| f.phase == Phase::Decode).count();
        Load {
            stage_count: self.stage_count,
            decoding: count(Sequence::is_decoding),
            ready: count(Sequence::is_ready),
            reading: count(Sequence::is_reading),
            windows_in_flight,
            prompts_in_flight: self.in_flight.len() - windows_in_flight,
            last: self.last_phase,
        }
    }

    /// The next rows of the prompt whose turn it is.
    fn post_prompt(&mut self, now_ns: u64, actions: &mut Vec<CoordinatorAction>) {
        let reading = self.sequences.iter_mut().flatten().filter(|s| s.is_reading());
        let Some(sequence) = reading.min_by_key(|s| (s.last_batch, s.id)) else { return };
        if let (None, positions @ 1..) = (sequence.last_batch, sequence.first_position()) {
            let state = sequence.state;
            actions.push(CoordinatorAction::Post(StageCommand::Skip { state, positions }));
        }
        let mut rows = Vec::new();
        sequence.last_batch = Some(BatchId(self.batches_posted));
        let part = sequence.post_prompt(&self.options, &mut rows);
        self.post(rows, vec![part], Phase::Prompt, now_ns, actions);
    }

    /// A window of the ready sequences that have waited longest.
    fn post_window(&mut self, sequences: usize, now_ns: u64, actions: &mut Vec<CoordinatorAction>) {
        let mut ready: Vec<&mut Sequence> =
            self.sequences.iter_mut().flatten().filter(|s| s.is_ready()).collect();
        ready.sort_by_key(|s| (s.last_batch, s.id));
        let mut guess_rows = WINDOW_ROWS_MAX - sequences;
        let (mut rows, mut parts) = (Vec::with_capacity(sequences), Vec::with_capacity(sequences));
        for sequence in ready.into_iter().take(sequences) {
            let part = sequence.post_decode(&self.options, guess_rows, &mut rows);
            sequence.last_batch = Some(BatchId(self.batches_posted));
            guess_rows -= part.rows - 1;
            parts.push(part);
        }
        self.post(rows, parts, Phase::Decode, now_ns, actions);
    }

    fn post(
        &mut self,
        rows: Vec<BatchRow>,
        parts: Vec<Part>,
        phase: Phase,
        now_ns: u64,
        actions: &mut Vec<CoordinatorAction>,
    ) {
        let mut batch = Batch { phase, ..Batch::new(BatchId(self.batches_posted), rows) };
        // A window of several requests goes on while one of them does; it is short.
        if let [part] = parts.as_slice() {
            batch.interest = self.sequences[part.state.index()]
                .as_ref()
                .map_or_else(Interest::default, |s| s.interest.clone());
        }
        let batch = Arc::new(batch);
        self.batches_posted += 1;
        if self.in_flight.is_empty() {
            self.progress_ns = now_ns;
        }
        self.last_phase = phase;
        self.in_flight.push_back(InFlight { batch: batch.clone(), parts, phase, fault: None });
        actions.push(CoordinatorAction::Post(StageCommand::Run(batch)));
    }
}

/// The end of a request that never ran.
fn refused(id: RequestId, finish: Finish) -> CoordinatorAction {
    let event = RequestEvent::Finished { finish, counters: Counters::default() };
    CoordinatorAction::Deliver(id, event)
}
