//! `tandem inspect`: what a model file holds.
//!
//! Invariants: no driver is opened; a file that cannot run here is shown all the same, with the reason; nothing of a file reaches the
//! terminal as a control character.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::sync::Arc;

use serde_json::{Value, json};

use super::args::InspectArgs;
use super::load::default_context;
use super::streams::output;
use crate::device::CardError;
use crate::device::cuda::card;
use crate::device::cuda::vendor::Vendor;
use crate::engine::options::EngineOptions;
use crate::gguf::{self, File, TensorInfo};
use crate::model::arch;
use crate::model::facts::StageProgram;
use crate::model::program::Program;
use crate::split::budget::format_bytes;
use crate::text::Vocab;

/// A line of the report: name, value as JSON; lines of a missing value are left out.
type Fact = (&'static str, Option<Value>);

/// Runs the command.
pub(super) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let file = File::open(args.model.path()?)?;
    let mut out = BufWriter::new(output());
    if args.json {
        json_report(&mut out, &file, args.tensors)
    } else {
        text_report(&mut out, &file, args.tensors)
    }?;
    Ok(out.flush()?)
}

/// What the keys of a file say. A key of an unexpected type is shown as missing: the reason why the file cannot run
/// names it.
fn facts(file: &File) -> Vec<Fact> {
    let meta = file.metadata();
    let architecture = file.architecture();
    let text = |key: &str| match meta.get(key) {
        Some(gguf::Value::String(s)) => Some(json!(s)),
        _ => None,
    };
    // Some families write one number for each layer.
    let number = |key: &str| {
        let all = meta.u32s(&format!("{architecture}.{key}")).ok().flatten()?;
        let first = all.first()?;
        Some(if all.iter().all(|v| v == first) { json!(first) } else { json!(all) })
    };
    let count = |key: &str| number(key).filter(|v| *v != json!(0));
    let yes_or_why = |error: Option<String>| json!(error.map_or("yes".to_owned(), |e| format!("no: {e}")));
    let tokens = meta.get("tokenizer.ggml.tokens").and_then(gguf::Value::array_len);
    let parameters: u64 = file.tensors().iter().map(elements).sum();
    let files = meta.u32("split.count").ok().flatten().unwrap_or(0).max(1);
    let program = arch::program(file);
    vec![
        ("name", text("general.name")),
        ("architecture", Some(json!(architecture))),
        ("runs here", Some(yes_or_why(program.as_ref().err().map(ToString::to_string)))),
        ("on GPUs", program.ok().map(|program| json!(on_gpus(program)))),
        ("files", Some(json!(files))),
        ("parameters", Some(json!(parameters))),
        ("layers", number("block_count")),
        ("embedding", number("embedding_length")),
        ("heads", number("attention.head_count")),
        ("kv heads", number("attention.head_count_kv").or_else(|| number("attention.head_count"))),
        ("context", number("context_length")),
        ("experts", count("expert_count")),
        ("experts used", count("expert_used_count")),
        ("tokenizer", text("tokenizer.ggml.model")),
        ("pre-tokenizer", text("tokenizer.ggml.pre")),
        ("reads text", Some(yes_or_why(Vocab::from_metadata(meta).err().map(|e| e.to_string())))),
        ("tokens", Some(json!(tokens.unwrap_or(0)))),
        ("chat template", Some(json!(if text("tokenizer.chat_template").is_some() { "yes" } else { "no" }))),
    ]
}

/// Whether GPUs take the model, which virtual cards run: as a whole, with the context that it gets and with all of its own.
fn on_gpus(program: Program) -> String {
    let (facts, layers) = (program.facts.clone(), 0..program.layers.len());
    let stage = StageProgram { program: Arc::new(program), layers };
    let refusal = |context: usize| {
        let settings = EngineOptions::new(facts.vocab, facts.embedding_width, context).stage_settings();
        // Which maker's card it would be changes nothing.
        match card::check(Vendor::Cuda.card(0), Vendor::Cuda, &stage, &settings) {
            Ok(()) => None,
            Err(CardError::Unsupported { what, .. }) => Some(what),
            Err(error) => Some(error.to_string()),
        }
    };
    let trained = facts.context_length;
    match (refusal(default_context(trained)), refusal(trained)) {
        (Some(what), _) => format!("no: {what}"),
        (None, Some(what)) => format!("yes, without the whole context: {what}"),
        (None, None) => "yes".to_owned(),
    }
}

fn dims(t: &TensorInfo) -> &[u64] {
    &t.dims[..t.n_dims]
}

/// The reader refuses tensors whose elements cannot be counted.
fn elements(t: &TensorInfo) -> u64 {
    dims(t).iter().product()
}

/// Tensors and bytes by type.
fn types(file: &File) -> BTreeMap<&'static str, (usize, u64)> {
    let mut types: BTreeMap<_, (usize, u64)> = BTreeMap::new();
    for t in file.tensors() {
        let (count, bytes) = types.entry(t.ty.name()).or_default();
        *count += 1;
        *bytes += t.byte_len;
    }
    types
}

fn json_report(out: &mut dyn Write, file: &File, lists_tensors: bool) -> anyhow::Result<()> {
    let facts: serde_json::Map<_, _> = facts(file)
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| (name.replace([' ', '-'], "_").to_lowercase(), value)))
        .collect();
    let types: Vec<_> = types(file)
        .into_iter()
        .map(|(ty, (tensors, bytes))| json!({"type": ty, "tensors": tensors, "bytes": bytes}))
        .collect();
    let mut report = json!({
        "file": file.path().display().to_string(),
        "bytes": file.file_bytes(),
        "facts": facts,
        "types": types,
    });
    if lists_tensors {
        let one = |t: &TensorInfo| json!({"name": t.name, "type": t.ty.name(), "dims": dims(t), "bytes": t.byte_len});
        report["tensors"] = file.tensors().iter().map(one).collect();
    }
    Ok(writeln!(out, "{report}")?)
}

fn text_report(out: &mut dyn Write, file: &File, lists_tensors: bool) -> anyhow::Result<()> {
    writeln!(out, "{} ({})", file.path().display(), format_bytes(file.file_bytes()))?;
    for (name, value) in facts(file) {
        match value {
            Some(Value::String(text)) => writeln!(out, "  {name:<14} {}", printable(&text))?,
            Some(value) => writeln!(out, "  {name:<14} {value}")?,
            None => {}
        }
    }
    writeln!(out, "  {} tensors", file.tensors().len())?;
    for (ty, (count, bytes)) in types(file) {
        writeln!(out, "  {ty:>8} {count:>6} tensors {:>10}", format_bytes(bytes))?;
    }
    if lists_tensors {
        for t in file.tensors() {
            let dims: Vec<String> = dims(t).iter().map(u64::to_string).collect();
            let dims = format!("{{{}}}", dims.join(", "));
            let bytes = format_bytes(t.byte_len);
            writeln!(out, "  {:>8} {dims:>24} {bytes:>10} {}", t.ty.name(), printable(&t.name))?;
        }
    }
    Ok(())
}

/// Control characters as escapes: a file from anywhere does not move the cursor.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_a_file_are_escaped_and_other_text_is_not() {
        for (text, expected) in [
            ("Qwen3 \"30B\" ü 模型", "Qwen3 \"30B\" ü 模型"),
            ("a\x1b[2Jb\nc", "a\\u{1b}[2Jb\\nc"),
            ("\u{9b}31m", "\\u{9b}31m"),
        ] {
            assert_eq!(printable(text), expected);
        }
    }
}
