//! Values as Python shows them: `str()`, `repr()`, floats, and the tests whose answers differ from minijinja's.
//!
//! Templates are written for Python, where `{{ none }}` gives `None` and `{{ ['a'] }}` gives `['a']`. The operator
//! `~` and the filter `join` keep minijinja's own texts for values that are neither strings nor integers.
//! Invariant: work and depth are bounded by fuel and [`DEPTH_MAX`]. Does not know: messages.
//! Source: Python's data model; tests: jinja2's `tests.py`.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Levels of nesting that a value may have where it is written out.
pub(super) const DEPTH_MAX: usize = 100;

/// `str(value)`.
pub(super) fn str_text(state: &State, value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.to_string()),
        _ => {
            let mut out = String::new();
            repr(state, value, DEPTH_MAX, &mut out)?;
            Ok(out)
        }
    }
}

fn repr(state: &State, value: &Value, levels: usize, out: &mut String) -> Result<(), Error> {
    state.consume_fuel(1)?;
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if !value.is_integer() => out.push_str(&float_text(f64::try_from(value.clone())?)),
        ValueKind::String => repr_string(state, value.as_str().unwrap_or_default(), out)?,
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map if levels == 0 => {
            let text = format!("a value is nested more than {DEPTH_MAX} levels deep");
            return Err(Error::new(ErrorKind::InvalidOperation, text));
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.downcast_object_ref::<Tuple>().is_some();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter()?.checked() {
                out.push_str(if count == 0 { "" } else { ", " });
                count += 1;
                repr(state, &item?, levels - 1, out)?;
            }
            out.push_str(match (tuple, count) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        ValueKind::Map => {
            out.push('{');
            let pairs = value.as_object().and_then(|o| o.try_iter_pairs()).into_iter().flatten();
            for (i, (key, item)) in pairs.enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                repr(state, &key, levels - 1, out)?;
                out.push_str(": ");
                repr(state, &item, levels - 1, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn repr_string(state: &State, text: &str, out: &mut String) -> Result<(), Error> {
    state.consume_fuel(text.len() as u64 / 64)?;
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() || matches!(c, '\u{a0}' | '\u{ad}') => {
                out.push_str(&format!("\\x{:02x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    Ok(())
}

/// `repr` of a float: the shortest digits that read back, with an exponent below 1e-4 and from 1e16.
pub(super) fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').expect("invariant: {:e} writes an exponent");
    let exponent: i32 = exponent.parse().expect("invariant: an exponent is a small integer");
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = format!("{number}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

/// `x is sequence`: what has a length and items, which strings and dicts have too.
pub(super) fn is_sequence(value: &Value) -> bool {
    let kinds = [ValueKind::Undefined, ValueKind::Seq, ValueKind::Map, ValueKind::String];
    kinds.contains(&value.kind())
}

/// `x is iterable`: strings are, `none` is not although minijinja loops over it.
pub(super) fn is_iterable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::String => true,
        ValueKind::None => false,
        _ => value.try_iter().is_ok(),
    }
}

/// `x is number`: in Python a bool is one.
pub(super) fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

/// Whitespace as `str.isspace` knows it.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::float_text;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (123456789.125, "123456789.125"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "nan"),
        ];
        for (number, expected) in cases {
            assert_eq!(float_text(number), expected);
        }
    }
}
