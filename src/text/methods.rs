//! Python's methods of strings, dicts and lists, as chat templates call them.
//!
//! Most come from `minijinja-contrib`; here are those that it lacks or answers differently. Methods that change a
//! list or dict are refused, as in the sandbox for which templates are written.
//! Invariant: what a method makes is paid for in fuel before it is made. Source: Python's `str`, `dict`, `list`.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::python::{is_space, str_text};

/// Bytes that a unit of fuel pays for, as the engine counts them.
const BYTES_A_UNIT: u64 = 64;

/// The longest text of a number without width and precision, about: all digits of the largest float, with separators.
const NUMBER_BYTES: u64 = 512;

/// Called where minijinja knows no method `method` of `value`.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => string_method(state, value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Map => dict_method(state, value, method, args)?,
        ValueKind::Seq => list_method(value, method, args)?,
        _ => None,
    };
    if let ("format", Some(format)) = (method, value.as_str()) {
        pay_for_format(state, format, args)?;
    }
    match own {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

fn dict_method(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let pairs = || value.as_object().and_then(|o| o.try_iter_pairs()).into_iter().flatten();
    let list: Vec<Value> = match method {
        // Lists, so that they have a length and `loop.last` is known.
        "keys" => pairs().map(|(key, _)| key).collect(),
        "values" => pairs().map(|(_, item)| item).collect(),
        "items" => pairs().map(|(key, item)| Value::from(Tuple::from([key, item]))).collect(),
        "copy" => {
            let () = from_args(args)?;
            return Ok(Some(value.clone()));
        }
        "update" | "pop" | "popitem" | "setdefault" | "clear" => {
            return Err(invalid(format!("{method}: a template cannot change a dict")));
        }
        _ => return Ok(None),
    };
    let () = from_args(args)?;
    state.consume_fuel(list.len() as u64)?;
    Ok(Some(Value::from(list)))
}

fn list_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" => {
            let () = from_args(args)?;
            Ok(Some(value.clone()))
        }
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            for (i, item) in value.try_iter()?.checked().enumerate() {
                if item? == *wanted {
                    return Ok(Some(Value::from(i)));
                }
            }
            Err(invalid(format!("index: {wanted} is not in the list")))
        }
        "append" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort" | "clear" => {
            Err(invalid(format!("{method}: a template cannot change a list")))
        }
        _ => Ok(None),
    }
}

fn string_method(state: &State, s: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let result = match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let strips = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
            Value::from(match method {
                "strip" => s.trim_matches(strips),
                "lstrip" => s.trim_start_matches(strips),
                _ => s.trim_end_matches(strips),
            })
        }
        "split" | "rsplit" => split(state, s, method, args)?,
        "splitlines" => {
            let (keep, options): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(options.get("keepends")?).unwrap_or(false);
            options.assert_all_used()?;
            lines(s, keep).into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(invalid(format!("{method}: empty separator")));
            }
            let parts = match (method, s.split_once(separator), s.rsplit_once(separator)) {
                ("partition", Some((left, right)), _) | ("rpartition", _, Some((left, right))) => {
                    [left, separator, right]
                }
                ("partition", ..) => [s, "", ""],
                _ => ["", "", s],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(s.strip_prefix(prefix).unwrap_or(s))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(s.strip_suffix(suffix).unwrap_or(s))
        }
        "find" | "rfind" | "index" | "rindex" => {
            let (wanted, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let found = find(s, wanted, start, end, method.starts_with('r'));
            if found.is_none() && method.ends_with("index") {
                return Err(invalid(format!("{method}: {wanted:?} not found")));
            }
            found.map_or(Value::from(-1), Value::from)
        }
        "title" => {
            let () = from_args(args)?;
            Value::from(title(s))
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| -> Vec<char> {
                if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
            };
            Value::from(s.chars().flat_map(swap).collect::<String>())
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(s.to_lowercase().replace('ß', "ss"))
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let missing = padding(state, s, width)?;
            let (sign, digits) = s.split_at(usize::from(s.starts_with(['+', '-'])));
            Value::from(format!("{sign}{}{digits}", "0".repeat(missing)))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            let (missing, fill) = (padding(state, s, width)?, fill.unwrap_or(' ').to_string());
            let left = match method {
                "ljust" => 0,
                "rjust" => missing,
                // Python puts the odd blank on the left where the width is odd.
                _ => missing / 2 + (missing & width & 1),
            };
            Value::from(format!("{}{s}{}", fill.repeat(left), fill.repeat(missing - left)))
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

/// Characters that are missing to `width`, paid for.
fn padding(state: &State, s: &str, width: usize) -> Result<usize, Error> {
    let missing = width.saturating_sub(s.chars().count());
    state.consume_fuel(missing as u64 / 16)?;
    Ok(missing)
}

/// Pays for the most that `format` can make: in each field the longest argument, and widths and precisions in characters of
/// up to four bytes.
fn pay_for_format(state: &State, format: &str, args: &[Value]) -> Result<(), Error> {
    let (values, options): (Rest<Value>, Kwargs) = from_args(args)?;
    let named = options.args().map(|name| options.get::<Value>(name)).collect::<Result<Vec<_>, _>>()?;
    let mut longest = NUMBER_BYTES;
    for value in values.iter().chain(&named) {
        longest = longest.max(match value.kind() {
            ValueKind::String => value.as_str().unwrap_or_default().len() as u64,
            // The engine shows some characters longer than Python.
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => 2 * str_text(state, value)?.len() as u64,
            _ => 0,
        });
    }
    let (fields, widths) = fields(format);
    let made = fields.saturating_mul(longest).saturating_add(widths.saturating_mul(4));
    state.consume_fuel(fields.saturating_add(made.saturating_add(format.len() as u64) / BYTES_A_UNIT))
}

/// The fields of a format, and the sum of all numbers in them: widths, precisions and positions.
fn fields(format: &str) -> (u64, u64) {
    let (mut fields, mut sum, mut rest) = (0u64, 0u64, format);
    while let Some((_, field)) = rest.split_once('{') {
        if let Some(behind) = field.strip_prefix('{') {
            rest = behind;
            continue;
        }
        fields += 1;
        let end = field_end(field);
        for digits in field[..end].split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
            sum = sum.saturating_add(digits.parse().unwrap_or(u64::MAX));
        }
        rest = &field[end..];
    }
    (fields, sum)
}

/// Where the field that begins here ends: neither a key in brackets nor a character to fill with ends it.
fn field_end(field: &str) -> usize {
    let mut at = 0;
    while let Some(next) = field[at..].find(['[', ':', '}']).map(|next| at + next) {
        let behind = &field[next + 1..];
        match field.as_bytes()[next] {
            b'}' => return next,
            b'[' => at = behind.find(']').map_or(field.len(), |key| next + 1 + key),
            _ => {
                let mut spec = behind.chars();
                let fill = spec.next().filter(|_| matches!(spec.next(), Some('<' | '>' | '^')));
                let start = next + 1 + fill.map_or(0, char::len_utf8);
                return field[start..].find('}').map_or(field.len(), |end| start + end);
            }
        }
    }
    field.len()
}

fn split(state: &State, s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit, options): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(options.get("sep")?).filter(|v| !v.is_none());
    let limit =
        limit.or(options.get("maxsplit")?).and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    options.assert_all_used()?;
    let reverse = method == "rsplit";
    let mut parts: Vec<&str> = match &separator {
        None => split_blanks(s, limit, reverse),
        Some(v) => match v.as_str() {
            Some("") => return Err(invalid(format!("{method}: empty separator"))),
            Some(text) if reverse => s.rsplitn(limit.saturating_add(1), text).collect(),
            Some(text) => s.splitn(limit.saturating_add(1), text).collect(),
            None => return Err(invalid(format!("{method}: the separator is a {}, not a string", v.kind()))),
        },
    };
    if reverse {
        parts.reverse();
    }
    state.consume_fuel(parts.len() as u64)?;
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Splits at runs of whitespace, at most `limit` times; from the end and last part first where `reverse`.
fn split_blanks(s: &str, limit: usize, reverse: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = if reverse { s.trim_end_matches(is_space) } else { s.trim_start_matches(is_space) };
    while !rest.is_empty() {
        let cut = if reverse { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut.filter(|_| parts.len() < limit) else {
            let last =
                if reverse { rest.trim_start_matches(is_space) } else { rest.trim_end_matches(is_space) };
            // A rest that the limit left whole keeps the blanks on its far side.
            parts.push(if cut.is_none() { last } else { rest });
            break;
        };
        if reverse {
            let blank = rest[at..].chars().next().map_or(0, char::len_utf8);
            parts.push(&rest[at + blank..]);
            rest = rest[..at].trim_end_matches(is_space);
        } else {
            parts.push(&rest[..at]);
            rest = rest[at..].trim_start_matches(is_space);
        }
    }
    parts
}

fn lines(s: &str, keep: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let (mut out, mut rest) = (Vec::new(), s);
    while !rest.is_empty() {
        let (line, end) = match rest.find(ends) {
            None => (rest.len(), rest.len()),
            Some(at) if rest[at..].starts_with("\r\n") => (at, at + 2),
            Some(at) => (at, at + rest[at..].chars().next().map_or(0, char::len_utf8)),
        };
        out.push(&rest[..if keep { end } else { line }]);
        rest = &rest[end..];
    }
    out
}

/// The position in characters, as Python counts; negative bounds count from the end.
fn find(s: &str, wanted: &str, start: Option<i64>, end: Option<i64>, last: bool) -> Option<usize> {
    let length = s.chars().count() as i64;
    let bound = |at: i64| (if at < 0 { at + length } else { at }).clamp(0, length) as usize;
    let byte = |at: usize| s.char_indices().nth(at).map_or(s.len(), |(byte, _)| byte);
    if start.is_some_and(|at| at > length) {
        return None;
    }
    let (from, to) = (bound(start.unwrap_or(0)), bound(end.unwrap_or(length)));
    let within = s.get(byte(from)..byte(to))?;
    let at = if last { within.rfind(wanted) } else { within.find(wanted) }?;
    Some(from + within[..at].chars().count())
}

/// A letter behind something else is upper case, every other letter lower case.
fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut inside = false;
    for c in s.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::error::TextError;
    use crate::text::{ChatInput, ChatTemplate};

    #[test]
    fn widths_of_fields_are_found_wherever_they_stand() {
        for (format, expected) in [
            ("text 7 {{8}} }}9", (0, 0)),
            ("{}, {0}, {name}", (3, 0)),
            ("{:5} and {1:>12.3f}", (2, 5 + 1 + 12 + 3)),
            ("{0[}]:70}", (1, 70)),
            ("{:}<80}{:{>9}", (2, 80 + 9)),
            ("{:9<4}{{}}{:2}", (2, 9 + 4 + 2)),
            ("{:18446744073709551616}", (1, u64::MAX)),
            ("{:é>30", (1, 30)),
        ] {
            assert_eq!(fields(format), expected, "{format}");
        }
    }

    #[test]
    fn a_format_that_makes_too_much_is_refused_before_it_is_made() {
        let rendered = |source: &str| ChatTemplate::new(source)?.render(&ChatInput::default());
        for (source, text) in [
            ("{{ '{:>4}|{}|{k:.2f}'.format(1, 'é', k=2) }}", "   1|é|2.00"),
            ("{{ '{{}}{0}{0}'.format('a') }}", "{}aa"),
        ] {
            assert_eq!(rendered(source).unwrap(), text, "{source}");
        }
        for source in [
            "{{ '{:9000000000}'.format(1) }}",
            "{{ '{:18446744073709551615}'.format(1) }}",
            "{{ '{:.9000000000f}'.format(1.5) }}",
            "{{ '{0[}]:9000000000}'.format({'}': 1}) }}",
            "{{ ('{0}' * 2000).format('a' * 1000000) }}",
        ] {
            let error = rendered(source).unwrap_err();
            assert!(matches!(error, TextError::TemplateWork { .. }), "{source}: {error}");
        }
    }
}
