//! Text against the oracles: ids, bytes, streamed text, prompts and special ids of every model in `models/`.
//!
//! Ids, bytes and special ids were made by llama.cpp, prompts by jinja2 (`oracle/*.json`). Every entry must match
//! exactly, and the tests count that the entries were there.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its files fails there")]

use std::path::{Path, PathBuf};

use serde_json::Value;
use tandem::gguf::File;
use tandem::text::{
    AddSpecial, ChatInput, ChatTemplate, Detokenizer, ParseSpecial, SpecialText, TextError, Tokenizer, Vocab,
};

fn root(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn oracle(name: &str) -> Value {
    let path = root(&format!("oracle/{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn vocab(model: &Path) -> Vocab {
    let file = File::open(model).unwrap_or_else(|e| panic!("{e}"));
    Vocab::from_metadata(file.metadata()).unwrap_or_else(|e| panic!("{}: {e}", model.display()))
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn entries<'a>(oracle: &'a Value, key: &str) -> &'a [Value] {
    oracle.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The number of entries checked.
fn check_tokenize(name: &str, oracle: &Value, vocab: &Vocab) -> usize {
    let tokenizer = Tokenizer::new(vocab).unwrap();
    for entry in entries(oracle, "tokenize") {
        let flag = |key: &str| entry[key].as_bool().unwrap();
        let parse = if flag("parse_special") { ParseSpecial::AsTokens } else { ParseSpecial::AsText };
        let add = if flag("add_special") { AddSpecial::Always } else { AddSpecial::No };
        let text = entry["text"].as_str().unwrap();
        let got = tokenizer.encode(text, parse, add).unwrap();
        assert_eq!(got, ids(&entry["ids"]), "{name}: {text:?} {parse:?} {add:?}");
    }
    entries(oracle, "tokenize").len()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn check_detokenize(name: &str, oracle: &Value, vocab: &Vocab) -> usize {
    for entry in entries(oracle, "detokenize") {
        let ids = ids(&entry["ids"]);
        let pieces = |special| -> Value {
            ids.iter().map(|&id| hex(&vocab.token_bytes(id, special).unwrap())).collect()
        };
        assert_eq!(pieces(SpecialText::Shown), entry["pieces"], "{name}: {ids:?}");
        let hidden = entry.get("pieces_without_special").unwrap_or(&entry["pieces"]);
        assert_eq!(&pieces(SpecialText::Hidden), hidden, "{name}: {ids:?}");

        let mut text = Detokenizer::new(vocab, SpecialText::Shown);
        let mut stream: Vec<String> = ids.iter().map(|&id| text.push(id).unwrap()).collect();
        // The oracle's decoder ends together with the last token.
        stream.last_mut().unwrap().push_str(&text.finish());
        assert_eq!(Value::from(stream), entry["stream"], "{name}: {ids:?}");
    }
    entries(oracle, "detokenize").len()
}

fn check_chat(name: &str, oracle: &Value, vocab: &Vocab) -> usize {
    let cases = entries(oracle, "chat");
    if cases.is_empty() {
        return 0;
    }
    let template = ChatTemplate::new(vocab.chat_template.as_deref().expect("a template")).unwrap();
    for case in cases {
        let list = |key: &str| case.get(key).map(|v| v.as_array().unwrap().clone());
        let known = ["messages", "tools", "documents", "add_generation_prompt", "text", "error"];
        let input = ChatInput {
            messages: list("messages").unwrap(),
            tools: list("tools"),
            documents: list("documents"),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            bos_token: vocab.bos_text().to_owned(),
            eos_token: vocab.eos_text().to_owned(),
            variables: case
                .as_object()
                .unwrap()
                .iter()
                .filter(|(key, _)| !known.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            now_unix_s: 0,
        };
        match (template.render(&input), case.get("error")) {
            (Ok(text), None) => assert_eq!(text, case["text"].as_str().unwrap(), "{name}: {case}"),
            (Err(TextError::TemplateRefused { text }), Some(error)) => {
                assert_eq!(&text, error, "{name}: {case}")
            }
            (other, _) => panic!("{name}: {case}: {other:?}"),
        }
    }
    cases.len()
}

fn check_vocab_info(name: &str, oracle: &Value, vocab: &Vocab) -> usize {
    let Some(info) = oracle.get("vocab_info") else { return 0 };
    let id = |key: &str| info[key].as_u64().map(|id| id as u32);
    assert_eq!((vocab.bos, vocab.eos), (id("bos"), id("eos")), "{name}");
    assert_eq!(vocab.padding.or(id("pad")), id("pad"), "{name}");
    assert_eq!(Value::from(vocab.add_bos), info["add_bos"], "{name}");
    assert_eq!(Value::from(vocab.add_eos), info["add_eos"], "{name}");
    let ends: Vec<u32> = vocab.end_of_generation.iter().copied().collect();
    assert_eq!(ends, ids(&info["eog"]), "{name}");
    // llama.cpp chooses an eot by text in hash order where the file names none; it is always one of the ends.
    assert!(vocab.eot.is_none_or(|eot| id("eot") == Some(eot)), "{name}");
    assert!(id("eot").is_none_or(|eot| vocab.ends_generation(eot)), "{name}");
    1
}

/// Entries checked: tokenize, detokenize, chat, vocab_info.
fn check(name: &str, model: &Path) -> [usize; 4] {
    let (oracle, vocab) = (oracle(name), vocab(model));
    [
        check_tokenize(name, &oracle, &vocab),
        check_detokenize(name, &oracle, &vocab),
        check_chat(name, &oracle, &vocab),
        check_vocab_info(name, &oracle, &vocab),
    ]
}

#[test]
fn every_entry_of_every_model_in_the_repository_matches() {
    let mut checked = 0;
    let mut names: Vec<String> = std::fs::read_dir(root("oracle"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".json").map(str::to_owned))
        .collect();
    names.sort();
    for name in names {
        let oracle = oracle(&name);
        let Some(model) = oracle.get("model").and_then(Value::as_str) else { continue };
        let model = root(&format!("models/{model}"));
        if !model.exists() {
            continue;
        }
        let counts = check(&name, &model);
        println!("{name}: {counts:?} entries of tokenize, detokenize, chat, vocab_info");
        let expected = ["tokenize", "detokenize", "chat", "vocab_info"].map(|key| oracle.get(key).is_some());
        assert_eq!(counts.map(|n| n > 0), expected, "{name}: {counts:?}");
        checked += 1;
    }
    assert!(checked >= 7, "{checked} models were there");
}

#[test]
fn the_small_models_carry_entries_of_every_kind() {
    for name in ["rand-llama", "rand-lowbit", "rand-qwen3moe", "rand-qwen3moe-q8", "rand-wide"] {
        let counts = check(name, &root(&format!("models/{name}.gguf")));
        assert!(counts.iter().all(|&n| n > 0), "{name}: {counts:?}");
    }
    let [tokenize, detokenize, chat, _] = check("tiny-qwen3moe", &root("models/tiny-qwen3moe.gguf"));
    assert!([tokenize, detokenize, chat].iter().all(|&n| n > 0), "tiny-qwen3moe");
}

#[test]
fn a_split_model_has_the_vocabulary_of_its_whole() {
    let split = vocab(&root("models/split-rand-llama-00001-of-00004.gguf"));
    let whole = vocab(&root("models/rand-llama.gguf"));
    assert_eq!((split.tokens, split.types, split.merges), (whole.tokens, whole.types, whole.merges));
    assert_eq!(split.end_of_generation, whole.end_of_generation);
}

#[test]
#[ignore = "needs target/models/SmolLM2-135M-Instruct.Q4_1.gguf, which is not in the repository"]
fn every_entry_of_the_real_model_matches() {
    let model = root("target/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if !model.exists() {
        println!("SKIPPED {} is not there", model.display());
        return;
    }
    let counts = check("smollm2-135m-q4_1", &model);
    println!("smollm2-135m-q4_1: {counts:?} entries of tokenize, detokenize, chat, vocab_info");
    assert!(counts.iter().all(|&n| n > 0), "{counts:?}");
}

/// Hand comparison with another tokenizer: `target/compare.json` lists cases with `model`, `pre`, `entries`.
#[test]
#[ignore = "needs target/compare.json, which another tokenizer writes"]
fn every_entry_of_a_comparison_file_matches() {
    let path = root("target/compare.json");
    if !path.exists() {
        println!("SKIPPED {} is not there", path.display());
        return;
    }
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for case in cases.as_array().unwrap() {
        let mut vocab = vocab(&root(case["model"].as_str().unwrap()));
        vocab.pre = tandem::text::PreTokenizer::from_name(case["pre"].as_str().unwrap()).unwrap();
        let name = format!("{} as {}", case["model"], case["pre"]);
        println!(
            "{name}: {} entries",
            check_tokenize(&name, &serde_json::json!({"tokenize": case["entries"]}), &vocab)
        );
    }
}

#[test]
#[ignore = "a measurement, run with --release --nocapture"]
fn long_texts_are_encoded_fast() {
    let model = root("target/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let model = if model.exists() { model } else { root("models/tiny-qwen3moe.gguf") };
    let mut vocab = vocab(&model);
    for pre in ["default", "smollm", "llama-bpe", "qwen2"] {
        vocab.pre = tandem::text::PreTokenizer::from_name(pre).unwrap();
        let start = std::time::Instant::now();
        let tokenizer = Tokenizer::new(&vocab).unwrap();
        println!("{pre}: built in {:?}", start.elapsed());
        let prose =
            "The quick brown fox jumps over 13 lazy dogs; naïve façade, 你好!\n\tif (x == 42) { return; }\n";
        let texts = [
            ("1 MB of text", prose.repeat((1 << 20) / prose.len())),
            ("200,000 a", "a".repeat(200_000)),
            ("200,000 blanks", " ".repeat(200_000)),
            ("200,000 newlines", "\n".repeat(200_000)),
            ("200,000 x <|im_", "<|im_".repeat(200_000)),
        ];
        for (name, text) in texts {
            let start = std::time::Instant::now();
            let ids = tokenizer.encode(&text, ParseSpecial::AsTokens, AddSpecial::No).unwrap();
            println!("{pre}: {name}: {} ids in {:?}", ids.len(), start.elapsed());
        }
    }
}
