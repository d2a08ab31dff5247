//! The head of a GGUF file (version 3): counts, keys and values, tensor infos, padding.
//!
//! Invariant: what [`head`] writes the reader accepts, with every tensor at the place that [`Layout`] says.
//! Does not know: where the bytes of tensors come from. Source: gguf sections 1 and 2.

use super::MAGIC;
use super::metadata::{Metadata, Value};
use super::tensor_type::TensorType;

/// Places of tensors are multiples of this, the format's default.
const ALIGNMENT: u64 = 32;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the file.
    pub name: String,
    /// Block format.
    pub ty: TensorType,
    /// Fastest first; one to three.
    pub dims: Vec<u64>,
}

impl TensorSpec {
    /// Values of a row.
    pub fn cols(&self) -> usize {
        self.dims.first().map_or(0, |&n| n as usize)
    }

    /// Rows of all its matrices.
    pub fn rows(&self) -> u64 {
        self.dims.iter().skip(1).product()
    }

    /// Its bytes. Rows must be whole blocks.
    pub fn bytes(&self) -> u64 {
        self.ty.row_bytes(self.cols()) as u64 * self.rows()
    }
}

/// Where each tensor begins behind the head, and how long the file is without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// By tensor, from the end of the head.
    pub offsets: Vec<u64>,
    /// Behind the last tensor's padding.
    pub data_bytes: u64,
}

impl Layout {
    /// One after another, each padded.
    pub fn of(tensors: &[TensorSpec]) -> Layout {
        let mut end = 0u64;
        let place = |t: &TensorSpec| {
            let offset = end;
            end = (end + t.bytes()).next_multiple_of(ALIGNMENT);
            offset
        };
        let offsets = tensors.iter().map(place).collect();
        Layout { offsets, data_bytes: end }
    }
}

/// The bytes in front of the tensors.
pub fn head(metadata: &Metadata, tensors: &[TensorSpec], layout: &Layout) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        string(&mut out, key);
        out.extend(value.type_id().to_le_bytes());
        put_value(&mut out, value);
    }
    for (tensor, offset) in tensors.iter().zip(&layout.offsets) {
        string(&mut out, &tensor.name);
        out.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|n| out.extend(n.to_le_bytes()));
        out.extend(tensor.ty.id().to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
    out
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Of an array: element type, count, elements.
macro_rules! array {
    ($out:ident, $id:expr, $values:ident) => {{
        $out.extend(u32::to_le_bytes($id));
        $out.extend(($values.len() as u64).to_le_bytes());
        $values.iter().for_each(|v| $out.extend(v.to_le_bytes()));
    }};
}

impl Value {
    /// The format's number of the type.
    fn type_id(&self) -> u32 {
        self.element_id().unwrap_or(ARRAY)
    }

    /// The same of a scalar; `None` for an array.
    fn element_id(&self) -> Option<u32> {
        Some(match self {
            Value::U8(_) => 0,
            Value::I8(_) => 1,
            Value::U16(_) => 2,
            Value::I16(_) => 3,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::String(_) => 8,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
            _ => return None,
        })
    }
}

const ARRAY: u32 = 9;

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => string(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
        Value::U8s(v) => array!(out, 0, v),
        Value::I8s(v) => array!(out, 1, v),
        Value::U16s(v) => array!(out, 2, v),
        Value::I16s(v) => array!(out, 3, v),
        Value::U32s(v) => array!(out, 4, v),
        Value::I32s(v) => array!(out, 5, v),
        Value::F32s(v) => array!(out, 6, v),
        Value::U64s(v) => array!(out, 10, v),
        Value::I64s(v) => array!(out, 11, v),
        Value::F64s(v) => array!(out, 12, v),
        Value::Bools(v) => {
            out.extend(7u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            out.extend(v.iter().map(|&b| u8::from(b)));
        }
        Value::Strings(v) => {
            out.extend(8u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|text| string(out, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::reader;

    #[test]
    fn what_is_written_is_read_back() {
        let mut metadata = Metadata::default();
        metadata.insert("general.architecture".into(), Value::String("llama".into()));
        let values = [
            Value::U8(200),
            Value::I8(-3),
            Value::U16(60_000),
            Value::I16(-30_000),
            Value::U32(4_000_000_000),
            Value::I32(-7),
            Value::U64(1 << 60),
            Value::I64(-(1 << 60)),
            Value::F32(1.5),
            Value::F64(-2.25),
            Value::Bool(true),
            Value::String("a text, ü".into()),
            Value::U8s(vec![1, 2]),
            Value::I8s(vec![-1]),
            Value::U16s(vec![7]),
            Value::I16s(vec![-7, 8]),
            Value::U32s(vec![9; 3]),
            Value::I32s(vec![-9]),
            Value::U64s(vec![1 << 40]),
            Value::I64s(vec![-1]),
            Value::F32s(vec![0.5, 0.25]),
            Value::F64s(vec![1e300]),
            Value::Bools(vec![true, false]),
            Value::Strings(vec!["one".into(), String::new()]),
        ];
        for (i, value) in values.iter().enumerate() {
            assert!(metadata.insert(format!("key.{i}"), value.clone()));
        }
        let tensor = |name: &str, ty, dims: &[u64]| TensorSpec { name: name.into(), ty, dims: dims.to_vec() };
        let tensors = [
            tensor("norm", TensorType::F32, &[3]),
            tensor("matrix", TensorType::Q4_0, &[64, 5]),
            tensor("experts", TensorType::Q6_K, &[256, 2, 3]),
        ];
        let layout = Layout::of(&tensors);
        let head = head(&metadata, &tensors, &layout);
        let mut file = head.clone();
        file.resize(head.len() + layout.data_bytes as usize, 1);
        let read = reader::parse(&file).unwrap();
        for (i, value) in values.iter().enumerate() {
            assert_eq!(read.metadata.get(&format!("key.{i}")), Some(value));
        }
        for ((spec, offset), info) in tensors.iter().zip(&layout.offsets).zip(&read.tensors) {
            assert_eq!((spec.name.as_str(), spec.ty), (info.name.as_str(), info.ty));
            assert_eq!((head.len() as u64 + offset, spec.bytes()), (info.offset, info.byte_len));
        }
    }
}
