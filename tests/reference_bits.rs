//! The interpreter gives the contract's bits: checksums of logits and of residual rows from `oracle/dots.json`, in
//! every listed case.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]

mod support;

use std::sync::Arc;

use serde_json::Value;
use support::{case_tokens, crc32, in_repository, json, rows};
use tandem::device::batch::{Batch, BatchId, PageTables, RowWants};
use tandem::device::cpu::reference::Reference;
use tandem::device::{CardError, StageExec, StageSettings};
use tandem::gguf::File;
use tandem::model::arch;
use tandem::model::facts::{Activations, KvFormat, PAGE_POSITIONS, PageId, StageProgram, StateId};
use tandem::model::program::Program;

/// A model as interpreted stages.
struct Stages {
    program: Arc<Program>,
    stages: Vec<Reference>,
    tables: PageTables,
}

/// One case of the file.
struct Case<'a> {
    entry: &'a Value,
    file: File,
    program: Arc<Program>,
    tokens: Vec<u32>,
    what: String,
}

fn settings(activations: &str, kv: &str, context: usize) -> StageSettings {
    StageSettings {
        activations: match activations {
            "int8" => Activations::Int8,
            "f32" => Activations::F32,
            other => panic!("{other}"),
        },
        kv: match kv {
            "f32" => KvFormat::F32,
            "f16" => KvFormat::F16,
            "q8_0" => KvFormat::Q8_0,
            other => panic!("{other}"),
        },
        kv_pages: context.div_ceil(PAGE_POSITIONS),
        batch_rows_max: context,
        logits_rows_max: context,
        context,
    }
}

impl Stages {
    /// Cuts the program before each of `edges`.
    fn lower(case: &Case<'_>, edges: &[usize]) -> Stages {
        let text = |key: &str| case.entry[key].as_str().unwrap();
        let settings = settings(text("activations"), text("kv"), case.tokens.len());
        let ends = edges.iter().copied().chain([case.program.layers.len()]);
        let starts = [0].into_iter().chain(edges.iter().copied());
        let stage = |(start, end)| StageProgram { program: case.program.clone(), layers: start..end };
        let lower = |stage: StageProgram| Reference::lower(&stage, &case.file, &settings).unwrap();
        let stages = starts.zip(ends).map(stage).map(lower).collect();
        // Pages lie in no order that positions could betray.
        let tables = PageTables { states: vec![(0..settings.kv_pages as u32).rev().map(PageId).collect()] };
        Stages { program: case.program.clone(), stages, tables }
    }

    /// The output of every stage, last the logits, for tokens that all want them.
    fn run(&mut self, first: usize, tokens: &[u32]) -> Vec<Vec<f32>> {
        let batch = Batch::new(BatchId(0), rows(StateId(0), first as u32, tokens));
        let (last, facts) = (self.stages.len() - 1, &self.program.facts);
        let mut outputs: Vec<Vec<f32>> = Vec::new();
        for (i, stage) in self.stages.iter_mut().enumerate() {
            let width = if i == last { facts.vocab } else { facts.embedding_width };
            let mut output = vec![f32::NAN; tokens.len() * width];
            let input = outputs.last().map_or(&[][..], Vec::as_slice);
            stage.run(&batch, &self.tables, input, &mut output).unwrap();
            outputs.push(output);
        }
        outputs
    }

    /// The logits of all tokens, `step` rows at a time.
    fn logits(&mut self, tokens: &[u32], step: usize) -> Vec<f32> {
        let chunks = tokens.chunks(step).enumerate();
        let last = |(c, chunk): (usize, &[u32])| self.run(c * step, chunk).pop().unwrap();
        chunks.flat_map(last).collect()
    }
}

/// Runs `check` on the cases that `keep` takes of (rows, activations, K/V), and says that none is missing.
fn cases(keep: impl Fn(usize, &str, &str) -> bool, check: impl Fn(&Case<'_>)) {
    let doc = json("oracle/dots.json");
    let (mut checked, mut models) = (0, Vec::new());
    for entry in doc["models"].as_array().unwrap() {
        let text = |key: &str| entry[key].as_str().unwrap();
        let expected_rows = entry["rows_crc32"].as_array().unwrap().len();
        if !keep(expected_rows, text("activations"), text("kv")) {
            continue;
        }
        let file = File::open(&in_repository(&format!("models/{}", text("model")))).unwrap();
        let tokens = case_tokens(text("model").trim_end_matches(".gguf"), text("case"));
        assert_eq!(tokens.len(), expected_rows);
        let what = format!(
            "{} {}, {} activations, {} K/V",
            text("model"),
            text("case"),
            text("activations"),
            text("kv")
        );
        check(&Case { entry, program: Arc::new(arch::program(&file).unwrap()), file, tokens, what });
        checked += 1;
        models.push(text("model").to_owned());
    }
    models.sort();
    models.dedup();
    assert!(checked >= models.len() && models.len() == 6, "{checked} cases of {models:?}");
}

fn check_logits(case: &Case<'_>, logits: &[f32], how: &str) {
    let rows = case.entry["rows_crc32"].as_array().unwrap();
    for (r, (row, crc)) in logits.chunks_exact(case.program.facts.vocab).zip(rows).enumerate() {
        assert_eq!(Some(u64::from(crc32(row))), crc.as_u64(), "{}, row {r}, {how}", case.what);
    }
    assert_eq!(logits.len(), rows.len() * case.program.facts.vocab, "{}, {how}", case.what);
}

/// Cases of at most 20 rows have every combination of model, activations and K/V.
const SHORT_ROWS: usize = 20;

#[test]
fn windows_of_eight_have_the_logits_of_the_contract() {
    cases(
        |rows, _, _| rows <= SHORT_ROWS,
        |case| {
            let logits = Stages::lower(case, &[]).logits(&case.tokens, 8);
            check_logits(case, &logits, "windows of 8");
        },
    );
}

#[test]
fn one_chunk_has_the_logits_and_the_residual_rows_of_the_contract() {
    cases(
        |rows, _, _| rows <= SHORT_ROWS,
        |case| {
            // A stage for each layer: what a stage sends is the residual behind its layer.
            let edges: Vec<usize> = (1..case.program.layers.len()).collect();
            let mut outputs = Stages::lower(case, &edges).run(0, &case.tokens);
            check_logits(case, &outputs.pop().unwrap(), "one chunk, a stage for each layer");
            for (layer, residual) in outputs.iter().enumerate() {
                let name = format!("layer.{layer}");
                let trace = case.entry["trace"].as_array().unwrap();
                let crc = trace.iter().find(|t| t[0] == *name).unwrap_or_else(|| panic!("no {name}"));
                assert_eq!(Some(u64::from(crc32(residual))), crc[1].as_u64(), "{}, {name}", case.what);
            }
        },
    );
}

#[test]
fn the_longest_cases_have_the_logits_of_the_contract() {
    cases(
        |rows, _, _| rows >= SHORT_ROWS,
        |case| check_logits(case, &Stages::lower(case, &[]).logits(&case.tokens, 64), "one chunk"),
    );
}

#[test]
fn a_copied_page_goes_on_as_the_original_would() {
    cases(
        |rows, activations, kv| rows <= SHORT_ROWS && activations == "int8" && kv == "q8_0",
        |case| {
            let text = |key: &str| case.entry[key].as_str().unwrap();
            let settings = StageSettings { kv_pages: 2, ..settings(text("activations"), text("kv"), 64) };
            let stage = StageProgram { program: case.program.clone(), layers: 0..case.program.layers.len() };
            let lowered = Reference::lower(&stage, &case.file, &settings).unwrap();
            let tables = PageTables { states: vec![vec![PageId(0)]] };
            let mut stages = Stages { program: case.program.clone(), stages: vec![lowered], tables };
            let (head, tail) = case.tokens.split_at(9);
            let mut logits = stages.run(0, head).pop().unwrap();
            stages.stages[0].copy_page(PageId(0), PageId(1)).unwrap();
            stages.tables.states[0][0] = PageId(1);
            logits.extend(stages.run(9, tail).pop().unwrap());
            check_logits(case, &logits, "behind a copied page");
        },
    );
}

#[test]
fn only_rows_that_want_logits_get_them() {
    cases(
        |rows, activations, kv| rows <= SHORT_ROWS && activations == "int8" && kv == "f32",
        |case| {
            let mut stages = Stages::lower(case, &[]);
            let mut rows = rows(StateId(0), 0, &case.tokens);
            let wanted = [3, case.tokens.len() - 1];
            rows.iter_mut().enumerate().for_each(|(i, row)| {
                row.wants = if wanted.contains(&i) { RowWants::Logits } else { RowWants::Nothing }
            });
            let vocab = case.program.facts.vocab;
            let mut logits = vec![f32::NAN; wanted.len() * vocab];
            let batch = Batch::new(BatchId(0), rows);
            stages.stages[0].run(&batch, &stages.tables, &[], &mut logits).unwrap();
            for (row, at) in logits.chunks_exact(vocab).zip(wanted) {
                let crc = case.entry["rows_crc32"][at].as_u64();
                assert_eq!(Some(u64::from(crc32(row))), crc, "{}, row {at}", case.what);
            }
        },
    );
}

/// What the second stage of a case says to a row with a value that is no number.
fn error_of(case: &Case<'_>) -> CardError {
    let mut stages = Stages::lower(case, &[1]);
    let batch = Batch::new(BatchId(0), rows(StateId(0), 0, &case.tokens[..1]));
    let facts = &case.program.facts;
    let mut input = vec![0.5; facts.embedding_width];
    input[3] = f32::NAN;
    let mut output = vec![0.0; facts.vocab];
    stages.stages[1].run(&batch, &stages.tables, &input, &mut output).unwrap_err()
}

#[test]
fn the_quantiser_names_op_and_layer_of_a_row_that_is_not_finite() {
    cases(
        |rows, activations, kv| rows <= SHORT_ROWS && activations == "int8" && kv == "f16",
        |case| {
            // The layer's norm spreads it; its first product looks at it.
            let error = error_of(case);
            let found = matches!(error, CardError::NotFinite { layer: 1, op: "linear", .. });
            assert!(found, "{}: {error}", case.what);
        },
    );
}

#[test]
fn the_head_finds_what_float_activations_let_through() {
    cases(
        |rows, activations, _| rows <= SHORT_ROWS && activations == "f32",
        |case| {
            let (error, last) = (error_of(case), case.program.layers.len() - 1);
            let found = matches!(error, CardError::NotFinite { layer, op: "head", .. } if layer == last);
            assert!(found, "{}: {error}", case.what);
        },
    );
}
