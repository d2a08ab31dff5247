//! From token ids back to bytes, and to text as the ids arrive.
//!
//! A token may end inside a character, so bytes are concatenated, never strings: [`Detokenizer`] emits the longest
//! prefix that is complete UTF-8 and keeps at most three bytes that can still become a character.
//! Invariant: what was emitted plus the kept bytes is what the tokens wrote, with U+FFFD for each maximal bad part.
//! Does not know: stop strings, what ends an answer. Source: tokenizer specification, sections 2 and 6.

use super::error::TextError;
use super::vocab::{TokenType, Vocab};

/// Whether control tokens show as their text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialText {
    /// They give nothing.
    Hidden,
    /// They give their text.
    Shown,
}

/// The character that stands for a byte in the texts of normal tokens.
pub(super) fn byte_character(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return byte.into();
    }
    let rank = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + rank).expect("invariant: U+0100 to U+0143 are characters")
}

/// The byte for which a character stands, if it is one of the 256.
pub(super) fn character_byte(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121) as u8 + 0x7f),
        0x143 => Some(0xad),
        _ => None,
    }
}

impl Vocab {
    /// The bytes of one token.
    pub fn token_bytes(&self, id: u32, special: SpecialText) -> Result<Vec<u8>, TextError> {
        let Some((text, ty)) = self.tokens.get(id as usize).zip(self.types.get(id as usize)) else {
            return Err(TextError::UnknownToken { id, tokens: self.tokens.len() });
        };
        Ok(match (ty, special) {
            (TokenType::Control | TokenType::Unknown, SpecialText::Hidden) | (TokenType::Unused, _) => {
                Vec::new()
            }
            (TokenType::Control | TokenType::Unknown, SpecialText::Shown) | (TokenType::UserDefined, _) => {
                text.clone().into_bytes()
            }
            // A text outside the alphabet was not byte-encoded by its writer and means itself.
            (TokenType::Normal | TokenType::Byte, _) => text
                .chars()
                .map(character_byte)
                .collect::<Option<Vec<u8>>>()
                .unwrap_or_else(|| text.clone().into_bytes()),
        })
    }

    /// The bytes of a whole answer.
    pub fn detokenize(&self, ids: &[u32], special: SpecialText) -> Result<Vec<u8>, TextError> {
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend(self.token_bytes(id, special)?);
        }
        Ok(bytes)
    }
}

/// Turns the tokens of one answer into text, as they arrive.
#[derive(Clone, Debug)]
pub struct Detokenizer<'v> {
    vocab: &'v Vocab,
    special: SpecialText,
    /// The start of a character that the next token may complete.
    tail: Vec<u8>,
}

impl<'v> Detokenizer<'v> {
    /// At the start of an answer.
    pub fn new(vocab: &'v Vocab, special: SpecialText) -> Detokenizer<'v> {
        Detokenizer { vocab, special, tail: Vec::new() }
    }

    /// Takes the next token; gives the text that is complete with it.
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        let bytes = self.vocab.token_bytes(id, self.special)?;
        self.tail.extend(bytes);
        Ok(complete_prefix(&mut self.tail))
    }

    /// The end of the answer: a kept tail gives one U+FFFD.
    pub fn finish(&mut self) -> String {
        let cut = !self.tail.is_empty();
        self.tail.clear();
        if cut { char::REPLACEMENT_CHARACTER.into() } else { String::new() }
    }
}

/// Takes what is complete out of `bytes` and leaves a tail that can still become a character.
fn complete_prefix(bytes: &mut Vec<u8>) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut at = 0;
    loop {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(good) => {
                text.push_str(good);
                bytes.clear();
                return text;
            }
            Err(error) => {
                let good = at + error.valid_up_to();
                text.push_str(std::str::from_utf8(&bytes[at..good]).expect("invariant: valid up to here"));
                match error.error_len() {
                    Some(bad) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        at = good + bad;
                    }
                    None => {
                        bytes.drain(..good);
                        return text;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::PreTokenizer;

    /// A vocabulary of the 256 bytes and one token of each other type behind them.
    fn bytes_vocab() -> Vocab {
        let mut tokens: Vec<String> = (0..=255).map(|b| byte_character(b).to_string()).collect();
        let mut types = vec![TokenType::Normal; 256];
        for (text, ty) in [
            ("<|é|>", TokenType::Control),
            ("<unk>", TokenType::Unknown),
            ("<ü>", TokenType::UserDefined),
            ("[PAD259]", TokenType::Unused),
            ("日本", TokenType::Normal),
        ] {
            tokens.push(text.into());
            types.push(ty);
        }
        Vocab::bare(PreTokenizer::Gpt2, tokens, types)
    }

    #[test]
    fn the_256_bytes_have_256_characters_and_come_back() {
        assert!((0..=255).all(|b| character_byte(byte_character(b)) == Some(b)));
        assert_eq!([' ', '\n', '\u{ad}'].map(|c| byte_character(c as u8)), ['\u{120}', '\u{10a}', '\u{143}']);
        assert_eq!(['\u{20}', '\u{a0}', '\u{ad}', '\u{144}'].map(character_byte), [None; 4]);
    }

    #[test]
    fn the_bytes_of_a_token_follow_its_type() {
        let vocab = bytes_vocab();
        let hidden = |id| vocab.token_bytes(id, SpecialText::Hidden).unwrap();
        let shown = |id| vocab.token_bytes(id, SpecialText::Shown).unwrap();
        assert_eq!(
            [hidden(256), hidden(257), hidden(258), hidden(259)],
            [&b""[..], b"", "<ü>".as_bytes(), b""]
        );
        assert_eq!([shown(256), shown(257), shown(259)], ["<|é|>".as_bytes(), b"<unk>", b""]);
        assert_eq!(hidden(260), "日本".as_bytes());
        let text = vocab.token_bytes(261, SpecialText::Shown).unwrap_err().to_string();
        assert!(text.contains("token 261") && text.contains("261 tokens"), "{text}");
    }

    #[test]
    fn text_is_emitted_as_soon_as_it_is_complete_and_never_earlier() {
        let cases: &[(&[u8], &[&str], &str)] = &[
            (b"a\xf0\x9f\x98\x80b", &["a", "", "", "", "😀", "b"], ""),
            (b"\xe4\xbdx", &["", "", "\u{fffd}x"], ""),
            (b"\xf0\x9f\x98", &["", "", ""], "\u{fffd}"),
            (b"\x80\xff\xc3", &["\u{fffd}", "\u{fffd}", ""], "\u{fffd}"),
            (b"\xe0\x80", &["", "\u{fffd}\u{fffd}"], ""),
            (b"\xed\xa0\x80", &["", "\u{fffd}\u{fffd}", "\u{fffd}"], ""),
            (b"\xc3\xc3\xa9", &["", "\u{fffd}", "é"], ""),
        ];
        let vocab = bytes_vocab();
        for (bytes, expected, end) in cases {
            let mut text = Detokenizer::new(&vocab, SpecialText::Hidden);
            let emitted: Vec<String> = bytes.iter().map(|&b| text.push(b.into()).unwrap()).collect();
            assert_eq!(&emitted, expected, "{bytes:x?}");
            assert_eq!(text.finish(), *end, "{bytes:x?}");
            assert_eq!(text.finish(), "", "a second end has nothing left");
            assert_eq!(emitted.concat() + end, String::from_utf8_lossy(bytes), "{bytes:x?}");
        }
    }
}
