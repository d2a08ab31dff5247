//! Reads a file's directory: header, metadata, tensor infos; never tensor data.
//!
//! Invariants: every number is checked against its limit and against the bytes that are left before anything is
//! allocated for it; sums and products are checked; memory stays within a small multiple of the bytes read.
//! Does not know: where bytes come from (any `Read` of known length), split sets, model families.
//! Source: gguf sections 1, 4 and 5.

use std::collections::HashSet;
use std::io::Read;

use super::MAGIC;
use super::consistency;
use super::cursor::{Cursor, Field};
use super::error::GgufError;
use super::metadata::{Metadata, Value};
use super::tensor_type::TensorType;

/// The most that a reader accepts (gguf section 5).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Metadata entries.
    pub keys: u64,
    /// Tensors of a file.
    pub tensors: u64,
    /// Bytes of a key.
    pub key_bytes: u64,
    /// Bytes of a string value.
    pub string_bytes: u64,
    /// Elements of an array.
    pub array_elements: u64,
    /// Bytes of all metadata.
    pub metadata_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            keys: 65536,
            tensors: 1 << 20,
            key_bytes: 65535,
            string_bytes: 64 << 20,
            array_elements: 16 << 20,
            metadata_bytes: 1 << 30,
        }
    }
}

const HEADER_BYTES: u64 = 24;
const ALIGNMENT_DEFAULT: u32 = 32;
const ALIGNMENT_MAX: u32 = 1 << 20;
/// Key length, key of one byte, value type, value of one byte.
const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// Name length, name of one byte, dimension count, one dimension, type, offset.
const INFO_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;
const NAME_BYTES_MAX: u64 = 63;
const DIMENSION_MAX: u64 = 1 << 40;
const ELEMENTS_END: u64 = 1 << 62;

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Unique in the model.
    pub name: String,
    /// Element or block type.
    pub ty: TensorType,
    /// Row length first; dimensions that the file does not list are 1.
    pub dims: [u64; 4],
    /// Dimensions that the file lists.
    pub n_dims: usize,
    /// Which file of the model, from 0.
    pub shard: usize,
    /// First byte, from the start of its file.
    pub offset: u64,
    /// Bytes of all rows.
    pub byte_len: u64,
}

impl TensorInfo {
    /// Values of a row.
    pub fn cols(&self) -> usize {
        self.dims[0] as usize
    }

    /// Rows of a matrix.
    pub fn rows(&self) -> usize {
        self.dims[1] as usize
    }

    /// Matrices one after another (experts).
    pub fn matrices(&self) -> usize {
        (self.dims[2] * self.dims[3]) as usize
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.cols())
    }
}

/// What a file says about itself.
#[derive(Clone, Debug)]
pub struct Directory {
    /// Format version: 2 or 3.
    pub version: u32,
    /// All keys.
    pub metadata: Metadata,
    /// All tensors of this file, in file order; `shard` is 0.
    pub tensors: Vec<TensorInfo>,
    /// First byte of the data section.
    pub data_start: u64,
    /// Of the data section and each tensor.
    pub alignment: u64,
}

/// The directory of a file that is held in memory.
pub fn parse(bytes: &[u8]) -> Result<Directory, GgufError> {
    read(bytes, bytes.len() as u64)
}

/// The directory of a file of `len_bytes`.
pub fn read(source: impl Read, len_bytes: u64) -> Result<Directory, GgufError> {
    read_within(source, len_bytes, &Limits::default())
}

/// The directory of a file of `len_bytes`, with other limits than the usual ones.
pub fn read_within(source: impl Read, len_bytes: u64, limits: &Limits) -> Result<Directory, GgufError> {
    if len_bytes < HEADER_BYTES {
        return Err(GgufError::TooShort { len: len_bytes });
    }
    let mut cursor = Cursor::new(source, len_bytes);
    let version = read_version(&mut cursor)?;
    let tensor_count = cursor.count(Field::Header("tensor count"), limits.tensors, INFO_BYTES_MIN)?;
    let key_count = cursor.count(Field::Header("metadata count"), limits.keys, ENTRY_BYTES_MIN)?;
    let metadata = read_metadata(&mut cursor, key_count, limits)?;
    let alignment = alignment(&metadata)?;
    consistency::check(&metadata)?;
    let tensors = read_infos(&mut cursor, tensor_count)?;
    let data_start = cursor.offset().next_multiple_of(alignment);
    let tensors = place(tensors, data_start, alignment, len_bytes)?;
    Ok(Directory { version, metadata, tensors, data_start, alignment })
}

fn read_version(cursor: &mut Cursor<impl Read>) -> Result<u32, GgufError> {
    let magic = cursor.bytes(Field::Header("magic"))?;
    if magic != MAGIC {
        return Err(GgufError::Magic { found: magic });
    }
    match cursor.u32(Field::Header("version"))? {
        version @ (2 | 3) => Ok(version),
        found if found != 0 && found & 0xffff == 0 => Err(GgufError::BigEndian { found }),
        found => Err(GgufError::Version { found }),
    }
}

fn read_metadata(cursor: &mut Cursor<impl Read>, count: u64, limits: &Limits) -> Result<Metadata, GgufError> {
    let mut metadata = Metadata::default();
    for index in 0..count {
        let offset = cursor.offset();
        let len = cursor.count(Field::Key(index), limits.key_bytes, 1)?;
        if len == 0 {
            return Err(GgufError::EmptyKey { index, offset });
        }
        let key = cursor.text(len, Field::Key(index))?;
        let value = read_value(cursor, &key, limits)?;
        if metadata.get(&key).is_some() {
            return Err(GgufError::DuplicateKey { key, offset });
        }
        metadata.insert(key, value);
    }
    Ok(metadata)
}

fn read_value(cursor: &mut Cursor<impl Read>, key: &str, limits: &Limits) -> Result<Value, GgufError> {
    let field = Field::Value(key);
    // Refused here, before the value is allocated: what follows adds at most what this checks.
    let within = |end: u64, offset: u64| {
        let found = end.saturating_sub(HEADER_BYTES);
        if found > limits.metadata_bytes {
            let (field, limit) = ("metadata bytes".to_owned(), limits.metadata_bytes);
            return Err(GgufError::Limit { field, offset, found, limit });
        }
        Ok(())
    };
    let offset = cursor.offset();
    let id = cursor.u32(field)?;
    within(cursor.offset(), offset)?;
    Ok(match id {
        0 => Value::U8(u8::from_le_bytes(cursor.bytes(field)?)),
        1 => Value::I8(i8::from_le_bytes(cursor.bytes(field)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.bytes(field)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.bytes(field)?)),
        4 => Value::U32(u32::from_le_bytes(cursor.bytes(field)?)),
        5 => Value::I32(i32::from_le_bytes(cursor.bytes(field)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.bytes(field)?)),
        7 => Value::Bool(cursor.bool(key)?),
        8 => {
            let offset = cursor.offset();
            let len = cursor.count(field, limits.string_bytes, 1)?;
            within(cursor.offset() + len, offset)?;
            // Only shown to people: bad bytes in `general.*` are replaced, elsewhere refused.
            if key.starts_with("general.") {
                Value::String(cursor.text_lossy(len)?)
            } else {
                Value::String(cursor.text(len, field)?)
            }
        }
        9 => {
            let offset = cursor.offset();
            let element = cursor.u32(field)?;
            let bytes_min = match element {
                0 | 1 | 7 => 1,
                2 | 3 => 2,
                4..=6 => 4,
                8 | 10..=12 => 8,
                9 => return Err(GgufError::NestedArray { key: key.to_owned(), offset }),
                id => return Err(GgufError::ValueType { key: key.to_owned(), offset, id }),
            };
            let offset = cursor.offset();
            let count = cursor.count(field, limits.array_elements, bytes_min)?;
            within(cursor.offset() + count * bytes_min, offset)?;
            read_array(cursor, key, element, count, limits, &within)?
        }
        10 => Value::U64(u64::from_le_bytes(cursor.bytes(field)?)),
        11 => Value::I64(i64::from_le_bytes(cursor.bytes(field)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.bytes(field)?)),
        id => return Err(GgufError::ValueType { key: key.to_owned(), offset, id }),
    })
}

/// An array whose `count` elements were found to fit the rest of the file.
fn read_array(
    cursor: &mut Cursor<impl Read>,
    key: &str,
    element: u32,
    count: u64,
    limits: &Limits,
    within: &dyn Fn(u64, u64) -> Result<(), GgufError>,
) -> Result<Value, GgufError> {
    let field = Field::Value(key);
    Ok(match element {
        0 => Value::U8s(cursor.array(count, field, u8::from_le_bytes)?),
        1 => Value::I8s(cursor.array(count, field, i8::from_le_bytes)?),
        2 => Value::U16s(cursor.array(count, field, u16::from_le_bytes)?),
        3 => Value::I16s(cursor.array(count, field, i16::from_le_bytes)?),
        4 => Value::U32s(cursor.array(count, field, u32::from_le_bytes)?),
        5 => Value::I32s(cursor.array(count, field, i32::from_le_bytes)?),
        6 => Value::F32s(cursor.array(count, field, f32::from_le_bytes)?),
        7 => Value::Bools((0..count).map(|_| cursor.bool(key)).collect::<Result<_, _>>()?),
        10 => Value::U64s(cursor.array(count, field, u64::from_le_bytes)?),
        11 => Value::I64s(cursor.array(count, field, i64::from_le_bytes)?),
        12 => Value::F64s(cursor.array(count, field, f64::from_le_bytes)?),
        _ => {
            // Exact: the count fits the bytes left, eight for each; growing would hold two copies for a moment.
            let mut strings = Vec::with_capacity(count as usize);
            for index in 0..count {
                let element = Field::Element(key, index);
                let offset = cursor.offset();
                let len = cursor.count(element, limits.string_bytes, 1)?;
                within(cursor.offset() + len, offset)?;
                strings.push(cursor.text(len, element)?);
            }
            Value::Strings(strings)
        }
    })
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    let found = match metadata.get("general.alignment") {
        None => ALIGNMENT_DEFAULT,
        Some(Value::U32(found)) => *found,
        Some(other) => {
            let key = "general.alignment".to_owned();
            return Err(GgufError::KeyType { key, expected: "u32", found: other.type_name() });
        }
    };
    if !found.is_power_of_two() || found > ALIGNMENT_MAX {
        return Err(GgufError::Alignment { found });
    }
    Ok(found.into())
}

/// Tensor infos with offsets as in the file (from the start of the data section).
fn read_infos(cursor: &mut Cursor<impl Read>, count: u64) -> Result<Vec<TensorInfo>, GgufError> {
    let mut tensors = Vec::new();
    for index in 0..count {
        tensors.push(read_info(cursor, index)?);
    }
    let mut names = HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|t| !names.insert(t.name.as_str())) {
        Some(twice) => Err(GgufError::DuplicateTensor { tensor: twice.name.clone() }),
        None => Ok(tensors),
    }
}

fn read_info(cursor: &mut Cursor<impl Read>, index: u64) -> Result<TensorInfo, GgufError> {
    let at = cursor.offset();
    let len = cursor.u64(Field::Tensor(index, "name length"))?;
    if len == 0 || len > NAME_BYTES_MAX {
        return Err(GgufError::TensorName { index, offset: at, len });
    }
    let name = cursor.text(len, Field::Tensor(index, "name"))?;

    let at = cursor.offset();
    let found = cursor.u32(Field::Tensor(index, "dimension count"))?;
    if found == 0 || found > 4 {
        return Err(GgufError::DimensionCount { tensor: name, offset: at, found });
    }
    let n_dims = found as usize;
    let mut dims = [1; 4];
    for (axis, dim) in dims[..n_dims].iter_mut().enumerate() {
        let at = cursor.offset();
        *dim = cursor.u64(Field::Tensor(index, "dimension"))?;
        if *dim == 0 || *dim > DIMENSION_MAX {
            return Err(GgufError::Dimension { tensor: name, axis, offset: at, found: *dim });
        }
    }

    let at = cursor.offset();
    let id = cursor.u32(Field::Tensor(index, "type"))?;
    let ty = match (TensorType::from_id(id), id) {
        (Some(ty), _) => ty,
        (None, 9 | 15) => return Err(GgufError::ActivationType { tensor: name, offset: at, id }),
        (None, 4 | 5 | 31..=33 | 36..=38) => {
            return Err(GgufError::RemovedType { tensor: name, offset: at, id });
        }
        (None, _) => return Err(GgufError::UnknownType { tensor: name, offset: at, id }),
    };
    let block_values = ty.block_values() as u64;
    if dims[0] % block_values != 0 {
        return Err(GgufError::RaggedRow { tensor: name, cols: dims[0], block_values });
    }
    let row_bytes = dims[0] / block_values * ty.block_bytes() as u64;
    let elements = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).filter(|&n| n < ELEMENTS_END);
    let byte_len = dims[1..].iter().try_fold(row_bytes, |n, &d| n.checked_mul(d));
    let (Some(_), Some(byte_len)) = (elements, byte_len) else {
        return Err(GgufError::TensorSize { tensor: name, dims });
    };
    let offset = cursor.u64(Field::Tensor(index, "offset"))?;
    Ok(TensorInfo { name, ty, dims, n_dims, shard: 0, offset, byte_len })
}

/// Checks the layout of the data section and makes offsets count from the start of the file.
fn place(
    mut tensors: Vec<TensorInfo>,
    data_start: u64,
    alignment: u64,
    len: u64,
) -> Result<Vec<TensorInfo>, GgufError> {
    if !tensors.is_empty() && data_start > len {
        return Err(GgufError::DataBeyondFile { start: data_start, len });
    }
    let mut expected = 0u64;
    for t in &mut tensors {
        let (tensor, offset) = (|| t.name.clone(), t.offset);
        if offset % alignment != 0 {
            return Err(GgufError::Misaligned { tensor: tensor(), offset, alignment });
        }
        if offset < expected {
            return Err(GgufError::Overlap { tensor: tensor(), offset, expected });
        }
        if offset > expected {
            return Err(GgufError::Gap { tensor: tensor(), offset, expected });
        }
        // `expected` stays below the file's length, so this sum cannot wrap before it is compared.
        let end = data_start.saturating_add(offset).saturating_add(t.byte_len);
        if end > len {
            return Err(GgufError::TensorBeyondFile { tensor: tensor(), end, len });
        }
        t.offset = data_start + offset;
        expected = (offset + t.byte_len).next_multiple_of(alignment);
    }
    Ok(tensors)
}
