//! The thread that owns a card: carries out what its [`StageMachine`] asks for.
//!
//! Invariants: every wait has a deadline and ends with the engine; no lock is held while computing but the turn; a
//! panic, a card's error or a link's becomes one message to the coordinator, and closes the links beside.
//! Does not know: sequences, sampling.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::clock::Clock;
use super::coordinator::CoordinatorEvent;
use super::coordinator_thread::Mail;
use super::queue::Queue;
use super::stage::{RunFault, RunTimes, StageAction, StageCommand, StageDeath, StageEvent, StageMachine};
use super::timeline::StageTimeline;
use super::turn::Turn;
use crate::device::batch::{Batch, BatchId};
use crate::device::{CardError, RowsIn, RowsOut, RunStamp, StageExec};
use crate::transport::ring::CloseCause;
use crate::transport::wait::{Cancel, Patience, Wait, WaitEnded};
use crate::transport::{LinkError, LinkReceiver, LinkSender};

/// How long an idle stage sleeps before it looks again; the bell and the cancel flag wake it earlier.
const IDLE: Duration = Duration::from_secs(3600);

/// Where a stage's output goes.
pub(super) enum Output {
    /// To the next stage.
    Rows {
        link: Box<dyn LinkSender>,
        /// Commands of the next stage: it sleeps until its rows are posted.
        next: Arc<Queue<StageCommand>>,
    },
    /// To the coordinator.
    Logits { buffers: Arc<Queue<Vec<f32>>>, held: Vec<f32> },
}

impl Output {
    /// The place for `values` values of rows, or for the logits.
    fn place(&mut self, values: usize, wait: &Wait<'_>) -> Result<RowsOut<'_>, LinkError> {
        match self {
            Output::Logits { held, .. } => Ok(RowsOut::Host(held)),
            Output::Rows { link, .. } => Ok(match link.slot(wait)? {
                RowsOut::Host(slot) => RowsOut::Host(&mut slot[..values]),
                slot => slot,
            }),
        }
    }

    /// Hands rows on, and wakes who waits for them. Logits go another way.
    fn post(&mut self, batch: BatchId, values: usize) -> Result<(), LinkError> {
        if let Output::Rows { link, next } = self {
            link.post(batch, values)?;
            next.ring();
        }
        Ok(())
    }
}

/// Everything that a stage's thread owns.
pub(super) struct StageShell {
    pub machine: StageMachine,
    pub exec: Box<dyn StageExec>,
    pub commands: Arc<Queue<StageCommand>>,
    pub input: Option<Box<dyn LinkReceiver>>,
    pub output: Output,
    pub inbox: Arc<Queue<Mail>>,
    pub turn: Option<Arc<Turn>>,
    pub timeline: Arc<Mutex<StageTimeline>>,
    pub clock: Clock,
    pub patience: Patience,
    pub cancel: Cancel,
    /// The output of the running batch was handed on when it was started.
    pub has_posted: bool,
    pub batch_limit: Duration,
    pub residual_width: usize,
    pub vocab: usize,
    /// The CPU to stay on.
    pub pin: Option<core_affinity::CoreId>,
}

impl StageShell {
    /// Runs to the end of the stage, and gives the card's program back to be freed in order.
    pub fn run(mut self) -> Box<dyn StageExec> {
        if let Some(cpu) = self.pin
            && !core_affinity::set_for_current(cpu)
        {
            tracing::warn!(stage = %self.machine.place().stage, cpu = cpu.id, "the system refused to pin the thread");
        }
        let card = self.machine.place().card;
        let death = catch_unwind(AssertUnwindSafe(|| self.drive()))
            .unwrap_or_else(|panic| Some(StageDeath { card, cause: panic_text(&*panic) }));
        let cause = match &death {
            None => CloseCause::Ended,
            Some(death) => CloseCause::Failed(death.cause.clone()),
        };
        // Before the links close: else a neighbour could be the first to tell, and would be taken for the culprit.
        if let Some(death) = death {
            // Those who wait for it are told as an error.
            tracing::info!(card = %death.card, cause = death.cause, "a stage died");
            self.tell(CoordinatorEvent::StageDied(death));
        }
        if let Some(link) = &mut self.input {
            link.close(cause.clone());
        }
        if let Output::Rows { link, .. } = &mut self.output {
            link.close(cause);
        }
        self.exec
    }

    fn drive(&mut self) -> Option<StageDeath> {
        let mut action = self.machine.step(StageEvent::Started, self.clock.now_ns());
        loop {
            let event = match action {
                StageAction::Pop => self.pop(),
                StageAction::Copy(copy) => match self.exec.copy_page(copy.from, copy.to) {
                    Ok(()) => StageEvent::Copied,
                    Err(error) => StageEvent::Failed(error.to_string()),
                },
                StageAction::Take(batch) => self.take(batch),
                StageAction::Reserve(batch) => self.reserve(&batch),
                StageAction::Run(batch) => self.compute(&batch),
                StageAction::Tell(batch, cause) => {
                    self.tell(CoordinatorEvent::RowsFailed { batch, cause });
                    StageEvent::Told
                }
                StageAction::HandOff(batch) => {
                    action = self.hand_off_stamped(&batch);
                    continue;
                }
                StageAction::End(death) => return death,
            };
            action = self.machine.step(event, self.clock.now_ns());
        }
    }

    fn pop(&self) -> StageEvent {
        // The card has nothing to do until the next batch comes, which mostly is soon after the last one.
        let patience = self.patience.eager();
        loop {
            match self.commands.pop(&Wait::within(IDLE, patience, &self.cancel)) {
                Ok(command) => return StageEvent::Popped(command),
                Err(WaitEnded::Cancelled) => return StageEvent::Cancelled,
                Err(WaitEnded::Deadline) => {}
            }
        }
    }

    fn take(&mut self, batch: BatchId) -> StageEvent {
        // The stage before has the batch, or gets it next; the one before that may have it, and so on.
        let wait = Wait::within(self.batch_limit * self.machine.place().stage.0, self.patience, &self.cancel);
        match self.input.as_mut().map(|link| link.take(batch, &wait).map(|_| ())) {
            Some(taken) => of_link(taken, StageEvent::Taken),
            None => StageEvent::Failed("rows were asked for where none arrive".to_owned()),
        }
    }

    fn reserve(&mut self, batch: &Batch) -> StageEvent {
        let place = self.machine.place();
        let stages_behind = place.stage_count as u32 - place.stage.0;
        let wait = Wait::within(self.batch_limit * stages_behind, self.patience, &self.cancel);
        match &mut self.output {
            Output::Rows { link, .. } => of_link(link.slot(&wait).map(|_| ()), StageEvent::Reserved),
            Output::Logits { buffers, held } => match buffers.pop(&wait) {
                Ok(buffer) => {
                    *held = buffer;
                    held.resize(batch.wanted_values(self.vocab), 0.0);
                    StageEvent::Reserved
                }
                Err(WaitEnded::Cancelled) => StageEvent::Cancelled,
                Err(WaitEnded::Deadline) => {
                    StageEvent::Failed("no free buffer for logits before the deadline".to_owned())
                }
            },
        }
    }

    fn compute(&mut self, batch: &Batch) -> StageEvent {
        let wait = Wait::within(self.batch_limit, self.patience, &self.cancel);
        let turn_wait = Wait::within(
            self.batch_limit * self.machine.place().stage_count as u32,
            self.patience,
            &self.cancel,
        );
        let values = batch.rows.len() * self.residual_width;
        let leaving = match self.output.place(values, &wait) {
            Ok(RowsOut::Card(slot)) => Some(slot),
            Ok(RowsOut::Host(_)) => None,
            Err(error) => return of_link(Err(error), StageEvent::Reserved),
        };
        let input = self.input.as_ref().map_or(RowsIn::Host(&[]), |link| link.rows());
        let turn = match self.turn.as_ref().map(|turn| turn.take(&turn_wait)).transpose() {
            Ok(turn) => turn,
            Err(WaitEnded::Cancelled) => return StageEvent::Cancelled,
            Err(WaitEnded::Deadline) => {
                return StageEvent::Failed(
                    "another card kept the compute threads past the deadline".to_owned(),
                );
            }
        };
        let (start_ns, tables) = (self.clock.now_ns(), self.machine.tables());
        let ran = match (input, leaving) {
            (RowsIn::Host(input), None) => {
                let output = match self.output.place(values, &wait) {
                    Ok(place) => place.host(),
                    Err(error) => return of_link(Err(error), StageEvent::Reserved),
                };
                blanked(self.exec.run(batch, tables, input, output), output)
            }
            (input, leaving) => {
                let Some(exec) = self.exec.beside() else {
                    return StageEvent::Failed("a card got slots that it cannot reach".to_owned());
                };
                let is_cancelled = || self.cancel.is_raised();
                let started = exec.start(batch, tables, input, leaving, &is_cancelled);
                // The stage behind begins while this card computes.
                self.has_posted = started.is_ok() && leaving.is_some();
                let posted = if self.has_posted { self.output.post(batch.id, values) } else { Ok(()) };
                let place = match leaving {
                    Some(_) => Ok(RowsOut::Host(&mut [])),
                    None => self.output.place(values, &wait),
                };
                let ran = place.map(|place| {
                    let output = place.host();
                    blanked(started.and_then(|()| exec.finish(batch, output, &is_cancelled)), output)
                });
                match posted.and(ran) {
                    Ok(ran) => ran,
                    Err(error) => return of_link(Err(error), StageEvent::HandedOff),
                }
            }
        };
        let end_ns = self.clock.now_ns();
        drop(turn);
        StageEvent::Ran(match ran {
            Ok(stamp) => Ok(RunTimes { start_ns, end_ns, waited_ns: stamp.waited_ns, card: stamp.card }),
            Err(error @ CardError::NotFinite { .. }) => Err(RunFault::Rows(error.to_string())),
            Err(error) => Err(RunFault::Card(error.to_string())),
        })
    }

    fn hand_off_stamped(&mut self, batch: &Batch) -> StageAction {
        // Locked until the stamps are in: whoever hears of the batch finds it in the times.
        let timeline = self.timeline.clone();
        let mut timeline = timeline.lock();
        let (event, bytes) = self.hand_off(batch);
        let action = self.machine.step(event, self.clock.now_ns());
        if let Some(stamps) = self.machine.take_stamps() {
            timeline.record(&stamps, bytes);
        }
        action
    }

    /// The bytes handed on come along.
    fn hand_off(&mut self, batch: &Batch) -> (StageEvent, u64) {
        if let Some(Err(error)) = self.input.as_mut().map(|link| link.release()) {
            return (of_link(Err(error), StageEvent::HandedOff), 0);
        }
        let values = match &mut self.output {
            Output::Rows { .. } => {
                let values = batch.rows.len() * self.residual_width;
                if !std::mem::take(&mut self.has_posted)
                    && let Err(error) = self.output.post(batch.id, values)
                {
                    return (of_link(Err(error), StageEvent::HandedOff), 0);
                }
                values
            }
            Output::Logits { held, .. } => {
                let made = std::mem::take(held);
                let values = made.len();
                self.tell(CoordinatorEvent::Done { batch: batch.id, values: made });
                values
            }
        };
        (StageEvent::HandedOff, (values * size_of::<f32>()) as u64)
    }

    fn tell(&self, event: CoordinatorEvent) {
        // A coordinator that has ended takes no mail: the engine is going, and nobody waits for this.
        let _ = self.inbox.push(Mail::Event(event));
    }
}

/// Rows at fault become zeros: the stages behind must not stumble over them.
fn blanked(ran: Result<RunStamp, CardError>, output: &mut [f32]) -> Result<RunStamp, CardError> {
    if let Err(CardError::NotFinite { .. }) = ran {
        output.fill(0.0);
    }
    ran
}

/// What a link's answer means to the machine.
fn of_link(result: Result<(), LinkError>, event: StageEvent) -> StageEvent {
    match result {
        Ok(()) => event,
        Err(LinkError::Cancelled { .. }) => StageEvent::Cancelled,
        Err(error) => StageEvent::Failed(error.to_string()),
    }
}

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panic: {}", text.unwrap_or("without a message"))
}
