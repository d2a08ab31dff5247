//! What an engine is built for: sizes, limits, waiting and pinning, as one typed struct.
//!
//! Invariant: options that passed [`EngineOptions::check`] are right; nothing after it checks them again.
//! Does not know: flags, models, plans.

use std::time::Duration;

use super::error::EngineError;
use crate::device::StageSettings;
use crate::model::facts::{Activations, KvFormat, LinkKind, WINDOW_ROWS_MAX};
use crate::model::footprint::StageSizes;
use crate::split::options::{BATCH_ROWS_MAX, CONTEXT_MAX, LINK_SLOTS_MAX, SEQUENCES_MAX};

/// Whether threads stay on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pinning {
    /// The system places them.
    #[default]
    Free,
    /// Stage s runs on the s-th CPU (counted around) of the inherited mask.
    Pinned,
}

/// Everything that the engine is told beside its cards.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// Rows of a prompt chunk; cuts lie at its multiples from position 0 (`docs/numerics.md`, L3).
    pub chunk_rows: usize,
    /// Reads prompts through windows of this many rows instead.
    pub window_rows: Option<usize>,
    /// Sequences at once.
    pub sequences: usize,
    /// Requests that may wait for one of them.
    pub queue_max: usize,
    /// Positions of a sequence.
    pub context: usize,
    /// Values of a logits row.
    pub vocab: usize,
    /// Values of a row between stages.
    pub residual_width: usize,
    /// The most rows of a batch with logits.
    pub logits_rows_max: usize,
    /// How K and V are kept.
    pub kv: KvFormat,
    /// How products see their inputs.
    pub activations: Activations,
    /// How rows travel through host memory.
    pub link: LinkKind,
    /// Batches that may be under way on a link.
    pub link_slots: usize,
    /// A batch that takes one stage longer than this is taken for a hanging card.
    pub batch_limit: Duration,
    /// Whether stage threads stay on one CPU.
    pub pinning: Pinning,
    /// Threads that compute for the stages, beside the stages' own.
    pub compute_threads: usize,
}

impl EngineOptions {
    /// The defaults of the command line, for a model of these sizes.
    pub fn new(vocab: usize, residual_width: usize, context: usize) -> EngineOptions {
        EngineOptions {
            chunk_rows: 512,
            window_rows: None,
            sequences: 1,
            queue_max: 64,
            context,
            vocab,
            residual_width,
            logits_rows_max: WINDOW_ROWS_MAX,
            kv: KvFormat::F16,
            activations: Activations::Int8,
            link: LinkKind::Local,
            link_slots: 2,
            batch_limit: Duration::from_secs(300),
            pinning: Pinning::Free,
            compute_threads: 0,
        }
    }

    /// Refuses values outside their ranges.
    pub fn check(&self) -> Result<(), EngineError> {
        let window_rows = self.window_rows.unwrap_or(1);
        let most = u32::MAX as usize / 2;
        let rules = [
            ("--chunk", self.chunk_rows, 1, BATCH_ROWS_MAX),
            ("--window", window_rows, 1, WINDOW_ROWS_MAX),
            ("--sequences", self.sequences, 1, SEQUENCES_MAX),
            ("the queue", self.queue_max, 1, most),
            ("--ctx", self.context, 1, CONTEXT_MAX),
            ("the vocabulary", self.vocab, 1, most),
            ("the residual width", self.residual_width, 1, most),
            ("the rows with logits", self.logits_rows_max, WINDOW_ROWS_MAX, most),
            ("the link slots", self.link_slots, 1, LINK_SLOTS_MAX),
            ("the batch limit in ms", self.batch_limit.as_millis() as usize, 1, most),
        ];
        match rules.into_iter().find(|(_, value, least, most)| value < least || value > most) {
            Some((option, value, least, most)) => {
                Err(EngineError::Option { option, value: value as u64, range: format!("{least} to {most}") })
            }
            None => Ok(()),
        }
    }

    /// The most rows with which prompts are read.
    pub fn prompt_rows_max(&self) -> usize {
        self.window_rows.unwrap_or(self.chunk_rows)
    }

    /// The most rows of any batch.
    pub fn batch_rows_max(&self) -> usize {
        self.prompt_rows_max().min(self.context).max(WINDOW_ROWS_MAX)
    }

    /// K/V pages with which every sequence can fill its context.
    pub fn kv_pages(&self) -> usize {
        self.stage_sizes().kv_pages()
    }

    /// Bytes of all buffers for logits.
    pub fn logits_bytes(&self) -> u64 {
        self.stage_sizes().logits_bytes(self.vocab)
    }

    /// What the planner is asked for.
    pub fn stage_sizes(&self) -> StageSizes {
        StageSizes {
            kv: self.kv,
            context: self.context,
            sequences: self.sequences,
            batch_rows_max: self.batch_rows_max(),
            logits_rows_max: self.logits_rows_max,
            link_slots: self.link_slots,
            link_side_slots: self.link.side_slots(),
            link_card_slots: 0,
        }
    }

    /// What a stage is lowered for.
    pub fn stage_settings(&self) -> StageSettings {
        StageSettings {
            activations: self.activations,
            kv: self.kv,
            kv_pages: self.kv_pages(),
            batch_rows_max: self.batch_rows_max(),
            logits_rows_max: self.logits_rows_max,
            context: self.context,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_outside_their_ranges_are_named() {
        let good = || EngineOptions::new(32, 4, 256);
        let cases = [
            (EngineOptions { chunk_rows: 0, ..good() }, "--chunk"),
            (EngineOptions { window_rows: Some(9), ..good() }, "--window"),
            (EngineOptions { sequences: 0, ..good() }, "--sequences"),
            (EngineOptions { context: 0, ..good() }, "--ctx"),
            (EngineOptions { logits_rows_max: 7, ..good() }, "the rows with logits"),
            (EngineOptions { link_slots: 0, ..good() }, "the link slots"),
        ];
        for (options, name) in cases {
            let error = options.check().unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
        assert_eq!(good().check(), Ok(()));
    }

    #[test]
    fn no_batch_has_more_rows_than_its_context_or_fewer_than_a_window() {
        let rows = |chunk_rows, context| {
            EngineOptions { chunk_rows, ..EngineOptions::new(32, 4, context) }.batch_rows_max()
        };
        assert_eq!([rows(512, 4096), rows(512, 100), rows(2, 100), rows(2, 4)], [512, 100, 8, 8]);
    }
}
