//! What can go wrong between a request and its text, one line each: what, where, what to do.
//!
//! Invariant: errors are plain values that can be sent to every request that they end.
//! Does not know: how an error is shown.

use crate::device::batch::BatchId;
use crate::model::facts::CardId;

/// An error of the engine.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// A request without tokens.
    #[error("the prompt holds no tokens; give at least one")]
    EmptyPrompt,
    /// The prompt alone is longer than the context.
    #[error("the prompt ends at position {end}, the context holds {context}; shorten it or raise --ctx")]
    PromptTooLong {
        /// First position plus tokens.
        end: usize,
        /// Positions of a sequence.
        context: usize,
    },
    /// A token id that the model does not have.
    #[error("token {token} is outside the vocabulary of {vocab}; ids count from 0")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Rows of the head.
        vocab: usize,
    },
    /// A chunk asks for more logits than were planned.
    #[error("a batch of {rows} rows asks for logits, {rows_max} are planned; lower --chunk")]
    TooManyLogits {
        /// Asked for.
        rows: usize,
        /// Planned.
        rows_max: usize,
    },
    /// A sampling option outside its range.
    #[error("{option} is {value:?}; it must be {range}")]
    Sampling {
        /// Flag-like name.
        option: &'static str,
        /// What was given.
        value: f32,
        /// What is allowed.
        range: &'static str,
    },
    /// An engine option outside its range.
    #[error("{option} is {value}; it must be {range}")]
    Option {
        /// Flag-like name.
        option: &'static str,
        /// What was given.
        value: u64,
        /// What is allowed.
        range: String,
    },
    /// A card's pages cannot hold what the options promise.
    #[error(
        "{card}: {pages} K/V pages, {sequences} sequences of {context} positions need {needed}; lower --ctx or --sequences"
    )]
    TooFewPages {
        /// Which card.
        card: CardId,
        /// Planned there.
        pages: usize,
        /// Sequences at once.
        sequences: usize,
        /// Positions of each.
        context: usize,
        /// Their pages.
        needed: usize,
    },
    /// The waiting line is full.
    #[error("{queued} requests are waiting already; try again later or raise --sequences")]
    QueueFull {
        /// Waiting.
        queued: usize,
    },
    /// A stage ended; all states of its card are lost with it.
    #[error("{card} failed: {}", died(*card, cause))]
    StageDied {
        /// Which card.
        card: CardId,
        /// What the stage said.
        cause: String,
    },
    /// A batch did not come back in time.
    #[error(
        "batch {} did not come back within {waited_ms} ms: {}; restart, without the card if it happens again",
        batch.0,
        suspect.map_or("its answer was lost".to_owned(), |card| format!("{card} hangs"))
    )]
    Late {
        /// The oldest batch in flight.
        batch: BatchId,
        /// The first card that has not handed it on; `None`: all have.
        suspect: Option<CardId>,
        /// Since the last sign of progress.
        waited_ms: u64,
    },
    /// Rule 6 of `docs/numerics.md`.
    #[error("a logit at position {position} is not finite; the weights or the prompt are at fault")]
    NotFinite {
        /// Of the row that made the logits.
        position: u32,
    },
    /// A card refused the rows of the request's batch.
    #[error("{cause}")]
    Rows {
        /// In the card's words.
        cause: String,
    },
    /// The engine takes no more requests.
    #[error("the engine is shutting down; start a new one")]
    ShuttingDown,
    /// A thread could not be started.
    #[error("cannot start the thread of {what}: {cause}; raise the limit of threads")]
    Thread {
        /// Whose.
        what: String,
        /// What the system said.
        cause: String,
    },
    /// A link between two stages could not be opened.
    #[error("{what}")]
    Link {
        /// In the link's words.
        what: String,
    },
    /// A stage did not end at shutdown.
    #[error("{card} does not answer and was left behind; end the process")]
    Hangs {
        /// Which card.
        card: CardId,
    },
    /// The machines disagree with the plan of their queues.
    #[error("internal: {what}; please report this")]
    Internal {
        /// Which invariant broke.
        what: String,
    },
}

/// A cause with what to do, each said once: a card's own error begins with its name and may say to start again.
fn died(card: CardId, cause: &str) -> String {
    let own = cause.strip_prefix(&format!("{card}: ")).unwrap_or(cause);
    let again = if own.ends_with("start again") { "" } else { "; start again" };
    format!("{own}{again}, on other cards if it happens again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_says_its_card_and_what_to_do_once() {
        for (cause, expected) in [
            (
                "cuda:1: cuLaunch: lost; check the log, and start again",
                "cuda:1 failed: cuLaunch: lost; check the log, and start again, on other cards if it happens again",
            ),
            ("panic: x", "cuda:1 failed: panic: x; start again, on other cards if it happens again"),
            (
                "cuda:0: no rows",
                "cuda:1 failed: cuda:0: no rows; start again, on other cards if it happens again",
            ),
        ] {
            let error = EngineError::StageDied { card: CardId::cuda(1), cause: cause.to_owned() };
            assert_eq!(error.to_string(), expected);
        }
    }
}
