//! `{% generation %}` ... `{% endgeneration %}`: marks of the training tools, transparent here.
//!
//! The marks become an `if` that is always true, in the source and before it is parsed, so whitespace control around
//! them works as on any block. Comments, raw blocks and strings in expressions stay as they are.
//! Does not know: what templates mean. Source: the chat template extension of Hugging Face's transformers.

/// The template without generation marks.
pub(super) fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let taken = if tag.starts_with("{#") {
            tag.find("#}").map_or(tag.len(), |end| end + 2)
        } else if tag.starts_with("{{") {
            expression_bytes(tag)
        } else if tag.starts_with("{%") {
            match block_word(tag) {
                Some((word, at)) if word == "generation" || word == "endgeneration" => {
                    out.push_str(&tag[..at]);
                    out.push_str(if word == "generation" { "if true" } else { "endif" });
                    rest = &tag[at + word.len()..];
                    continue;
                }
                Some(("raw", _)) => raw_bytes(tag),
                _ => expression_bytes(tag),
            }
        } else {
            1
        };
        out.push_str(&tag[..taken]);
        rest = &tag[taken..];
    }
    out.push_str(rest);
    out
}

/// The first word of a block tag and where it begins; the marks stand alone in theirs.
fn block_word(tag: &str) -> Option<(&str, usize)> {
    let inside = tag[2..].strip_prefix(['-', '+']).unwrap_or(&tag[2..]).trim_start();
    let at = tag.len() - inside.len();
    let word = &inside[..inside.find(|c: char| !c.is_alphanumeric() && c != '_')?];
    let behind = inside[word.len()..].trim_start();
    let alone = behind.starts_with("%}") || behind.starts_with("-%}") || behind.starts_with("+%}");
    alone.then_some((word, at))
}

/// Bytes of a `{{ }}` or `{% %}` with its strings skipped.
fn expression_bytes(tag: &str) -> usize {
    let close: [u8; 2] = if tag.starts_with("{{") { *b"}}" } else { *b"%}" };
    let bytes = tag.as_bytes();
    let (mut at, mut quote) = (2, None);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(q), b) if b == q => quote = None,
            (None, b @ (b'"' | b'\'')) => quote = Some(b),
            (None, _) if bytes[at..].starts_with(&close) => return at + 2,
            _ => {}
        }
        at += 1;
    }
    tag.len()
}

/// Bytes up to the tag that ends a raw block.
fn raw_bytes(tag: &str) -> usize {
    let mut at = 2;
    while let Some(next) = tag[at..].find("{%") {
        at += next;
        if matches!(block_word(&tag[at..]), Some((word, _)) if word == "endraw") {
            return at;
        }
        at += 2;
    }
    tag.len()
}

#[cfg(test)]
mod tests {
    use super::without_generation_marks;

    #[test]
    fn marks_become_a_block_that_always_holds_and_nothing_else_changes() {
        let cases = [
            ("a{% generation %}b{% endgeneration %}c", "a{% if true %}b{% endif %}c"),
            ("{%- generation -%} x {%-endgeneration+%}", "{%- if true -%} x {%-endif+%}"),
            ("{# {% generation %} #}{% generation %}", "{# {% generation %} #}{% if true %}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            ("{% set x = \"%}{% generation %}\\\"\" %}", "{% set x = \"%}{% generation %}\\\"\" %}"),
            (
                "{% raw %}{% generation %}{% endraw %}{% generation %}",
                "{% raw %}{% generation %}{% endraw %}{% if true %}",
            ),
            ("{% generation_x %}{% if generation %}", "{% generation_x %}{% if generation %}"),
            ("{ {% generation", "{ {% generation"),
            ("{{ \"é", "{{ \"é"),
        ];
        for (source, expected) in cases {
            assert_eq!(without_generation_marks(source), expected);
        }
    }
}
