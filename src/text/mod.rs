//! Text in and out: vocabulary, tokenizer, chat template, streaming detokeniser, stop strings.
//!
//! A [`Vocab`] is read once from a model file and right from then on; a [`Tokenizer`] turns text into its ids, a
//! [`Detokenizer`] turns ids back into text as they arrive, a [`StopStrings`] holds back what may become a stop
//! string, a [`ChatTemplate`] turns messages into the text of a prompt.
//! Does not know: sequences, batches, devices. Source: tokenizer specification, as verified against llama.cpp.

mod chat;
mod clock;
mod detokenize;
mod error;
mod generation;
mod json;
mod methods;
mod plain_vocab;
mod pretokenizer;
mod python;
mod special;
mod stop;
#[cfg(test)]
mod template_features;
mod tokenizer;
mod vocab;

pub use chat::{ChatInput, ChatTemplate, ContentForm};
pub use detokenize::{Detokenizer, SpecialText};
pub use error::TextError;
pub use plain_vocab::{PLAIN_VOCAB_MIN, plain_vocab};
pub use pretokenizer::PreTokenizer;
pub use stop::{StopStep, StopStrings};
pub use tokenizer::{AddSpecial, ParseSpecial, Tokenizer, replace_bad_utf8};
pub use vocab::{TokenType, Vocab};
