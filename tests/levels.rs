//! The levels of `docs/numerics.md` on virtual cards: a row's bits depend on its tokens alone.
#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]

mod support;

use support::{Model, Setup, rows};
use tandem::device::cpu::simd::tier::Tier;
use tandem::model::facts::{KvFormat, StateId};

const MODELS: [&str; 5] = ["rand-llama", "rand-wide", "rand-lowbit", "rand-qwen3moe", "rand-qwen3moe-q8"];
const TOKENS: usize = 75;

fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 9) % 280).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// One card, one thread, single rows, plain arithmetic.
fn expected(model: &str, kv: KvFormat) -> Vec<u32> {
    let setup = Setup { tier: Tier::Plain, kv, ..Setup::new(TOKENS) };
    bits(&Model::open(&format!("{model}.gguf"), &setup).logits(&tokens(1, TOKENS), 1))
}

fn check(model: &str, setup: &Setup, step: usize, expected: &[u32]) {
    let got = bits(&Model::open(&format!("{model}.gguf"), setup).logits(&tokens(1, TOKENS), step));
    assert!(got == expected, "{model}: other bits with {setup:?}, {step} rows at a time");
}

#[test]
fn the_same_run_twice_gives_the_same_bits() {
    let setup = Setup { threads: 2, cuts: vec![1], ..Setup::new(TOKENS) };
    for model in MODELS {
        let run = || bits(&Model::open(&format!("{model}.gguf"), &setup).logits(&tokens(1, TOKENS), 40));
        assert!(run() == run(), "{model}: two runs differ");
    }
}

#[test]
fn windows_of_every_width_and_chunks_give_the_bits_of_single_rows() {
    for model in MODELS {
        let expected = expected(model, KvFormat::F16);
        let setup = Setup { kv: KvFormat::F16, ..Setup::new(TOKENS) };
        for step in [1, 2, 3, 4, 5, 6, 7, 8, 9, 33, TOKENS] {
            check(model, &setup, step, &expected);
        }
    }
}

#[test]
fn one_to_four_threads_give_the_same_bits() {
    for model in MODELS {
        let expected = expected(model, KvFormat::F32);
        for threads in 1..=4 {
            for step in [1, 8, TOKENS] {
                check(model, &Setup { threads, ..Setup::new(TOKENS) }, step, &expected);
            }
        }
    }
}

#[test]
fn plain_avx2_and_avx512_give_the_same_bits() {
    for name in Tier::NAMES {
        let Some(tier) = Tier::named(name) else {
            println!("SKIPPED {name}: not on this CPU");
            continue;
        };
        for model in MODELS {
            let expected = expected(model, KvFormat::Q8_0);
            for step in [1, 8, TOKENS] {
                check(model, &Setup { tier, kv: KvFormat::Q8_0, ..Setup::new(TOKENS) }, step, &expected);
            }
        }
    }
}

#[test]
fn every_cut_into_stages_gives_the_same_bits() {
    for model in MODELS {
        let expected = expected(model, KvFormat::F32);
        let layers = Model::open(&format!("{model}.gguf"), &Setup::new(8)).program.layers.len();
        for mask in 0..1usize << (layers - 1) {
            let cuts = (1..layers).filter(|l| mask >> (l - 1) & 1 == 1).collect();
            check(model, &Setup { cuts, ..Setup::new(TOKENS) }, 8, &expected);
        }
    }
}

#[test]
fn a_sequence_alone_and_beside_others_gives_the_same_bits() {
    for model in MODELS {
        let expected = expected(model, KvFormat::F16);
        let setup = Setup { kv: KvFormat::F16, sequences: 3, threads: 2, ..Setup::new(TOKENS) };
        let mut loaded = Model::open(&format!("{model}.gguf"), &setup);
        let vocab = loaded.program.facts.vocab;
        let (ours, other, third) = (tokens(1, TOKENS), tokens(2, TOKENS), tokens(3, TOKENS));
        let mut got = Vec::new();
        // Windows of 2 rows of ours between rows of two other sequences at other positions.
        for at in (0..TOKENS - 1).step_by(2) {
            let mut window = rows(StateId(2), at as u32, &third[at..at + 2]);
            window.extend(rows(StateId(0), at as u32, &ours[at..at + 2]));
            window.extend(rows(StateId(1), at as u32 / 2, &other[at / 2..at / 2 + 1]));
            let logits = loaded.run(window);
            got.extend(bits(&logits[2 * vocab..4 * vocab]));
        }
        assert!(got == expected[..got.len()], "{model}: neighbours change bits");
    }
}

#[test]
fn each_cards_ledger_is_the_plans_items() {
    use tandem::device::Card as _;
    use tandem::model::facts::{Activations, CardKind};
    use tandem::model::footprint::{Footprint, ItemKind};
    for model in
        ["rand-llama", "rand-wide", "rand-lowbit", "rand-qwen3moe", "rand-qwen3moe-q8", "tiny-qwen3moe"]
    {
        for activations in [Activations::Int8, Activations::F32] {
            let setup = Setup { activations, cuts: vec![1], sequences: 2, ..Setup::new(200) };
            let loaded = Model::open(&format!("{model}.gguf"), &setup);
            let footprint = Footprint::of(&loaded.program, activations);
            let layers = loaded.program.layers.len();
            for (card, range) in loaded.cards.iter().zip([0..1, 1..layers]) {
                let mut items = footprint.stage_items(CardKind::Cpu, range, &setup.sizes());
                // Links, and logits on their way, belong to the engine, which books them.
                items.retain(|i| i.kind != ItemKind::LinkSlots);
                let on_their_way = setup.sizes().logits_bytes(loaded.program.facts.vocab);
                items.iter_mut().filter(|i| i.kind == ItemKind::Logits).for_each(|i| i.bytes -= on_their_way);
                let planned: Vec<_> = items.iter().map(|i| (i.kind, i.bytes)).collect();
                let mut booked: Vec<_> = card.ledger().entries().iter().map(|(&k, &b)| (k, b)).collect();
                booked.retain(|(_, b)| *b > 0);
                let mut planned = planned;
                planned.sort();
                assert_eq!(booked, planned, "{model}, {activations:?}, {}", card.facts().name);
            }
        }
    }
}
