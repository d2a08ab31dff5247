//! From text to token ids: special tokens, pre-tokenizer, byte-level BPE.
//!
//! Special tokens are cut out first, by this module and not by the library's added tokens, which would let a control
//! token that is not wanted hide a user-defined one inside it. Each plain piece is written with one character a byte
//! and merged by the library. Invariant: text comes back byte for byte when detokenised, bytes without a token
//! aside.
//! Does not know: chat messages, sequences. Source: tokenizer specification, sections 3, 4, 7 and 9.

use std::collections::HashSet;

use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab as BpeVocab};

use super::detokenize::{byte_character, character_byte};
use super::error::TextError;
use super::pretokenizer::Splitter;
use super::special::{Segment, SpecialTokens};
use super::vocab::{TokenType, Vocab};

/// Whether control tokens in the text are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseSpecial {
    /// They stay text: for what users write.
    AsText,
    /// They give their ids: for what a chat template wrote.
    AsTokens,
}

/// Whether bos and eos go around the text, where the vocabulary asks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddSpecial {
    /// Neither.
    No,
    /// Both, whatever the text starts with.
    Always,
    /// Both, but no second bos where the text itself starts with one: for what a chat template wrote.
    UnlessWritten,
}

/// Turns text into the ids of one vocabulary.
#[derive(Debug)]
pub struct Tokenizer {
    bpe: BPE,
    splitter: Splitter,
    /// User-defined tokens alone, and with control tokens.
    any_text: SpecialTokens,
    parsed: SpecialTokens,
    byte_characters: [char; 256],
    /// The token of each byte on its own.
    byte_ids: [Option<u32>; 256],
    /// Bytes, and texts that merges make, that are no tokens; their ids in `bpe` follow those of the vocabulary.
    beyond: Vec<String>,
    tokens: usize,
    /// Of the longest token.
    token_bytes_max: usize,
    whole_piece_first: bool,
    bos: Option<u32>,
    eos: Option<u32>,
}

impl Tokenizer {
    /// Builds the tables; seconds for a vocabulary of 150,000 tokens in an unoptimised build, 0.2 s otherwise.
    pub fn new(vocab: &Vocab) -> Result<Tokenizer, TextError> {
        let mut ids: BpeVocab = vocab.tokens.iter().cloned().zip(0u32..).collect();
        let byte_characters: [char; 256] = std::array::from_fn(|b| byte_character(b as u8));
        let mut beyond = Vec::new();
        let mut know = |text: String| {
            let next = (vocab.tokens.len() + beyond.len()) as u32;
            if *ids.entry(text.clone()).or_insert(next) == next {
                beyond.push(text);
            }
        };
        // A byte without a token still stands between its neighbours: they must not merge across it.
        byte_characters.iter().for_each(|c| know(c.to_string()));
        let (mut merges, mut seen) = (Vec::new(), HashSet::new());
        for (left, right) in &vocab.merges {
            // Of two equal merges the first has the rank.
            if seen.insert((left, right)) {
                [left.clone(), right.clone(), format!("{left}{right}")].into_iter().for_each(&mut know);
                merges.push((left.clone(), right.clone()));
            }
        }
        let byte_ids = byte_characters
            .map(|c| ids.get(c.encode_utf8(&mut [0; 4]) as &str).copied())
            .map(|id| id.filter(|&id| (id as usize) < vocab.tokens.len()));
        // The library's cache lives in the thread and outlasts the tokenizer, so it stays off.
        let bpe =
            BPE::builder().vocab_and_merges(ids, merges).cache_capacity(0).build().map_err(bpe_error)?;
        let of_types = |wanted: fn(TokenType) -> bool| {
            let rows = vocab.tokens.iter().zip(&vocab.types).zip(0u32..);
            SpecialTokens::new(
                rows.filter(move |((_, ty), _)| wanted(**ty)).map(|((t, _), id)| (t.as_str(), id)),
            )
        };
        Ok(Tokenizer {
            bpe,
            splitter: Splitter::new(vocab.pre),
            any_text: of_types(|ty| ty == TokenType::UserDefined),
            parsed: of_types(|ty| ty == TokenType::UserDefined || ty.is_control()),
            byte_characters,
            byte_ids,
            beyond,
            tokens: vocab.tokens.len(),
            token_bytes_max: vocab.tokens.iter().map(String::len).max().unwrap_or(0).max(1),
            whole_piece_first: vocab.pre.ignores_merges(),
            bos: vocab.bos.filter(|_| vocab.add_bos),
            eos: vocab.eos.filter(|_| vocab.add_eos),
        })
    }

    /// The ids of `text`. A byte for which the vocabulary has no token gives none, as in llama.cpp: some families left
    /// out control characters that their training text never held. Fails only where the library does.
    pub fn encode(&self, text: &str, parse: ParseSpecial, add: AddSpecial) -> Result<Vec<u32>, TextError> {
        self.encode_within(text, parse, add, usize::MAX)
    }

    /// The same for a text that is of use only with `tokens_max` ids or fewer: where it has more, but for one or two of
    /// bos and eos, it is refused with the work and the memory of so many.
    pub fn encode_within(
        &self,
        text: &str,
        parse: ParseSpecial,
        add: AddSpecial,
        tokens_max: usize,
    ) -> Result<Vec<u32>, TextError> {
        let special = match parse {
            ParseSpecial::AsText => &self.any_text,
            ParseSpecial::AsTokens => &self.parsed,
        };
        // The slot for bos is taken first and dropped where the text brings its own.
        let mut ids: Vec<u32> = self.bos.filter(|_| add != AddSpecial::No).into_iter().collect();
        let start = ids.len();
        let mut written = String::new();
        // The place of a bos that may be dropped is not counted.
        let within = |ids: &[u32], more: usize| match more <= tokens_max.saturating_sub(ids.len() - start) {
            true => Ok(()),
            false => Err(TextError::TooLong { tokens_max }),
        };
        for segment in special.segments(text) {
            match segment {
                Segment::Token(id) => {
                    within(&ids, 1)?;
                    ids.push(id);
                }
                Segment::Plain(stretch) => {
                    within(&ids, self.tokens_min(stretch))?;
                    self.splitter.pieces(stretch, &mut |piece: &str| {
                        within(&ids, self.tokens_min(piece))?;
                        written.clear();
                        written.extend(piece.bytes().map(|b| self.byte_characters[usize::from(b)]));
                        self.merge(&written, &mut ids)
                    })?;
                }
            }
        }
        if add == AddSpecial::UnlessWritten && start == 1 && ids.get(1) == ids.first() {
            ids.remove(0);
        }
        ids.extend(self.eos.filter(|_| add != AddSpecial::No));
        Ok(ids)
    }

    /// A text has so many tokens or more: every byte that is a token by itself is in one of them.
    fn tokens_min(&self, text: &str) -> usize {
        let bytes = text.bytes().filter(|&b| self.byte_ids[usize::from(b)].is_some());
        bytes.count().div_ceil(self.token_bytes_max)
    }

    /// The ids of one piece, written with one character a byte.
    fn merge(&self, written: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let known = |id: &u32| (*id as usize) < self.tokens;
        if self.whole_piece_first
            && let Some(id) = self.bpe.token_to_id(written).filter(known)
        {
            ids.push(id);
            return Ok(());
        }
        for token in self.bpe.tokenize(written).map_err(bpe_error)? {
            match (token.id as usize).checked_sub(self.tokens) {
                None => ids.push(token.id),
                Some(n) => {
                    let bytes = self.beyond[n].chars().filter_map(character_byte);
                    ids.extend(bytes.filter_map(|b| self.byte_ids[usize::from(b)]));
                }
            }
        }
        Ok(())
    }
}

/// Text from bytes of unknown origin: each maximal bad part becomes U+FFFD.
pub fn replace_bad_utf8(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn bpe_error(error: tokenizers::Error) -> TextError {
    TextError::Bpe { message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{PreTokenizer, SpecialText};

    /// All 256 bytes, then `extra` with their types.
    fn vocab(pre: PreTokenizer, extra: &[(&str, TokenType)], merges: &[(&str, &str)]) -> Vocab {
        let bytes = (0..=255).map(|b| (byte_character(b).to_string(), TokenType::Normal));
        let extra = extra.iter().map(|(text, ty)| (text.to_string(), *ty));
        let (tokens, types) = bytes.chain(extra).unzip();
        let merges = merges.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        Vocab { merges, ..Vocab::bare(pre, tokens, types) }
    }

    fn encode(vocab: &Vocab, text: &str, parse: ParseSpecial) -> Vec<u32> {
        Tokenizer::new(vocab).unwrap().encode(text, parse, AddSpecial::No).unwrap()
    }

    #[test]
    fn a_control_token_that_stays_text_does_not_hide_a_user_defined_one_inside_it() {
        let v = vocab(
            PreTokenizer::Qwen2,
            &[("<|tool|>", TokenType::Control), ("tool", TokenType::UserDefined)],
            &[],
        );
        let [lt, bar, gt] = [60, 124, 62];
        assert_eq!(encode(&v, "<|tool|>", ParseSpecial::AsText), [lt, bar, 257, bar, gt]);
        assert_eq!(encode(&v, "<|tool|>", ParseSpecial::AsTokens), [256]);
    }

    #[test]
    fn bos_is_not_added_twice_where_the_text_brings_it() {
        let mut v =
            vocab(PreTokenizer::Llama3, &[("<s>", TokenType::Control), ("</s>", TokenType::Control)], &[]);
        (v.bos, v.eos, v.add_bos, v.add_eos) = (Some(256), Some(257), true, true);
        let t = Tokenizer::new(&v).unwrap();
        let ids = |text, parse, add| t.encode(text, parse, add).unwrap();
        use {AddSpecial as A, ParseSpecial as P};
        assert_eq!(ids("", P::AsText, A::Always), [256, 257]);
        assert_eq!(ids("", P::AsText, A::No), [0u32; 0]);
        assert_eq!(ids("<s>a", P::AsTokens, A::UnlessWritten), [256, 97, 257]);
        assert_eq!(ids("<s>a", P::AsTokens, A::Always), [256, 256, 97, 257]);
        assert_eq!(ids("a", P::AsTokens, A::UnlessWritten), [256, 97, 257]);
        assert_eq!(ids("<s>", P::AsText, A::UnlessWritten), [256, 60, 115, 62, 257]);
    }

    #[test]
    fn a_merge_that_makes_no_token_falls_back_to_single_bytes() {
        let v =
            vocab(PreTokenizer::Gpt2, &[("ab", TokenType::Normal)], &[("a", "b"), ("ab", "c"), ("c", "d")]);
        assert_eq!(encode(&v, "ab", ParseSpecial::AsText), [256]);
        assert_eq!(encode(&v, "abc", ParseSpecial::AsText), [97, 98, 99]);
        assert_eq!(encode(&v, "abcd", ParseSpecial::AsText), [97, 98, 99, 100]);
    }

    #[test]
    fn ranks_belong_to_pairs_and_the_first_of_equal_merges_counts() {
        let extra = [("ab", TokenType::Normal), ("bc", TokenType::Normal), ("abc", TokenType::Normal)];
        let v = vocab(PreTokenizer::Gpt2, &extra, &[("b", "c"), ("ab", "c"), ("a", "b")]);
        assert_eq!(encode(&v, "abc", ParseSpecial::AsText), [97, 257], "no merge is (a, bc)");
        let v = vocab(PreTokenizer::Gpt2, &extra, &[("a", "b"), ("b", "c"), ("a", "b")]);
        assert_eq!(encode(&v, "abc", ParseSpecial::AsText), [256, 99]);
    }

    #[test]
    fn a_piece_that_is_a_token_is_taken_whole_only_where_the_family_says_so() {
        let extra = [("word", TokenType::Normal)];
        let of = |pre| encode(&vocab(pre, &extra, &[]), "word", ParseSpecial::AsText);
        assert_eq!(of(PreTokenizer::Llama3), [256]);
        assert_eq!(of(PreTokenizer::Qwen2), b"word".map(u32::from));
    }

    #[test]
    fn a_byte_without_a_token_is_left_out_and_its_neighbours_do_not_merge() {
        let mut v = vocab(PreTokenizer::Gpt2, &[("ab", TokenType::Normal)], &[("a", "b")]);
        v.tokens[usize::from(b'x')] = "gone".into();
        assert_eq!(encode(&v, "axb", ParseSpecial::AsText), [97, 98]);
        assert_eq!(encode(&v, "xabx", ParseSpecial::AsText), [256]);
    }

    #[test]
    fn any_text_comes_back_byte_for_byte() {
        let v = vocab(PreTokenizer::Qwen35, &[("he", TokenType::Normal)], &[("h", "e")]);
        let text = "hehe \0\u{7f}\r\n\n \u{2028}e\u{301} 123456 你好 👩‍💻 \u{ad}\u{a0}'s";
        let ids = encode(&v, text, ParseSpecial::AsTokens);
        assert_eq!(v.detokenize(&ids, SpecialText::Shown).unwrap(), text.as_bytes());
    }

    #[test]
    fn a_text_of_too_many_tokens_is_refused_and_any_other_has_the_same() {
        let extra = [("aa", TokenType::Normal), ("<s>", TokenType::UserDefined)];
        let mut v = vocab(PreTokenizer::Qwen2, &extra, &[("a", "a")]);
        v.tokens[usize::from(b'x')] = "gone".into();
        let t = Tokenizer::new(&v).unwrap();
        let within = |text: &str, tokens_max| {
            t.encode_within(text, ParseSpecial::AsTokens, AddSpecial::No, tokens_max).ok()
        };
        for text in ["", "aaaa", "aaa b<s><s>", "xxxxxxxxxxxxxxxxxxxx a", "<s>aa"] {
            let ids = t.encode(text, ParseSpecial::AsTokens, AddSpecial::No).unwrap();
            assert_eq!(within(text, ids.len()), Some(ids), "{text}");
        }
        for (text, tokens_max) in [("<s><s>", 1), ("a b c d", 3), (&"a".repeat(1 << 24), 1000)] {
            assert_eq!(within(text, tokens_max), None, "{} B", text.len());
        }
    }

    #[test]
    fn a_long_run_of_one_character_takes_no_quadratic_time() {
        let mut extra: Vec<(String, TokenType)> = Vec::new();
        let mut merges: Vec<(String, String)> = Vec::new();
        for c in ["a", "Ġ", "Ċ", "1", "-"] {
            for doubling in 1..6 {
                let half = c.repeat(1 << (doubling - 1));
                extra.push((half.repeat(2), TokenType::Normal));
                merges.push((half.clone(), half));
            }
        }
        let extra: Vec<(&str, TokenType)> = extra.iter().map(|(t, ty)| (t.as_str(), *ty)).collect();
        let merges: Vec<(&str, &str)> = merges.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        for pre in [PreTokenizer::Default, PreTokenizer::SmolLm, PreTokenizer::Llama3, PreTokenizer::Qwen35] {
            let v = vocab(pre, &extra, &merges);
            let t = Tokenizer::new(&v).unwrap();
            for c in ["a", " ", "\n", "1", "-", "\u{301}", "<"] {
                let text = c.repeat(200_000);
                let ids = t.encode(&text, ParseSpecial::AsTokens, AddSpecial::No).unwrap();
                assert_eq!(v.detokenize(&ids, SpecialText::Shown).unwrap(), text.as_bytes(), "{pre:?} {c:?}");
            }
        }
    }
}
