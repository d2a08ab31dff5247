//! The keys and values of a model file, typed, in file order.
//!
//! Invariant: a key occurs once. Writers disagree on widths, so the typed getters take any integer type whose value
//! fits, and either float type. A missing key is `None`; a key of another type is an error that names it.
//! Does not know: which keys a model needs. Source: gguf sections 1.3 and 2.

use std::collections::HashMap;

use super::error::GgufError;

/// A value of the file: a scalar, or an array of one element type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names are the types")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    U8s(Vec<u8>),
    I8s(Vec<i8>),
    U16s(Vec<u16>),
    I16s(Vec<i16>),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    U64s(Vec<u64>),
    I64s(Vec<i64>),
    F32s(Vec<f32>),
    F64s(Vec<f64>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
}

impl Value {
    /// The type in words, for messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F32(_) => "f32",
            Value::F64(_) => "f64",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::U8s(_) => "array of u8",
            Value::I8s(_) => "array of i8",
            Value::U16s(_) => "array of u16",
            Value::I16s(_) => "array of i16",
            Value::U32s(_) => "array of u32",
            Value::I32s(_) => "array of i32",
            Value::U64s(_) => "array of u64",
            Value::I64s(_) => "array of i64",
            Value::F32s(_) => "array of f32",
            Value::F64s(_) => "array of f64",
            Value::Bools(_) => "array of bool",
            Value::Strings(_) => "array of strings",
        }
    }

    /// Elements of an array; `None` for a scalar.
    pub fn array_len(&self) -> Option<usize> {
        Some(match self {
            Value::U8s(v) => v.len(),
            Value::I8s(v) => v.len(),
            Value::U16s(v) => v.len(),
            Value::I16s(v) => v.len(),
            Value::U32s(v) => v.len(),
            Value::I32s(v) => v.len(),
            Value::U64s(v) => v.len(),
            Value::I64s(v) => v.len(),
            Value::F32s(v) => v.len(),
            Value::F64s(v) => v.len(),
            Value::Bools(v) => v.len(),
            Value::Strings(v) => v.len(),
            _ => return None,
        })
    }

    /// A scalar of any integer type.
    pub fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// The elements of an array of any integer type, one after another.
    fn integers(&self) -> Option<Box<dyn Iterator<Item = i128> + '_>> {
        Some(match self {
            Value::U8s(v) => Box::new(v.iter().map(|&x| x.into())),
            Value::I8s(v) => Box::new(v.iter().map(|&x| x.into())),
            Value::U16s(v) => Box::new(v.iter().map(|&x| x.into())),
            Value::I16s(v) => Box::new(v.iter().map(|&x| x.into())),
            Value::U32s(v) => Box::new(v.iter().map(|&x| x.into())),
            Value::I32s(v) => Box::new(v.iter().map(|&x| x.into())),
            Value::U64s(v) => Box::new(v.iter().map(|&x| x.into())),
            Value::I64s(v) => Box::new(v.iter().map(|&x| x.into())),
            _ => return None,
        })
    }
}

/// All keys of a model file.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Adds a key; false (and nothing added) if it is there already.
    pub fn insert(&mut self, key: String, value: Value) -> bool {
        if self.index.contains_key(&key) {
            return false;
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        true
    }

    /// All keys with their values, in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without any key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value as the file has it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.read(key, "string", |v| if let Value::String(s) = v { Some(s.as_str()) } else { None })
    }

    /// Any integer type, if the value fits.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.integer(key, "u32")
    }

    /// Any integer type, if the value fits.
    pub fn i32(&self, key: &str) -> Result<Option<i32>, GgufError> {
        self.integer(key, "i32")
    }

    /// Any integer type, if the value fits.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.integer(key, "u64")
    }

    /// f32, or f64 rounded to f32.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.read(key, "f32", |v| match *v {
            Value::F32(x) => Some(x),
            Value::F64(x) => Some(x as f32),
            _ => None,
        })
    }

    /// A bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.read(key, "bool", |v| if let Value::Bool(b) = v { Some(*b) } else { None })
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, GgufError> {
        self.read(
            key,
            "array of strings",
            |v| if let Value::Strings(s) = v { Some(s.as_slice()) } else { None },
        )
    }

    /// An array of bools.
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>, GgufError> {
        self.read(key, "array of bool", |v| if let Value::Bools(b) = v { Some(b.as_slice()) } else { None })
    }

    /// An array of any integer type, or one integer, if all values fit.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.integers(key, "array of i32")
    }

    /// An array of any integer type, or one integer, if all values fit.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
        self.integers(key, "array of u32")
    }

    /// An array of f32 or f64 (rounded to f32), or one float.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.read(key, "array of f32", |v| match v {
            Value::F32(x) => Some(vec![*x]),
            Value::F64(x) => Some(vec![*x as f32]),
            Value::F32s(x) => Some(x.clone()),
            Value::F64s(x) => Some(x.iter().map(|&x| x as f32).collect()),
            _ => None,
        })
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        f: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match f(value) {
            Some(x) => Ok(Some(x)),
            None => Err(GgufError::KeyType { key: key.to_owned(), expected, found: value.type_name() }),
        }
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<Option<T>, GgufError> {
        self.read(key, expected, Value::integer)?.map(|found| fit(key, expected, found)).transpose()
    }

    fn integers<T: TryFrom<i128>>(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<Vec<T>>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        if let Some(one) = value.integer() {
            return Ok(Some(vec![fit(key, expected, one)?]));
        }
        let all = self.read(key, expected, Value::integers)?;
        all.map(|all| all.map(|found| fit(key, expected, found)).collect()).transpose()
    }
}

fn fit<T: TryFrom<i128>>(key: &str, expected: &'static str, found: i128) -> Result<T, GgufError> {
    T::try_from(found).map_err(|_| GgufError::KeyRange { key: key.to_owned(), expected, found })
}
