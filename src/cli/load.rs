//! What commands that run a model share: options from flags, the plan, loading with a progress bar.
//!
//! Invariant: flags are turned into typed values here, once, with errors that name the flag.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::bail;
use indicatif::ProgressBar;

use super::args::SplitArgs;
use super::cards::cards;
use super::{interrupt, progress};
use crate::device::cuda::faults::{FaultKind, ForcedFault, Told};
use crate::device::{CardError, LoadProgress};
use crate::engine::linking::LinkChoice;
use crate::engine::open::{self, CardChoice, CpuThreads, Model, Opened};
use crate::engine::options::{EngineOptions, Pinning};
use crate::engine::pipeline::Engine;
use crate::engine::profile::{self, ProfileOrder, StageProfile};
use crate::model::facts::{CardFacts, CardId, CardKind, KvFormat, LinkKind};
use crate::split::budget::parse_bytes;
use crate::split::options::{Computing, SplitOptions};
use crate::split::plan::Plan;

/// The default context where the model allows more.
const CONTEXT: usize = 4096;

/// Positions without `--ctx`, of a model for so many.
pub(super) fn default_context(trained: usize) -> usize {
    CONTEXT.min(trained)
}

/// A card that waits for rows of a link that was made to stop is taken for hanging so soon.
const LINK_STOP_LIMIT: Duration = Duration::from_secs(10);

/// A model with everything that a plan needs.
pub(super) struct Prepared {
    /// The model, not loaded.
    pub(super) model: Model,
    /// Cards and threads.
    pub(super) choice: CardChoice,
    /// What the planner is asked.
    pub(super) split: SplitOptions,
    /// What the engine is told.
    pub(super) options: EngineOptions,
    fault: Option<ForcedFault>,
}

/// What a command adds to the flags.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    /// Sequences at once.
    pub(super) sequences: usize,
    /// K/V format without `--kv`.
    pub(super) kv: Option<KvFormat>,
    /// The most rows with logits; `None`: a window's.
    pub(super) all_logits: bool,
    /// Prompt windows in place of chunks.
    pub(super) window: Option<usize>,
    /// At least so many positions.
    pub(super) context_min: usize,
}

impl Prepared {
    /// Reads flags and the model's directory.
    pub(super) fn new(args: &SplitArgs, sequences: usize) -> anyhow::Result<Prepared> {
        Prepared::with(args, Wanted { sequences, ..Wanted::default() })
    }

    /// The same with what the command adds.
    pub(super) fn with(args: &SplitArgs, wanted: Wanted) -> anyhow::Result<Prepared> {
        let choice = cards(args)?;
        let model = Model::open(args.model.path()?)?;
        let facts = &model.program.facts;
        let context = match args.ctx {
            Some(0) => bail!("--ctx 0 holds no token; give at least 1"),
            Some(n) => n,
            None => default_context(facts.context_length).max(wanted.context_min),
        };
        let mut options = EngineOptions::new(facts.vocab, facts.embedding_width, context);
        options.chunk_rows = args.chunk;
        options.window_rows = wanted.window;
        options.sequences = wanted.sequences;
        options.kv = args.kv.or(wanted.kv).unwrap_or(options.kv);
        options.activations = args.activations;
        options.pinning = Pinning::Pinned;
        options.link = host_link(args.link, &choice.cards)?;
        if args.force_fault.is_some_and(|fault| fault.kind == FaultKind::LinkStop) {
            options.batch_limit = LINK_STOP_LIMIT;
        }
        options.check()?;
        if wanted.all_logits {
            options.logits_rows_max = options.batch_rows_max();
        }
        let mut split = SplitOptions::new(options.stage_sizes());
        if choice.links.kinds.iter().flatten().any(|kind| *kind == LinkKind::Peer) {
            split.sizes.link_card_slots = options.link_slots;
        }
        split.layer_split = args.layer_split.clone();
        let order = args.gpu_order.as_deref().map(str::parse).transpose();
        split.gpu_order = order.map_err(|what: String| anyhow::anyhow!("--gpu-order: {what}"))?;
        split.vram_reserve_bytes = parse_bytes("--vram-reserve", &args.vram_reserve)?;
        let later = args.vram_reserve_later.as_deref();
        split.vram_reserve_later_bytes = later.map(|t| parse_bytes("--vram-reserve-later", t)).transpose()?;
        split.skip_split_if_fits = args.skip_split_if_fits;
        // Virtual cards share threads; a GPU computes by itself.
        let all_virtual = choice.cards.iter().all(|card| card.kind == CardKind::Cpu);
        split.computing = match choice.threads {
            CpuThreads::Shared(_) if all_virtual => Computing::InTurn,
            CpuThreads::Shared(_) | CpuThreads::PerCard(_) => Computing::Together,
        };
        Ok(Prepared { model, choice, split, options, fault: args.force_fault })
    }

    /// The plan, without loading.
    pub(super) fn plan(&self) -> anyhow::Result<Plan> {
        let plan = open::plan(&self.model, &self.choice, &self.split, &self.options)?;
        self.meets_a_stage(&plan)?;
        Ok(plan)
    }

    /// The GPUs that are to fail.
    fn told(&self) -> impl Iterator<Item = (CardId, &Told)> {
        let devices = self.choice.cuda.iter().flat_map(|cuda| &cuda.devices);
        devices.filter_map(|(card, device)| Some((*card, device.fault()?)))
    }

    /// Refuses a forced fault that only cards could have which the plan leaves idle.
    pub(super) fn meets_a_stage(&self, plan: &Plan) -> anyhow::Result<()> {
        let Some(fault) = self.fault else { return Ok(()) };
        if self.told().any(|(card, _)| plan.stages.iter().any(|stage| stage.card == card)) {
            return Ok(());
        }
        let idle: Vec<String> = self.told().map(|(card, _)| card.to_string()).collect();
        let idle = idle.join(", ");
        bail!(
            "--force-fault {fault}: the plan leaves {idle} idle, where nothing fails; name that card alone with --gpus, or \
             share the layers with --layer-split"
        )
    }

    /// Ends the engine, and a run in which a forced fault was not met with an error.
    pub(super) fn end(&self, engine: Engine) -> anyhow::Result<()> {
        engine.shutdown()?;
        self.fault_was_met()
    }

    /// Refuses the end of a run in which a forced fault was not met.
    pub(super) fn fault_was_met(&self) -> anyhow::Result<()> {
        match self.fault {
            Some(fault) if !self.told().any(|(_, told)| told.is_met()) => bail!(
                "--force-fault {fault}: nothing met it before the end; let more run (more tokens; a plan runs nothing), or leave \
                 it out"
            ),
            _ => Ok(()),
        }
    }

    /// Says that a context is longer than the model was made for.
    pub(super) fn warn_of_context(&self) {
        let (context, trained) = (self.options.context, self.model.program.facts.context_length);
        if context > trained {
            tracing::warn!(
                "a context of {context} is beyond the {trained} positions that the model was trained for; text gets \
                 worse there"
            );
        }
    }

    /// Takes each stage of the plan apart, with a progress bar as `open` has it.
    pub(super) fn profile(&self, plan: &Plan, order: &ProfileOrder) -> anyhow::Result<Vec<StageProfile>> {
        let _watched = interrupt::looks();
        let progress = Progress::new(self.model.file.file_bytes());
        let profiles = profile::profile(&self.model, &self.choice, plan, &self.options, order, &progress);
        progress.bar.finish_and_clear();
        Ok(profiles?)
    }

    /// Loads the plan's stages, with a progress bar where somebody watches.
    pub(super) fn open(&self, plan: Plan) -> anyhow::Result<Opened> {
        self.warn_of_context();
        let _watched = interrupt::looks();
        let progress = Progress::new(self.model.file.file_bytes());
        let opened = open::open(&self.model, &self.choice, plan, self.options.clone(), &progress);
        progress.bar.finish_and_clear();
        Ok(opened?)
    }
}

/// How rows travel where a virtual card is at one end.
fn host_link(link: LinkChoice, cards: &[CardFacts]) -> anyhow::Result<LinkKind> {
    let gpu_count = cards.iter().filter(|card| card.kind.is_gpu()).count();
    match link {
        LinkChoice::Peer | LinkChoice::Mapped if gpu_count < 2 && cards.len() > 1 => {
            let gpus = if gpu_count == 0 { "none" } else { "one" };
            bail!(
                "--link peer and --link mapped join two GPUs, and there is {gpus} among the cards; use --link auto"
            )
        }
        // A GPU copies rows itself; a slot more on its side would only be one copy more.
        LinkChoice::Staged if gpu_count == 0 => Ok(LinkKind::Staged),
        _ => Ok(LinkKind::Local),
    }
}

/// A progress bar over the file's bytes, and over kernels while they are compiled; loading ends at a signal.
struct Progress {
    bar: ProgressBar,
    file_bytes: u64,
    arrived: AtomicU64,
    /// Bytes arrive meanwhile, and are shown afterwards.
    compiles: AtomicBool,
}

const LOADING: &str = "loading {bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const COMPILING: &str = "compiling kernels for {msg}, once for this kind of card {bar:20} {pos}/{len}";

impl Progress {
    fn new(file_bytes: u64) -> Progress {
        let bar = progress::bar(LOADING, file_bytes);
        Progress { bar, file_bytes, arrived: AtomicU64::new(0), compiles: AtomicBool::new(false) }
    }
}

/// Whether loading goes on.
fn wanted() -> Result<(), CardError> {
    if interrupt::happened() { Err(CardError::Cancelled) } else { Ok(()) }
}

impl LoadProgress for Progress {
    fn compiled(&self, card: CardId, done: usize, all: usize) -> Result<(), CardError> {
        self.compiles.store(done < all, Ordering::Relaxed);
        if done == 0 {
            progress::restyle(&self.bar, COMPILING, all as u64);
            self.bar.set_message(card.to_string());
        }
        self.bar.set_position(done as u64);
        if done == all {
            progress::restyle(&self.bar, LOADING, self.file_bytes);
            self.bar.set_position(self.arrived.load(Ordering::Relaxed));
            self.bar.reset_eta();
        }
        wanted()
    }

    fn waits(&self, card: CardId) -> Result<(), CardError> {
        self.bar.set_message(format!("{card} (another process compiles some of them)"));
        wanted()
    }

    fn arrived(&self, bytes: u64) -> Result<(), CardError> {
        let arrived = self.arrived.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if !self.compiles.load(Ordering::Relaxed) {
            self.bar.set_position(arrived);
        }
        wanted()
    }
}
