//! A CUDA card of the plan: its device, its budget, its kernels.
//!
//! Invariant: its ledger holds every byte that it takes on the device beside the driver's own, and never more than its
//! budget. Does not know: the split, links, sequences.

use super::driver::{Context, Device, Driver};
use super::exec::{CudaExec, Queueing};
use super::kernels::{KernelSettings, Kernels};
use super::memory::Memory;
use crate::device::ledger::Ledger;
use crate::device::{Card, CardError, LoadProgress, StageExec, StageSettings, lower};
use crate::gguf;
use crate::model::facts::{CardFacts, StageProgram};
use crate::model::footprint::ItemKind;

/// A CUDA card.
pub struct CudaCard {
    facts: CardFacts,
    ledger: Ledger,
    context: Context,
    kernels: Kernels,
    queueing: Queueing,
}

impl CudaCard {
    /// Takes `device` into use with the memory of `facts`; compiles its kernels where the cache does not hold them.
    pub fn open(
        facts: CardFacts,
        device: &Device,
        driver: &Driver,
        settings: &KernelSettings,
    ) -> Result<CudaCard, CardError> {
        let id = facts.id;
        let context = Context::open(device).map_err(|e| e.on(id))?;
        let kernels = Kernels::load(&context, device.capability, driver.version(), settings);
        let kernels = kernels.map_err(|e| e.on(id))?;
        let ledger = Ledger::new(id, facts.memory_bytes);
        Ok(CudaCard { facts, ledger, context, kernels, queueing: Queueing::default() })
    }

    /// How stages that are lowered from now on queue their windows.
    pub fn set_queueing(&mut self, queueing: Queueing) {
        self.queueing = queueing;
    }
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
        let card = self.facts.id;
        let steps = lower::lower(stage, settings.activations)
            .map_err(|what| CardError::Unsupported { card, what: format!("CUDA cards: {what}") })?;
        let memory = Memory { card, context: &self.context, ledger: &mut self.ledger };
        let mut exec = CudaExec::new(memory, &self.kernels, stage, steps, file, settings, progress)?;
        exec.queue_by(self.queueing);
        Ok(Box::new(exec))
    }
}
