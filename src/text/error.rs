//! Everything that can be wrong with a vocabulary, a text or a chat template, one variant a fault.
//!
//! Invariant: a variant says what was expected and found, where (key, token id, template line), and its text ends
//! with what to do. Does not know: files; the caller adds the path.

use crate::gguf::GgufError;

/// A vocabulary, text or template that is refused.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A key of another type than its meaning asks for.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// A key without which there is no tokenizer.
    #[error("the model file has no key {key}, which a tokenizer needs; convert the model with its tokenizer")]
    MissingKey {
        /// Which.
        key: &'static str,
    },
    /// A kind of tokenizer that is not built in.
    #[error(
        "tokenizer.ggml.model is {model:?}, supported is \"gpt2\" (byte-level BPE); use a model of that kind"
    )]
    Model {
        /// As in the file.
        model: String,
    },
    /// A pre-tokenizer that is not built in; a wrong one would silently damage results.
    #[error("tokenizer.ggml.pre is {pre:?}, supported are {supported}; use a model of these families")]
    Pre {
        /// As in the file.
        pre: String,
        /// The names, as a list.
        supported: String,
    },
    /// Two arrays that describe the same tokens.
    #[error("{key} has {got} entries for a vocabulary of {expected} tokens; convert the model again")]
    Length {
        /// Which array.
        key: &'static str,
        /// Its entries.
        got: usize,
        /// Tokens.
        expected: usize,
    },
    /// An array without any token, or with more than ids can count.
    #[error(
        "tokenizer.ggml.tokens has {tokens} tokens, 1 to 2147483647 are possible; convert the model again"
    )]
    VocabSize {
        /// Its entries.
        tokens: usize,
    },
    /// A token type outside 1..=6.
    #[error("tokenizer.ggml.token_type of token {id} is {found}, known are 1 to 6; convert the model again")]
    TokenType {
        /// Which token.
        id: usize,
        /// As in the file.
        found: i32,
    },
    /// Two ids with one text.
    #[error("tokens {first} and {second} have the same text {text:?}; convert the model again")]
    DuplicateToken {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// Their text.
        text: String,
    },
    /// A token id of a key that is not in the vocabulary.
    #[error("{key} is {id}, the vocabulary has {tokens} tokens; correct the key in the model file")]
    TokenId {
        /// Which key.
        key: &'static str,
        /// As in the file.
        id: u32,
        /// Tokens.
        tokens: usize,
    },
    /// A merge without two parts.
    #[error(
        "tokenizer.ggml.merges[{index}] is {text:?}, expected two parts with a blank between; convert the model again"
    )]
    Merge {
        /// Which.
        index: usize,
        /// As in the file.
        text: String,
    },
    /// The library that merges bytes refused the vocabulary or a text.
    #[error("byte-level BPE: {message}; report this model file")]
    Bpe {
        /// What it said.
        message: String,
    },
    /// A text that is of no use with so many tokens.
    #[error(
        "the prompt has more than {tokens_max} tokens, the context holds no more; shorten it or raise --ctx"
    )]
    TooLong {
        /// The most tokens.
        tokens_max: usize,
    },
    /// A token id that a caller made up.
    #[error("token {id} is not in the vocabulary of {tokens} tokens; give ids below that")]
    UnknownToken {
        /// Which.
        id: u32,
        /// Tokens.
        tokens: usize,
    },
    /// A chat template far longer than any real one.
    #[error(
        "the chat template has {bytes} B, at most {bytes_max} are read; give a plain prompt, or correct the template"
    )]
    TemplateSize {
        /// Its length.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// The system gave no thread to render on.
    #[error(
        "cannot start a thread for the chat template: {error}; free memory, or raise the limit on threads"
    )]
    TemplateThread {
        /// What the system said.
        error: std::io::Error,
    },
    /// A chat template that does not parse.
    #[error("the chat template does not parse: {message}; give a plain prompt, or correct the template")]
    TemplateSyntax {
        /// What is wrong, with the line.
        message: String,
    },
    /// A chat template that refuses its input by `raise_exception`.
    #[error("the chat template refuses the messages: {text}; change the messages as it asks")]
    TemplateRefused {
        /// The template's own words.
        text: String,
    },
    /// A chat template that failed while it ran.
    #[error("the chat template failed: {message}; change the messages, or correct the template")]
    TemplateRender {
        /// What is wrong, with the line.
        message: String,
    },
    /// A chat template that ran longer than any real one, or nests deeper.
    #[error(
        "the chat template did not end within {fuel} units of work; send fewer messages, or correct the template"
    )]
    TemplateWork {
        /// The bound.
        fuel: u64,
    },
    /// A content part other than text, for a template that takes strings.
    #[error(
        "message {index} has a content part of type {kind:?}, this model's template takes text only; leave it out"
    )]
    ContentPart {
        /// Which message, from 0.
        index: usize,
        /// The part's type.
        kind: String,
    },
}
