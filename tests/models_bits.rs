//! Whole models give the contract's bits: checksums of every row's logits from `oracle/dots.json`.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]

mod support;

use support::{Model, Setup, case_tokens, crc32, json};
use tandem::model::facts::{Activations, KvFormat};

/// Runs every listed case of models in the repository, `step` rows at a time.
fn check(step: usize, setup_of: impl Fn(usize) -> Setup, keep: impl Fn(&str, usize) -> bool) {
    let doc = json("oracle/dots.json");
    let mut checked = 0;
    for entry in doc["models"].as_array().unwrap() {
        let text = |key: &str| entry[key].as_str().unwrap();
        let (model, case) = (text("model"), text("case"));
        let path = support::in_repository(&format!("models/{model}"));
        if !path.exists() {
            continue;
        }
        let tokens = case_tokens(model.trim_end_matches(".gguf"), case);
        let expected = entry["rows_crc32"].as_array().unwrap();
        if !keep(model, expected.len()) {
            continue;
        }
        let tokens = &tokens[..expected.len()];
        let mut setup = setup_of(tokens.len());
        setup.activations = if text("activations") == "f32" { Activations::F32 } else { Activations::Int8 };
        setup.kv = match text("kv") {
            "f32" => KvFormat::F32,
            "f16" => KvFormat::F16,
            _ => KvFormat::Q8_0,
        };
        let mut loaded = Model::open(model, &setup);
        let logits = loaded.logits(tokens, step);
        for (r, (row, crc)) in logits.chunks_exact(loaded.program.facts.vocab).zip(expected).enumerate() {
            assert_eq!(
                u64::from(crc32(row)),
                crc.as_u64().unwrap(),
                "{model} {case}, {} activations, {} K/V, row {r}, {step} rows at a time",
                text("activations"),
                text("kv")
            );
        }
        checked += 1;
    }
    assert!(checked >= 8, "{checked} cases");
}

#[test]
fn chunks_on_one_card_give_the_contracts_bits() {
    check(512, Setup::new, |_, _| true);
}

#[test]
fn single_rows_give_the_contracts_bits() {
    check(1, Setup::new, |_, rows| rows <= 64);
}

#[test]
fn windows_of_eight_on_two_cards_and_threads_give_the_contracts_bits() {
    let setup = |n| Setup { threads: 2, cuts: vec![1], ..Setup::new(n) };
    check(8, setup, |_, rows| rows <= 64);
}
