//! Which kernels may begin before the one before has ended: those that wait for it by themselves, as their source says.
//!
//! Invariant: a kernel is named only where its body, or a function that it calls, calls `wait_for_previous`; one whose
//! definition is not found begins in order, which is always right.
//! Does not know: whether the call comes before the first read that needs it; that is the kernel's contract
//! (`kernels/device/vendor.h`).

use super::source::{HEADERS, Unit};

const WAIT: &str = "wait_for_previous";

/// Whether the kernel of that name in `unit` waits by itself.
pub fn waits_by_itself(unit: &Unit, kernel: &str) -> bool {
    let texts = Texts::of(unit);
    let functions: Vec<(&str, &str)> = texts.0.iter().flat_map(|t| bodies(t)).collect();
    texts.kernel(kernel).is_some_and(|body| waits(&body, &functions, &mut Vec::new()))
}

/// A unit and the headers.
struct Texts(Vec<String>);

impl Texts {
    fn of(unit: &Unit) -> Texts {
        Texts([unit.text].into_iter().chain(HEADERS.iter().map(|(_, text)| *text)).map(logical).collect())
    }

    /// The body of a kernel of the unit.
    fn kernel(&self, name: &str) -> Option<String> {
        let macros: Vec<Macro<'_>> = self.0.iter().flat_map(|t| t.lines()).filter_map(Macro::of).collect();
        let plain: Vec<&str> = self.0[0].lines().filter(|l| !l.starts_with('#')).collect();
        kernel_body(&plain.join("\n"), name, &macros, 0)
    }
}

/// Without comments, each macro on one line.
fn logical(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(|l| l.split_once("//").map_or(l, |(code, _)| code)).collect();
    lines.join("\n").replace("\\\n", " ")
}

/// A macro with arguments.
struct Macro<'a> {
    name: &'a str,
    parameters: Vec<&'a str>,
    body: &'a str,
}

impl<'a> Macro<'a> {
    fn of(line: &'a str) -> Option<Macro<'a>> {
        let (name, rest) = line.strip_prefix("#define ")?.split_once('(')?;
        let (parameters, body) = rest.split_once(')')?;
        let is_name = name.chars().all(is_word);
        is_name.then(|| Macro { name, parameters: parameters.split(',').map(str::trim).collect(), body })
    }

    /// The body with the arguments in place.
    fn expanded(&self, arguments: &str) -> String {
        let arguments: Vec<&str> = arguments.split(',').map(str::trim).collect();
        let value = |word: &'a str| -> &str {
            let at = self.parameters.iter().position(|p| *p == word);
            at.and_then(|at| arguments.get(at).copied()).unwrap_or(word)
        };
        tokens(self.body).map(value).filter(|token| *token != "##").collect()
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Words, `##` without the space around it, and everything else in pieces.
fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end = match first {
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ if rest.trim_start().starts_with("##") => {
                let behind = rest.trim_start()[2..].trim_start();
                rest = behind;
                return Some("##");
            }
            _ => first.len_utf8(),
        };
        let (token, behind) = rest.split_at(end);
        rest = behind;
        Some(token)
    })
}

/// Where the bracket that opens `text` closes, behind it.
fn closing(text: &str, open: char, close: char) -> Option<usize> {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth -= 1;
            if depth == 0 {
                return Some(at + 1);
            }
        }
    }
    None
}

/// What stands between a name's parentheses and, where they follow at once, its braces.
fn call_and_body(text: &str) -> Option<(&str, Option<&str>)> {
    let end = closing(text, '(', ')')?;
    let rest = text[end..].trim_start();
    let body = if rest.starts_with('{') { closing(rest, '{', '}').map(|end| &rest[..end]) } else { None };
    Some((&text[1..end - 1], body))
}

/// Every name that parentheses and braces follow, with what stands in the braces.
fn bodies(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.match_indices('(').filter_map(move |(at, _)| {
        let before = text[..at].trim_end();
        let start = before.rfind(|c| !is_word(c)).map_or(0, |i| i + 1);
        let (_, body) = call_and_body(&text[at..])?;
        let name = &before[start..];
        let is_function = !matches!(name, "" | "if" | "for" | "while" | "switch");
        body.filter(|_| is_function).map(|body| (name, body))
    })
}

/// The body of a kernel that the text defines itself or by its uses of macros.
fn kernel_body(text: &str, kernel: &str, macros: &[Macro<'_>], depth: usize) -> Option<String> {
    const DEPTH_MAX: usize = 4;
    let own = text.match_indices("__global__").find_map(|(at, _)| {
        let defined = bodies(&text[at..]).next()?;
        (defined.0 == kernel).then(|| defined.1.to_owned())
    });
    let uses = macros.iter().flat_map(|m| text.match_indices(m.name).map(move |(at, _)| (m, at)));
    let by_macro = |(m, at): (&Macro<'_>, usize)| {
        let is_whole = !text[..at].ends_with(is_word);
        let call = text[at + m.name.len()..].strip_prefix('(').filter(|_| is_whole && depth < DEPTH_MAX)?;
        let (arguments, _) = call.split_once(')')?;
        kernel_body(&m.expanded(arguments), kernel, macros, depth + 1)
    };
    own.or_else(|| uses.into_iter().find_map(by_macro))
}

/// Whether a body calls the wait, or a function that does.
fn waits<'a>(body: &str, functions: &[(&'a str, &'a str)], seen: &mut Vec<&'a str>) -> bool {
    let words: Vec<&str> = tokens(body).filter(|t| t.starts_with(is_word)).collect();
    if words.contains(&WAIT) {
        return true;
    }
    for &(name, inner) in functions {
        if words.contains(&name) && !seen.contains(&name) {
            seen.push(name);
            let same = functions.iter().filter(|(other, _)| *other == name);
            if same.map(|(_, inner)| *inner).chain([inner]).any(|inner| waits(inner, functions, seen)) {
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::source::{APPEND, ATTENTION, ATTENTION_WINDOW, FORMATS, LINKS, ROWS};

    const TEXT: &str = "
template <class Form> DEVICE void store(f32* x) {
    if (x) { wait_for_previous(); }
}
DEVICE void keep(f32* x) { x[0] = 1; }  // wait_for_previous()
extern \"C\" __global__ void __launch_bounds__(BLOCK)
first(f32* x, i32 n) {
    wait_for_previous();
}
extern \"C\" __global__ void __launch_bounds__(BLOCK) second(f32* x) { keep(x); }
extern \"C\" __global__ void third(f32* x) { store<f32>(x); }
#define ONE(NAME, FORM)                         \\
    extern \"C\" __global__ void __launch_bounds__(BLOCK) \\
    NAME(f32* x) { store<FORM>(x); }
#define TWO(T)              \\
    ONE(stored_##T, Form_##T) \\
    extern \"C\" __global__ void kept_##T(f32* x) { keep(x); }
TWO(f16)
ONE(by_name, F)
";

    #[test]
    fn kernels_are_found_by_name_through_macros_and_calls() {
        let unit = Unit { name: "test.cu", text: TEXT, per_format: false };
        for name in ["first", "third", "stored_f16", "by_name"] {
            assert!(waits_by_itself(&unit, name), "{name}");
        }
        for name in ["second", "kept_f16", "store", "stored_f32", "none"] {
            assert!(!waits_by_itself(&unit, name), "{name}");
        }
    }

    #[test]
    fn the_kernels_of_windows_wait_by_themselves() {
        let units = [
            (&ROWS, &["norm_images", "route", "combine", "add", "swiglu", "gather"][..]),
            (&APPEND, &["append_f32", "place_heads_f16", "copy_page"][..]),
            (&ATTENTION, &["attend_span_q8_0", "attend_merge"][..]),
            (&ATTENTION_WINDOW, &["attend_tile_2_f32", "attend_tile_8_q8_0", "merge_images"][..]),
            (&FORMATS, &["embed_f16", "embed_q4_k", "window_q6_k", "window_wide_iq4_xs"][..]),
            (&FORMATS, &["product_float_f32", "expert_product_float_bf16"][..]),
            (&LINKS, &["post_rows", "await_rows"][..]),
        ];
        for (unit, names) in units {
            names.iter().for_each(|name| assert!(waits_by_itself(unit, name), "{name}"));
            assert_eq!(Texts::of(unit).kernel("window_"), None, "a family is no kernel");
        }
    }
}
