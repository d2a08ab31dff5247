//! Metadata that contradict themselves: checks that need no knowledge of a model family.
//!
//! Invariant: a directory that passes names its architecture, is a model, its vocabulary arrays have one length, its
//! special tokens exist, and its layer, head and expert numbers are sane.
//! Does not know: shapes of tensors and which keys a family requires (`model/arch/`). Source: gguf section 5.

use std::ops::RangeInclusive;

use super::error::GgufError;
use super::metadata::{Metadata, Value};

const LAYERS: RangeInclusive<u32> = 1..=1024;
const HEADS: RangeInclusive<u32> = 1..=65536;
/// Heads of a layer's list: 0 where the layer has no attention.
const LISTED_HEADS: RangeInclusive<u32> = 0..=65536;
/// 0 where the model has no experts.
const EXPERTS: RangeInclusive<u32> = 0..=65536;
const ROPE_VALUES: RangeInclusive<u32> = 1..=65536;
const SPLIT_FILES: RangeInclusive<u32> = 0..=9999;

/// Refuses contradictions.
pub(super) fn check(metadata: &Metadata) -> Result<(), GgufError> {
    within(metadata, "split.count", &SPLIT_FILES)?;
    if let Some(found) = metadata.str("general.type")?
        && found != "model"
    {
        return Err(GgufError::NotAModel { found: found.to_owned() });
    }
    check_vocabulary(metadata)?;
    match metadata.str("general.architecture")? {
        Some(architecture) if !architecture.is_empty() => check_numbers(metadata, architecture),
        // The later files of a split set carry nothing but the split keys.
        None if metadata.u32("split.no")?.unwrap_or(0) > 0 => Ok(()),
        _ => Err(GgufError::NoArchitecture),
    }
}

fn check_vocabulary(metadata: &Metadata) -> Result<(), GgufError> {
    let Some(tokens) = metadata.strings("tokenizer.ggml.tokens")? else { return Ok(()) };
    for key in ["tokenizer.ggml.scores", "tokenizer.ggml.token_type"] {
        let Some(value) = metadata.get(key) else { continue };
        if value.array_len() != Some(tokens.len()) {
            let found = value.array_len().map_or(value.type_name().to_owned(), |n| format!("{n} values"));
            let expected = format!("one for each of the {} tokens", tokens.len());
            return Err(GgufError::KeyValue { key: key.to_owned(), found, expected });
        }
    }
    let special = |key: &str| key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id");
    for (key, value) in metadata.iter().filter(|(key, _)| special(key)) {
        match value.integer() {
            Some(id) if id >= 0 && id < tokens.len() as i128 => {}
            Some(id) => {
                let expected = format!("an id below {}, the number of tokens", tokens.len());
                return Err(GgufError::KeyValue { key: key.to_owned(), found: id.to_string(), expected });
            }
            None => {
                let (expected, found) = ("u32", value.type_name());
                return Err(GgufError::KeyType { key: key.to_owned(), expected, found });
            }
        }
    }
    Ok(())
}

fn check_numbers(metadata: &Metadata, architecture: &str) -> Result<(), GgufError> {
    let key = |name: &str| format!("{architecture}.{name}");
    within(metadata, &key("block_count"), &LAYERS)?;
    within(metadata, &key("rope.dimension_count"), &ROPE_VALUES)?;
    let experts = within(metadata, &key("expert_count"), &EXPERTS)?;
    let used = within(metadata, &key("expert_used_count"), &EXPERTS)?;
    if let (Some(experts), Some(used)) = (experts, used)
        && used > experts
    {
        let expected = format!("at most {experts}, the number of experts");
        return Err(GgufError::KeyValue { key: key("expert_used_count"), found: used.to_string(), expected });
    }
    let query = heads(metadata, &key("attention.head_count"))?;
    let kv = heads(metadata, &key("attention.head_count_kv"))?;
    let (Some(query), Some(kv)) = (query, kv) else { return Ok(()) };
    let at =
        |list: &[u32], layer: usize| if list.len() == 1 { Some(list[0]) } else { list.get(layer).copied() };
    for layer in 0..query.len().max(kv.len()) {
        // A list that ends early is the family's to refuse: it knows the number of layers.
        let (Some(q), Some(kv)) = (at(&query, layer), at(&kv, layer)) else { break };
        if kv > 0 && q % kv != 0 {
            let expected = format!("a divisor of the {q} query heads of layer {layer}");
            let key = key("attention.head_count_kv");
            return Err(GgufError::KeyValue { key, found: kv.to_string(), expected });
        }
    }
    Ok(())
}

/// One number of heads, or one a layer.
fn heads(metadata: &Metadata, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
    let listed = metadata.get(key).is_some_and(|v: &Value| v.array_len().is_some());
    let range = if listed { LISTED_HEADS } else { HEADS };
    let Some(heads) = metadata.u32s(key)? else { return Ok(None) };
    match heads.iter().find(|n| !range.contains(n)) {
        Some(found) => Err(outside(key, *found, &range)),
        None => Ok(Some(heads)),
    }
}

fn within(metadata: &Metadata, key: &str, range: &RangeInclusive<u32>) -> Result<Option<u32>, GgufError> {
    match metadata.u32(key)? {
        Some(found) if !range.contains(&found) => Err(outside(key, found, range)),
        found => Ok(found),
    }
}

fn outside(key: &str, found: u32, range: &RangeInclusive<u32>) -> GgufError {
    let expected = format!("{} to {}", range.start(), range.end());
    GgufError::KeyValue { key: key.to_owned(), found: found.to_string(), expected }
}
