//! Real models through the whole engine: logits of prompts and of decoded rows have the same bits whatever the split,
//! the chunk, the window, the link and the neighbours (levels L1 and L3 of `docs/numerics.md`).
//!
//! The reference runs one stage, one row at a time, without an engine.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

mod support;

use std::sync::Arc;

use support::{Model, Setup, in_repository};
use tandem::engine::build::StageSpec;
use tandem::engine::options::EngineOptions;
use tandem::engine::pipeline::{Engine, EngineStage};
use tandem::engine::request::{LogitsWanted, Request, RequestEvent};
use tandem::engine::turn::Turn;
use tandem::gguf::File;
use tandem::model::facts::{KvFormat, LinkKind};

const CONTEXT: usize = 96;

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % n as u64) as usize
    }
}

/// A prompt, and the logits of all its rows and of those decoded behind it.
struct Reference {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

fn references(file: &File, setup: &Setup, chance: &mut Chance, lengths: &[(usize, usize)]) -> Vec<Reference> {
    let made = lengths.iter().map(|&(prompt, decoded)| {
        let mut model = Model::of(file, &Setup { sequences: 1, cuts: vec![], ..setup.clone() });
        let vocab = model.program.facts.vocab;
        let prompt: Vec<u32> = (0..prompt).map(|_| chance.below(vocab) as u32).collect();
        let mut logits = model.logits(&prompt, 1);
        let mut tokens = Vec::new();
        for i in 0..decoded {
            tokens.push(tandem::device::best::argmax(&logits[logits.len() - vocab..]));
            if i + 1 < decoded {
                let rows =
                    support::rows(tandem::model::facts::StateId(0), (prompt.len() + i) as u32, &tokens[i..]);
                logits.extend(model.run(rows));
            }
        }
        Reference { prompt, tokens, logits }
    });
    made.collect()
}

fn check(engine: &Engine, references: &[Reference], vocab: usize, what: &str) {
    let submit = |r: &Reference| {
        let (prompt, tokens_max) = (r.prompt.clone(), r.tokens.len());
        engine
            .submit(Request { prompt, tokens_max, logits: LogitsWanted::All, ..Request::default() })
            .unwrap()
    };
    let mut handles: Vec<_> = references.iter().map(submit).collect();
    for (index, (handle, reference)) in handles.iter_mut().zip(references).enumerate() {
        let (mut tokens, mut rows_heard) = (Vec::new(), 0);
        while let Some(event) = handle.next_event() {
            match event {
                RequestEvent::Token { id, .. } => tokens.push(id),
                RequestEvent::Logits { position, rows, values } => {
                    let expected = &reference.logits[position as usize * vocab..][..rows * vocab];
                    let same = values.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{what}: request {index}, {rows} rows from position {position}");
                    rows_heard += rows;
                }
                _ => {}
            }
        }
        assert_eq!(tokens, reference.tokens, "{what}: request {index}");
        assert_eq!(rows_heard * vocab, reference.logits.len(), "{what}: request {index}");
    }
}

fn check_plans(name: &str, plans: u64, kv: KvFormat) {
    let file = File::open(&in_repository(&format!("models/{name}"))).unwrap();
    let mut chance = Chance(name.len() as u64);
    let setup = Setup { kv, ..Setup::new(CONTEXT) };
    let lengths = [(1, 20), (40, 12), (9, 15), (70, 1), (8, 25), (17, 9)];
    let references = references(&file, &setup, &mut chance, &lengths);
    for plan in 0..plans {
        let sequences = 1 + chance.below(6);
        let layers = Model::of(&file, &setup).program.layers.len();
        let mut cuts: Vec<usize> = (1..layers).filter(|_| chance.below(2) == 0).collect();
        cuts.truncate(7);
        let setup = Setup { sequences, threads: 1 + chance.below(4), cuts, ..setup.clone() };
        let model = Model::of(&file, &setup);
        let facts = model.program.facts.clone();
        let options = EngineOptions {
            chunk_rows: [9, 16, 64, 512][chance.below(4)],
            window_rows: [None, None, Some(1 + chance.below(8))][chance.below(3)],
            sequences,
            logits_rows_max: setup.rows_max,
            link: LinkKind::OF_HOST[chance.below(2)],
            link_slots: 1 + chance.below(3),
            kv,
            ..EngineOptions::new(facts.vocab, facts.embedding_width, CONTEXT)
        };
        let turn = [None, Some(Arc::new(Turn::new()))][chance.below(2)].clone();
        let what =
            format!("{name}, plan {plan}: cuts {:?}, {} threads, {options:?}", setup.cuts, setup.threads);
        let stages = model.stages.into_iter().zip(&model.cards).map(|(exec, card)| EngineStage {
            exec,
            spec: StageSpec { card: tandem::device::Card::facts(card).id, kv_pages: options.kv_pages() },
            turn: turn.clone(),
            arrives: None,
        });
        let engine = Engine::start(stages.collect(), options.clone()).unwrap();
        check(&engine, &references, facts.vocab, &what);
        engine.shutdown().unwrap();
    }
}

#[test]
fn a_dense_model_gives_the_same_bits_in_thirty_random_plans() {
    check_plans("rand-llama.gguf", 30, KvFormat::F32);
}

#[test]
fn a_mixture_gives_the_same_bits_in_thirty_random_plans() {
    check_plans("rand-qwen3moe.gguf", 30, KvFormat::F16);
}
