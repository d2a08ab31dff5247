//! The geometry of a model file: its keys and its tensors, with other layers, experts or types.
//!
//! Invariant: keys and tensors that are not changed are those of the file, the tokenizer's among them.
//! Does not know: what a family computes; a tensor of a layer is one whose name begins with `blk.`.

use super::{Blueprint, Changes, Fill, Planned, SynthError, head_type, matrix_fill, matrix_type};
use crate::gguf::writer::TensorSpec;
use crate::gguf::{File, Metadata, TensorInfo, TensorType, Value};

/// A file like `file`. More layers than it has repeat its layers from the first on.
pub fn like(file: &File, changes: &Changes) -> Result<Blueprint, SynthError> {
    let arch = file.architecture();
    let key = |name: &str| format!("{arch}.{name}");
    let number = |name: &str| file.metadata().u32(&key(name)).ok().flatten().map(|n| n as usize);
    let own_layers = number("block_count").filter(|&n| n > 0);
    let own_layers =
        own_layers.ok_or_else(|| SynthError(format!("--like: the file has no {}", key("block_count"))))?;
    let own_experts = number("expert_count").filter(|&n| n > 0);
    if changes.experts.is_some() && own_experts.is_none() {
        return Err(SynthError("--experts: the file of --like has none; leave it out".to_owned()));
    }
    let layers = changes.layers.unwrap_or(own_layers);
    let experts = own_experts.map(|own| (own, changes.experts.unwrap_or(own)));
    let mut metadata = Metadata::default();
    for (name, value) in file.metadata().iter() {
        // Of a split set this is one file; the type of most tensors may be another now.
        if name.starts_with("split.") || name == "general.file_type" {
            continue;
        }
        let value = match (name, experts) {
            ("general.name", _) => {
                let own = file.metadata().str(name).ok().flatten().unwrap_or("a file");
                Value::String(format!("random weights, geometry of {own}"))
            }
            (name, _) if name == key("block_count") => Value::U32(layers as u32),
            (name, Some((_, count))) if name == key("expert_count") => Value::U32(count as u32),
            (name, Some((_, count))) if name == key("expert_used_count") => {
                let used = number("expert_used_count").unwrap_or(1).min(count);
                Value::U32(used as u32)
            }
            // One value a layer.
            (_, _) if value.array_len() == Some(own_layers) && name.starts_with(arch) => {
                cycled(value, layers)
            }
            _ => value.clone(),
        };
        metadata.insert(name.to_owned(), value);
    }
    let has_head = file.tensor("output.weight").is_some();
    let planned = |t: &TensorInfo, name: String| plan(t, name, changes.quant, experts, has_head);
    let mut tensors: Vec<Planned> = Vec::new();
    for t in file.tensors().iter().filter(|t| layer_of(&t.name).is_none()) {
        tensors.push(planned(t, t.name.clone()));
    }
    for layer in 0..layers {
        let own = file.tensors().iter().filter_map(|t| layer_of(&t.name).map(|(l, rest)| (t, l, rest)));
        for (t, _, rest) in own.filter(|(_, l, _)| *l == layer % own_layers) {
            tensors.push(planned(t, format!("blk.{layer}.{rest}")));
        }
    }
    Ok(Blueprint { metadata, tensors, vocab: None })
}

/// `blk.N.REST`.
fn layer_of(name: &str) -> Option<(usize, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest))
}

fn plan(
    t: &TensorInfo,
    name: String,
    quant: Option<TensorType>,
    experts: Option<(usize, usize)>,
    has_head: bool,
) -> Planned {
    let mut dims: Vec<u64> = t.dims[..t.n_dims].to_vec();
    // Matrices of experts, and the router's rows, one an expert.
    if let Some((own, count)) = experts
        && name.starts_with("blk.")
        && (name.contains("_exps.") || name.contains("ffn_gate_inp."))
        && let Some(last) = dims.last_mut().filter(|n| **n == own as u64)
    {
        *last = count as u64;
    }
    let cols = dims[0];
    let is_head = name == "output.weight" || name == "token_embd.weight" && !has_head;
    let asked = match quant {
        Some(quant) if t.ty.is_quantised() && is_head => head_type(quant),
        Some(quant) if t.ty.is_quantised() => quant,
        _ => t.ty,
    };
    let fill = if name == "token_embd.weight" && has_head {
        Fill::Random(1.0)
    } else if dims.len() > 1 {
        matrix_fill(cols)
    } else if name.ends_with(".bias") {
        Fill::Random(0.01)
    } else {
        Fill::Norm
    };
    Planned { spec: TensorSpec { name, ty: matrix_type(asked, cols), dims }, asked, fill }
}

/// The values of an array around again up to `len`.
fn cycled(value: &Value, len: usize) -> Value {
    fn around<T: Clone>(values: &[T], len: usize) -> Vec<T> {
        values.iter().cycle().take(len).cloned().collect()
    }
    match value {
        Value::U32s(v) => Value::U32s(around(v, len)),
        Value::I32s(v) => Value::I32s(around(v, len)),
        Value::U64s(v) => Value::U64s(around(v, len)),
        Value::F32s(v) => Value::F32s(around(v, len)),
        Value::Bools(v) => Value::Bools(around(v, len)),
        other => other.clone(),
    }
}
