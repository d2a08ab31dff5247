//! The program as a user meets it: answers, exit codes, one-line errors.
#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

/// The program in a home of its own and without GPUs: what this computer has, or its user measured, changes no test.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(arguments).current_dir(support::in_repository(".")).stdin(Stdio::null());
    command.env("HOME", home("empty")).env_remove("RUST_LOG").env("CUDA_VISIBLE_DEVICES", "");
    command
}

fn tandem(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// An empty home folder.
fn home(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("homes").join(name);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// One that a test writes into, without what an earlier run left there.
fn fresh_home(name: &str) -> PathBuf {
    std::fs::remove_dir_all(home(name)).unwrap();
    home(name)
}

/// The program's answer in this home, with its error stream.
fn at_home(home: &Path, arguments: &[&str]) -> (String, String) {
    let out = command(arguments).env("HOME", home).output().unwrap();
    let errors = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success(), "{arguments:?}: {errors}");
    (String::from_utf8(out.stdout).unwrap(), errors)
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
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
        let text_flag = format!("--text={text}");
        let mut arguments = vec!["tokenize", "--json", &text_flag];
        for (key, flag) in [("parse_special", "--parse-special"), ("add_special", "--add-special")] {
            if entry[key].as_bool().unwrap() {
                arguments.push(flag);
            }
        }
        let ids = parsed(&stdout(&arguments));
        assert_eq!(ids, entry["ids"], "{text:?}");
        checked += 1;
    }
    assert!(checked > 10, "{checked} entries");
    for entry in doc["detokenize"].as_array().unwrap() {
        let ids: Vec<String> = entry["ids"].as_array().unwrap().iter().map(|i| i.to_string()).collect();
        let out = tandem(&["detokenize", "--raw", "--special", "--tokens", &ids.join(",")]);
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
fn flags_of_draws_without_a_temperature_are_named_in_one_line() {
    let home = home("empty");
    let base = ["generate", "--prompt", "Vectors are", "--max-tokens", "1", "--json"];
    let said = |more: &[&str]| at_home(&home, &[&base[..], more].concat()).1;
    for (more, expected) in [
        (&["--top-k", "40", "--seed", "3"][..], "without regard to --top-k, --seed;"),
        (&["--min-p", "0.1"], "without regard to --min-p;"),
    ] {
        let errors = said(more);
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.starts_with("tandem: warn: ") && errors.contains(expected), "{errors}");
    }
    for more in [&[][..], &["--top-k", "40", "--temperature", "0.7"], &["--repeat-penalty", "1.1"]] {
        assert_eq!(said(more), "", "{more:?}");
    }
}

#[test]
fn stop_strings_and_limits_end_the_answer() {
    let base = ["generate", "--json", "--chat", "--prompt", "What does `Vec::push` do?"];
    let answer = |more: &[&str]| parsed(&stdout(&[&base[..], more].concat()));
    let stopped = answer(&["--stop", "back of"]);
    assert_eq!(stopped["text"], "Appends an element to the ");
    assert_eq!((&stopped["finish"], &stopped["ended_by"]), (&json!("stop"), &json!("a stop string")));
    let short = answer(&["--max-tokens", "3"]);
    assert_eq!(short["tokens"].as_array().unwrap().len(), 3);
    assert_eq!((&short["finish"], &short["ended_by"]), (&json!("length"), &json!("--max-tokens")));
    let ended = answer(&[]);
    assert_eq!((&ended["finish"], &ended["ended_by"]), (&json!("stop"), &json!("end of generation")));
    let full = answer(&["--ctx", "32", "--ignore-eos", "--max-tokens", "100"]);
    assert_eq!((&full["finish"], &full["ended_by"]), (&json!("length"), &json!("the full context (--ctx)")));
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
    let bert = temporary("bert.gguf", &with_tokenizer(b"bert"));
    let (bert, cut) = (path(&bert), path(&cut));
    for base in [
        &["tokenize", "--text", "x", "--model"][..],
        &["detokenize", "--tokens", "1", "--model"],
        &["generate", "--prompt", "x", "--model"],
    ] {
        let of = |model, parts: &[&str]| refused(&[base, &[model]].concat(), parts);
        of(&bert, &["tokenizer.ggml.model", "bert", "gpt2", "use a model of that kind"]);
        of(&cut, &["cut.gguf", "download it again"]);
        of("no.gguf", &["no.gguf", "cannot open", "check the path"]);
        of("models", &["models", "folder", "give the path"]);
    }
    refused(&["tokenize", "--text", "x", "--model", &bert], &["bert.gguf"]);
    refused(&["detokenize", "--tokens", "1", "--model", &bert], &["bert.gguf"]);
    refused(&["inspect", "--model", "no.gguf"], &["no.gguf", "cannot open", "check the path"]);
    refused(&["inspect", "--model", "models"], &["models", "folder", "give the path"]);
    refused(&["inspect", "--model", &cut], &["cut.gguf", "download it again"]);
    refused(&["sim", "--schedules", "0"], &["--schedules 0", "at least 1"]);
    refused(
        &["sim", "--seed", "18446744073709551615", "--schedules", "2"],
        &["--seed", "--schedules", "lower"],
    );
    refused(&["plan", "--model", "models/split-rand-llama-00002-of-00004.gguf"], &["00001"]);
    refused(&["plan", "--card-memory", "1XB"], &["--card-memory", "GiB"]);
    refused(&["plan", "--gpus", "gpu:2"], &["--gpus", "cpu:N"]);
    refused(&["plan", "--gpu-order", "fastest"], &["--gpu-order", "fastest-last", "positions in --gpus"]);
    refused(&["plan", "--gpu-order", "0,2"], &["--gpu-order", "position 2", "0 to 1"]);
    refused(&["plan", "--link", "peer"], &["--link peer", "two GPUs", "none among the cards"]);
    for command in ["plan", "devices"] {
        refused(&[command, "--nvrtc", "no/such.so"], &["--nvrtc no/such.so", "not found"]);
        refused(&[command, "--hiprtc", "no/such.so"], &["--hiprtc no/such.so", "not found"]);
    }
    refused(&["bench", "--pp", "0"], &["--pp 0", "at least 1"]);
    refused(&["bench", "--reps", "0"], &["--reps 0", "at least 1"]);
    refused(&["bench", "--tokens-file", "README.md"], &["--tokens-file README.md", "`#` is no token id"]);
    refused(&["generate", "--model", "models/rand-llama.gguf"], &["no prompt", "--prompt"]);
    refused(&["plan", "--layer-split", "8"], &["--layer-split", "1 to 7"]);
    refused(&["plan", "--ctx", "0"], &["--ctx"]);
    refused(&["bench", "--profile", "--gpus", "cpu:1"], &["--profile", "cpu:0 is a virtual card", "needs"]);
    refused(&["plan", "--threads", "0"], &["--threads"]);
    refused(&["plan", "--chunk", "0"], &["--chunk"]);
    refused(&["generate", "--prompt", "a b c d e f g h", "--ctx", "2"], &["--ctx"]);
    refused(&["generate", "--prompt-tokens", "1,99999"], &["--prompt-tokens", "99999"]);
    refused(&["generate", "--prompt", "x", "--top-p", "0"], &["--top-p"]);
    for (flag, value, range) in [
        ("--temperature", "nan", "is NaN; it must be from 0 to 3.4e38"),
        ("--temperature", "inf", "is inf; it must be from 0 to 3.4e38"),
        ("--top-p", "1.5", "is 1.5; it must be from 1.2e-38 to 1"),
        ("--repeat-penalty", "1e-38", "is 1e-38; it must be from 1.2e-38 to 3.4e38"),
        ("--presence-penalty", "1e39", "is inf; it must be from -3.4e38 to 3.4e38"),
    ] {
        let said = format!("error: {flag} {range}");
        refused(&["generate", "--prompt-tokens", "1", flag, value], &[&said]);
    }
    for fault in ["link-stop", "peer-test"] {
        refused(&["bench", "--profile", "--force-fault", fault], &["--force-fault", "--profile"]);
    }
    refused(&["plan", "--threads", "10000"], &["--threads 10000", "1024"]);
    refused(&["plan", "--card-threads", "10000"], &["--card-threads 10000", "1024"]);
    refused(&["generate", "--prompt", ""], &["prompt is empty"]);
    refused(&["logits", "--tokens", "1,99999", "--out", "x.npy"], &["99999", "--tokens"]);
    refused(
        &["logits", "--tokens", "1", "--out", "no/such/folder/x.npy"],
        &["--out: no/such/folder/x.npy", "make its folder"],
    );
    refused(&["detokenize", "--tokens", "99999"], &["99999"]);
}

#[test]
fn bench_counts_each_batch_in_its_phase() {
    let base = ["bench", "--model", "models/rand-llama.gguf", "--gpus", "cpu:2", "--reps", "1", "--json"];
    let report = parsed(&stdout(&[&base[..], &["--pp", "40", "--chunk", "16", "--tg", "8"]].concat()));
    for (stages, batches) in [("prompt_stages", 3), ("stages", 8)] {
        let stages = report[stages].as_array().unwrap();
        assert_eq!(stages.iter().map(|s| s["hand_offs"].as_u64().unwrap()).collect::<Vec<_>>(), [batches; 2]);
    }
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

/// The bytes of a small model whose tokenizer is of another kind.
fn with_tokenizer(kind: &[u8; 4]) -> Vec<u8> {
    let mut bytes = std::fs::read(support::in_repository("models/rand-llama.gguf")).unwrap();
    let key = b"tokenizer.ggml.model";
    // The key's text is followed by the type of its value, the length of the text, and the text.
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4 + 8;
    assert_eq!(&bytes[at..at + 4], b"gpt2");
    bytes[at..at + 4].copy_from_slice(kind);
    bytes
}

/// The number of tensors that the headers of these files name, and the bytes of all of them.
fn header_tensors_and_bytes(files: &[String]) -> (u64, u64) {
    let read = |f: &String| std::fs::read(support::in_repository(&format!("models/{f}"))).unwrap();
    let files: Vec<Vec<u8>> = files.iter().map(read).collect();
    let tensors = files.iter().map(|f| u64::from_le_bytes(f[8..16].try_into().unwrap())).sum();
    (tensors, files.iter().map(|f| f.len() as u64).sum())
}

#[test]
fn a_model_file_is_shown_as_it_is() {
    // From the models' own descriptions, models/TINY.md and oracle/README.md.
    let tiny = json!({
        "name": "tiny-qwen3moe", "architecture": "qwen3moe", "runs_here": "yes", "on_gpus": "yes", "files": 1, "layers": 8,
        "embedding": 256, "heads": 8, "kv_heads": 2, "context": 4096, "experts": 32, "experts_used": 4,
        "tokenizer": "gpt2", "pre_tokenizer": "qwen2", "reads_text": "yes", "tokens": 8192, "chat_template": "yes",
    });
    let split = json!({
        "architecture": "llama", "runs_here": "yes", "files": 4, "layers": 4, "tokens": 320, "reads_text": "yes",
    });
    let parts = (1..=4).map(|i| format!("split-rand-llama-{i:05}-of-00004.gguf"));
    for (files, expected) in
        [(vec!["tiny-qwen3moe.gguf".to_owned()], tiny), (parts.collect::<Vec<_>>(), split)]
    {
        let model = format!("models/{}", files[0]);
        let shown = stdout(&["inspect", "--model", &model, "--tensors"]);
        let report = parsed(&stdout(&["inspect", "--model", &model, "--tensors", "--json"]));
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(&report["facts"][key], value, "{model}: {key}");
        }
        let (tensors, bytes) = header_tensors_and_bytes(&files);
        assert_eq!(report["bytes"], bytes, "{model}");
        let listed = report["tensors"].as_array().unwrap();
        assert_eq!(listed.len() as u64, tensors, "{model}");
        assert!(shown.contains(&format!("  {tensors} tensors\n")), "{shown}");
        let elements =
            |t: &Value| t["dims"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).product::<u64>();
        assert_eq!(report["facts"]["parameters"], listed.iter().map(elements).sum::<u64>(), "{model}");
        for ty in report["types"].as_array().unwrap() {
            let of_type: Vec<&Value> = listed.iter().filter(|t| t["type"] == ty["type"]).collect();
            assert_eq!(ty["tensors"], of_type.len(), "{model}: {ty}");
            let bytes: u64 = of_type.iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
            assert_eq!(ty["bytes"], bytes, "{model}: {ty}");
        }
        let by_type = report["types"].as_array().unwrap().iter().map(|t| t["tensors"].as_u64().unwrap());
        assert_eq!(by_type.sum::<u64>(), tensors, "{model}");
        for tensor in listed {
            assert!(shown.contains(tensor["name"].as_str().unwrap()), "{model}: {tensor}");
        }
    }
    let output = |json: &Value| {
        json["tensors"].as_array().unwrap().iter().find(|t| t["name"] == "token_embd.weight").cloned()
    };
    let report = parsed(&stdout(&["inspect", "--tensors", "--json"]));
    let expected = json!({"name": "token_embd.weight", "type": "Q8_0", "dims": [256, 8192], "bytes": 256 * 8192 / 32 * 34});
    assert_eq!(output(&report), Some(expected));
}

#[test]
fn a_file_that_cannot_run_is_shown_with_the_reason() {
    let bert = temporary("shown-bert.gguf", &with_tokenizer(b"bert"));
    let report = parsed(&stdout(&["inspect", "--json", "--model", bert.to_str().unwrap()]));
    assert_eq!(report["facts"]["tokenizer"], "bert");
    assert_eq!(report["facts"]["runs_here"], "yes");
    let reason = report["facts"]["reads_text"].as_str().unwrap();
    assert!(reason.starts_with("no: ") && reason.contains("gpt2"), "{reason}");
    let mut other = std::fs::read(support::in_repository("models/rand-llama.gguf")).unwrap();
    let at = other.windows(5).position(|w| w == b"llama").unwrap();
    other[at..at + 5].copy_from_slice(b"opera");
    let other = temporary("shown-other.gguf", &other);
    let shown = stdout(&["inspect", "--model", other.to_str().unwrap()]);
    assert!(shown.contains("architecture   opera"), "{shown}");
    assert!(shown.contains("runs here      no: ") && shown.contains("llama, qwen3moe"), "{shown}");
}

#[test]
fn a_model_that_gpus_refuse_is_shown_with_the_reason() {
    let folder = fresh_home("on-gpus");
    let out = folder.join("experts.gguf");
    let out = out.to_str().unwrap();
    let shown_of = |model: &str| {
        let report = parsed(&stdout(&["inspect", "--json", "--model", model]));
        ["runs_here", "on_gpus"].map(|fact| report["facts"][fact].as_str().unwrap_or("").to_owned())
    };
    stdout(&[
        "synth",
        "--like",
        "models/rand-qwen3moe.gguf",
        "--layers",
        "1",
        "--experts",
        "1025",
        "--out",
        out,
    ]);
    let [runs_here, on_gpus] = shown_of(out);
    assert!(
        runs_here == "yes" && on_gpus.starts_with("no: ") && on_gpus.contains("1024 experts"),
        "{on_gpus}"
    );
    let mut long = std::fs::read(support::in_repository("models/rand-llama.gguf")).unwrap();
    let key = b"llama.context_length";
    let at = long.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    long[at..at + 4].copy_from_slice(&5_000_000u32.to_le_bytes());
    let long = temporary("shown-long.gguf", &long);
    let [runs_here, on_gpus] = shown_of(long.to_str().unwrap());
    assert!(
        runs_here == "yes"
            && on_gpus.starts_with("yes, without the whole context: ")
            && on_gpus.contains("4194240"),
        "{on_gpus}"
    );
}

#[test]
fn every_token_is_shown_on_its_line() {
    let ids = parsed(&stdout(&["tokenize", "--json", "--text", "Hello, \"world\"\n"]));
    let shown = stdout(&["tokenize", "--text", "Hello, \"world\"\n"]);
    let mut text = String::new();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), ids.as_array().unwrap().len(), "{shown}");
    for (line, id) in lines.iter().zip(ids.as_array().unwrap()) {
        let (number, piece) = line.trim_start().split_once("  ").unwrap();
        assert_eq!(number, id.to_string(), "{line}");
        text += parsed(piece).as_str().unwrap();
    }
    assert_eq!(text, "Hello, \"world\"\n");
}

#[test]
fn special_tokens_are_shown_on_request_only() {
    // models/TINY.md: 8188 is <|im_start|>.
    assert_eq!(stdout(&["detokenize", "--tokens", "4411,8188,4369"]), "Hello world\n");
    assert_eq!(stdout(&["detokenize", "--raw", "--tokens", "4411,8188,4369"]), "Hello world");
    assert_eq!(
        stdout(&["detokenize", "--special", "--tokens", "4411,8188,4369"]),
        "Hello<|im_start|> world\n"
    );
}

#[test]
fn measured_rates_are_kept_and_used_and_damaged_ones_are_ignored() {
    let home = fresh_home("measured");
    let file = home.join(".cache/tandem/devices.json");
    let plan = || {
        let (plan, errors) = at_home(&home, &["plan", "--json", "--card-memory", "1GiB"]);
        let plan = parsed(&plan);
        assert_eq!(plan["predicted"]["decode_position"], 2048, "half of --ctx");
        let source = plan["predicted"]["rates"].as_str().unwrap().to_owned();
        (plan["stages"][0]["decode_us"].as_f64().unwrap(), source, errors)
    };
    let in_words = || at_home(&home, &["plan"]).0;
    let (unmeasured_us, source, errors) = plan();
    assert_eq!((source.as_str(), errors.as_str()), ("typical", ""));
    assert!(in_words().contains("\nby typical rates; decode at position 2048, "), "{}", in_words());
    assert_eq!(parsed(&at_home(&home, &["devices", "--json"]).0)["rates"], Value::Null);
    let measured = parsed(&at_home(&home, &["devices", "--measure", "--json"]).0);
    for key in [
        "copy_bytes_per_s",
        "decode_bytes_per_s",
        "decode_bytes_per_s_all",
        "prompt_macs_per_s",
        "link_latency_us",
        "link_bytes_per_s",
    ] {
        let rate = measured["rates"][key].as_f64().unwrap();
        assert!(rate > 0.0, "{key}: {rate}");
    }
    let (again, errors) = at_home(&home, &["devices", "--json"]);
    assert_eq!((&parsed(&again)["rates"], errors.as_str()), (&measured["rates"], ""));
    assert_eq!(parsed(&std::fs::read_to_string(&file).unwrap()), measured["rates"]);

    // A card that reads weights hundreds of times as fast as one that was not measured takes less time.
    let mut fast = measured["rates"].clone();
    for key in ["decode_bytes_per_s", "decode_bytes_per_s_all"] {
        fast[key] = 1e13.into();
    }
    std::fs::write(&file, fast.to_string()).unwrap();
    let (measured_us, source, errors) = plan();
    assert!(measured_us < unmeasured_us / 50.0, "{measured_us} us against {unmeasured_us} us");
    assert_eq!((source.as_str(), errors.as_str()), ("measured", ""));
    assert!(in_words().contains("\nby measured rates; decode at position 2048, "), "{}", in_words());

    fast["decode_bytes_per_s"] = 0.into();
    for damaged in [fast.to_string(), String::new(), "{".to_owned()] {
        std::fs::write(&file, &damaged).unwrap();
        let (us, source, errors) = plan();
        assert_eq!((us, source.as_str()), (unmeasured_us, "typical"), "{damaged:?}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains("devices.json") && errors.contains("devices --measure"), "{errors}");
    }
}

#[test]
fn rates_that_cannot_be_kept_are_shown_before_the_error() {
    let home = fresh_home("blocked");
    // A file stands where a folder belongs.
    std::fs::write(home.join(".cache"), "").unwrap();
    let out = command(&["devices", "--measure"]).env("HOME", &home).output().unwrap();
    let errors = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{errors}");
    let last = errors.lines().last().unwrap();
    assert!(last.starts_with("tandem: error: ") && last.contains("devices.json"), "{errors}");
    assert!(String::from_utf8(out.stdout).unwrap().contains("GB/s"), "{errors}");
}

#[test]
fn kinds_of_cards_that_cannot_be_used_are_named_with_the_reason() {
    let shown = stdout(&["devices"]);
    let report = parsed(&stdout(&["devices", "--json"]));
    let line = shown.lines().find(|l| l.starts_with("hip")).unwrap();
    assert!(line.contains("not usable") && line.contains("virtual cards"), "{line}");
    assert_eq!(report["hip"]["usable"], false);
    // Where there is a driver, each card is named; where there is none, that is the reason.
    assert!(shown.lines().any(|l| l.starts_with("cuda")), "{shown}");
    if report["cuda"]["usable"] == false {
        let reason = report["cuda"]["reason"].as_str().unwrap();
        assert!(!reason.is_empty() && shown.contains(reason), "{reason}: {shown}");
    }
    assert!(report["cpu"]["cpus"].as_u64().unwrap() >= 1);
    assert!(report["cpu"]["available_bytes"].as_u64().unwrap() > 1 << 20);
}

#[test]
fn every_schedule_of_a_simulation_is_one_line() {
    let seeds = ["sim", "--seed", "7", "--schedules", "5"];
    let shown = stdout(&seeds);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 6, "{shown}");
    assert!(
        lines[5].starts_with("5 schedules from seed 7: ") && lines[5].ends_with("nothing wrong"),
        "{shown}"
    );
    let reports = stdout(&[&seeds[..], &["--json"]].concat());
    let reports: Vec<Value> = reports.lines().map(parsed).collect();
    assert_eq!(reports.len(), 5);
    for ((seed, line), report) in (7..).zip(&lines).zip(&reports) {
        assert!(line.starts_with(&format!("seed {seed}: ")), "{line}");
        assert_eq!((&report["seed"], &report["violations"]), (&json!(seed), &json!([])));
        assert!(line.contains(&format!("{} tokens", report["tokens"])), "{line}: {report}");
        assert_eq!(parsed(&stdout(&["sim", "--json", "--seed", &seed.to_string()])), *report, "alone");
    }
    let last = stdout(&["sim", "--seed", "18446744073709551615"]);
    assert!(last.starts_with("seed 18446744073709551615: "), "the largest seed runs: {last}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    // More than a pipe holds, so that the program meets the closed end.
    let full = stdout(&["sim", "--schedules", "500", "--json"]);
    assert!(full.len() > 80_000, "{} B", full.len());
    let mut command = command(&["sim", "--schedules", "500", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), String::from_utf8(out.stderr).unwrap()), (Some(0), String::new()));
}

/// The signals that a process handles.
#[cfg(target_os = "linux")]
fn handled(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let bits = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(bits.trim(), 16).unwrap()
}

/// The program once it handles signals.
#[cfg(target_os = "linux")]
fn handling(mut command: Command) -> Child {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Signal 2, which is handled last, is bit 1.
    while handled(child.id()) & 2 == 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child
}

#[cfg(target_os = "linux")]
fn send(signal: &str, child: &Child) {
    let kill = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
}

/// The exit code of a program that is about to end.
#[cfg(target_os = "linux")]
fn ended(mut child: Child) -> Option<i32> {
    for _ in 0..600 {
        if let Some(ended) = child.try_wait().unwrap() {
            return ended.code();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("it did not end within 30 s");
}

/// SIGINT for a program that handles it and waits `wait_ms`; its exit code.
#[cfg(target_os = "linux")]
fn interrupted(command: Command, wait_ms: u64) -> Option<i32> {
    let child = handling(command);
    std::thread::sleep(std::time::Duration::from_millis(wait_ms));
    send("-INT", &child);
    ended(child)
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_ends_whatever_runs() {
    // Nothing has been typed yet.
    let mut reading = command(&["generate", "--prompt-file", "-"]);
    reading.stdin(Stdio::piped());
    assert_eq!(interrupted(reading, 0), Some(130));
    // The float path takes minutes for such a chunk; several sequences, and more repetitions behind the first.
    let slow = ["bench", "--cpu-tier", "plain", "--activations", "f32", "--threads", "1"];
    let chunk = ["--pp", "4000", "--tg", "90", "--chunk", "4096"];
    let together = [&chunk[..], &["--sequences", "3"]].concat();
    for what in [&chunk[..], &together, &["--pp", "1", "--reps", "100000"]] {
        let arguments = [&slow[..], what].concat();
        assert_eq!(interrupted(command(&arguments), 700), Some(130), "{arguments:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_leaves_no_half_of_a_file() {
    let folder = fresh_home("signals");
    let out = folder.join("large.gguf");
    // It would take seconds.
    let synth = ["synth", "--like", "qwen3-30b-a3b", "--layers", "8", "--out", out.to_str().unwrap()];
    let files = || std::fs::read_dir(&folder).unwrap().count();
    let begun = |child: &mut Child| {
        while files() == 0 {
            assert_eq!(child.try_wait().unwrap(), None, "it ended before its file began");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    // Tests that nohup started hand on that it is ignored, which a shell shows.
    let shell = Command::new("sh").args(["-c", "kill -HUP $$"]).status().unwrap();
    let hangs_up = shell.code().is_none();
    let ending = [("-INT", 130), ("-TERM", 143), ("-HUP", 129)];
    for (signal, code) in ending.into_iter().filter(|(signal, _)| hangs_up || *signal != "-HUP") {
        let mut child = handling(command(&synth));
        begun(&mut child);
        send(signal, &child);
        assert_eq!((ended(child), files()), (Some(code), 0), "{signal}");
    }
    // As nohup starts it: its terminal may go.
    let mut quiet = Command::new("sh");
    let words =
        [&["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tandem")], &synth[..]].concat();
    quiet.args(words).env("HOME", fresh_home("signals-home"));
    let mut child = handling(quiet);
    begun(&mut child);
    send("-HUP", &child);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!((child.try_wait().unwrap(), files()), (None, 1), "SIGHUP is ignored");
    send("-TERM", &child);
    assert_eq!((ended(child), files()), (Some(143), 0));
}

#[cfg(unix)]
#[test]
fn results_replace_only_regular_files_that_are_no_input() {
    let folder = fresh_home("results");
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let sets = std::fs::read_dir(support::in_repository("models")).unwrap();
    let parts: Vec<PathBuf> = sets.map(|e| e.unwrap().path()).collect();
    let parts =
        parts.iter().filter(|p| p.file_name().unwrap().to_str().unwrap().starts_with("split-rand-llama"));
    let mut names: Vec<String> = Vec::new();
    for part in parts {
        names.push(part.file_name().unwrap().to_str().unwrap().to_owned());
        std::fs::copy(part, at(names.last().unwrap())).unwrap();
    }
    names.sort();
    let model = at(&names[0]);
    let logits =
        |out: &str| ["logits", "--model", &model, "--tokens", "1,2", "--out", out].map(str::to_owned);
    for name in &names {
        let before = std::fs::metadata(at(name)).unwrap().len();
        refused(&logits(&at(name)).each_ref().map(String::as_str), &["--out", name, "reads"]);
        assert_eq!(std::fs::metadata(at(name)).unwrap().len(), before);
    }
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    refused(&logits(&at("socket")).each_ref().map(String::as_str), &["--out", "not a regular file"]);
    std::fs::write(at("result.part"), b"a file of the user's").unwrap();
    stdout(&logits(&at("result")).each_ref().map(String::as_str));
    assert_eq!(std::fs::read(at("result.part")).unwrap(), b"a file of the user's");
    // The model's files, the socket, both files of the user.
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), names.len() + 3);
}

#[test]
fn a_plan_of_float_products_says_that_its_prediction_does_not_hold() {
    let said = "do not hold: --activations f32";
    let at = |activations: &str| stdout(&["plan", "--activations", activations]);
    assert!(at("f32").contains(said) && !at("int8").contains(said), "{}", at("f32"));
    let plan = parsed(&stdout(&["plan", "--json", "--activations", "f32"]));
    assert_eq!(plan["predicted"]["float_products"], true, "{plan}");
    // Weights without 8-bit images are multiplied with floats either way.
    let home = fresh_home("floats");
    let out = home.join("m.gguf").to_str().unwrap().to_owned();
    at_home(&home, &["synth", "--like", "bench-1024", "--layers", "1", "--quant", "f32", "--out", &out]);
    assert!(!stdout(&["plan", "--model", &out, "--activations", "f32"]).contains(said));
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_bench_reads_as_many_ids_of_a_file_as_it_says() {
    let bench = |ids: &str| {
        let path = temporary("bench-ids", ids.as_bytes()).to_str().unwrap().to_owned();
        let counts = ["--depth", "2", "--pp", "3", "--tg", "2", "--reps", "1"];
        [&["bench", "--tokens-file", &path][..], &counts].concat().iter().map(|a| a.to_string()).collect()
    };
    let few: Vec<String> = bench("1 2 3 4 5 6");
    let few: Vec<&str> = few.iter().map(String::as_str).collect();
    refused(&few, &["holds 6 ids, --depth, --pp and --tg need 7"]);
    let enough: Vec<String> = bench("1 2 3 4 5 6 7");
    let enough: Vec<&str> = enough.iter().map(String::as_str).collect();
    // The plan comes first.
    let said = stdout(&enough);
    assert!(
        said.starts_with("card ") && said.contains("\nprompt 3: ") && said.contains("\ndecode 2: "),
        "{said}"
    );
}

#[test]
fn a_prompt_that_cannot_fit_is_refused_before_a_template_works_on_it() {
    let path = temporary("long-prompt", "word ".repeat(1 << 20).as_bytes()).to_str().unwrap().to_owned();
    for more in [&[][..], &["--chat"]] {
        refused(
            &[&["generate", "--prompt-file", &path][..], more].concat(),
            &["more than 4096 tokens", "--ctx"],
        );
    }
}

#[test]
fn lines_of_the_log_are_not_glued_to_a_text_on_a_terminal() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&keyboard).unwrap();
    unlockpt(&keyboard).unwrap();
    let name = ptsname(&keyboard, Vec::new()).unwrap().into_string().unwrap();
    let screen = || std::fs::OpenOptions::new().read(true).write(true).open(&name).unwrap();
    let mut command = command(&["generate", "--prompt", "Vectors are", "--max-tokens", "8"]);
    command.env("RUST_LOG", "info").stdout(screen()).stderr(screen());
    let mut child = command.spawn().unwrap();
    // With the command go this process's sides of the screen: then the program's end ends what is read.
    drop(command);
    let (mut shown, mut keyboard) = (Vec::new(), std::fs::File::from(keyboard));
    // A terminal that nobody shows any more is read as an error.
    let _ = std::io::Read::read_to_end(&mut keyboard, &mut shown);
    assert!(child.wait().unwrap().success());
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("a request ended"), "{shown}");
    for (at, _) in shown.match_indices("tandem: info: ") {
        assert!(at == 0 || shown[..at].ends_with('\n'), "{shown}");
    }
}

#[test]
fn a_flag_is_no_text_and_a_text_that_begins_like_one_goes_behind_an_equals_sign() {
    let wrong = |arguments: &[&str], parts: &[&str]| {
        let out = tandem(arguments);
        let errors = String::from_utf8(out.stderr).unwrap();
        assert_eq!((out.status.code(), errors.lines().count()), (Some(2), 1), "{errors}");
        assert!(parts.iter().all(|part| errors.contains(part)), "{arguments:?}: {errors}");
    };
    let no_value = |flag: &str| format!("a value is required for '{flag} <TEXT>'");
    wrong(&["generate", "-p", "-n", "20"], &[&no_value("--prompt"), "behind `=`: '-p=-n'"]);
    wrong(&["--prompt", "--json"], &[&no_value("--prompt"), "behind `=`: '--prompt=--json'"]);
    wrong(&["-p", "x", "--stop", "-n", "3"], &[&no_value("--stop"), "behind `=`: '--stop=-n'"]);
    wrong(&["tokenize", "--text", "- a list"], &["behind `=`: '--text=- a list'"]);
    let ids = stdout(&["tokenize", "--json", "--text=-n"]);
    for flag in ["-p=-n", "--prompt=-n"] {
        let answer = parsed(&stdout(&["generate", flag, "--max-tokens", "1", "--json"]));
        assert_eq!(answer["prompt_tokens"], parsed(&ids).as_array().unwrap().len(), "{flag}: {answer}");
    }
}

#[test]
fn wrong_command_lines_are_one_line_with_exit_2() {
    for arguments in [&["--nonsense"][..], &["logits"], &["plan", "--ctx", "many"], &["nothing"]] {
        let out = tandem(arguments);
        let errors = String::from_utf8(out.stderr).unwrap();
        assert_eq!((out.status.code(), errors.lines().count()), (Some(2), 1), "{errors}");
        assert!(errors.starts_with("tandem: error: "), "{errors}");
    }
    for (arguments, part) in [
        (&["sim", "--seed", "x"][..], "'x' for '--seed <N>': not a whole number;"),
        (&["sim", "--seed", "99999999999999999999"], "the number is too large;"),
        (&["generate", "--temperature", "warm"], "not a number;"),
        (&["plan", "--force-fault", "lost-card:x"], "write lost-card:1;"),
    ] {
        let out = tandem(arguments);
        let errors = String::from_utf8(out.stderr).unwrap();
        assert_eq!((out.status.code(), errors.lines().count()), (Some(2), 1), "{errors}");
        assert!(errors.contains(part), "{part}: {errors}");
    }
    // Flags without a command are those of `generate`.
    let prompt = ["--prompt", "SELECT", "--max-tokens", "4"];
    assert_eq!(stdout(&prompt), stdout(&[&["generate"][..], &prompt].concat()));
}

#[test]
fn random_models_of_a_geometry_run_like_the_real_ones() {
    let folder = fresh_home("synth");
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let mut made = Vec::new();
    for (name, arguments) in [
        (
            "small.gguf",
            &["--like", "qwen3-30b-a3b", "--layers", "1", "--experts", "2", "--quant", "iq3_s"][..],
        ),
        ("like.gguf", &["--like", "models/rand-qwen3moe.gguf", "--layers", "5", "--experts", "6"]),
        ("same.gguf", &["--like", "models/split-rand-llama-00001-of-00004.gguf", "--quant", "Q8_0"]),
    ] {
        let out = at(name);
        stdout(&[&["synth"][..], arguments, &["--out", &out]].concat());
        let first = std::fs::read(&out).unwrap();
        // Threads do not show, seeds do.
        stdout(&[&["synth", "--force"][..], arguments, &["--out", &out]].concat());
        assert!(std::fs::read(&out).unwrap() == first, "{name}");
        stdout(
            &[&["synth", "--force", "--seed", "2"][..], arguments, &["--out", &at("other.gguf")]].concat(),
        );
        assert!(std::fs::read(at("other.gguf")).unwrap() != first, "{name}");
        let text =
            parsed(&stdout(&["generate", "--model", &out, "--prompt", "that was", "-n", "3", "--json"]));
        assert_eq!(text["tokens"].as_array().unwrap().len(), 3, "{name}: {text}");
        made.push(parsed(&stdout(&["inspect", "--model", &out, "--json"])));
    }
    let facts = |i: usize| &made[i]["facts"];
    assert_eq!((&facts(0)["layers"], &facts(0)["embedding"]), (&json!(1), &json!(2048)), "{}", facts(0));
    assert_eq!((&facts(1)["layers"], &facts(1)["experts"]), (&json!(5), &json!(6)), "{}", facts(1));
    let refuse = |arguments: &[&str], parts: &[&str]| refused(&[&["synth"][..], arguments].concat(), parts);
    refuse(&["--like", "gpt-9", "--out", &at("x")], &["gpt-9", "qwen3-30b-a3b"]);
    refuse(&["--like", "llama-8b", "--quant", "q9", "--out", &at("x")], &["q9", "q4_k"]);
    refuse(&["--like", "llama-8b", "--experts", "4", "--out", &at("x")], &["--experts"]);
    refuse(&["--like", "llama-8b", "--layers", "0", "--out", &at("x")], &["--layers", "1 to"]);
    // More bytes than any disk has.
    let vast = ["--like", "qwen3-235b-a22b", "--layers", "1024", "--experts", "65536", "--quant", "f32"];
    refuse(&[&vast[..], &["--out", &at("x")]].concat(), &["--out", "TiB", "free"]);
    assert!(!folder.join("x").exists());
}

#[test]
fn a_random_model_says_its_size_beforehand_and_what_has_another_type() {
    let folder = fresh_home("synth-sizes");
    let out = folder.join("m.gguf").to_str().unwrap().to_owned();
    let (_, said) = at_home(&folder, &["synth", "--like", "smollm2-135m", "--layers", "1", "--out", &out]);
    let lines: Vec<&str> = said.lines().collect();
    let [before, .., after] = lines.as_slice() else { panic!("{said}") };
    let shown = stdout(&["inspect", "--model", &out]);
    let size = shown.lines().next().unwrap().rsplit_once(" (").unwrap().1.trim_end_matches(')');
    assert_eq!(*before, format!("{out}: {size} to write"));
    assert!(after.ends_with(&format!(" parameters, {size}")), "{after} {size}");
    // The table, which is the head too, is asked for as q6_k; of the layer's matrices only `down` has rows of 1,536.
    let others = &lines[1..lines.len() - 1];
    assert_eq!(others.len(), 2, "{said}");
    for (line, asked) in others.iter().zip(["q6_k", "q4_k"]) {
        let end = format!(" as q8_0 in place of {asked}, for rows of 576 values are no whole blocks");
        assert!(line.ends_with(&end), "{line}");
    }
}

#[test]
fn a_model_file_is_replaced_only_with_force() {
    let folder = fresh_home("force");
    let model = folder.join("a.gguf");
    std::fs::copy(support::in_repository("models/rand-llama.gguf"), &model).unwrap();
    let before = std::fs::read(&model).unwrap();
    let out = model.to_str().unwrap();
    let synth = ["synth", "--like", "models/rand-qwen3moe.gguf", "--layers", "1", "--out", out];
    let logits = ["logits", "--tokens", "1", "--out", out];
    for arguments in [&synth[..], &logits] {
        refused(arguments, &["--out", "a.gguf", "--force"]);
        assert!(std::fs::read(&model).unwrap() == before);
    }
    stdout(&[&synth[..], &["--force"]].concat());
    assert!(std::fs::read(&model).unwrap() != before);
    stdout(&[&logits[..], &["--force"]].concat());
    assert!(std::fs::read(&model).unwrap().starts_with(b"\x93NUMPY"));
}

#[test]
fn text_of_others_in_an_error_stays_on_its_line() {
    for arguments in [&["plan", "--model", "no\nsuch\u{1b}[31m"][..], &["plan", "--gpus", "a\nb"]] {
        let out = tandem(arguments);
        let errors = String::from_utf8(out.stderr).unwrap();
        assert_eq!((out.status.code(), errors.lines().count()), (Some(1), 1), "{errors}");
        assert!(errors.contains("\\n") && !errors.contains('\u{1b}'), "{errors:?}");
    }
}

#[test]
fn a_bench_makes_the_passes_that_it_counts() {
    let sizes = ["--pp", "600", "--tg", "1", "--chunk", "700", "--gpus", "cpu:1"];
    let model = ["--model", "models/rand-llama.gguf"];
    let shown = stdout(&[&["bench"][..], &model, &sizes, &["--reps", "2"]].concat());
    assert!(shown.contains(" tok/s (median of 2, "), "{shown}");
    let report = parsed(&stdout(&[&["bench", "--json", "--reps", "1"][..], &model, &sizes].concat()));
    // Whoever hears of the prompt's end may hear of it behind the pass.
    let hand_offs = |phase: &str| report[phase][0]["hand_offs"].as_u64().unwrap();
    assert_eq!(hand_offs("prompt_stages") + hand_offs("stages"), 2, "one chunk, one pass: {report}");
    assert!(report["decode_tok_s"].as_f64().unwrap() > 0.0, "{report}");
}
