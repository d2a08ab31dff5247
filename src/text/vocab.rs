//! The vocabulary of a model file: token texts and types, merges, special ids, what ends an answer.
//!
//! Invariants of one that [`Vocab::from_metadata`] made: `types` is as long as `tokens`, no text occurs twice, every
//! id in it is below `tokens.len()`, a token that ends generation by its text is a control token.
//! Does not know: how text is split or merged. Source: tokenizer specification, sections 1, 2 and 5.

use std::collections::{BTreeSet, HashMap};

use super::error::TextError;
use super::pretokenizer::PreTokenizer;
use crate::gguf::Metadata;

/// What kind of token a row of the vocabulary is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenType {
    /// Text, one character a byte.
    Normal,
    /// Stands for what cannot be written; handled as a control token.
    Unknown,
    /// Matched in text only where special tokens are parsed, shown only on request.
    Control,
    /// Matched in any text, always shown.
    UserDefined,
    /// A padding row without text.
    Unused,
    /// A byte of the SentencePiece form.
    Byte,
}

impl TokenType {
    /// The type with this number in the file.
    pub fn from_id(id: i32) -> Option<TokenType> {
        Some(match id {
            1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => return None,
        })
    }

    /// True where the token is a sign to the model rather than text.
    pub fn is_control(self) -> bool {
        matches!(self, TokenType::Control | TokenType::Unknown)
    }
}

/// The tokenizer's data, as read from a model file.
#[derive(Clone, Debug)]
pub struct Vocab {
    /// Token texts, index = id.
    pub tokens: Vec<String>,
    /// One per token.
    pub types: Vec<TokenType>,
    /// Pairs that merge, in rank order.
    pub merges: Vec<(String, String)>,
    /// How text is cut before merging.
    pub pre: PreTokenizer,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn, where the file names one.
    pub eot: Option<u32>,
    /// Ends a message that waits for a tool, where the file names one.
    pub eom: Option<u32>,
    /// Fills rows of a batch.
    pub padding: Option<u32>,
    /// Stands for what cannot be written.
    pub unknown: Option<u32>,
    /// True where `bos` belongs in front of a prompt.
    pub add_bos: bool,
    /// True where `eos` belongs behind a prompt.
    pub add_eos: bool,
    /// Ids that end generation; they are not part of the answer's text.
    pub end_of_generation: BTreeSet<u32>,
    /// The Jinja source that turns messages into a prompt.
    pub chat_template: Option<String>,
    /// Further templates by name, such as `tool_use`.
    pub named_chat_templates: Vec<(String, String)>,
}

/// Texts that end a turn in some family, whatever their type in the file.
const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
];

/// Code-completion tokens that end generation: the key, and the texts that stand in where the key is missing.
const FILL_ENDS: &[(&str, &[&str])] = &[
    ("tokenizer.ggml.fim_pad_token_id", &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    (
        "tokenizer.ggml.fim_rep_token_id",
        &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    ),
    ("tokenizer.ggml.fim_sep_token_id", &["<|file_sep|>"]),
];

#[cfg(test)]
impl Vocab {
    /// A vocabulary of these tokens and nothing else, for tests.
    pub(super) fn bare(pre: PreTokenizer, tokens: Vec<String>, types: Vec<TokenType>) -> Vocab {
        Vocab {
            tokens,
            types,
            merges: Vec::new(),
            pre,
            bos: None,
            eos: None,
            eot: None,
            eom: None,
            padding: None,
            unknown: None,
            add_bos: false,
            add_eos: false,
            end_of_generation: BTreeSet::new(),
            chat_template: None,
            named_chat_templates: Vec::new(),
        }
    }
}

impl Vocab {
    /// Reads the `tokenizer.*` keys of a model file.
    pub fn from_metadata(meta: &Metadata) -> Result<Vocab, TextError> {
        const MODEL: &str = "tokenizer.ggml.model";
        let model = meta.str(MODEL)?.ok_or(TextError::MissingKey { key: MODEL })?;
        if model != "gpt2" {
            return Err(TextError::Model { model: model.to_owned() });
        }
        let pre = PreTokenizer::from_name(meta.str("tokenizer.ggml.pre")?.unwrap_or_default())?;

        const TOKENS: &str = "tokenizer.ggml.tokens";
        let tokens = meta.strings(TOKENS)?.ok_or(TextError::MissingKey { key: TOKENS })?.to_vec();
        if tokens.is_empty() || tokens.len() > i32::MAX as usize {
            return Err(TextError::VocabSize { tokens: tokens.len() });
        }
        let ids = ids_by_text(&tokens)?;
        let mut types = token_types(meta, tokens.len())?;
        let (bos, eos) = (
            required_range(meta, "tokenizer.ggml.bos_token_id", tokens.len())?,
            required_range(meta, "tokenizer.ggml.eos_token_id", tokens.len())?,
        );
        let optional = |key| optional_id(meta, key, tokens.len());
        let (eot, eom) = (optional("tokenizer.ggml.eot_token_id")?, optional("tokenizer.ggml.eom_token_id")?);

        let mut end_of_generation: BTreeSet<u32> = [eos, eot, eom].into_iter().flatten().collect();
        let mut by_text: Vec<u32> = END_TEXTS.iter().filter_map(|text| ids.get(text).copied()).collect();
        for &(key, texts) in FILL_ENDS {
            match optional(key)? {
                Some(id) => _ = end_of_generation.insert(id),
                None => by_text.extend(texts.iter().find_map(|text| ids.get(text))),
            }
        }
        for id in by_text {
            types[id as usize] = TokenType::Control;
            end_of_generation.insert(id);
        }

        let vocab = Vocab {
            merges: merges(meta)?,
            add_bos: meta.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(pre.adds_bos()),
            add_eos: meta.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
            padding: optional("tokenizer.ggml.padding_token_id")?,
            unknown: optional("tokenizer.ggml.unknown_token_id")?,
            chat_template: meta.str("tokenizer.chat_template")?.map(str::to_owned),
            named_chat_templates: named_templates(meta)?,
            tokens,
            types,
            pre,
            bos,
            eos,
            eot,
            eom,
            end_of_generation,
        };
        Ok(vocab)
    }

    /// Number of tokens, padding rows included.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// True without any token; no vocabulary read from a file is.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// True where this id, once drawn, ends the answer.
    pub fn ends_generation(&self, id: u32) -> bool {
        self.end_of_generation.contains(&id)
    }

    /// The text of the bos token, as templates write it; empty without one.
    pub fn bos_text(&self) -> &str {
        self.bos.map_or("", |id| &self.tokens[id as usize])
    }

    /// The text of the eos token, as templates write it; empty without one.
    pub fn eos_text(&self) -> &str {
        self.eos.map_or("", |id| &self.tokens[id as usize])
    }

    /// The template with this name.
    pub fn named_chat_template(&self, name: &str) -> Option<&str> {
        self.named_chat_templates.iter().find(|(n, _)| n == name).map(|(_, source)| source.as_str())
    }
}

fn ids_by_text(tokens: &[String]) -> Result<HashMap<&str, u32>, TextError> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, text) in (0u32..).zip(tokens) {
        if let Some(first) = ids.insert(text.as_str(), id) {
            return Err(TextError::DuplicateToken { first, second: id, text: text.clone() });
        }
    }
    Ok(ids)
}

fn token_types(meta: &Metadata, tokens: usize) -> Result<Vec<TokenType>, TextError> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let Some(types) = meta.i32s(KEY)? else { return Ok(vec![TokenType::Normal; tokens]) };
    if types.len() != tokens {
        return Err(TextError::Length { key: KEY, got: types.len(), expected: tokens });
    }
    let typed = |(id, &found)| TokenType::from_id(found).ok_or(TextError::TokenType { id, found });
    types.iter().enumerate().map(typed).collect()
}

fn merges(meta: &Metadata) -> Result<Vec<(String, String)>, TextError> {
    const KEY: &str = "tokenizer.ggml.merges";
    let lines = meta.strings(KEY)?.ok_or(TextError::MissingKey { key: KEY })?;
    let split = |(index, line): (usize, &String)| {
        // The left part is never empty, so a blank at the very start belongs to it.
        let first = line.chars().next().map_or(0, char::len_utf8);
        match line[first..].split_once(' ') {
            Some((left, right)) if !right.is_empty() => {
                Ok((line[..first + left.len()].to_owned(), right.to_owned()))
            }
            _ => Err(TextError::Merge { index, text: line.clone() }),
        }
    };
    lines.iter().enumerate().map(split).collect()
}

/// bos and eos shape every prompt and every end: one outside the vocabulary is refused.
fn required_range(meta: &Metadata, key: &'static str, tokens: usize) -> Result<Option<u32>, TextError> {
    match meta.u32(key)? {
        Some(id) if id as usize >= tokens => Err(TextError::TokenId { key, id, tokens }),
        id => Ok(id),
    }
}

/// The lesser ids: one outside the vocabulary means nothing, and is said once.
fn optional_id(meta: &Metadata, key: &str, tokens: usize) -> Result<Option<u32>, TextError> {
    match meta.u32(key)? {
        Some(id) if id as usize >= tokens => {
            tracing::warn!(key, id, tokens, "a special token id is outside the vocabulary and is ignored");
            Ok(None)
        }
        id => Ok(id),
    }
}

fn named_templates(meta: &Metadata) -> Result<Vec<(String, String)>, TextError> {
    let mut named = Vec::new();
    for name in meta.strings("tokenizer.chat_templates")?.unwrap_or_default() {
        if let Some(source) = meta.str(&format!("tokenizer.chat_template.{name}"))? {
            named.push((name.clone(), source.to_owned()));
        }
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Value;

    fn strings(list: &[&str]) -> Value {
        Value::Strings(list.iter().map(|s| s.to_string()).collect())
    }

    /// A small sound file; `changes` replace or add keys, `None` removes one.
    fn read(changes: &[(&str, Option<Value>)]) -> Result<Vocab, TextError> {
        let mut keys: Vec<(&str, Value)> = vec![
            ("tokenizer.ggml.model", Value::String("gpt2".into())),
            ("tokenizer.ggml.tokens", strings(&["a", "b", "ab", "<|im_end|>", "<reponame>", "<s>"])),
            ("tokenizer.ggml.merges", strings(&["a b"])),
        ];
        for (key, value) in changes {
            keys.retain(|(k, _)| k != key);
            keys.extend(value.clone().map(|v| (*key, v)));
        }
        let mut meta = Metadata::default();
        for (key, value) in keys {
            assert!(meta.insert(key.to_owned(), value));
        }
        Vocab::from_metadata(&meta)
    }

    fn refusal(changes: &[(&str, Option<Value>)]) -> String {
        read(changes).expect_err("refused").to_string()
    }

    #[test]
    fn a_missing_key_gives_the_default_of_the_specification() {
        let vocab = read(&[]).unwrap();
        assert_eq!((vocab.bos, vocab.eos, vocab.add_bos, vocab.add_eos), (None, None, false, false));
        assert_eq!(vocab.pre, PreTokenizer::Default);
        assert_eq!(vocab.end_of_generation, BTreeSet::from([3, 4]));
        let llama = read(&[("tokenizer.ggml.pre", Some(Value::String("llama-bpe".into())))]).unwrap();
        assert!(llama.add_bos);
    }

    #[test]
    fn a_token_that_ends_generation_by_its_text_becomes_a_control_token() {
        let vocab =
            read(&[("tokenizer.ggml.token_type", Some(Value::I32s(vec![1, 1, 1, 1, 4, 3])))]).unwrap();
        assert_eq!(vocab.types[3..], [TokenType::Control, TokenType::Control, TokenType::Control]);
    }

    #[test]
    fn a_key_for_a_completion_token_takes_the_place_of_the_search_by_text() {
        let vocab = read(&[("tokenizer.ggml.fim_rep_token_id", Some(Value::U32(1)))]).unwrap();
        assert_eq!(vocab.end_of_generation, BTreeSet::from([1, 3]));
    }

    #[test]
    fn a_lesser_id_outside_the_vocabulary_is_ignored_and_bos_or_eos_is_refused() {
        let vocab = read(&[("tokenizer.ggml.eot_token_id", Some(Value::U32(6)))]).unwrap();
        assert_eq!(vocab.eot, None);
        for key in ["tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"] {
            let text = refusal(&[(key, Some(Value::U32(6)))]);
            assert_eq!(
                text,
                format!("{key} is 6, the vocabulary has 6 tokens; correct the key in the model file")
            );
        }
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name_with_what_is() {
        let text = refusal(&[("tokenizer.ggml.model", Some(Value::String("llama".into())))]);
        assert!(text.contains("\"llama\"") && text.contains("\"gpt2\""), "{text}");
        let text = refusal(&[("tokenizer.ggml.pre", Some(Value::String("tekken".into())))]);
        assert!(
            text.contains("\"tekken\"") && text.contains("qwen2") && text.contains("llama-bpe"),
            "{text}"
        );
    }

    #[test]
    fn a_vocabulary_that_contradicts_itself_is_refused() {
        let cases: &[(&str, Option<Value>, &str)] = &[
            ("tokenizer.ggml.model", None, "no key tokenizer.ggml.model"),
            ("tokenizer.ggml.tokens", None, "no key tokenizer.ggml.tokens"),
            ("tokenizer.ggml.merges", None, "no key tokenizer.ggml.merges"),
            ("tokenizer.ggml.tokens", Some(strings(&[])), "has 0 tokens"),
            ("tokenizer.ggml.tokens", Some(strings(&["a", "b", "a"])), "tokens 0 and 2"),
            ("tokenizer.ggml.token_type", Some(Value::I32s(vec![1; 5])), "has 5 entries"),
            ("tokenizer.ggml.token_type", Some(Value::I32s(vec![1, 1, 7, 1, 1, 1])), "token 2 is 7"),
            ("tokenizer.ggml.merges", Some(strings(&["a b", "ab"])), "merges[1]"),
            ("tokenizer.ggml.merges", Some(strings(&["a "])), "merges[0]"),
            ("tokenizer.ggml.merges", Some(strings(&[""])), "merges[0]"),
            ("tokenizer.ggml.add_bos_token", Some(Value::String("yes".into())), "add_bos_token"),
        ];
        for (key, value, expected) in cases {
            let text = refusal(&[(key, value.clone())]);
            assert!(text.contains(expected), "{key}: {text}");
        }
    }

    #[test]
    fn a_merge_splits_at_the_first_blank_behind_its_first_character() {
        let merges = |line| read(&[("tokenizer.ggml.merges", Some(strings(&[line])))]).unwrap().merges;
        assert_eq!(merges("Ġ a"), [("Ġ".into(), "a".into())]);
        assert_eq!(merges("  b"), [(" ".into(), "b".into())]);
        assert_eq!(merges("a b c"), [("a".into(), "b c".into())]);
    }

    #[test]
    fn named_templates_are_found_by_name() {
        let vocab = read(&[
            ("tokenizer.chat_templates", Some(strings(&["tool_use", "gone"]))),
            ("tokenizer.chat_template.tool_use", Some(Value::String("T".into()))),
        ])
        .unwrap();
        assert_eq!(vocab.named_chat_template("tool_use"), Some("T"));
        assert_eq!(vocab.named_chat_template("gone"), None);
    }
}
