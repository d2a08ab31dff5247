//! Writes small model files for tests, right ones and wrong ones.
//!
//! Invariant: what a test does not set is right. Does not know: the reader (also compiled into `tests/`).

/// Ids of value types (gguf section 1.3).
pub const U8: u32 = 0;
pub const I8: u32 = 1;
pub const U16: u32 = 2;
pub const I16: u32 = 3;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;
pub const I64: u32 = 11;
pub const F64: u32 = 12;

/// A metadata entry, as bytes.
#[derive(Clone)]
pub struct Entry {
    pub key: Vec<u8>,
    pub ty: u32,
    pub value: Vec<u8>,
}

/// A tensor info and the bytes of its tensor.
#[derive(Clone)]
pub struct Info {
    pub name: Vec<u8>,
    pub dims: Vec<u64>,
    pub ty: u32,
    /// Where it should not be the place that follows from the tensors before it.
    pub offset: Option<u64>,
    pub byte_len: u64,
}

/// A file to write.
#[derive(Clone)]
pub struct Sample {
    pub magic: [u8; 4],
    pub version: u32,
    pub entries: Vec<Entry>,
    pub infos: Vec<Info>,
    /// Where they should not be the true ones.
    pub key_count: Option<u64>,
    pub tensor_count: Option<u64>,
    pub alignment: u64,
}

impl Sample {
    /// Nothing but a header.
    pub fn empty() -> Sample {
        let (entries, infos) = (Vec::new(), Vec::new());
        Sample {
            magic: *b"GGUF",
            version: 3,
            entries,
            infos,
            key_count: None,
            tensor_count: None,
            alignment: 32,
        }
    }

    /// A right file with two tensors.
    pub fn model() -> Sample {
        let mut s = Sample::empty();
        s.string("general.architecture", "llama");
        s.set("llama.block_count", U32, 2u32.to_le_bytes());
        s.set("llama.attention.head_count", U32, 4u32.to_le_bytes());
        s.set("llama.attention.head_count_kv", U32, 2u32.to_le_bytes());
        s.strings("tokenizer.ggml.tokens", &["a", "b", "\u{120}c"]);
        s.array("tokenizer.ggml.token_type", I32, 3, [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
        s.set("tokenizer.ggml.eos_token_id", U32, 2u32.to_le_bytes());
        s.tensor("token_embd.weight", &[32, 3], 8, 3 * 34);
        s.tensor("output_norm.weight", &[32], 0, 32 * 4);
        s
    }

    /// Every value type, scalar and array.
    pub fn every_value_type() -> Sample {
        let mut s = Sample::model();
        s.entries.truncate(1);
        let widths = [(U8, 1), (I8, 1), (U16, 2), (I16, 2), (U32, 4), (I32, 4), (F32, 4), (BOOL, 1)];
        for (id, bytes) in widths.into_iter().chain([(U64, 8), (I64, 8), (F64, 8)]) {
            s.set(&format!("x.scalar.{id}"), id, vec![1; bytes]);
            s.array(&format!("x.array.{id}"), id, 3, vec![1; 3 * bytes]);
        }
        s.string("x.scalar.8", "text");
        s.strings("x.array.8", &["", "one", "\u{1f600}"]);
        s.array("x.array.empty", STRING, 0, []);
        s
    }

    /// File `index` of a split set of three with one tensor in each but the first.
    pub fn split(index: u16) -> Sample {
        let mut s = if index == 0 { Sample::model() } else { Sample::empty() };
        s.infos.clear();
        s.set("split.no", U16, index.to_le_bytes());
        s.set("split.count", U16, 3u16.to_le_bytes());
        s.set("split.tensors.count", I32, 2i32.to_le_bytes());
        if index > 0 {
            s.tensor(&format!("blk.{index}.weight"), &[32, 2], 0, 256);
        }
        s
    }

    /// Sets a key to a value of any type.
    pub fn set(&mut self, key: &str, ty: u32, value: impl Into<Vec<u8>>) {
        let entry = Entry { key: key.into(), ty, value: value.into() };
        match self.entries.iter_mut().find(|e| e.key == entry.key) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
    }

    /// Takes a key away.
    pub fn remove(&mut self, key: &str) {
        self.entries.retain(|e| e.key != key.as_bytes());
    }

    /// A string value.
    pub fn string(&mut self, key: &str, value: &str) {
        self.set(key, STRING, text(value.as_bytes()));
    }

    /// An array of strings.
    pub fn strings(&mut self, key: &str, values: &[&str]) {
        let elements: Vec<u8> = values.iter().flat_map(|v| text(v.as_bytes())).collect();
        self.array(key, STRING, values.len() as u64, elements);
    }

    /// An array: element type, count, elements.
    pub fn array(&mut self, key: &str, element: u32, count: u64, elements: impl Into<Vec<u8>>) {
        let head = [&element.to_le_bytes()[..], &count.to_le_bytes()].concat();
        self.set(key, ARRAY, [head, elements.into()].concat());
    }

    /// One more tensor.
    pub fn tensor(&mut self, name: &str, dims: &[u64], ty: u32, byte_len: u64) {
        self.infos.push(Info { name: name.into(), dims: dims.into(), ty, offset: None, byte_len });
    }

    /// Everything before the data section's padding.
    pub fn head(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.infos.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.entries.len() as u64).to_le_bytes());
        for e in &self.entries {
            out.extend(text(&e.key));
            out.extend(e.ty.to_le_bytes());
            out.extend(&e.value);
        }
        let mut place = 0;
        for i in &self.infos {
            out.extend(text(&i.name));
            out.extend((i.dims.len() as u32).to_le_bytes());
            out.extend(i.dims.iter().flat_map(|d| d.to_le_bytes()));
            out.extend(i.ty.to_le_bytes());
            out.extend(i.offset.unwrap_or(place).to_le_bytes());
            place = (place + i.byte_len).next_multiple_of(self.alignment);
        }
        out
    }

    /// The file; byte n of the data section is n mod 251.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.head();
        out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
        let mut data = 0u64;
        for i in &self.infos {
            data = data.next_multiple_of(self.alignment) + i.byte_len;
        }
        out.extend((0..data).map(|n| (n % 251) as u8));
        out
    }
}

/// A string of the format: its length and its bytes.
pub fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}
