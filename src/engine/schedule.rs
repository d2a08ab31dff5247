//! Which kind of batch is posted next, as pure arithmetic over what is in flight.
//!
//! Decode windows: as many in flight as there are stages, the decoding sequences spread evenly over them, so that two
//! sequences on two stages pipeline and twenty share wide windows. Prompts: one batch more than stages, so that no
//! stage waits for the coordinator; as many as stages beside decoding. Where both could go, they alternate.
//! Invariant: no more than [`in_flight_max`] batches are ever in flight.
//! Does not know: sequences, tokens, time.

use crate::device::batch::Phase;
use crate::model::facts::WINDOW_ROWS_MAX;

/// What is known when a batch may be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Stages of the pipeline.
    pub stage_count: usize,
    /// Sequences that decode.
    pub decoding: usize,
    /// Of these, those whose next row is known and that wait for a window.
    pub ready: usize,
    /// Sequences with prompt rows to post.
    pub reading: usize,
    /// Decode windows in flight.
    pub windows_in_flight: usize,
    /// Prompt batches in flight.
    pub prompts_in_flight: usize,
    /// What was posted last.
    pub last: Phase,
}

/// What to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next rows of one prompt.
    Prompt,
    /// A window of so many sequences.
    Window {
        /// One to eight.
        sequences: usize,
    },
}

/// The most batches in flight.
pub fn in_flight_max(stage_count: usize) -> usize {
    2 * (stage_count + 1)
}

/// What to post now, if anything.
pub fn next(load: &Load) -> Option<Next> {
    let &Load { stage_count, decoding, ready, reading, .. } = load;
    let many = decoding > stage_count * WINDOW_ROWS_MAX;
    let window_limit = stage_count + usize::from(many);
    let prompt_limit = stage_count + usize::from(decoding == 0);
    let window = (ready > 0 && load.windows_in_flight < window_limit).then(|| {
        let share = decoding.div_ceil(stage_count).clamp(1, WINDOW_ROWS_MAX);
        Next::Window { sequences: share.min(ready) }
    });
    let prompt = (reading > 0 && load.prompts_in_flight < prompt_limit).then_some(Next::Prompt);
    match load.last {
        Phase::Prompt => window.or(prompt),
        Phase::Decode => prompt.or(window),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(stage_count: usize, decoding: usize, ready: usize, windows_in_flight: usize) -> Load {
        let (reading, prompts_in_flight, last) = (0, 0, Phase::Decode);
        Load { stage_count, decoding, ready, reading, windows_in_flight, prompts_in_flight, last }
    }

    #[test]
    fn decoding_sequences_spread_evenly_over_as_many_windows_as_stages() {
        let window = |sequences| Some(Next::Window { sequences });
        let cases = [
            (load(1, 1, 1, 0), window(1)),
            (load(1, 4, 4, 0), window(4)),
            (load(2, 2, 2, 0), window(1)),
            (load(2, 2, 1, 1), window(1)),
            (load(2, 4, 4, 0), window(2)),
            (load(2, 3, 1, 2), None),
            (load(2, 16, 16, 0), window(8)),
            (load(2, 16, 8, 2), None),
            (load(2, 20, 4, 2), window(4)),
            (load(4, 40, 40, 4), window(8)),
            (load(2, 2, 0, 0), None),
        ];
        for (load, expected) in cases {
            assert_eq!(next(&load), expected, "{load:?}");
        }
    }

    #[test]
    fn prompts_and_windows_alternate_and_neither_fills_the_pipeline() {
        let mut load = Load { reading: 1, ..load(2, 9, 9, 0) };
        let mut posted = Vec::new();
        while let Some(what) = next(&load) {
            match what {
                Next::Prompt => {
                    (load.prompts_in_flight, load.last) = (load.prompts_in_flight + 1, Phase::Prompt)
                }
                Next::Window { sequences } => {
                    (load.windows_in_flight, load.last) = (load.windows_in_flight + 1, Phase::Decode);
                    load.ready -= sequences;
                }
            }
            posted.push(what);
        }
        let (prompt, window) = (Next::Prompt, |sequences| Next::Window { sequences });
        assert_eq!(posted, [prompt, window(5), prompt, window(4)]);
    }

    #[test]
    fn a_lone_prompt_keeps_one_batch_more_in_flight_than_there_are_stages() {
        for stage_count in 1..6 {
            let at = |prompts_in_flight| Load { reading: 1, prompts_in_flight, ..load(stage_count, 0, 0, 0) };
            assert_eq!(next(&at(stage_count)), Some(Next::Prompt));
            assert_eq!(next(&at(stage_count + 1)), None);
        }
    }
}
