//! From a model file and named cards to a running engine: plan, load, start.
//!
//! Invariants: nothing is loaded before a plan fits; after loading, each card's ledger holds exactly the plan's
//! items. Does not know: flags, text, how progress is shown.

use std::path::Path;
use std::sync::Arc;

use super::build::{StageSpec, link_into};
use super::error::EngineError;
use super::options::{EngineOptions, Pinning};
use super::pipeline::{Engine, EngineStage};
use super::turn::Turn;
use crate::device::cpu::card::{CpuCard, CpuSettings};
use crate::device::cpu::exec::Rest;
use crate::device::cpu::simd::tier::Tier;
use crate::device::cpu::team::TeamSettings;
use crate::device::cuda::card::CudaCard;
use crate::device::cuda::driver::{Device, Driver};
use crate::device::cuda::kernels::KernelSettings;
use crate::device::ledger::Ledger;
use crate::device::{Card, CardError, LoadProgress};
use crate::gguf::{self, GgufError};
use crate::model::facts::{Activations, CardFacts, CardId, CardKind, LinkFacts, StageId, StageProgram};
use crate::model::footprint::{Footprint, ItemKind};
use crate::model::program::Program;
use crate::model::{ModelError, arch};
use crate::split::options::SplitOptions;
use crate::split::plan::Plan;
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

/// The CUDA cards among the cards, and where their kernels come from.
#[derive(Clone, Debug)]
pub struct CudaChoice {
    /// The driver that they stand behind.
    pub driver: Driver,
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
    /// Threads of virtual cards.
    pub threads: CpuThreads,
    /// Instructions of virtual cards.
    pub tier: Tier,
    /// Where there are CUDA cards.
    pub cuda: Option<CudaChoice>,
}

impl CardChoice {
    fn facts(&self, card: CardId) -> &CardFacts {
        let facts = self.cards.iter().find(|c| c.id == card);
        facts.expect("invariant: a plan names cards that were given to it")
    }

    /// Takes a CUDA card into use.
    fn cuda_card(&self, facts: CardFacts) -> Result<CudaCard, CardError> {
        let cuda = self.cuda.as_ref().expect("invariant: CUDA cards come with their devices");
        let device = cuda.devices.iter().find(|(card, _)| *card == facts.id);
        let (_, device) = device.expect("invariant: CUDA cards come with their devices");
        CudaCard::open(facts, device, &cuda.driver, &cuda.kernels)
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
}

/// A running engine with what it was made from.
pub struct Opened {
    /// The engine.
    pub engine: Engine,
    /// The plan it follows.
    pub plan: Plan,
    /// What each stage's card allocated.
    pub ledgers: Vec<Ledger>,
}

/// Plans without loading.
pub fn plan(
    model: &Model,
    choice: &CardChoice,
    split: &SplitOptions,
    a: Activations,
) -> Result<Plan, SplitError> {
    planner::plan(&model.footprint(a), &choice.cards, &choice.links, split)
}

/// Loads the stages of `plan` and starts them.
pub fn open(
    model: &Model,
    choice: &CardChoice,
    plan: Plan,
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
    let (mut stages, mut ledgers) = (Vec::new(), Vec::new());
    for (index, stage) in plan.stages.iter().enumerate() {
        let mut facts = choice.facts(stage.card).clone();
        facts.memory_bytes = stage.budget_bytes;
        let kind = facts.kind;
        let team = || TeamSettings {
            threads,
            spin_us: u64::from(patience.spin_us()),
            // Stage s runs on CPU s; its workers take the CPUs behind it.
            worker_cpus: match (options.pinning, cpus.len()) {
                (Pinning::Pinned, n) if n > 0 => (1..threads).map(|w| cpus[(index + w) % n]).collect(),
                _ => Vec::new(),
            },
        };
        let mut card: Box<dyn Card> = match kind {
            CardKind::Cpu => {
                Box::new(CpuCard::new(facts, CpuSettings { tier: choice.tier, team: team(), rest }))
            }
            CardKind::Cuda => Box::new(choice.cuda_card(facts)?),
        };
        let program = StageProgram { program: model.program.clone(), layers: stage.layers.clone() };
        let exec = card.lower(&program, &model.file, &settings, progress)?;
        // What the engine allocates for the stage; for a GPU it lies in the computer's memory.
        if kind == CardKind::Cpu {
            let next = StageId(stage.stage.0 + 1);
            let arriving =
                if program.embeds() { 0 } else { link_into(stage.stage, &options).receiver_bytes() };
            let leaving = if program.heads() { 0 } else { link_into(next, &options).sender_bytes() };
            card.book(ItemKind::LinkSlots, arriving + leaving)?;
            if program.heads() {
                card.book(ItemKind::Logits, options.logits_bytes())?;
            }
        }
        let spec = StageSpec { card: stage.card, kv_pages: settings.kv_pages };
        let turn = if kind == CardKind::Cpu { turn.clone() } else { None };
        stages.push(EngineStage { exec, spec, turn });
        ledgers.push(card.ledger().clone());
    }
    options.compute_threads = teams * threads.saturating_sub(1);
    Ok(Opened { engine: Engine::start(stages, options)?, plan, ledgers })
}
