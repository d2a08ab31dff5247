//! A bounded, forward-only reader of little-endian fields.
//!
//! Invariant: nothing is read or allocated beyond the file's length, which is known from the start; a fault names its
//! field and the byte where it begins. Does not know: the order of fields.

use std::fmt;
use std::io::Read;

use super::error::GgufError;

/// Elements of an array are read in pieces of this many bytes.
const PIECE_BYTES: usize = 8192;

/// What is being read, for messages; costs nothing until a fault prints it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field<'a> {
    /// A field of the header.
    Header(&'static str),
    /// The key of metadata entry n.
    Key(u64),
    /// The value of a key.
    Value(&'a str),
    /// Element n of a key's array.
    Element(&'a str, u64),
    /// A field of tensor n.
    Tensor(u64, &'static str),
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Field::Header(name) => f.write_str(name),
            Field::Key(index) => write!(f, "key of metadata entry {index}"),
            Field::Value(key) => write!(f, "value of key {key}"),
            Field::Element(key, index) => write!(f, "element {index} of key {key}"),
            Field::Tensor(index, name) => write!(f, "{name} of tensor {index}"),
        }
    }
}

/// The reader: a source of `len` bytes and the place in it.
pub(super) struct Cursor<R> {
    source: R,
    offset: u64,
    len: u64,
}

impl<R: Read> Cursor<R> {
    /// At the first byte of a source of `len` bytes.
    pub(super) fn new(source: R, len: u64) -> Cursor<R> {
        Cursor { source, offset: 0, len }
    }

    /// The next byte's place.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    fn left(&self) -> u64 {
        self.len - self.offset
    }

    fn fill(&mut self, out: &mut [u8], field: Field) -> Result<(), GgufError> {
        let (needed, left, offset) = (out.len() as u64, self.left(), self.offset);
        if needed > left {
            return Err(GgufError::Truncated { field: field.to_string(), offset, needed, left });
        }
        self.source.read_exact(out).map_err(|error| GgufError::Read { offset, error })?;
        self.offset += needed;
        Ok(())
    }

    /// `N` bytes.
    pub(super) fn bytes<const N: usize>(&mut self, field: Field) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        self.fill(&mut out, field)?;
        Ok(out)
    }

    /// A u32.
    pub(super) fn u32(&mut self, field: Field) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.bytes(field)?))
    }

    /// A u64.
    pub(super) fn u64(&mut self, field: Field) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.bytes(field)?))
    }

    /// A bool of `key`.
    pub(super) fn bool(&mut self, key: &str) -> Result<bool, GgufError> {
        let offset = self.offset;
        match self.bytes(Field::Value(key))? {
            [0] => Ok(false),
            [1] => Ok(true),
            [found] => Err(GgufError::Bool { key: key.to_owned(), offset, found }),
        }
    }

    /// A u64 that counts items of at least `item_bytes`, all of which must fit behind it.
    pub(super) fn count(&mut self, field: Field, limit: u64, item_bytes: u64) -> Result<u64, GgufError> {
        let offset = self.offset;
        let found = self.u64(field)?;
        if found > limit {
            return Err(GgufError::Limit { field: field.to_string(), offset, found, limit });
        }
        let left = self.left();
        if found > left / item_bytes {
            return Err(GgufError::BeyondFile {
                field: field.to_string(),
                offset,
                count: found,
                item_bytes,
                left,
            });
        }
        Ok(found)
    }

    fn vec(&mut self, len: u64, field: Field) -> Result<Vec<u8>, GgufError> {
        let (offset, left) = (self.offset, self.left());
        if len > left {
            return Err(GgufError::Truncated { field: field.to_string(), offset, needed: len, left });
        }
        let mut out = vec![0; len as usize];
        self.fill(&mut out, field)?;
        Ok(out)
    }

    /// UTF-8 text of `len` bytes.
    pub(super) fn text(&mut self, len: u64, field: Field) -> Result<String, GgufError> {
        let offset = self.offset;
        let bytes = self.vec(len, field)?;
        String::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 { field: field.to_string(), offset })
    }

    /// Text of `len` bytes that `count` found to fit, bad bytes replaced.
    pub(super) fn text_lossy(&mut self, len: u64) -> Result<String, GgufError> {
        let bytes = self.vec(len, Field::Header("text"))?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    /// `count` elements of `N` bytes, which `count` found to fit.
    pub(super) fn array<T, const N: usize>(
        &mut self,
        count: u64,
        field: Field,
        from: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufError> {
        let mut out = Vec::with_capacity(count as usize);
        let mut piece = [0; PIECE_BYTES];
        let mut left = count as usize;
        while left > 0 {
            let n = left.min(PIECE_BYTES / N);
            self.fill(&mut piece[..n * N], field)?;
            out.extend(piece[..n * N].as_chunks::<N>().0.iter().map(|b| from(*b)));
            left -= n;
        }
        Ok(out)
    }
}
