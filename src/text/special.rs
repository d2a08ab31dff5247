//! Finding special tokens in text: leftmost, and the longest of those that start at one place.
//!
//! A trie over the bytes of their texts: a search costs at most text bytes times the longest token's bytes.
//! Invariant: the segments, in order, are the whole text. Does not know: token types.
//! Source: tokenizer specification, section 4.

use std::collections::HashMap;

/// A part of a text: a special token, or what lies between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'t> {
    /// A special token's id.
    Token(u32),
    /// A stretch of plain text, not empty.
    Plain(&'t str),
}

/// The special tokens of a vocabulary.
#[derive(Debug, Default)]
pub struct SpecialTokens {
    /// (node, byte) -> node; the root is node 0.
    edges: HashMap<(u32, u8), u32>,
    /// The token that ends at a node.
    ends: Vec<Option<u32>>,
    /// Bytes that some token starts with, so that ordinary text is skipped fast.
    first: Vec<u8>,
}

impl SpecialTokens {
    /// A set of (text, id); empty texts match nothing and are left out.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (&'a str, u32)>) -> SpecialTokens {
        let mut set = SpecialTokens { ends: vec![None], ..SpecialTokens::default() };
        for (text, id) in tokens.into_iter().filter(|(text, _)| !text.is_empty()) {
            let mut node = 0;
            for &byte in text.as_bytes() {
                let next = set.ends.len() as u32;
                node = *set.edges.entry((node, byte)).or_insert(next);
                if node == next {
                    set.ends.push(None);
                }
            }
            set.ends[node as usize] = Some(id);
            if !set.first.contains(&text.as_bytes()[0]) {
                set.first.push(text.as_bytes()[0]);
            }
        }
        set
    }

    /// Cuts `text` at its special tokens, as far as it is asked for.
    pub fn segments<'t>(&self, text: &'t str) -> impl Iterator<Item = Segment<'t>> {
        let bytes = text.as_bytes();
        // Where the next segment begins, and the token that follows a stretch of plain text.
        let (mut start, mut token) = (0, None);
        std::iter::from_fn(move || {
            if let Some(id) = token.take() {
                return Some(Segment::Token(id));
            }
            let begins = |at: &usize| self.first.contains(&bytes[*at]);
            let found = |at: usize| Some((at, self.longest_at(&bytes[at..])?));
            let next = (start..bytes.len()).filter(begins).find_map(found);
            let (plain, end) = match next {
                Some((at, (id, len))) => {
                    token = Some(id);
                    (&text[start..at], at + len)
                }
                None => (&text[start..], bytes.len()),
            };
            start = end;
            if plain.is_empty() { token.take().map(Segment::Token) } else { Some(Segment::Plain(plain)) }
        })
    }

    fn longest_at(&self, bytes: &[u8]) -> Option<(u32, usize)> {
        let (mut node, mut found) = (0, None);
        for (i, &byte) in bytes.iter().enumerate() {
            match self.edges.get(&(node, byte)) {
                Some(&next) => node = next,
                None => break,
            }
            if let Some(id) = self.ends[node as usize] {
                found = Some((id, i + 1));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::Segment::{Plain, Token};
    use super::*;

    fn check(tokens: &[&str], text: &str, expected: &[Segment<'_>]) {
        let set = SpecialTokens::new(tokens.iter().copied().zip(0..));
        assert_eq!(set.segments(text).collect::<Vec<_>>(), expected, "{tokens:?} in {text:?}");
    }

    #[test]
    fn the_leftmost_token_wins_and_at_one_place_the_longest() {
        check(&["<a>", "<a><b>", "b>c"], "x<a><b>c", &[Plain("x"), Token(1), Plain("c")]);
        check(&["ab", "bcd"], "abcd", &[Token(0), Plain("cd")]);
        check(&["abcd", "bc"], "abcx", &[Plain("a"), Token(1), Plain("x")]);
    }

    #[test]
    fn text_without_special_tokens_stays_whole_and_no_segment_is_empty() {
        check(&[], "", &[]);
        check(&["", "<s>"], "plain é text", &[Plain("plain é text")]);
        check(&["<s>"], "<s><s>", &[Token(0), Token(0)]);
        check(&["é"], "aéb", &[Plain("a"), Token(0), Plain("b")]);
        // The second byte of one character never starts a token in the middle of it.
        check(&["©"], "é", &[Plain("é")]);
    }
}
