//! The program as a user meets it: answers, exit codes, one-line errors.
#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]

mod support;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn tandem(arguments: &[&str]) -> Output {
    let root = support::in_repository(".");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(arguments).current_dir(root).stdin(Stdio::null()).output().unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let out = tandem(arguments);
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(out.stdout).unwrap()
}

/// Exit 1 and one line on the error stream with all of `parts`, nothing on the output stream.
fn refused(arguments: &[&str], parts: &[&str]) {
    let out = tandem(arguments);
    let errors = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{arguments:?}: {errors}");
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(lines.len(), 1, "{arguments:?}: one line, not {errors}");
    assert!(out.stdout.is_empty(), "{arguments:?}: output beside an error");
    for part in parts.iter().chain(&["tandem: error: "]) {
        assert!(errors.contains(part), "{arguments:?}: no {part:?} in {errors}");
    }
}

/// A file of this test's own.
fn temporary(name: &str, bytes: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn tokens_and_their_text_are_those_of_the_oracle() {
    let doc = support::json("oracle/tiny-qwen3moe.json");
    let mut checked = 0;
    for entry in doc["tokenize"].as_array().unwrap() {
        let text = entry["text"].as_str().unwrap();
        if text.contains('\0') {
            // No command line can hold it; `tests/text_oracles.rs` covers it.
            continue;
        }
        let mut arguments = vec!["tokenize", "--json", "--text", text];
        for (key, flag) in [("parse_special", "--parse-special"), ("add_special", "--add-special")] {
            if entry[key].as_bool().unwrap() {
                arguments.push(flag);
            }
        }
        let ids: serde_json::Value = serde_json::from_str(&stdout(&arguments)).unwrap();
        assert_eq!(ids, entry["ids"], "{text:?}");
        checked += 1;
    }
    assert!(checked > 10, "{checked} entries");
    for entry in doc["detokenize"].as_array().unwrap() {
        let ids: Vec<String> = entry["ids"].as_array().unwrap().iter().map(|i| i.to_string()).collect();
        let out = tandem(&["detokenize", "--special", "--tokens", &ids.join(",")]);
        let hex: String = out.stdout.iter().map(|b| format!("{b:02x}")).collect();
        let pieces = entry["pieces"].as_array().unwrap();
        let expected: String = pieces.iter().map(|p| p.as_str().unwrap()).collect();
        assert_eq!(hex, expected, "{ids:?}");
    }
}

#[test]
fn text_is_the_same_on_every_split_and_setting() {
    let base = ["generate", "--chat", "--prompt", "What does `String::len` do?", "--max-tokens", "48"];
    let expected = stdout(&[&base[..], &["--gpus", "cpu:1", "--threads", "1"]].concat());
    assert!(expected.contains("number of `char`s"), "{expected}");
    for more in [
        &["--gpus", "cpu:2"][..],
        &["--gpus", "cpu:3", "--card-threads", "1"],
        &["--gpus", "cpu:8", "--threads", "2"],
        &["--gpus", "cpu:2", "--layer-split", "1", "--gpu-order", "1,0"],
        &["--cpu-tier", "plain", "--gpus", "cpu:2"],
    ] {
        assert_eq!(stdout(&[&base[..], more].concat()), expected, "{more:?}");
    }
}

#[test]
fn draws_depend_on_the_seed_alone() {
    let base = [
        "generate",
        "--prompt",
        "Vectors are",
        "--max-tokens",
        "24",
        "--temperature",
        "0.9",
        "--top-k",
        "40",
    ];
    let with = |more: &[&str]| stdout(&[&base[..], more].concat());
    let first = with(&["--seed", "7"]);
    assert_eq!(with(&["--seed", "7", "--gpus", "cpu:4"]), first);
    assert_ne!(with(&["--seed", "8"]), first);
}

#[test]
fn stop_strings_and_limits_end_the_answer() {
    let base = ["generate", "--json", "--chat", "--prompt", "What does `Vec::push` do?"];
    let answer = |more: &[&str]| -> serde_json::Value {
        serde_json::from_str(&stdout(&[&base[..], more].concat())).unwrap()
    };
    let stopped = answer(&["--stop", "back of"]);
    assert_eq!(stopped["text"], "Appends an element to the ");
    assert_eq!(stopped["finish"], "a stop string");
    let short = answer(&["--max-tokens", "3"]);
    assert_eq!(short["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(answer(&[])["finish"], "end of generation");
    let full = answer(&["--ctx", "32", "--ignore-eos", "--max-tokens", "100"]);
    assert_eq!(full["finish"], "the context is full (--ctx)");
}

#[test]
fn logits_files_are_equal_for_windows_chunks_and_splits() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let tokens: Vec<String> = (0..70u32).map(|i| (i * 37 % 320).to_string()).collect();
    let file = |name: &str, more: &[&str]| {
        let path = folder.join(name);
        let base = ["logits", "--model", "models/rand-llama.gguf", "--tokens", &tokens.join(",")];
        stdout(&[&base[..], &["--out", path.to_str().unwrap()], more].concat());
        std::fs::read(path).unwrap()
    };
    let expected = file("a.npy", &["--gpus", "cpu:1"]);
    assert!(expected.starts_with(b"\x93NUMPY\x01\x00"));
    assert_eq!((expected.len() - 70 * 320 * 4) % 64, 0, "the data begin at a multiple of 64");
    for (name, more) in [
        ("b.npy", &["--gpus", "cpu:2", "--window", "1"][..]),
        ("c.npy", &["--gpus", "cpu:4", "--window", "8", "--threads", "2"]),
        ("d.npy", &["--gpus", "cpu:3", "--chunk", "16", "--card-threads", "1"]),
    ] {
        assert!(file(name, more) == expected, "{more:?}");
    }
}

#[test]
fn what_cannot_work_is_said_in_one_line() {
    let header = std::fs::read(support::in_repository("models/rand-llama.gguf")).unwrap();
    let cut = temporary("cut.gguf", &header[..header.len() / 2]);
    let empty = temporary("empty.gguf", b"");
    let text = temporary("text.gguf", b"these are no tensors, and it is longer than a header");
    let mut other = header.clone();
    let at = other.windows(5).position(|w| w == b"llama").unwrap();
    other[at..at + 5].copy_from_slice(b"opera");
    let other = temporary("other.gguf", &other);
    let path = |p: &PathBuf| p.to_str().unwrap().to_owned();
    refused(&["generate", "--model", "no.gguf"], &["no.gguf", "cannot open"]);
    refused(&["generate", "--model", "models"], &["models", "folder"]);
    refused(&["inspect", "--model", &path(&empty)], &["empty.gguf"]);
    refused(&["inspect", "--model", &path(&text)], &["text.gguf", "GGUF"]);
    refused(&["plan", "--model", &path(&cut)], &["cut.gguf"]);
    refused(&["plan", "--model", &path(&other)], &["opera", "llama, qwen3moe"]);
    refused(&["plan", "--model", "models/split-rand-llama-00002-of-00004.gguf"], &["00001"]);
    refused(&["plan", "--card-memory", "1XB"], &["--card-memory", "GiB"]);
    refused(&["plan", "--gpus", "gpu:2"], &["--gpus", "cpu:N"]);
    refused(&["plan", "--layer-split", "8"], &["--layer-split", "1 to 7"]);
    refused(&["plan", "--ctx", "0"], &["--ctx"]);
    refused(&["plan", "--threads", "0"], &["--threads"]);
    refused(&["plan", "--chunk", "0"], &["--chunk"]);
    refused(&["generate", "--prompt", "a b c d e f g h", "--ctx", "2"], &["--ctx"]);
    refused(&["generate", "--prompt", "x", "--top-p", "0"], &["--top-p"]);
    refused(&["generate", "--prompt", ""], &["prompt is empty"]);
    refused(&["logits", "--tokens", "1,99999", "--out", "x.npy"], &["99999", "--tokens"]);
    refused(&["logits", "--tokens", "1", "--out", "no/such/folder/x.npy"], &["--out"]);
    refused(&["detokenize", "--tokens", "99999"], &["99999"]);
}

#[test]
fn a_refused_plan_shows_the_items_and_the_nearest_plan_that_fits() {
    let out = tandem(&["plan", "--card-memory", "20MiB"]);
    let errors = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1));
    let flags = errors.lines().find_map(|l| l.strip_prefix("the nearest plan that fits: ")).unwrap();
    let again: Vec<&str> = ["plan", "--card-memory", "20MiB"].into_iter().chain(flags.split(' ')).collect();
    assert!(stdout(&again).contains("8 layers on 2 cards"), "{flags}");
}
