//! `tojson` as Python's `json.dumps` writes it: blanks behind separators, keys in their order, no HTML escapes.
//!
//! Invariant: work and depth are bounded by the template's fuel and [`DEPTH_MAX`], since a template can build values
//! that share parts many times over. Does not know: messages. Source: Python's `json`, tokenizer specification 8.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::python::{DEPTH_MAX, float_text};

/// How `json.dumps` was asked to write.
struct Style {
    ascii: bool,
    /// What one level of indentation adds; `None` writes one line.
    indent: Option<String>,
    between_items: String,
    behind_key: String,
    sort_keys: bool,
}

/// The filter: `x | tojson`, `tojson(indent=2)`, `tojson(ensure_ascii=true)`, `separators`, `sort_keys`.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    first: Option<Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let mut ascii: Option<bool> = options.get("ensure_ascii")?;
    let mut indent: Option<Value> = options.get("indent")?;
    // Jinja's own filter takes the indent first, transformers' takes ensure_ascii; their types tell them apart.
    match first {
        Some(v) if v.kind() == ValueKind::Bool => ascii = ascii.or(Some(v.is_true())),
        v => indent = indent.or(v),
    }
    let indent = match indent.filter(|v| !v.is_none() && !v.is_undefined()) {
        None => None,
        Some(v) => match (v.as_str(), v.as_usize()) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Some(blanks)) if blanks <= 64 => Some(" ".repeat(blanks)),
            _ => return Err(invalid(format!("tojson cannot indent by {v}"))),
        },
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (between_items, behind_key) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some([items, key]) => (items.clone(), key.clone()),
        Some(other) => return Err(invalid(format!("tojson takes two separators, got {}", other.len()))),
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let style = Style { ascii: ascii.unwrap_or(false), indent, between_items, behind_key, sort_keys };
    let mut writer = Writer { state, style, out: String::new(), depth: 0 };
    writer.value(value)?;
    Ok(writer.out)
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, text)
}

struct Writer<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    style: Style,
    out: String,
    depth: usize,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        self.state.consume_fuel(1)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number_text(value)?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked();
                self.container('[', ']', items, |writer, item| writer.value(&item?))?;
            }
            ValueKind::Map => {
                let mut pairs: Vec<(Value, Value)> =
                    value.as_object().and_then(|o| o.try_iter_pairs()).into_iter().flatten().collect();
                if self.style.sort_keys {
                    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.container('{', '}', pairs.into_iter(), |writer, (key, value)| {
                    writer.key(&key)?;
                    writer.out.push_str(&writer.style.behind_key.clone());
                    writer.value(&value)
                })?;
            }
            other => return Err(invalid(format!("a value of type {other} cannot be written as JSON"))),
        }
        Ok(())
    }

    fn container<T>(
        &mut self,
        open: char,
        close: char,
        items: impl Iterator<Item = T>,
        mut each: impl FnMut(&mut Self, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.depth == DEPTH_MAX {
            return Err(invalid(format!("a value is nested more than {DEPTH_MAX} levels deep")));
        }
        self.depth += 1;
        self.out.push(open);
        let mut empty = true;
        for item in items {
            if !empty {
                self.out.push_str(&self.style.between_items.clone());
            }
            empty = false;
            self.line();
            each(self, item)?;
        }
        self.depth -= 1;
        if !empty {
            self.line();
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(self.depth));
        }
    }

    /// Python writes the other scalars as strings where they are keys.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push('"');
                self.value(key)?;
                self.out.push('"');
                Ok(())
            }
            other => Err(invalid(format!("a value of type {other} cannot be a JSON key"))),
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.state.consume_fuel(text.len() as u64 / 64)?;
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.style.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
        Ok(())
    }
}

fn number_text(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let number = f64::try_from(value.clone())?;
    Ok(match number {
        _ if number.is_nan() => "NaN".into(),
        _ if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        _ => float_text(number),
    })
}
