//! The running engine: starts the threads, takes requests, tells where time goes, shuts down in order.
//!
//! Invariants: threads are thin shells around the machines of [`super::build`]; stages end and are freed in reverse
//! order; a stage that hangs does not hang the shutdown.
//! Does not know: text, models, how a card computes.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::build::{Machines, StageSpec, machines};
use super::clock::Clock;
use super::coordinator::CoordinatorEvent;
use super::coordinator_thread::{CoordinatorShell, Mail};
use super::error::EngineError;
use super::handle::{Outbox, RequestHandle};
use super::options::{EngineOptions, Pinning};
use super::queue::Queue;
use super::request::{Request, RequestId};
use super::stage_thread::{Output, StageShell};
use super::timeline::{StageTimeline, StageTimes};
use super::turn::Turn;
use crate::device::{CardRing, StageExec};
use crate::model::facts::CardId;
use crate::transport::wait::{Cancel, Patience, Wait};
use crate::transport::{self, LinkSpec};

/// How long a shutdown waits for a stage that does not end.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// A stage to be run.
pub struct EngineStage {
    /// Its program on its card.
    pub exec: Box<dyn StageExec>,
    /// What the engine must know of it.
    pub spec: StageSpec,
    /// Shared with the stages that compute on the same threads.
    pub turn: Option<Arc<Turn>>,
    /// The slots through which rows arrive, where only cards reach them.
    pub arrives: Option<Arc<dyn CardRing>>,
}

/// Where the time of a stage went.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct StageStats {
    /// Its card.
    pub card: CardId,
    /// Since the start, or since the last reset.
    pub times: StageTimes,
}

/// A running pipeline. Dropping it shuts it down.
pub struct Engine {
    options: EngineOptions,
    inbox: Arc<Queue<Mail>>,
    next_id: AtomicU64,
    alive: Arc<AtomicUsize>,
    coordinator: Option<JoinHandle<()>>,
    stages_cancel: Cancel,
    stages: Vec<JoinHandle<()>>,
    /// The programs of stages that have ended.
    ended: Arc<Queue<(usize, Box<dyn StageExec>)>>,
    timelines: Vec<(CardId, Arc<Mutex<StageTimeline>>)>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("stages", &self.timelines.len()).finish_non_exhaustive()
    }
}

/// What the threads share.
struct Wiring {
    clock: Clock,
    patience: Patience,
    inbox: Arc<Queue<Mail>>,
    commands: Vec<Arc<Queue<super::stage::StageCommand>>>,
    buffers: Arc<Queue<Vec<f32>>>,
    stages_cancel: Cancel,
}

impl Engine {
    /// Starts a thread for each stage, in pipeline order, and one for the coordinator.
    pub fn start(stages: Vec<EngineStage>, options: EngineOptions) -> Result<Engine, EngineError> {
        let specs: Vec<StageSpec> = stages.iter().map(|s| s.spec).collect();
        let Machines { coordinator, stages: stage_machines, links, commands_max, logits_buffers } =
            machines(&specs, &options)?;
        // The coordinator and whoever reads the events want a CPU too.
        let threads = stages.len() + options.compute_threads + 2;
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let wiring = Wiring {
            clock: Clock::start(),
            patience: Patience::for_threads(threads, cpus),
            inbox: Queue::new(usize::MAX),
            commands: specs.iter().map(|_| Queue::new(commands_max)).collect(),
            buffers: Queue::new(logits_buffers),
            stages_cancel: Cancel::new(),
        };
        for _ in 0..logits_buffers {
            wiring.buffers.push(Vec::new()).map_err(|_| internal("the logits buffers exceed their queue"))?;
        }
        let (mut senders, mut receivers) = (Vec::new(), vec![None]);
        for (link, stage) in links.iter().zip(&stages[1..]) {
            let opened = match &stage.arrives {
                Some(ring) => transport::card::open(&LinkSpec { kind: ring.kind(), ..*link }, ring.clone()),
                None => transport::open(link),
            };
            let (sender, receiver) = opened.map_err(|error| EngineError::Link { what: error.to_string() })?;
            senders.push(Some(sender));
            receivers.push(Some(receiver));
        }
        senders.push(None);
        let mut engine = Engine {
            inbox: wiring.inbox.clone(),
            next_id: AtomicU64::new(0),
            alive: Arc::default(),
            coordinator: None,
            stages_cancel: wiring.stages_cancel.clone(),
            stages: Vec::new(),
            ended: Queue::new(specs.len()),
            timelines: specs.iter().map(|s| (s.card, Arc::default())).collect(),
            options,
        };
        let ends = senders.into_iter().zip(receivers);
        for (index, ((stage, machine), (sender, input))) in
            stages.into_iter().zip(stage_machines).zip(ends).enumerate()
        {
            let output = match sender {
                Some(link) => Output::Rows { link, next: wiring.commands[index + 1].clone() },
                None => Output::Logits { buffers: wiring.buffers.clone(), held: Vec::new() },
            };
            let shell = StageShell {
                machine,
                exec: stage.exec,
                commands: wiring.commands[index].clone(),
                input,
                output,
                inbox: wiring.inbox.clone(),
                turn: stage.turn,
                timeline: engine.timelines[index].1.clone(),
                clock: wiring.clock,
                patience: wiring.patience,
                cancel: wiring.stages_cancel.clone(),
                has_posted: false,
                batch_limit: engine.options.batch_limit,
                residual_width: engine.options.residual_width,
                vocab: engine.options.vocab,
                pin: pin(index, engine.options.pinning),
            };
            engine.spawn_stage(index, shell)?;
        }
        let shell = CoordinatorShell {
            machine: coordinator,
            inbox: wiring.inbox,
            commands: wiring.commands,
            buffers: wiring.buffers,
            timelines: engine.timelines.clone(),
            outboxes: HashMap::new(),
            alive: engine.alive.clone(),
            clock: wiring.clock,
            patience: wiring.patience,
            stages_cancel: wiring.stages_cancel,
            never: Cancel::new(),
        };
        engine.coordinator = Some(spawn("coordinator".to_owned(), move || shell.run())?);
        Ok(engine)
    }

    fn spawn_stage(&mut self, index: usize, shell: StageShell) -> Result<(), EngineError> {
        let ended = self.ended.clone();
        self.stages.push(spawn(format!("stage {index}"), move || {
            // The queue has a place for every stage.
            let _ = ended.push((index, shell.run()));
        })?);
        Ok(())
    }

    /// Hands in a request. It is refused here where it could not be carried out, or where too many wait.
    pub fn submit(&self, request: Request) -> Result<RequestHandle, EngineError> {
        request.check(&self.options)?;
        let alive_max = self.options.sequences + self.options.queue_max;
        let admit = |alive| (alive < alive_max).then_some(alive + 1);
        if self.alive.fetch_update(Ordering::SeqCst, Ordering::SeqCst, admit).is_err() {
            return Err(EngineError::QueueFull { queued: self.options.queue_max });
        }
        let id = RequestId(self.next_id.fetch_add(1, Ordering::SeqCst));
        let outbox = Arc::new(Outbox::default());
        let mail = Mail::Submit(id, Box::new(request), outbox.clone());
        match self.inbox.push(mail) {
            Ok(()) if self.coordinator.as_ref().is_some_and(|c| !c.is_finished()) => {}
            _ => outbox.close(),
        }
        Ok(RequestHandle::new(id, outbox, self.inbox.clone()))
    }

    /// What the engine was started with.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Where the time of each stage went.
    pub fn stats(&self) -> Vec<StageStats> {
        let stats = |(card, timeline): &(CardId, Arc<Mutex<StageTimeline>>)| StageStats {
            card: *card,
            times: timeline.lock().times(),
        };
        self.timelines.iter().map(stats).collect()
    }

    /// The same up to the last batch of a prompt that each stage handed on, and behind it.
    pub fn stats_of_phases(&self) -> (Vec<StageStats>, Vec<StageStats>) {
        let stats = |(card, timeline): &(CardId, Arc<Mutex<StageTimeline>>)| {
            let (prompt, decode) = timeline.lock().times_of_phases();
            (StageStats { card: *card, times: prompt }, StageStats { card: *card, times: decode })
        };
        self.timelines.iter().map(stats).unzip()
    }

    /// The last batches of each stage, one by one.
    pub fn timelines(&self) -> Vec<StageTimeline> {
        self.timelines.iter().map(|(_, timeline)| timeline.lock().clone()).collect()
    }

    /// The same, and a new span begins, between two batches of each stage; a bench calls it between its repetitions.
    pub fn take_stats(&self) -> Vec<StageStats> {
        let take = |(card, timeline): &(CardId, Arc<Mutex<StageTimeline>>)| {
            let mut timeline = timeline.lock();
            let times = timeline.times();
            timeline.reset();
            StageStats { card: *card, times }
        };
        self.timelines.iter().map(take).collect()
    }

    /// Ends requests with [`EngineError::ShuttingDown`], awaits the batches in flight, and frees the stages, last
    /// first.
    pub fn shutdown(mut self) -> Result<(), EngineError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), EngineError> {
        let coordinator = self.coordinator.take().map(|coordinator| {
            // The inbox refuses nothing; a coordinator that is gone reads no mail and is joined at once.
            let _ = self.inbox.push(Mail::Event(CoordinatorEvent::Shutdown));
            coordinator.join().map_err(|_| internal("the coordinator panicked"))
        });
        // Without a coordinator nothing is in flight; a stage that waits for one ends here.
        self.stages_cancel.raise();
        let never = Cancel::new();
        let mut execs: Vec<Option<Box<dyn StageExec>>> = self.stages.iter().map(|_| None).collect();
        let wait = Wait::within(LAST_WAIT, Patience::NONE, &never);
        for _ in 0..self.stages.len() {
            match self.ended.pop(&wait) {
                Ok((index, exec)) => execs[index] = Some(exec),
                // A thread inside a hanging card cannot be ended: it is left behind.
                Err(_) => break,
            }
        }
        let hanging = execs.iter().position(|exec| exec.is_none());
        while let Some(exec) = execs.pop() {
            drop(exec);
        }
        let threads = std::mem::take(&mut self.stages);
        match hanging {
            Some(stage) => Err(EngineError::Hangs { card: self.timelines[stage].0 }),
            None => {
                let joined: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
                let panicked = joined.iter().any(Result::is_err);
                if panicked { Err(internal("a stage thread panicked outside its stage")) } else { Ok(()) }
            }
        }
        .and(coordinator.unwrap_or(Ok(())))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "the engine did not end in order");
        }
    }
}

fn spawn(what: String, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, EngineError> {
    let thread = std::thread::Builder::new().name(what.clone()).spawn(run);
    thread.map_err(|error| EngineError::Thread { what, cause: error.to_string() })
}

/// The stage's CPU among those that this process may use.
fn pin(stage: usize, pinning: Pinning) -> Option<core_affinity::CoreId> {
    let cpus = match pinning {
        Pinning::Free => return None,
        Pinning::Pinned => core_affinity::get_core_ids().unwrap_or_default(),
    };
    (!cpus.is_empty()).then(|| cpus[stage % cpus.len()])
}

fn internal(what: &str) -> EngineError {
    EngineError::Internal { what: what.to_owned() }
}
