//! A CUDA card of the plan: its device, its budget, its kernels.
//!
//! Invariant: its ledger holds every byte that it takes on the device beside the driver's own, and never more than its
//! budget. Does not know: the split, links, sequences.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use super::driver::{Context, Device, Stream};
use super::exec::{self, CudaExec, Queueing};
use super::kernels::{KernelSettings, Kernels, Machine, Place};
use super::links::ring::RingSize;
use super::memory::{Arena, Memory};
use super::source::{Format, UNITS};
use super::vendor::Vendor;
use super::weights::{self, Weights};
use crate::device::ledger::Ledger;
use crate::device::lower::Steps;
use crate::device::{Card, CardError, LoadProgress, StageExec, StageSettings, lower, threads};
use crate::gguf;
use crate::model::facts::{CardFacts, CardId, KvFormat, StageProgram};
use crate::model::footprint::{self, ItemKind};
use crate::model::program::{WeightId, WeightUse};

/// A CUDA card.
pub struct CudaCard {
    facts: CardFacts,
    ledger: Ledger,
    context: Context,
    machine: Machine,
    kernels: KernelSettings,
    queueing: Queueing,
}

impl CudaCard {
    /// Takes `device` into use with the memory of `facts`.
    pub fn open(facts: CardFacts, device: &Device, settings: &KernelSettings) -> Result<CudaCard, CardError> {
        let id = facts.id;
        let context = Context::open(device).map_err(|e| e.on(id))?;
        let machine = Machine::of(device).map_err(|e| e.on(id))?;
        let ledger = Ledger::new(id, facts.memory_bytes);
        let kernels = settings.clone();
        Ok(CudaCard { facts, ledger, context, machine, kernels, queueing: Queueing::default() })
    }

    /// How stages that are lowered from now on queue their windows.
    pub fn set_queueing(&mut self, queueing: Queueing) {
        self.queueing = queueing;
    }

    /// [`Card::lower`], as a stage of CUDA cards, which can be linked to others.
    pub fn stage(
        &mut self,
        stage: &StageProgram,
        file: &gguf::File,
        settings: &StageSettings,
        progress: &dyn LoadProgress,
    ) -> Result<CudaExec, CardError> {
        let card = self.facts.id;
        let steps = steps(card, self.context.vendor(), stage, settings)?;
        let progress = &Together { inner: progress, failed: AtomicBool::new(false) };
        let place = Place { card, context: &self.context, machine: self.machine, progress };
        let (settings_of_kernels, formats) = (&self.kernels, formats(stage, settings.kv));
        let mut memory = Memory { card, context: &self.context, ledger: &mut self.ledger };
        let stream = Stream::new(memory.context).map_err(|e| e.on(card))?;
        // Weights arrive while kernels are compiled.
        let (kernels, weights) = threads::beside(
            || progress.told(Kernels::load(place, settings_of_kernels, &UNITS, &formats)),
            || progress.told(Weights::load(&mut memory, &stream, stage, file, progress)),
        );
        let (kernels, weights) = match (kernels, weights) {
            // Whatever was cancelled ended for the other's sake.
            (Err(CardError::Cancelled), Err(error)) | (Err(error), _) | (_, Err(error)) => return Err(error),
            (Ok(kernels), Ok(weights)) => (kernels, weights),
        };
        let mut exec = CudaExec::new(memory, &kernels, (stream, weights), stage, steps, settings)?;
        exec.queue_by(self.queueing);
        Ok(exec)
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Takes back the booking of a link's slots, which are gone.
    pub fn give_back_link_slots(&mut self, size: RingSize) {
        self.ledger.give_back(ItemKind::LinkSlots, size.bytes());
    }

    /// Books and takes memory for the slots of a link.
    pub fn link_slots(&mut self, size: RingSize) -> Result<Arena, CardError> {
        let mut memory = Memory { card: self.facts.id, context: &self.context, ledger: &mut self.ledger };
        memory.arena(ItemKind::LinkSlots, size.bytes())
    }
}

/// The steps of a stage, or why no card of this maker could run it. Nothing is loaded for the answer.
fn steps(
    card: CardId,
    vendor: Vendor,
    stage: &StageProgram,
    settings: &StageSettings,
) -> Result<Steps, CardError> {
    let lowered = lower::lower(stage, settings.activations);
    let unsupported = |what| CardError::Unsupported { card, what: format!("{}: {what}", vendor.cards()) };
    let steps = lowered.map_err(unsupported)?;
    exec::check(card, &stage.program, &steps, settings)?;
    weights::check(card, stage)?;
    Ok(steps)
}

/// Refuses a stage that no card of this maker could run, before anything is loaded.
pub fn check(
    card: CardId,
    vendor: Vendor,
    stage: &StageProgram,
    settings: &StageSettings,
) -> Result<(), CardError> {
    steps(card, vendor, stage, settings).map(|_| ())
}

/// Two parts of loading side by side: where one fails, the other ends.
struct Together<'a> {
    inner: &'a dyn LoadProgress,
    failed: AtomicBool,
}

impl Together<'_> {
    fn told<T>(&self, result: Result<T, CardError>) -> Result<T, CardError> {
        result.inspect_err(|_| self.failed.store(true, Ordering::Relaxed))
    }

    fn goes_on(&self) -> Result<(), CardError> {
        if self.failed.load(Ordering::Relaxed) { Err(CardError::Cancelled) } else { Ok(()) }
    }
}

impl LoadProgress for Together<'_> {
    fn compiled(&self, card: CardId, done: usize, all: usize) -> Result<(), CardError> {
        self.goes_on()?;
        self.inner.compiled(card, done, all)
    }

    fn waits(&self, card: CardId) -> Result<(), CardError> {
        self.goes_on()?;
        self.inner.waits(card)
    }

    fn arrived(&self, bytes: u64) -> Result<(), CardError> {
        self.goes_on()?;
        self.inner.arrived(bytes)
    }
}

/// The formats that the stage's kernels read and write.
fn formats(stage: &StageProgram, kv: KvFormat) -> BTreeSet<Format> {
    let weights = stage.program.weights.iter().enumerate();
    let read = weights.filter(|(id, decl)| {
        decl.usage != WeightUse::Vector && footprint::item_of(stage, WeightId(*id), decl).is_some()
    });
    read.map(|(_, decl)| Format::Weights(decl.ty)).chain([Format::Kv(kv)]).collect()
}

impl Card for CudaCard {
    fn facts(&self) -> &CardFacts {
        &self.facts
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn book(&mut self, item: ItemKind, bytes: u64) -> Result<(), CardError> {
        self.ledger.book(item, bytes)
    }

    fn lower(
        &mut self,
        stage: &StageProgram,
        file: &gguf::File,
        settings: &StageSettings,
        progress: &dyn LoadProgress,
    ) -> Result<Box<dyn StageExec>, CardError> {
        Ok(Box::new(self.stage(stage, file, settings, progress)?))
    }
}
