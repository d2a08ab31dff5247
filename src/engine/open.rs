//! From a model file and named cards to a running engine: plan, load, start.
//!
//! Invariants: nothing is loaded before a plan fits; after loading, each card's ledger holds exactly the plan's
//! items. Does not know: flags, text, how progress is shown.

use std::path::Path;
use std::sync::Arc;

use super::build::{StageSpec, link_into};
use super::error::EngineError;
use super::linking::{self, CudaStage, LinkChoice, Linked};
use super::options::{EngineOptions, Pinning};
use super::pipeline::{Engine, EngineStage};
use super::turn::Turn;
use crate::device::cpu::card::{CpuCard, CpuSettings};
use crate::device::cpu::exec::Rest;
use crate::device::cpu::simd::tier::Tier;
use crate::device::cpu::team::TeamSettings;
use crate::device::cuda::CudaError;
use crate::device::cuda::card::{self, CudaCard};
use crate::device::cuda::driver::Device;
use crate::device::cuda::faults::FaultKind;
use crate::device::cuda::kernels::KernelSettings;
use crate::device::cuda::links::ring::RingSize;
use crate::device::ledger::Ledger;
use crate::device::{Card, CardError, LoadProgress, StageExec, StageSettings};
use crate::gguf::{self, GgufError};
use crate::model::facts::{
    Activations, CardFacts, CardId, CardKind, LinkFacts, LinkKind, StageId, StageProgram,
};
use crate::model::footprint::{Footprint, ItemKind};
use crate::model::program::Program;
use crate::model::{ModelError, arch};
use crate::split::options::SplitOptions;
use crate::split::plan::{Plan, StagePlan};
use crate::split::{SplitError, planner};
use crate::transport::wait::Patience;

/// A model that was read but not loaded: what planning needs.
#[derive(Debug)]
pub struct Model {
    /// The file.
    pub file: gguf::File,
    /// What it computes.
    pub program: Arc<Program>,
}

impl Model {
    /// Reads header, metadata and tensor directory.
    pub fn open(path: &Path) -> Result<Model, OpenError> {
        let file = gguf::File::open(path)?;
        let program = Arc::new(arch::program(&file)?);
        Ok(Model { file, program })
    }

    /// Its sizes.
    pub fn footprint(&self, activations: Activations) -> Footprint {
        Footprint::of(&self.program, activations)
    }
}

/// Threads of virtual cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuThreads {
    /// So many in all; the cards take turns.
    Shared(usize),
    /// So many for each card, which computes whenever it likes.
    PerCard(usize),
}

/// The GPUs among the cards, and where their kernels come from.
#[derive(Clone, Debug)]
pub struct CudaChoice {
    /// Which card is which device.
    pub devices: Vec<(CardId, Device)>,
    /// Compiler and cache.
    pub kernels: KernelSettings,
}

/// Cards and how they compute.
#[derive(Clone, Debug)]
pub struct CardChoice {
    /// In the order named.
    pub cards: Vec<CardFacts>,
    /// Between them.
    pub links: LinkFacts,
    /// Between GPUs.
    pub link: LinkChoice,
    /// Threads of virtual cards.
    pub threads: CpuThreads,
    /// Instructions of virtual cards.
    pub tier: Tier,
    /// Where there are GPUs.
    pub cuda: Option<CudaChoice>,
}

impl CardChoice {
    pub(super) fn facts(&self, card: CardId) -> &CardFacts {
        let facts = self.cards.iter().find(|c| c.id == card);
        facts.expect("invariant: a plan names cards that were given to it")
    }

    /// Takes a GPU into use.
    fn cuda_card(&self, facts: CardFacts) -> Result<CudaCard, CardError> {
        let cuda = self.cuda.as_ref().expect("invariant: GPUs come with their devices");
        let device = cuda.devices.iter().find(|(card, _)| *card == facts.id);
        let (_, device) = device.expect("invariant: GPUs come with their devices");
        CudaCard::open(facts, device, &cuda.kernels)
    }
}

/// Why an engine did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// It is no model that can run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// No plan.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// A card failed while loading.
    #[error(transparent)]
    Card(#[from] CardError),
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A link that was asked for by name.
    #[error("{what}")]
    NoLink {
        /// Which, why, and what to do.
        what: String,
    },
    /// A card whose work cannot be taken apart.
    #[error("{what}")]
    NoProfile {
        /// Which, and what to do.
        what: String,
    },
    /// The driver failed over a link.
    #[error("{from} to {to}: {error}")]
    Link {
        /// Whose rows leave.
        from: CardId,
        /// Where they come to.
        to: CardId,
        /// What failed, and what to do.
        error: CudaError,
    },
}

/// How rows travel into a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkRun {
    /// Which stage.
    pub to: StageId,
    /// How.
    pub kind: LinkKind,
    /// Why not by a faster kind.
    pub why: Option<String>,
}

/// A running engine with what it was made from.
pub struct Opened {
    /// The engine.
    pub engine: Engine,
    /// The plan it follows.
    pub plan: Plan,
    /// What each stage's card allocated.
    pub ledgers: Vec<Ledger>,
    /// How rows travel into each stage after the first.
    pub links: Vec<LinkRun>,
}

/// A stage in its card's memory.
enum Lowered {
    Host(Box<dyn StageExec>, Ledger),
    Cuda(Box<CudaStage>),
}

/// Plans without loading. A plan that fits is refused where one of its GPUs could not run its stage.
pub fn plan(
    model: &Model,
    choice: &CardChoice,
    split: &SplitOptions,
    options: &EngineOptions,
) -> Result<Plan, OpenError> {
    let plan = planner::plan(&model.footprint(options.activations), &choice.cards, &choice.links, split)?;
    let settings = options.stage_settings();
    for stage in &plan.stages {
        let mut devices = choice.cuda.iter().flat_map(|cuda| &cuda.devices);
        if let Some((card, device)) = devices.find(|(card, _)| *card == stage.card) {
            card::check(*card, device.vendor(), &program_of(model, stage), &settings)?;
        }
    }
    Ok(plan)
}

/// Loads the stages of `plan` and starts them.
pub fn open(
    model: &Model,
    choice: &CardChoice,
    mut plan: Plan,
    mut options: EngineOptions,
    progress: &dyn LoadProgress,
) -> Result<Opened, OpenError> {
    let kind_of = |card: CardId| choice.facts(card).kind;
    let virtual_count = plan.stages.iter().filter(|s| kind_of(s.card) == CardKind::Cpu).count();
    let cpus = core_affinity::get_core_ids().unwrap_or_default();
    let (threads, turn) = match choice.threads {
        CpuThreads::Shared(threads) if virtual_count > 1 => (threads, Some(Arc::new(Turn::new()))),
        CpuThreads::Shared(threads) | CpuThreads::PerCard(threads) => (threads, None),
    };
    let teams = if turn.is_some() { 1 } else { virtual_count };
    // A shared turn lets one team run at a time, so the CPUs are scarce only for what runs together.
    let patience = Patience::for_threads(teams * threads, cpus.len().max(1));
    let rest = if turn.is_some() { Rest::Parked } else { Rest::Awake };
    let settings = options.stage_settings();
    let mut lowered = Vec::new();
    for (index, stage) in plan.stages.iter().enumerate() {
        if kind_of(stage.card).is_gpu() {
            let stage = cuda_stage(model, choice, stage, &settings, progress)?;
            lowered.push(Lowered::Cuda(Box::new(stage)));
            continue;
        }
        let (facts, program) = (budgeted(choice, stage), program_of(model, stage));
        let team = TeamSettings {
            threads,
            spin_us: u64::from(patience.spin_us()),
            // Stage s runs on CPU s; its workers take the CPUs behind it.
            worker_cpus: match (options.pinning, cpus.len()) {
                (Pinning::Pinned, n) if n > 0 => (1..threads).map(|w| cpus[(index + w) % n]).collect(),
                _ => Vec::new(),
            },
        };
        let mut card = CpuCard::new(facts, CpuSettings { tier: choice.tier, team, rest });
        let exec = card.lower(&program, &model.file, &settings, progress)?;
        // What the engine allocates for the stage; for a GPU it lies in the computer's memory.
        let next = StageId(stage.stage.0 + 1);
        let arriving = if program.embeds() { 0 } else { link_into(stage.stage, &options).receiver_bytes() };
        let leaving = if program.heads() { 0 } else { link_into(next, &options).sender_bytes() };
        card.book(ItemKind::LinkSlots, arriving + leaving)?;
        if program.heads() {
            card.book(ItemKind::Logits, options.logits_bytes())?;
        }
        lowered.push(Lowered::Host(exec, card.ledger().clone()));
    }
    let mut arrivals = vec![None];
    for at in 1..lowered.len() {
        arrivals.push(Some(link(&mut lowered[at - 1..=at], &mut plan, choice, &options)?));
    }
    let from = plan.stages.iter().map(|stage| stage.card);
    meets_a_link(choice, arrivals.iter().flatten().zip(from))?;
    let links = arrivals.iter().flatten().zip(1..);
    let links = links.map(|(l, to)| LinkRun { to: StageId(to), kind: l.kind, why: l.why.clone() }).collect();
    let (mut stages, mut ledgers) = (Vec::new(), Vec::new());
    for ((stage, lowered), arrival) in plan.stages.iter().zip(lowered).zip(arrivals) {
        let (exec, ledger, turn) = match lowered {
            Lowered::Host(exec, ledger) => (exec, ledger, turn.clone()),
            Lowered::Cuda(stage) => {
                let ledger = stage.card.ledger().clone();
                (Box::new(stage.exec) as Box<dyn StageExec>, ledger, None)
            }
        };
        let spec = StageSpec { card: stage.card, kv_pages: settings.kv_pages };
        stages.push(EngineStage { exec, spec, turn, arrives: arrival.and_then(|l| l.ring) });
        ledgers.push(ledger);
    }
    options.compute_threads = teams * threads.saturating_sub(1);
    Ok(Opened { engine: Engine::start(stages, options)?, plan, ledgers, links })
}

/// A stage's card with what the plan gives it.
fn budgeted(choice: &CardChoice, stage: &StagePlan) -> CardFacts {
    CardFacts { memory_bytes: stage.budget_bytes, ..choice.facts(stage.card).clone() }
}

fn program_of(model: &Model, stage: &StagePlan) -> StageProgram {
    StageProgram { program: model.program.clone(), layers: stage.layers.clone() }
}

/// Loads a stage onto its CUDA card.
pub(super) fn cuda_stage(
    model: &Model,
    choice: &CardChoice,
    stage: &StagePlan,
    settings: &StageSettings,
    progress: &dyn LoadProgress,
) -> Result<CudaStage, CardError> {
    let mut card = choice.cuda_card(budgeted(choice, stage))?;
    let exec = card.stage(&program_of(model, stage), &model.file, settings, progress)?;
    Ok(CudaStage { card, exec })
}

/// Refuses a forced fault of links where no link could have it; each link comes with the card that sends.
fn meets_a_link<'a>(
    choice: &CardChoice,
    mut links: impl Iterator<Item = (&'a Linked, CardId)>,
) -> Result<(), OpenError> {
    let devices = || choice.cuda.iter().flat_map(|cuda| &cuda.devices);
    let is_told = |fault| devices().any(|(_, device)| device.is_to_fail(fault));
    let stops = |card| devices().any(|(id, device)| *id == card && device.is_to_fail(FaultKind::LinkStop));
    let met = match () {
        () if is_told(FaultKind::PeerTest) => links.any(|(link, _)| link.why.is_some()),
        () if is_told(FaultKind::LinkStop) => links.any(|(link, from)| link.ring.is_some() && stops(from)),
        () => true,
    };
    let what = match choice.link {
        LinkChoice::Mapped if is_told(FaultKind::PeerTest) => {
            "--force-fault peer-test: --link mapped tests no peer link; use --link auto or peer"
        }
        _ => {
            "--force-fault: no link between GPUs could have it (link-stop: one that leaves the card); name two cards, as \
             in --gpus 0,1"
        }
    }
    .to_owned();
    if met { Ok(()) } else { Err(OpenError::NoLink { what }) }
}

/// Joins the second of two stages to the first, and tells the plan where that is not as it was planned.
fn link(
    pair: &mut [Lowered],
    plan: &mut Plan,
    choice: &CardChoice,
    options: &EngineOptions,
) -> Result<Linked, OpenError> {
    let [Lowered::Cuda(from), Lowered::Cuda(to)] = pair else {
        let is_virtual = pair.iter().all(|stage| matches!(stage, Lowered::Host(..)));
        let kind = if is_virtual { options.link } else { LinkKind::Staged };
        return Ok(Linked { ring: None, kind, why: None });
    };
    let position = |stage: &CudaStage| {
        let at = choice.cards.iter().position(|c| c.id == stage.card.facts().id);
        at.expect("invariant: a plan names cards that were given to it")
    };
    let planned = choice.links.kinds[position(from)][position(to)];
    let stage = plan.stages.iter().find(|s| s.card == to.card.facts().id).map(|s| s.stage);
    let stage = stage.expect("invariant: every stage that was loaded is one of the plan");
    let spec = link_into(stage, options);
    let size = RingSize { slots: spec.slots, values: spec.slot_values() };
    let limit = options.batch_limit * stage.0;
    let linked = linking::link(from, to, planned, choice.link, (size, limit))?;
    if linked.kind != planned {
        plan.arrive_otherwise(stage, linked.kind, size.bytes());
    }
    if let Some(why) = &linked.why {
        tracing::warn!("{} to {}: {why}", from.card.facts().name, to.card.facts().name);
    }
    Ok(linked)
}
