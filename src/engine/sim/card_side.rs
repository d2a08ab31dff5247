//! A stage of the simulation: what its machine asks for happens in virtual time, or goes wrong.
//!
//! Invariant: an action is done once; a wait that cannot be served stays until something changes, the deadline
//! passes or the engine is cancelled. Does not know: requests, text.

use std::collections::VecDeque;
use std::sync::Arc;

use super::fault::Fault;
use super::hash_card::{HASH_ROW_VALUES, HashCard};
use super::scenario::VOCAB;
use super::world::{Due, World};
use crate::device::StageExec;
use crate::device::batch::Batch;
use crate::engine::coordinator::CoordinatorEvent;
use crate::engine::stage::{
    RunFault, RunTimes, StageAction, StageCommand, StageDeath, StageEvent, StageMachine,
};
use crate::engine::timeline::StageTimeline;
use crate::model::facts::SlotId;
use crate::transport::ring::CloseCause;

/// One stage with its card.
pub(super) struct CardSide {
    pub machine: StageMachine,
    pub commands: VecDeque<StageCommand>,
    /// Inside a card that never returns.
    pub hangs: bool,
    pub timeline: StageTimeline,
    card: HashCard,
    /// What the machine asked for.
    action: Option<StageAction>,
    /// How many actions there were.
    actions: u64,
    /// The action is under way, or done and about to be told.
    is_served: bool,
    batches: u64,
    input: Option<SlotId>,
    output: Option<SlotId>,
    values: Vec<f32>,
    has_ended: bool,
}

impl CardSide {
    pub fn new(machine: StageMachine, card: HashCard) -> CardSide {
        CardSide {
            machine,
            card,
            commands: VecDeque::new(),
            hangs: false,
            timeline: StageTimeline::new(),
            action: None,
            actions: 0,
            is_served: false,
            batches: 0,
            input: None,
            output: None,
            values: Vec::new(),
            has_ended: false,
        }
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}

impl World {
    /// Tells the machine what its last action gave, and begins the next one.
    pub fn advance(&mut self, stage: usize, event: StageEvent) {
        let now_ns = self.now_ns;
        let side = &mut self.stages[stage];
        let action = side.machine.step(event, now_ns);
        if let Some(stamps) = side.machine.take_stamps() {
            side.timeline.record(&stamps, 0);
        }
        side.action = Some(action);
        side.actions += 1;
        side.is_served = false;
        self.attempt(stage);
    }

    /// Begins the action, or leaves it waiting.
    pub fn attempt(&mut self, stage: usize) {
        let side = &mut self.stages[stage];
        if side.is_served || side.has_ended {
            return;
        }
        let Some(action) = side.action.clone() else { return };
        let waits = matches!(action, StageAction::Pop | StageAction::Take(_) | StageAction::Reserve(_));
        if waits && self.is_cancelled {
            return self.serve(stage, StageEvent::Cancelled);
        }
        match action {
            StageAction::Pop => {
                if let Some(command) = self.stages[stage].commands.pop_front() {
                    self.serve(stage, StageEvent::Popped(command));
                }
            }
            StageAction::Take(batch) => match self.wires[stage - 1].take(batch) {
                Ok(Some(slot)) => {
                    self.stages[stage].input = Some(slot);
                    self.serve(stage, StageEvent::Taken);
                }
                Ok(None) => self.plan_wait_end(stage, stage as u64),
                Err(fault) => self.serve(stage, StageEvent::Failed(fault.to_string())),
            },
            StageAction::Reserve(_) => self.reserve(stage),
            StageAction::Copy(copy) => {
                let copied = self.stages[stage].card.copy_page(copy.from, copy.to);
                let failed = |e: crate::device::CardError| StageEvent::Failed(e.to_string());
                self.serve(stage, copied.map_or_else(failed, |()| StageEvent::Copied));
            }
            StageAction::Run(batch) => self.begin_run(stage, &batch),
            StageAction::Tell(batch, cause) => {
                self.mail(CoordinatorEvent::RowsFailed { batch, cause });
                self.serve(stage, StageEvent::Told);
            }
            StageAction::HandOff(batch) => self.hand_off(stage, &batch),
            StageAction::End(death) => self.end(stage, death),
        }
    }

    /// The action is done; the machine hears of it a moment later.
    fn serve(&mut self, stage: usize, event: StageEvent) {
        self.stages[stage].is_served = true;
        let delay_ns = self.rng.within(0, 2_000);
        self.after(delay_ns, Due::Done(stage, event));
    }

    /// Stages away from the one waited for, each may take the limit of a batch.
    fn plan_wait_end(&mut self, stage: usize, stages_away: u64) {
        if !self.scenario.has(Fault::Hang) {
            let limit_ns = self.scenario.options.batch_limit.as_nanos() as u64 * stages_away;
            let action = self.stages[stage].actions;
            self.after(limit_ns, Due::WaitEnds(stage, action));
        }
    }

    pub fn wait_ends(&mut self, stage: usize, action: u64) {
        let side = &self.stages[stage];
        if side.actions == action && !side.is_served && !side.has_ended {
            self.serve(stage, StageEvent::Failed("nothing came before the deadline".to_owned()));
        }
    }

    fn reserve(&mut self, stage: usize) {
        let away = (self.stages.len() - stage) as u64;
        if stage + 1 == self.stages.len() {
            if self.buffers == 0 {
                return self.plan_wait_end(stage, away);
            }
            self.buffers -= 1;
            return self.serve(stage, StageEvent::Reserved);
        }
        let twice = self.scenario.has(Fault::SharedSlot) && self.strikes(stage);
        match self.wires[stage].claim(twice) {
            Ok(Some(slot)) => {
                self.stages[stage].output = Some(slot);
                self.serve(stage, StageEvent::Reserved);
            }
            Ok(None) => self.plan_wait_end(stage, away),
            Err(fault) => self.serve(stage, StageEvent::Failed(fault.to_string())),
        }
    }

    /// Whether the schedule's fault is this batch's.
    fn strikes(&self, stage: usize) -> bool {
        let strike = self.scenario.strike;
        strike.stage == stage && strike.batch == self.stages[stage].batches
    }

    fn begin_run(&mut self, stage: usize, batch: &Batch) {
        let hangs = self.scenario.has(Fault::HungCard) || self.scenario.has(Fault::Hang);
        self.stages[stage].is_served = true;
        if hangs && self.strikes(stage) {
            self.stages[stage].hangs = true;
            return;
        }
        let slow = self.scenario.has(Fault::SlowCard) && stage == self.scenario.strike.stage;
        let row_ns = self.rng.within(500, 2_000) * if slow { 40 } else { 1 };
        self.after(5_000 + row_ns * batch.rows.len() as u64, Due::Run(stage));
    }

    /// The run's end: only now are input, pages and output touched.
    pub fn compute(&mut self, stage: usize) {
        let Some(StageAction::Run(batch)) = self.stages[stage].action.clone() else { return };
        let strikes = self.strikes(stage);
        let is_last = stage + 1 == self.stages.len();
        let side = &mut self.stages[stage];
        let row_values = HASH_ROW_VALUES;
        let values = if is_last { batch.wanted_values(VOCAB) } else { batch.rows.len() * row_values };
        side.values = vec![0.0; values];
        let input = match side.input {
            Some(slot) => self.wires[stage - 1].rows(slot),
            None => &[],
        };
        let whole = stage == 0 || input.len() == batch.rows.len() * row_values;
        let ran = match whole {
            true => side.card.run(&batch, side.machine.tables(), input, &mut side.values),
            false => {
                self.violations.push(format!("stage {stage} reads {} values of its input", input.len()));
                Ok(Default::default())
            }
        };
        let times = RunTimes { start_ns: self.now_ns, end_ns: self.now_ns, waited_ns: 0, card: None };
        let result = match ran {
            Err(error) => {
                // The hash card refuses only pages that are not the state's.
                self.violations.push(error.to_string());
                Err(RunFault::Card(error.to_string()))
            }
            Ok(_) if strikes && self.scenario.has(Fault::DeadCard) => {
                Err(RunFault::Card("the card is lost".to_owned()))
            }
            Ok(_) if strikes && self.scenario.has(Fault::BadRows) => {
                side.values.fill(0.0);
                Err(RunFault::Rows("a value is not finite".to_owned()))
            }
            Ok(_) => Ok(times),
        };
        if strikes && self.scenario.has(Fault::Corrupt) {
            side.values.iter_mut().take(row_values).for_each(|v| *v = 65_535.0 - *v);
        }
        self.serve(stage, StageEvent::Ran(result));
    }

    fn hand_off(&mut self, stage: usize, batch: &Arc<Batch>) {
        let strikes = self.strikes(stage);
        let side = &mut self.stages[stage];
        side.batches += 1;
        let values = std::mem::take(&mut side.values);
        let (input, output) = (side.input.take(), side.output.take());
        let mut handed = Ok(());
        if let Some(slot) = input {
            handed = self.wires[stage - 1].release(slot);
            self.notice(stage - 1);
        }
        match output {
            Some(slot) if strikes && self.scenario.has(Fault::LostSlot) => {
                handed = handed.and_then(|()| self.wires[stage].lose(slot));
            }
            Some(slot) => {
                handed = handed.and_then(|()| self.wires[stage].post(slot, batch.id, values));
                self.notice(stage + 1);
            }
            None if strikes && self.scenario.has(Fault::LostAnswer) => {}
            None => self.mail(CoordinatorEvent::Done { batch: batch.id, values }),
        }
        let slow = self.scenario.has(Fault::SlowLink) && stage == self.scenario.strike.stage;
        self.stages[stage].is_served = true;
        let delay_ns = self.rng.within(0, if slow { 1_000_000 } else { 2_000 });
        let event = match handed {
            Ok(()) => StageEvent::HandedOff,
            Err(fault) => StageEvent::Failed(fault.to_string()),
        };
        self.after(delay_ns, Due::Done(stage, event));
    }

    fn end(&mut self, stage: usize, death: Option<StageDeath>) {
        self.stages[stage].has_ended = true;
        let cause = match &death {
            None => CloseCause::Ended,
            Some(death) => CloseCause::Failed(death.cause.clone()),
        };
        if let Some(death) = death {
            self.mail(CoordinatorEvent::StageDied(death));
        }
        if stage > 0 {
            self.wires[stage - 1].close(cause.clone());
            self.notice(stage - 1);
        }
        if stage + 1 < self.stages.len() {
            self.wires[stage].close(cause);
            self.notice(stage + 1);
        }
    }
}
