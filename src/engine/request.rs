//! What is asked of the engine, and what it answers, as token ids.
//!
//! Invariants: a request ends with exactly one [`RequestEvent::Finished`], and nothing follows it.
//! Does not know: text, templates, how events travel.

use std::fmt;

use super::error::EngineError;
use super::options::EngineOptions;
use super::sample::SamplingOptions;

/// Numbers requests in the order in which they were submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// Which rows' logits are sent along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogitsWanted {
    /// None.
    #[default]
    None,
    /// Those of the prompt's last row.
    Last,
    /// Those of every row of the prompt and of every accepted decode row.
    All,
}

/// Guesses the tokens that follow; a right guess saves a pass through the stages, a wrong one changes nothing.
pub trait DraftSource: Send {
    /// Appends at most `count_max` guesses for what follows `tokens` to `guesses`, which is empty.
    fn draft(&mut self, tokens: &[u32], count_max: usize, guesses: &mut Vec<u32>);
}

/// One prompt and how it goes on.
#[derive(Default)]
pub struct Request {
    /// At least one token.
    pub prompt: Vec<u32>,
    /// Position of the first prompt token. Positions before it get pages but no rows: their keys are whatever the
    /// pages hold, so anything but 0 serves measurements only.
    pub first_position: u32,
    /// The most tokens after the prompt; 0 reads the prompt only.
    pub tokens_max: usize,
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
    /// Tokens that end the request; they are told in [`Finish::EndToken`], not as tokens.
    pub end_tokens: Vec<u32>,
    /// Which rows' logits are sent along.
    pub logits: LogitsWanted,
    /// The first tokens after the prompt, whatever the logits say; they end nothing.
    pub forced: Vec<u32>,
    /// Where guesses come from.
    pub drafts: Option<Box<dyn DraftSource>>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("prompt_tokens", &self.prompt.len())
            .field("tokens_max", &self.tokens_max)
            .field("sampling", &self.sampling)
            .field("logits", &self.logits)
            .field("drafts", &self.drafts.is_some())
            .finish_non_exhaustive()
    }
}

impl Request {
    /// Refuses what the engine could not carry out to its end.
    pub fn check(&self, options: &EngineOptions) -> Result<(), EngineError> {
        if self.prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let (end, context, vocab) = (self.prompt_end(), options.context, options.vocab);
        if end > context {
            return Err(EngineError::PromptTooLong { end, context });
        }
        if let Some(&token) = self.prompt.iter().chain(&self.forced).find(|&&t| t as usize >= vocab) {
            return Err(EngineError::TokenOutOfRange { token, vocab });
        }
        let rows = options.prompt_rows_max().min(self.prompt.len());
        let rows_max = options.logits_rows_max;
        if self.logits == LogitsWanted::All && rows > rows_max {
            return Err(EngineError::TooManyLogits { rows, rows_max });
        }
        self.sampling.check()
    }

    /// One past the position of the last prompt token.
    pub fn prompt_end(&self) -> usize {
        self.first_position as usize + self.prompt.len()
    }
}

/// Why a request ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Finish {
    /// The model chose one of the end tokens.
    EndToken(u32),
    /// `tokens_max` tokens were made.
    TokensMax,
    /// The next token would lie outside the context.
    ContextFull,
    /// It was cancelled, or its handle was dropped.
    Cancelled,
    /// It could not go on.
    Failed(EngineError),
}

/// What a request took, in the engine's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Tokens of the prompt that were read.
    pub prompt_tokens: usize,
    /// Tokens sent after it.
    pub generated_tokens: usize,
    /// Guesses that went through the stages.
    pub drafted_tokens: usize,
    /// Guesses that were right.
    pub accepted_tokens: usize,
    /// From submission to the first batch.
    pub queued_ns: u64,
    /// From the first batch to the end of the prompt (the first token is known then).
    pub prompt_ns: u64,
    /// From the end of the prompt to the end.
    pub decode_ns: u64,
}

/// What a request tells, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestEvent {
    /// Rows of the prompt that have passed all stages.
    Prompt {
        /// Rows so far.
        read: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Logits of neighbouring rows.
    Logits {
        /// Of the first row.
        position: u32,
        /// How many.
        rows: usize,
        /// `rows x vocab` values.
        values: Vec<f32>,
    },
    /// The next token.
    Token {
        /// Its place.
        position: u32,
        /// The token that goes on.
        id: u32,
        /// What was chosen from the logits; differs from `id` only where tokens are forced.
        sampled: u32,
        /// When it was known, by the engine's clock.
        at_ns: u64,
    },
    /// The end.
    Finished {
        /// Why.
        finish: Finish,
        /// What it took.
        counters: Counters,
    },
}
