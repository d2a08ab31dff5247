//! `tandem inspect`: what a model file holds.
//!
//! Invariant: a file that cannot run here is shown all the same, with the reason.

use std::collections::BTreeMap;
use std::io::Write as _;

use serde_json::json;

use super::args::InspectArgs;
use crate::gguf::File;
use crate::model::arch;
use crate::split::budget::format_bytes;

/// Runs the command.
pub(super) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let file = File::open(&args.model.model)?;
    let meta = file.metadata();
    let mut types: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for t in file.tensors() {
        let (count, bytes) = types.entry(t.ty.name()).or_default();
        *count += 1;
        *bytes += t.byte_len;
    }
    let architecture = file.architecture();
    let number = |key: &str| meta.get(&format!("{architecture}.{key}")).and_then(|v| v.integer());
    let support = match arch::program(&file) {
        Ok(_) => "yes".to_owned(),
        Err(error) => format!("no: {error}"),
    };
    let tokens = meta.strings("tokenizer.ggml.tokens")?.map_or(0, <[String]>::len);
    let facts: Vec<(&str, Option<String>)> = vec![
        ("name", meta.str("general.name")?.map(str::to_owned)),
        ("architecture", Some(architecture.to_owned())),
        ("runs here", Some(support)),
        ("layers", number("block_count").map(|v| v.to_string())),
        ("embedding", number("embedding_length").map(|v| v.to_string())),
        ("context", number("context_length").map(|v| v.to_string())),
        ("experts", number("expert_count").filter(|v| *v > 0).map(|v| v.to_string())),
        ("experts used", number("expert_used_count").filter(|v| *v > 0).map(|v| v.to_string())),
        ("tokenizer", meta.str("tokenizer.ggml.model")?.map(str::to_owned)),
        ("pre-tokenizer", meta.str("tokenizer.ggml.pre")?.map(str::to_owned)),
        ("tokens", Some(tokens.to_string())),
        (
            "chat template",
            Some(if meta.get("tokenizer.chat_template").is_some() { "yes" } else { "no" }.to_owned()),
        ),
    ];
    let mut out = std::io::stdout().lock();
    if args.json {
        let facts: serde_json::Map<_, _> = facts
            .iter()
            .filter_map(|(k, v)| v.clone().map(|v| (k.replace([' ', '-'], "_"), json!(v))))
            .collect();
        let types: Vec<_> =
            types.iter().map(|(ty, (n, b))| json!({"type": ty, "tensors": n, "bytes": b})).collect();
        let mut report = json!({
            "file": file.path().display().to_string(),
            "bytes": file.file_bytes(),
            "facts": facts,
            "types": types,
        });
        if args.tensors {
            let one = |t: &crate::gguf::TensorInfo| json!({"name": t.name, "type": t.ty, "dims": t.dims[..t.n_dims], "bytes": t.byte_len});
            report["tensors"] = file.tensors().iter().map(one).collect();
        }
        writeln!(out, "{report}")?;
        return Ok(());
    }
    writeln!(out, "{} ({})", file.path().display(), format_bytes(file.file_bytes()))?;
    for (key, value) in facts {
        if let Some(value) = value {
            writeln!(out, "  {key:<14} {value}")?;
        }
    }
    writeln!(out, "  {} tensors", file.tensors().len())?;
    for (ty, (count, bytes)) in types {
        writeln!(out, "  {ty:>8} {count:>6} tensors {:>10}", format_bytes(bytes))?;
    }
    if args.tensors {
        for t in file.tensors() {
            let dims: Vec<String> = t.dims[..t.n_dims].iter().map(u64::to_string).collect();
            writeln!(out, "  {:>8} {:>24} {}", t.ty.name(), format!("{{{}}}", dims.join(", ")), t.name)?;
        }
    }
    Ok(())
}
