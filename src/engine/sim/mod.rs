//! The engine's machines under a seeded scheduler, with virtual time and faults: `tandem sim --seed N`.
//!
//! The coordinator, the stages and the rings are those of the engine, from [`super::build`]; the cards hash instead of
//! computing ([`hash_card`]). Checkers that know nothing of the machines hold what every request hears against the
//! plain run ([`oracle`]), the owners of slots and pages, and the number of events until everything has ended.
//! Invariant: a seed and its options give one schedule. Does not know: threads, real time.

mod card_side;
mod check;
pub mod fault;
pub mod hash_card;
pub mod oracle;
mod rng;
mod scenario;
mod wire;
mod world;

use super::error::EngineError;
use super::request::Finish;
use fault::Fault;
use rng::Rng;
use scenario::Scenario;
use world::World;

/// What schedules may look like.
#[derive(Clone, Debug, PartialEq)]
pub struct SimOptions {
    /// The most stages of a pipeline.
    pub stages_max: usize,
    /// The most requests.
    pub requests_max: usize,
    /// These faults; `None`: the seed chooses among [`Fault::REAL`].
    pub faults: Option<Vec<Fault>>,
    /// Events after which a schedule counts as hanging.
    pub steps_max: u64,
}

impl Default for SimOptions {
    fn default() -> SimOptions {
        SimOptions { stages_max: 4, requests_max: 7, faults: None, steps_max: 200_000 }
    }
}

/// What a schedule came to.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SimReport {
    /// Of this seed.
    pub seed: u64,
    /// Stages of the pipeline.
    pub stages: usize,
    /// Requests handed in.
    pub requests: usize,
    /// Of these, answered to their end.
    pub answered: usize,
    /// Of these, ended as cancelled.
    pub cancelled: usize,
    /// Of these, ended with an error.
    pub failed: usize,
    /// Tokens heard.
    pub tokens: usize,
    /// Batches handed on by the last stage.
    pub batches: u64,
    /// Faults of the schedule.
    pub faults: Vec<Fault>,
    /// Events that happened.
    pub steps: u64,
    /// Virtual time.
    pub virtual_ns: u64,
    /// Hash of all events in order: equal for equal schedules.
    pub trace: u64,
    /// What the checkers found; empty where all is well.
    pub violations: Vec<String>,
}

/// Runs the schedule of a seed.
pub fn run(seed: u64, options: &SimOptions) -> Result<SimReport, EngineError> {
    let mut rng = Rng::new(seed);
    let scenario = Scenario::new(&mut rng, options);
    let faults = scenario.faults.clone();
    let mut world = World::new(scenario, rng)?;
    world.run(options.steps_max);
    let count =
        |f: fn(&Finish) -> bool| world.listeners.iter().filter_map(|l| l.finish()).filter(|x| f(x)).count();
    let cancelled = count(|finish| *finish == Finish::Cancelled);
    let failed = count(|finish| matches!(finish, Finish::Failed(_)));
    Ok(SimReport {
        seed,
        stages: world.stages.len(),
        requests: world.listeners.len(),
        answered: world.listeners.iter().filter(|l| l.finish().is_some()).count() - cancelled - failed,
        cancelled,
        failed,
        tokens: world.listeners.iter().map(|l| l.heard_tokens()).sum(),
        batches: world.stages.last().map_or(0, |s| s.timeline.times().batches),
        faults,
        steps: world.steps,
        virtual_ns: world.now_ns,
        trace: world.trace,
        violations: violations(&world),
    })
}

/// Everything that any checker found.
fn violations(world: &World) -> Vec<String> {
    let mut all = world.violations.clone();
    for (index, listener) in world.listeners.iter().enumerate() {
        all.extend(listener.violations.iter().map(|v| format!("request {index} {v}")));
        if listener.finish().is_none() {
            all.push(format!("request {index} has not ended"));
        }
    }
    for (index, wire) in world.wires.iter().enumerate() {
        all.extend(wire.violations.iter().map(|v| format!("link {index}: {v}")));
    }
    for (index, stage) in world.stages.iter().enumerate() {
        let pages = stage.machine.pages();
        all.extend(pages.audit().err().map(|what| format!("stage {index}: {what}")));
        // A lost stage's pages are lost with it, and with it ends the whole pipeline.
        let missing = pages.pages() - pages.free_pages();
        if !world.is_cancelled && missing > 0 {
            all.push(format!("stage {index}: {missing} pages did not return"));
        }
    }
    all
}
