//! Whole models on virtual cards without an engine: stages one after another, pages handed out in order.
#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tandem::device::batch::{Batch, BatchId, BatchRow, PageTables, RowWants};
use tandem::device::cpu::card::{CpuCard, CpuSettings};
use tandem::device::cpu::exec::Rest;
use tandem::device::cpu::simd::tier::Tier;
use tandem::device::cpu::team::TeamSettings;
use tandem::device::{Card, CardError, LoadProgress, StageExec, StageSettings};
use tandem::gguf::File;
use tandem::model::arch;
use tandem::model::facts::{Activations, CardFacts, CardId, CardKind, KvFormat, PageId, StageId, StateId};
use tandem::model::facts::{PAGE_POSITIONS, RateSource, StageProgram};
use tandem::model::footprint::{Footprint, StageSizes};
use tandem::model::program::Program;

/// A file of the repository.
pub fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Loading that nobody watches.
pub struct Quiet;

impl LoadProgress for Quiet {
    fn compiled(&self, _: CardId, _: usize, _: usize) -> Result<(), CardError> {
        Ok(())
    }

    fn waits(&self, _: CardId) -> Result<(), CardError> {
        Ok(())
    }

    fn arrived(&self, _: u64) -> Result<(), CardError> {
        Ok(())
    }
}

/// How a model runs.
#[derive(Clone, Debug)]
pub struct Setup {
    pub tier: Tier,
    pub threads: usize,
    pub activations: Activations,
    pub kv: KvFormat,
    pub context: usize,
    pub sequences: usize,
    pub rows_max: usize,
    /// First layer of each later stage.
    pub cuts: Vec<usize>,
}

impl Setup {
    pub fn new(context: usize) -> Setup {
        Setup {
            tier: Tier::detect(),
            threads: 1,
            activations: Activations::Int8,
            kv: KvFormat::F32,
            context,
            sequences: 1,
            rows_max: 512,
            cuts: Vec::new(),
        }
    }

    pub fn sizes(&self) -> StageSizes {
        StageSizes {
            kv: self.kv,
            context: self.context,
            sequences: self.sequences,
            batch_rows_max: self.rows_max,
            logits_rows_max: self.rows_max,
            link_slots: 2,
            link_side_slots: 0,
            link_card_slots: 0,
        }
    }

    pub fn settings(&self) -> StageSettings {
        StageSettings {
            activations: self.activations,
            kv: self.kv,
            kv_pages: self.sizes().kv_pages(),
            batch_rows_max: self.rows_max,
            logits_rows_max: self.rows_max,
            context: self.context,
        }
    }
}

/// A model cut into stages.
pub struct Model {
    pub program: Arc<Program>,
    pub cards: Vec<CpuCard>,
    pub stages: Vec<Box<dyn StageExec>>,
    pub setup: Setup,
    tables: PageTables,
}

impl Model {
    pub fn open(name: &str, setup: &Setup) -> Model {
        Model::of(&File::open(&in_repository(&format!("models/{name}"))).unwrap(), setup)
    }

    pub fn of(file: &File, setup: &Setup) -> Model {
        let program = Arc::new(arch::program(file).unwrap());
        let footprint = Footprint::of(&program, setup.activations);
        let mut edges = vec![0];
        edges.extend(&setup.cuts);
        edges.push(program.layers.len());
        let (mut cards, mut stages) = (Vec::new(), Vec::new());
        for (i, layers) in edges.windows(2).enumerate() {
            let layers = layers[0]..layers[1];
            let items = footprint.stage_items(CardKind::Cpu, layers.clone(), &setup.sizes());
            let facts = CardFacts {
                id: CardId::cpu(i as u32),
                kind: CardKind::Cpu,
                name: format!("cpu:{i}"),
                memory_bytes: items.iter().map(|i| i.bytes).sum(),
                driver_bytes: 0,
                addable_bytes: u64::MAX,
                decode_bytes_per_s: 1e10,
                decode_op_us: 0.0,
                prompt_macs_per_s: 1e11,
                rates: RateSource::Typical,
            };
            let team = TeamSettings { threads: setup.threads, spin_us: 50, worker_cpus: Vec::new() };
            let mut card = CpuCard::new(facts, CpuSettings { tier: setup.tier, team, rest: Rest::Awake });
            let stage = StageProgram { program: program.clone(), layers };
            stages.push(card.lower(&stage, file, &setup.settings(), &Quiet).unwrap());
            cards.push(card);
        }
        let pages = setup.context.div_ceil(PAGE_POSITIONS) as u32;
        // Pages of a state lie in no order that positions could betray.
        let states = (0..setup.sequences as u32)
            .map(|s| (0..pages).rev().map(|p| PageId(p * setup.sequences as u32 + s)).collect());
        let tables = PageTables { states: states.collect() };
        Model { program, cards, stages, setup: setup.clone(), tables }
    }

    /// What the rows want.
    pub fn run(&mut self, rows: Vec<BatchRow>) -> Vec<f32> {
        let width = self.program.facts.embedding_width;
        let batch = Batch::new(BatchId(0), rows);
        let mut rows = Vec::new();
        let last = self.stages.len() - 1;
        for (i, stage) in self.stages.iter_mut().enumerate() {
            let values = if i == last {
                batch.wanted_values(self.program.facts.vocab)
            } else {
                batch.rows.len() * width
            };
            let mut output = vec![f32::NAN; values];
            stage.run(&batch, &self.tables, &rows, &mut output).unwrap();
            rows = output;
        }
        rows
    }

    /// All logits of `tokens` from position 0, read `step` rows at a time.
    pub fn logits(&mut self, tokens: &[u32], step: usize) -> Vec<f32> {
        let mut all = Vec::new();
        for (c, chunk) in tokens.chunks(step).enumerate() {
            all.extend(self.run(rows(StateId(0), (c * step) as u32, chunk)));
        }
        all
    }
}

/// Rows of one state that all want logits.
pub fn rows(state: StateId, first: u32, tokens: &[u32]) -> Vec<BatchRow> {
    let row = |(i, &token): (usize, &u32)| BatchRow {
        state,
        position: first + i as u32,
        token,
        wants: RowWants::Logits,
    };
    tokens.iter().enumerate().map(row).collect()
}

/// A stage's number, for tests that name one.
pub fn stage(i: u32) -> StageId {
    StageId(i)
}

/// The tokens of an oracle's case.
pub fn case_tokens(oracle: &str, case: &str) -> Vec<u32> {
    let doc = json(&format!("oracle/{oracle}.json"));
    let cases = doc["cases"].as_array().unwrap();
    let case = cases.iter().find(|c| c["name"] == case).unwrap_or_else(|| panic!("{oracle}: no case {case}"));
    case["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect()
}

/// A JSON file of the repository.
pub fn json(path: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(in_repository(path)).unwrap()).unwrap()
}

/// CRC-32 (IEEE) of the little-endian bytes.
pub fn crc32(values: &[f32]) -> u32 {
    let mut crc = u32::MAX;
    for byte in values.iter().flat_map(|v| v.to_le_bytes()) {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}
