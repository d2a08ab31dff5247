//! Everything that can be wrong with a model file, one variant a fault.
//!
//! Invariants: a variant says what was expected and found, where (key, tensor, byte offset), and its text ends with
//! what to do. Reading faults know no path; [`GgufError::In`] adds it.
//! Does not know: model families, devices. Source: gguf section 5.

use std::io;
use std::path::PathBuf;

/// A model file that is refused, or a key that is not what its reader expected.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// A fault of one file of the model.
    #[error("{}: {error}", path.display())]
    In {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<GgufError>,
    },
    /// The system refused to open, read or map.
    #[error("cannot {action}: {error}; check the path and its permissions")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// A folder, pipe or device.
    #[error("not a file ({found}); give the path of a .gguf file")]
    NotAFile {
        /// What it is.
        found: &'static str,
    },
    /// The bytes ended although the file's size promised more.
    #[error("reading at byte {offset} failed: {error}; the file changed while it was read, try again")]
    Read {
        /// Where.
        offset: u64,
        /// What the system said.
        error: io::Error,
    },
    /// Not even a header.
    #[error("{len} B are no GGUF file, its header has 24 B; download the file again")]
    TooShort {
        /// Bytes of the file.
        len: u64,
    },
    /// Another kind of file.
    #[error("begins with {found:02x?} instead of \"GGUF\"; give a GGUF model file")]
    Magic {
        /// Its first bytes.
        found: [u8; 4],
    },
    /// A version that this reader does not know.
    #[error(
        "GGUF version {found} at byte 4, versions 2 and 3 are read; convert the model with current tools"
    )]
    Version {
        /// As in the file.
        found: u32,
    },
    /// Written for a big-endian machine.
    #[error(
        "byte order is big-endian (version field {found:#010x} at byte 4); convert the model to little-endian"
    )]
    BigEndian {
        /// The version field, read as little-endian.
        found: u32,
    },
    /// A count or length above the reader's limits.
    #[error(
        "{field} at byte {offset} is {found}, the limit is {limit}; the file is damaged, download it again"
    )]
    Limit {
        /// Which number.
        field: String,
        /// Where it stands.
        offset: u64,
        /// Its value.
        found: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// A count or length that the rest of the file cannot hold.
    #[error(
        "{field} at byte {offset}: {count} items of at least {item_bytes} B do not fit the {left} B that are left; \
         the file is cut off or damaged, download it again"
    )]
    BeyondFile {
        /// Which number.
        field: String,
        /// Where it stands.
        offset: u64,
        /// Its value.
        count: u64,
        /// The least bytes of an item.
        item_bytes: u64,
        /// Bytes after the number.
        left: u64,
    },
    /// The file ends inside a field.
    #[error(
        "{field} at byte {offset} needs {needed} B, {left} B are left; the file is cut off, download it again"
    )]
    Truncated {
        /// Which field.
        field: String,
        /// Where it begins.
        offset: u64,
        /// Its bytes.
        needed: u64,
        /// Bytes left.
        left: u64,
    },
    /// A key without a name.
    #[error("metadata entry {index} at byte {offset} has an empty key; write the file again")]
    EmptyKey {
        /// Which entry, from 0.
        index: u64,
        /// Where.
        offset: u64,
    },
    /// A key that occurs twice.
    #[error("key {key} at byte {offset} occurs a second time; write the file again")]
    DuplicateKey {
        /// Which.
        key: String,
        /// The second place.
        offset: u64,
    },
    /// Text that is none.
    #[error("{field} at byte {offset} is not valid UTF-8; the file is damaged, download it again")]
    NotUtf8 {
        /// Which text.
        field: String,
        /// Where it begins.
        offset: u64,
    },
    /// A value type that does not exist.
    #[error(
        "key {key}: value type {id} at byte {offset} is unknown (0 to 12 exist); the file is damaged or newer"
    )]
    ValueType {
        /// Whose value.
        key: String,
        /// Where.
        offset: u64,
        /// As in the file.
        id: u32,
    },
    /// A bool that is neither.
    #[error("key {key}: a bool at byte {offset} is {found}, 0 or 1 was expected; the file is damaged")]
    Bool {
        /// Whose value.
        key: String,
        /// Where.
        offset: u64,
        /// As in the file.
        found: u8,
    },
    /// An array of arrays.
    #[error("key {key}: an array of arrays at byte {offset} is not supported; write the file without it")]
    NestedArray {
        /// Whose value.
        key: String,
        /// Where.
        offset: u64,
    },
    /// A key of another type than its reader can use.
    #[error("key {key}: expected {expected}, found {found}; convert the model again")]
    KeyType {
        /// Which.
        key: String,
        /// What was asked for.
        expected: &'static str,
        /// What the file holds.
        found: &'static str,
    },
    /// A number that does not fit the type it is read as.
    #[error("key {key}: expected {expected}, found {found}, which does not fit; convert the model again")]
    KeyRange {
        /// Which.
        key: String,
        /// What was asked for.
        expected: &'static str,
        /// The number.
        found: i128,
    },
    /// Keys that contradict each other or common sense.
    #[error("key {key}: {found}, expected {expected}; the metadata are damaged, convert the model again")]
    KeyValue {
        /// Which.
        key: String,
        /// What it says.
        found: String,
        /// What it may say.
        expected: String,
    },
    /// An alignment that is no power of two up to 1 MiB.
    #[error(
        "general.alignment is {found}, a power of two from 1 to 1048576 was expected; write the file again"
    )]
    Alignment {
        /// As in the file.
        found: u32,
    },
    /// No `general.architecture`.
    #[error(
        "key general.architecture is missing; the file is no model, or it is a later file of a split set"
    )]
    NoArchitecture,
    /// An adapter or a projector.
    #[error("general.type is {found}, a model was expected; give the model's own file")]
    NotAModel {
        /// As in the file.
        found: String,
    },
    /// A tensor name that is empty or too long.
    #[error(
        "tensor {index}: its name at byte {offset} has {len} B, 1 to 63 were expected; write the file again"
    )]
    TensorName {
        /// Which tensor, from 0.
        index: u64,
        /// Where its length stands.
        offset: u64,
        /// Bytes of the name.
        len: u64,
    },
    /// A tensor name that occurs twice in the file or the split set.
    #[error("tensor {tensor} occurs twice; write the file or the split set again")]
    DuplicateTensor {
        /// Which.
        tensor: String,
    },
    /// No or too many dimensions.
    #[error(
        "tensor {tensor}: {found} dimensions at byte {offset}, 1 to 4 were expected; the file is damaged"
    )]
    DimensionCount {
        /// Which.
        tensor: String,
        /// Where.
        offset: u64,
        /// As in the file.
        found: u32,
    },
    /// A dimension of 0 or beyond 2^40.
    #[error(
        "tensor {tensor}: dimension {axis} at byte {offset} is {found}, 1 to 2^40 was expected; the file is damaged"
    )]
    Dimension {
        /// Which.
        tensor: String,
        /// Which dimension, from 0.
        axis: usize,
        /// Where.
        offset: u64,
        /// As in the file.
        found: u64,
    },
    /// More elements or bytes than can be counted.
    #[error("tensor {tensor}: the product of its dimensions {dims:?} is 2^62 or more; the file is damaged")]
    TensorSize {
        /// Which.
        tensor: String,
        /// Its dimensions.
        dims: [u64; 4],
    },
    /// A type id that never existed.
    #[error(
        "tensor {tensor}: type {id} at byte {offset} is unknown; this model needs a newer version of tandem"
    )]
    UnknownType {
        /// Which.
        tensor: String,
        /// Where.
        offset: u64,
        /// As in the file.
        id: u32,
    },
    /// A type id that existed once.
    #[error(
        "tensor {tensor}: type {id} at byte {offset} was removed from the format; quantise the model again"
    )]
    RemovedType {
        /// Which.
        tensor: String,
        /// Where.
        offset: u64,
        /// As in the file.
        id: u32,
    },
    /// A format of activations, which files never hold.
    #[error("tensor {tensor}: type {id} at byte {offset} is for activations only; quantise the model again")]
    ActivationType {
        /// Which.
        tensor: String,
        /// Where.
        offset: u64,
        /// As in the file.
        id: u32,
    },
    /// Rows that are no whole blocks.
    #[error(
        "tensor {tensor}: rows of {cols} values are no whole blocks of {block_values}; quantise the model again"
    )]
    RaggedRow {
        /// Which.
        tensor: String,
        /// Values of a row.
        cols: u64,
        /// Values of a block.
        block_values: u64,
    },
    /// An offset off the file's alignment.
    #[error(
        "tensor {tensor}: offset {offset} is no multiple of the alignment {alignment}; the file is damaged"
    )]
    Misaligned {
        /// Which.
        tensor: String,
        /// From the start of the data section.
        offset: u64,
        /// The file's.
        alignment: u64,
    },
    /// A tensor that begins inside or before the one before it.
    #[error(
        "tensor {tensor}: offset {offset} lies before {expected}, the end of the tensors before it; damaged file"
    )]
    Overlap {
        /// Which.
        tensor: String,
        /// From the start of the data section.
        offset: u64,
        /// Where it should begin.
        expected: u64,
    },
    /// Unexplained bytes before a tensor.
    #[error(
        "tensor {tensor}: offset {offset} leaves a gap after {expected}; the file is damaged, write it again"
    )]
    Gap {
        /// Which.
        tensor: String,
        /// From the start of the data section.
        offset: u64,
        /// Where it should begin.
        expected: u64,
    },
    /// Data behind the end of the file.
    #[error("tensor {tensor} ends at byte {end}, the file has {len} B; it is cut off, download it again")]
    TensorBeyondFile {
        /// Which.
        tensor: String,
        /// Behind its last byte, from the start of the file.
        end: u64,
        /// Bytes of the file.
        len: u64,
    },
    /// A data section behind the end of the file.
    #[error(
        "the data section begins at byte {start}, the file has {len} B; it is cut off, download it again"
    )]
    DataBeyondFile {
        /// Its start.
        start: u64,
        /// Bytes of the file.
        len: u64,
    },
    /// Opened from a later file of a split set.
    #[error("file {number} of a split set of {count}; open the first one, {first}")]
    NotFirst {
        /// This file, from 1.
        number: u32,
        /// Files of the set.
        count: u32,
        /// The first file.
        first: String,
    },
    /// A split file whose name does not say its place.
    #[error("a file of a split set must be named {expected}; give it its own name back")]
    SplitName {
        /// The name's shape.
        expected: String,
    },
    /// A file of the set is missing.
    #[error("file {number} of a split set of {count} is missing; put all files into one folder")]
    SplitMissing {
        /// Which, from 1.
        number: u32,
        /// Files of the set.
        count: u32,
    },
    /// A file that does not belong to the set at its place.
    #[error(
        "{key} is {found}, {expected} was expected; the files belong to different sets, download them again"
    )]
    SplitKey {
        /// Which key.
        key: &'static str,
        /// What it should say.
        expected: u64,
        /// What it says.
        found: String,
    },
}

impl GgufError {
    /// The fault with the file that has it.
    pub(super) fn in_file(self, path: &std::path::Path) -> GgufError {
        match self {
            known @ GgufError::In { .. } => known,
            error => GgufError::In { path: path.to_path_buf(), error: Box::new(error) },
        }
    }
}
