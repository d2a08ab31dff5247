//! A vocabulary for models without one: reads and writes any text, with the markers of a chat.
//!
//! The 256 bytes, pieces of common English words, filler up to the size wanted, and three markers at the end.
//! Invariant: [`super::Vocab`] and [`super::Tokenizer`] accept the keys, and text comes back as it went in.
//! Does not know: models. Source: tokenizer sections 1 and 2.

use std::collections::HashSet;

use super::detokenize::byte_character;
use crate::gguf::{Metadata, Value};

/// The least number of tokens: bytes, pieces and markers.
pub const PLAIN_VOCAB_MIN: usize = 512;

/// Words whose beginnings become tokens, with the blank in front.
const WORDS: [&str; 40] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not",
    "this", "are", "or", "from", "at", "which", "but", "have", "an", "had", "they", "you", "were", "their",
    "one", "all", "we", "can", "has", "there", "been", "if", "more", "when",
];

const MARKERS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] \
                        + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' \
                        }}{% endif %}";

/// The tokenizer's keys for `size` tokens, at least [`PLAIN_VOCAB_MIN`]; `pre` is the pre-tokenizer's name.
pub fn plain_vocab(size: usize, pre: &str) -> Metadata {
    assert!(size >= PLAIN_VOCAB_MIN, "{size} tokens hold no plain vocabulary");
    let mut tokens: Vec<String> = (0..=255u8).map(|byte| byte_character(byte).to_string()).collect();
    let mut known: HashSet<String> = tokens.iter().cloned().collect();
    let mut merges = Vec::new();
    let blank = byte_character(b' ');
    for word in WORDS {
        let mut piece = blank.to_string();
        for letter in word.chars() {
            let longer = format!("{piece}{letter}");
            if known.insert(longer.clone()) {
                merges.push(format!("{piece} {letter}"));
                tokens.push(longer.clone());
            }
            piece = longer;
        }
    }
    let text = size - MARKERS.len();
    tokens.extend((tokens.len()..text).map(|id| format!("{blank}[{id}]")));
    tokens.extend(MARKERS.map(str::to_owned));
    let marker =
        |name: &str| Value::U32((text + MARKERS.iter().position(|m| *m == name).unwrap_or(0)) as u32);
    // 1: text, 3: control.
    let types = (0..size).map(|id| if id < text { 1 } else { 3 }).collect();
    let mut keys = Metadata::default();
    for (key, value) in [
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String(pre.into())),
        ("tokenizer.ggml.tokens", Value::Strings(tokens)),
        ("tokenizer.ggml.token_type", Value::I32s(types)),
        ("tokenizer.ggml.merges", Value::Strings(merges)),
        ("tokenizer.ggml.bos_token_id", marker("<|endoftext|>")),
        ("tokenizer.ggml.eos_token_id", marker("<|im_end|>")),
        ("tokenizer.ggml.padding_token_id", marker("<|endoftext|>")),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
        ("tokenizer.chat_template", Value::String(TEMPLATE.into())),
    ] {
        keys.insert(key.to_owned(), value);
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{AddSpecial, ChatInput, ChatTemplate, ParseSpecial, SpecialText, Tokenizer, Vocab};

    #[test]
    fn text_comes_back_and_common_words_are_few_tokens() {
        for (size, pre) in [(PLAIN_VOCAB_MIN, "llama-bpe"), (5000, "qwen2")] {
            let keys = plain_vocab(size, pre);
            let vocab = Vocab::from_metadata(&keys).unwrap();
            let tokenizer = Tokenizer::new(&vocab).unwrap();
            for text in ["that was the one", "Zürich, 東京 \u{1F600}\n\tx = 3;", "<|im_end|>"] {
                let ids = tokenizer.encode(text, ParseSpecial::AsText, AddSpecial::No).unwrap();
                assert_eq!(vocab.detokenize(&ids, SpecialText::Shown).unwrap(), text.as_bytes());
            }
            let ids = tokenizer.encode(" the one", ParseSpecial::AsText, AddSpecial::No).unwrap();
            assert_eq!(ids.len(), 2);
            let end = tokenizer.encode("<|im_end|>", ParseSpecial::AsTokens, AddSpecial::No).unwrap();
            assert_eq!(end, [size as u32 - 1]);
            assert!(vocab.end_of_generation.contains(&(size as u32 - 1)));
            let template = ChatTemplate::new(vocab.chat_template.as_deref().unwrap()).unwrap();
            let messages = vec![serde_json::json!({"role": "user", "content": "hi"})];
            let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
            let shown = template.render(&input).unwrap();
            assert_eq!(shown, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
        }
    }
}
