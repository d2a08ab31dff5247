//! A CUDA card of the plan: its device, its budget, its kernels.
//!
//! Invariant: its ledger holds every byte that it takes on the device beside the driver's own, and never more than its
//! budget. Does not know: the split, links, sequences.

use std::collections::BTreeSet;

use super::driver::{Context, Device};
use super::exec::{CudaExec, Queueing};
use super::kernels::{KernelSettings, Kernels, Machine, Place};
use super::links::ring::RingSize;
use super::memory::{Arena, Memory};
use super::source::UNITS;
use crate::device::ledger::Ledger;
use crate::device::{Card, CardError, LoadProgress, StageExec, StageSettings, lower};
use crate::gguf::{self, TensorType};
use crate::model::facts::{CardFacts, StageProgram};
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
        let steps = lower::lower(stage, settings.activations).map_err(|what| CardError::Unsupported {
            card,
            what: format!("{}: {what}", self.context.vendor().cards()),
        })?;
        let place = Place { card, context: &self.context, machine: self.machine, progress };
        let kernels = Kernels::load(place, &self.kernels, &UNITS, &formats(stage))?;
        let memory = Memory { card, context: &self.context, ledger: &mut self.ledger };
        let mut exec = CudaExec::new(memory, &kernels, stage, steps, file, settings, progress)?;
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

/// The formats of weights that the stage's kernels read.
fn formats(stage: &StageProgram) -> BTreeSet<TensorType> {
    let weights = stage.program.weights.iter().enumerate();
    let read = weights.filter(|(id, decl)| {
        decl.usage != WeightUse::Vector && footprint::item_of(stage, WeightId(*id), decl).is_some()
    });
    read.map(|(_, decl)| decl.ty).collect()
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
