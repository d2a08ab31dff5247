//! One file for each thing that the format forbids, with the fault that must be named.
//!
//! Does not know: the reader (also compiled into `tests/`). Source: gguf section 5.

use super::sample::{self, Sample, text};

/// A file and its fault.
pub struct Case {
    /// What is wrong.
    pub name: &'static str,
    /// The file.
    pub bytes: Vec<u8>,
    /// The variant of the error.
    pub variant: &'static str,
    /// What its message must contain: key, tensor or byte.
    pub names: &'static str,
}

/// Every case.
pub fn cases() -> Vec<Case> {
    let mut all = header_cases();
    all.extend(value_cases());
    all.extend(meaning_cases());
    all.extend(tensor_cases());
    all
}

fn case(
    name: &'static str,
    variant: &'static str,
    names: &'static str,
    change: impl Fn(&mut Sample),
) -> Case {
    let mut s = Sample::model();
    change(&mut s);
    Case { name, bytes: s.bytes(), variant, names }
}

fn cut(
    name: &'static str,
    variant: &'static str,
    names: &'static str,
    len: impl Fn(&Sample) -> usize,
) -> Case {
    let s = Sample::model();
    let mut bytes = s.bytes();
    bytes.truncate(len(&s));
    Case { name, bytes, variant, names }
}

fn header_cases() -> Vec<Case> {
    vec![
        cut("an empty file", "TooShort", "0 B", |_| 0),
        cut("a file shorter than its header", "TooShort", "23 B", |_| 23),
        case("another magic", "Magic", "GGUF", |s| s.magic = *b"GGML"),
        case("version 0", "Version", "version 0", |s| s.version = 0),
        case("version 1", "Version", "version 1", |s| s.version = 1),
        case("version 4", "Version", "version 4", |s| s.version = 4),
        case("big-endian", "BigEndian", "big-endian", |s| s.version = 3u32.swap_bytes()),
        case("too many keys", "Limit", "metadata count", |s| s.key_count = Some(65537)),
        case("too many tensors", "Limit", "tensor count", |s| s.tensor_count = Some((1 << 20) + 1)),
        case("the largest tensor count", "Limit", "byte 8", |s| s.tensor_count = Some(u64::MAX)),
        case("more keys than bytes", "BeyondFile", "metadata count", |s| s.key_count = Some(65536)),
        case("more tensors than bytes", "BeyondFile", "tensor count", |s| s.tensor_count = Some(1 << 20)),
    ]
}

fn value_cases() -> Vec<Case> {
    let key = |key: Vec<u8>| move |s: &mut Sample| s.entries[1].key = key.clone();
    let raw = |ty: u32, value: Vec<u8>| move |s: &mut Sample| s.set("x.y", ty, value.clone());
    let array = |element: u32, count: u64| [&element.to_le_bytes()[..], &count.to_le_bytes()].concat();
    vec![
        case("an empty key", "EmptyKey", "entry 1", key(Vec::new())),
        case("a key above 65535 bytes", "Limit", "key of metadata entry 1", key(vec![b'k'; 65536])),
        case("a key of bad bytes", "NotUtf8", "key of metadata entry 1", key(vec![0xff, b'k'])),
        case(
            "a key that occurs twice",
            "DuplicateKey",
            "general.architecture",
            key(b"general.architecture".into()),
        ),
        case("value type 13", "ValueType", "x.y", raw(13, vec![0; 8])),
        case("element type 13", "ValueType", "x.y", raw(sample::ARRAY, array(13, 1))),
        case("an array of arrays", "NestedArray", "x.y", raw(sample::ARRAY, array(sample::ARRAY, 1))),
        case("a bool of 2", "Bool", "x.y", raw(sample::BOOL, vec![2])),
        case("an array of bools with a 2", "Bool", "x.y", |s| s.array("x.y", sample::BOOL, 3, [0, 1, 2])),
        case(
            "a string above 64 MiB",
            "Limit",
            "x.y",
            raw(sample::STRING, ((64u64 << 20) + 1).to_le_bytes().into()),
        ),
        case(
            "a string longer than the file",
            "BeyondFile",
            "x.y",
            raw(sample::STRING, vec![0, 0, 0, 1, 0, 0, 0, 0]),
        ),
        case("an array above 16 Mi", "Limit", "x.y", raw(sample::ARRAY, array(sample::U8, (16 << 20) + 1))),
        case(
            "an array longer than the file",
            "BeyondFile",
            "x.y",
            raw(sample::ARRAY, array(sample::F64, 16 << 20)),
        ),
        case("more strings than bytes", "BeyondFile", "x.y", raw(sample::ARRAY, array(sample::STRING, 4000))),
        case("an element longer than the file", "BeyondFile", "element 0 of key x.y", |s| {
            s.array("x.y", sample::STRING, 1, 9999u64.to_le_bytes());
        }),
        case("a token of bad bytes", "NotUtf8", "element 1 of key tokenizer.ggml.tokens", |s| {
            let tokens = [text(b"a"), text(&[0xc3]), text(b"b")].concat();
            s.array("tokenizer.ggml.tokens", sample::STRING, 3, tokens);
        }),
        case("a template of bad bytes", "NotUtf8", "tokenizer.chat_template", |s| {
            s.set("tokenizer.chat_template", sample::STRING, text(&[0xff]));
        }),
        cut("a file cut inside a key", "BeyondFile", "metadata entry 1", |s| {
            24 + text(&s.entries[0].key).len() + 4 + s.entries[0].value.len() + 8 + 3
        }),
        cut("a file cut inside a number", "Truncated", "llama.block_count", |s| {
            24 + text(&s.entries[0].key).len()
                + 4
                + s.entries[0].value.len()
                + text(&s.entries[1].key).len()
                + 6
        }),
    ]
    .into_iter()
    .map(pad_where_the_count_must_pass)
    .collect()
}

/// Cases cut in the metadata keep counts that fit the cut file.
fn pad_where_the_count_must_pass(mut case: Case) -> Case {
    if case.name.starts_with("a file cut") {
        case.bytes[8..16].copy_from_slice(&0u64.to_le_bytes());
        case.bytes[16..24].copy_from_slice(&2u64.to_le_bytes());
    }
    case
}

fn meaning_cases() -> Vec<Case> {
    let u32_of = |key: &'static str, v: u32| move |s: &mut Sample| s.set(key, sample::U32, v.to_le_bytes());
    let kv = "llama.attention.head_count_kv";
    vec![
        case("an alignment of another type", "KeyType", "general.alignment", |s| {
            s.set("general.alignment", sample::I32, 32i32.to_le_bytes());
        }),
        case("an alignment of 0", "Alignment", "0", u32_of("general.alignment", 0)),
        case("an alignment of 24", "Alignment", "24", u32_of("general.alignment", 24)),
        case("an alignment of 2 MiB", "Alignment", "2097152", u32_of("general.alignment", 2 << 20)),
        case("no architecture", "NoArchitecture", "general.architecture", |s| {
            s.remove("general.architecture")
        }),
        case("an empty architecture", "NoArchitecture", "general.architecture", |s| {
            s.string("general.architecture", "");
        }),
        case(
            "an architecture that is a number",
            "KeyType",
            "general.architecture",
            u32_of("general.architecture", 1),
        ),
        case("an adapter", "NotAModel", "adapter", |s| s.string("general.type", "adapter")),
        case("a projector", "NotAModel", "mmproj", |s| s.string("general.type", "mmproj")),
        case("scores of another length", "KeyValue", "tokenizer.ggml.scores", |s| {
            s.array("tokenizer.ggml.scores", sample::F32, 2, [0; 8]);
        }),
        case("token types of another length", "KeyValue", "tokenizer.ggml.token_type", |s| {
            s.array("tokenizer.ggml.token_type", sample::I32, 1, [0; 4]);
        }),
        case(
            "a special token behind the vocabulary",
            "KeyValue",
            "eos_token_id",
            u32_of("tokenizer.ggml.eos_token_id", 3),
        ),
        case("a negative special token", "KeyValue", "bos_token_id", |s| {
            s.set("tokenizer.ggml.bos_token_id", sample::I32, (-1i32).to_le_bytes());
        }),
        case("a special token that is text", "KeyType", "bos_token_id", |s| {
            s.string("tokenizer.ggml.bos_token_id", "a")
        }),
        case("0 layers", "KeyValue", "llama.block_count", u32_of("llama.block_count", 0)),
        case("1025 layers", "KeyValue", "llama.block_count", u32_of("llama.block_count", 1025)),
        case("layers beyond 32 bits", "KeyRange", "llama.block_count", |s| {
            s.set("llama.block_count", sample::U64, (1u64 << 32).to_le_bytes());
        }),
        case("65537 experts", "KeyValue", "llama.expert_count", u32_of("llama.expert_count", 65537)),
        case("more experts used than there are", "KeyValue", "llama.expert_used_count", |s| {
            s.set("llama.expert_count", sample::U32, 4u32.to_le_bytes());
            s.set("llama.expert_used_count", sample::U32, 5u32.to_le_bytes());
        }),
        case("0 heads", "KeyValue", "llama.attention.head_count", u32_of("llama.attention.head_count", 0)),
        case("0 K/V heads", "KeyValue", kv, u32_of(kv, 0)),
        case("65537 heads", "KeyValue", "head_count", u32_of("llama.attention.head_count", 65537)),
        case("query heads no multiple of K/V heads", "KeyValue", kv, u32_of(kv, 3)),
        case("the same in one layer", "KeyValue", "layer 1", |s| {
            s.array("llama.attention.head_count_kv", sample::U8, 2, [2, 3]);
        }),
        case("0 rotated values", "KeyValue", "rope.dimension_count", u32_of("llama.rope.dimension_count", 0)),
        case("10000 files", "KeyValue", "split.count", u32_of("split.count", 10000)),
    ]
}

fn tensor_cases() -> Vec<Case> {
    let dims = |dims: &'static [u64]| move |s: &mut Sample| s.infos[1].dims = dims.into();
    let offset = |offset: u64| move |s: &mut Sample| s.infos[1].offset = Some(offset);
    let ty = |id: u32| move |s: &mut Sample| s.infos[1].ty = id;
    let name = |name: Vec<u8>| move |s: &mut Sample| s.infos[1].name = name.clone();
    vec![
        case("a tensor without a name", "TensorName", "tensor 1", name(Vec::new())),
        case("a tensor name of 64 bytes", "TensorName", "64 B", name(vec![b'n'; 64])),
        case("a tensor name of bad bytes", "NotUtf8", "name of tensor 1", name(vec![0xff])),
        case(
            "a tensor name that occurs twice",
            "DuplicateTensor",
            "token_embd",
            name(b"token_embd.weight".into()),
        ),
        case("no dimensions", "DimensionCount", "output_norm", dims(&[])),
        case("five dimensions", "DimensionCount", "output_norm", dims(&[32, 1, 1, 1, 1])),
        case("a dimension of 0", "Dimension", "dimension 1", dims(&[32, 0])),
        case("a dimension above 2^40", "Dimension", "dimension 0", dims(&[(1 << 40) + 1])),
        case("2^62 elements", "TensorSize", "output_norm", dims(&[1 << 40, 1 << 22])),
        case("2^160 elements", "TensorSize", "output_norm", dims(&[1 << 40, 1 << 40, 1 << 40, 1 << 40])),
        case("2^64 bytes", "TensorSize", "output_norm", |s| {
            s.infos[1].dims = vec![1 << 40, 1 << 21, 1];
            s.infos[1].ty = 28;
        }),
        case("a type that never was", "UnknownType", "type 43", ty(43)),
        case("the largest type", "UnknownType", "output_norm", ty(u32::MAX)),
        case("a removed type", "RemovedType", "type 4 ", ty(4)),
        case("another removed type", "RemovedType", "type 38", ty(38)),
        case("Q8_K", "ActivationType", "type 15", ty(15)),
        case("Q8_1", "ActivationType", "type 9", ty(9)),
        case("rows that are no whole blocks", "RaggedRow", "33 values", |s| {
            s.infos[1].dims = vec![33];
            s.infos[1].ty = 8;
        }),
        case("an offset off the alignment", "Misaligned", "offset 136", offset(136)),
        case("a tensor over another", "Overlap", "offset 96", offset(96)),
        case("a tensor behind a gap", "Gap", "offset 160", offset(160)),
        case("an offset near 2^64", "Gap", "output_norm", offset(u64::MAX - 31)),
        cut("a file cut inside the last tensor", "TensorBeyondFile", "output_norm", |s| s.bytes().len() - 1),
        cut("a file cut before its data", "DataBeyondFile", "data section", |s| s.head().len()),
        cut("a file cut inside an info", "Truncated", "offset of tensor 1", |s| s.head().len() - 1),
    ]
}
