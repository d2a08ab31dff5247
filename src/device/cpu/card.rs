//! A virtual card: a share of this computer's memory with a budget, and CPUs that compute for it.
//!
//! Invariant: its ledger holds every byte that grows with the model, and never more than its budget.
//! Does not know: the split, links, sequences.

use std::sync::Arc;

use parking_lot::Mutex;

use super::exec::{Buffers, CpuExec, Rest};
use super::kv_store::KvStore;
use super::simd::tier::Tier;
use super::team::{Team, TeamSettings};
use super::weights::Weights;
use crate::device::batch::Interest;
use crate::device::best::Chooser;
use crate::device::ledger::Ledger;
use crate::device::{Card, CardError, LoadProgress, StageExec, StageSettings, lower};
use crate::gguf;
use crate::model::facts::{CardFacts, StageProgram};
use crate::model::footprint::{ItemKind, kept_logits};

/// How a virtual card computes.
#[derive(Clone, Debug)]
pub struct CpuSettings {
    /// Which instructions.
    pub tier: Tier,
    /// Its threads.
    pub team: TeamSettings,
    /// What they do between batches.
    pub rest: Rest,
}

/// A virtual card.
pub struct CpuCard {
    facts: CardFacts,
    ledger: Ledger,
    settings: CpuSettings,
}

impl CpuCard {
    /// A card with the memory of its facts.
    pub fn new(facts: CardFacts, settings: CpuSettings) -> CpuCard {
        let ledger = Ledger::new(facts.id, facts.memory_bytes);
        CpuCard { facts, ledger, settings }
    }
}

impl Card for CpuCard {
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
            .map_err(|what| CardError::Unsupported { card, what: format!("virtual cards: {what}") })?;
        let mut team = Team::new(&self.settings.team).map_err(|e| CardError::Unsupported {
            card,
            what: format!(
                "no compute thread could start: {e}; raise the limit of threads, or lower --threads"
            ),
        })?;
        let states: Vec<_> =
            stage.program.states[steps.states.clone()].iter().map(|s| s.kind.clone()).collect();
        let ledger = &mut self.ledger;
        let store = KvStore::new(ledger, card, &states, settings.kv, settings.kv_pages)?;
        let buffers = Buffers::new(ledger, &stage.program, settings.activations, settings.batch_rows_max)?;
        let weights = Weights::load(ledger, card, stage, file, settings.activations, &mut team, progress)?;
        let kept =
            if stage.heads() { kept_logits(settings.logits_rows_max, stage.program.facts.vocab) } else { 0 };
        ledger.book(ItemKind::Logits, 4 * kept as u64)?;
        let threads = team.threads();
        Ok(Box::new(CpuExec {
            card,
            program: stage.program.clone(),
            tier: self.settings.tier,
            steps: Arc::new(steps),
            weights,
            store,
            buffers,
            logits: vec![0.0; kept],
            chooser: Chooser::default(),
            team: Mutex::new(team),
            threads,
            rest: self.settings.rest,
            interest: Interest::default(),
        }))
    }
}
