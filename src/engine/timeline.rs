//! Where a stage's time goes: stamps of every batch, added up, and the last ones kept.
//!
//! A card that has a clock is busy by its own stamps, and what else a run took is handing over: the way of a batch to the
//! card and of its results from it.
//! Invariants: a time counts only where both its stamps exist and rise; memory is bounded.
//! Does not know: which clock the stamps come from, what a batch holds.

use std::collections::VecDeque;

use crate::device::CardStamps;
use crate::device::batch::{BatchId, Phase};

/// When a batch reached each point of a stage, in the engine's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct BatchStamps {
    /// Which batch.
    pub batch: Option<BatchId>,
    /// What it does.
    pub phase: Phase,
    /// Its rows.
    pub rows: usize,
    /// The stage began to wait for a command.
    pub asked_ns: Option<u64>,
    /// The command came.
    pub popped_ns: Option<u64>,
    /// The input rows were there; none on the stage that embeds.
    pub input_ns: Option<u64>,
    /// There was a place for the output.
    pub place_ns: Option<u64>,
    /// The card began to compute, with the turn taken.
    pub start_ns: Option<u64>,
    /// The card was done.
    pub end_ns: Option<u64>,
    /// How long, between start and end, the card waited for rows that another card was making.
    pub waited_ns: u64,
    /// The card's own stamps.
    pub card: Option<CardStamps>,
    /// The output was handed on.
    pub posted_ns: Option<u64>,
}

/// Sums over batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StageTimes {
    /// Batches handed on.
    pub batches: u64,
    /// Their rows.
    pub rows: u64,
    /// Computing, by the card's own stamps where it has some.
    pub busy_ns: u64,
    /// Waiting for a command or for rows, the thread or the card itself.
    pub waiting_in_ns: u64,
    /// Waiting for a place for the output.
    pub waiting_out_ns: u64,
    /// Waiting for the CPUs that virtual cards share.
    pub waiting_turn_ns: u64,
    /// Handing over: copies and launches beside the card's work, and handing on.
    pub copies_ns: u64,
    /// Between the card's end of a batch and its next beginning, over all of the span's pairs of batches.
    pub between_ns: u64,
    /// How many pairs.
    pub betweens: u64,
    /// From the first batch's arrival to the last one's hand-off.
    pub span_ns: u64,
    /// Bytes handed on: rows to the next stage, or logits.
    pub handed_bytes: u64,
}

impl StageTimes {
    /// A time as a share of the span; 0 for an empty span.
    pub fn share(&self, time_ns: u64) -> f64 {
        if self.span_ns == 0 { 0.0 } else { time_ns as f64 / self.span_ns as f64 }
    }

    /// Time between the card's end of a batch and its next beginning, on average; `None` without stamps.
    pub fn between_batches_ns(&self) -> Option<u64> {
        self.between_ns.checked_div(self.betweens)
    }

    /// Bytes of a hand-off, on average.
    pub fn bytes_per_hand_off(&self) -> f64 {
        if self.batches == 0 { 0.0 } else { self.handed_bytes as f64 / self.batches as f64 }
    }
}

/// Sums over the batches of a span.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    times: StageTimes,
    first_ns: Option<u64>,
    /// The card's end of the last batch, by its own clock.
    card_ended_ns: Option<u64>,
}

/// The times of one stage since the last [`StageTimeline::reset`].
#[derive(Clone, Debug)]
pub struct StageTimeline {
    all: Span,
    /// Up to the last batch of a prompt.
    prompt: StageTimes,
    /// Behind the last batch of a prompt.
    decode: Span,
    last: VecDeque<BatchStamps>,
    last_batch: Option<BatchId>,
}

impl Span {
    fn record(&mut self, stamps: &BatchStamps, bytes: u64) {
        let BatchStamps { asked_ns, popped_ns, input_ns, place_ns, start_ns, end_ns, posted_ns, .. } =
            *stamps;
        let times = &mut self.times;
        times.batches += 1;
        times.rows += stamps.rows as u64;
        times.handed_bytes += bytes;
        let run_ns = rise(start_ns, end_ns);
        let [begun, ended] = [stamps.card.map(|c| c.begun_ns), stamps.card.map(|c| c.ended_ns)];
        let on_card_ns = if begun < ended { rise(begun, ended).min(run_ns) } else { run_ns };
        times.busy_ns += on_card_ns.saturating_sub(stamps.waited_ns);
        times.waiting_in_ns += stamps.waited_ns.min(on_card_ns);
        times.copies_ns += run_ns - on_card_ns;
        if self.card_ended_ns.is_some() && self.card_ended_ns < begun {
            times.between_ns += rise(self.card_ended_ns, begun);
            times.betweens += 1;
        }
        self.card_ended_ns = ended;
        // Before the first batch of a span nothing was asked of the stage.
        if self.first_ns.is_some() {
            times.waiting_in_ns += rise(asked_ns.max(self.first_ns), popped_ns);
        }
        times.waiting_in_ns += rise(popped_ns, input_ns);
        times.waiting_out_ns += rise(input_ns.or(popped_ns), place_ns);
        times.waiting_turn_ns += rise(place_ns, start_ns);
        times.copies_ns += rise(end_ns, posted_ns);
        self.first_ns = self.first_ns.or(popped_ns);
        times.span_ns = times.span_ns.max(rise(self.first_ns, posted_ns));
    }
}

impl StageTimeline {
    /// How many of the last batches are kept one by one.
    pub const LAST_MAX: usize = 256;

    /// No batches yet.
    pub fn new() -> StageTimeline {
        StageTimeline {
            all: Span::default(),
            prompt: StageTimes::default(),
            decode: Span::default(),
            last: VecDeque::with_capacity(Self::LAST_MAX),
            last_batch: None,
        }
    }

    /// Adds a batch that handed on `bytes`.
    pub fn record(&mut self, stamps: &BatchStamps, bytes: u64) {
        self.all.record(stamps, bytes);
        match stamps.phase {
            Phase::Prompt => (self.prompt, self.decode) = (self.all.times, Span::default()),
            Phase::Decode => self.decode.record(stamps, bytes),
        }
        if self.last.len() == Self::LAST_MAX {
            self.last.pop_front();
        }
        self.last.push_back(*stamps);
        self.last_batch = stamps.batch;
    }

    /// Sums so far.
    pub fn times(&self) -> StageTimes {
        self.all.times
    }

    /// Sums up to the last batch of a prompt, windows among them, and of the windows behind it.
    pub fn times_of_phases(&self) -> (StageTimes, StageTimes) {
        (self.prompt, self.decode.times)
    }

    /// The last batches, oldest first.
    pub fn last(&self) -> impl Iterator<Item = &BatchStamps> {
        self.last.iter()
    }

    /// Whether this batch was handed on, or one behind it; a reset changes nothing in this.
    pub fn has_passed(&self, batch: BatchId) -> bool {
        self.last_batch.is_some_and(|last| last >= batch)
    }

    /// Starts a new span.
    pub fn reset(&mut self) {
        *self = StageTimeline { last_batch: self.last_batch, ..StageTimeline::new() };
    }
}

impl Default for StageTimeline {
    fn default() -> StageTimeline {
        StageTimeline::new()
    }
}

/// The time between two stamps; 0 unless both exist and rise.
fn rise(from_ns: Option<u64>, to_ns: Option<u64>) -> u64 {
    match (from_ns, to_ns) {
        (Some(from), Some(to)) => to.saturating_sub(from),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(all: [u64; 7]) -> BatchStamps {
        let [asked_ns, popped_ns, input_ns, place_ns, start_ns, end_ns, posted_ns] = all.map(Some);
        BatchStamps {
            batch: Some(BatchId(1)),
            phase: Phase::Decode,
            rows: 3,
            asked_ns,
            popped_ns,
            input_ns,
            place_ns,
            start_ns,
            end_ns,
            waited_ns: 0,
            card: None,
            posted_ns,
        }
    }

    #[test]
    fn every_nanosecond_of_a_span_is_counted_once() {
        let mut timeline = StageTimeline::new();
        timeline.record(&stamps([5, 10, 13, 20, 31, 60, 62]), 100);
        timeline.record(&BatchStamps { waited_ns: 2, ..stamps([62, 70, 70, 75, 75, 80, 99]) }, 300);
        let t = timeline.times();
        assert_eq!(t.span_ns, 89);
        assert_eq!((t.waiting_in_ns, t.waiting_out_ns, t.waiting_turn_ns), (3 + 8 + 2, 7 + 5, 11));
        assert_eq!((t.busy_ns, t.copies_ns), (29 + 3, 2 + 19));
        let counted = t.waiting_in_ns + t.waiting_out_ns + t.waiting_turn_ns + t.busy_ns + t.copies_ns;
        assert_eq!(counted, t.span_ns);
        assert_eq!((t.batches, t.rows, t.bytes_per_hand_off()), (2, 6, 200.0));
        assert_eq!(t.share(t.busy_ns), 32.0 / 89.0);
    }

    #[test]
    fn a_time_with_a_missing_or_falling_stamp_does_not_count() {
        let mut timeline = StageTimeline::new();
        timeline.record(&BatchStamps { end_ns: None, ..stamps([5, 10, 13, 20, 31, 60, 62]) }, 0);
        timeline.record(&stamps([90, 90, 80, 70, 60, 50, 40]), 0);
        let t = timeline.times();
        assert_eq!((t.busy_ns, t.copies_ns, t.waiting_turn_ns), (0, 0, 11));
        assert_eq!(t.waiting_in_ns, 3);
    }

    #[test]
    fn a_card_with_a_clock_is_busy_by_its_own_stamps() {
        let card = |begun_ns, ended_ns| Some(CardStamps { begun_ns, ended_ns });
        let mut timeline = StageTimeline::new();
        // By the stage's clock each runs for 29 and hands on for 2; the card's clock has another start.
        let all = stamps([5, 10, 13, 20, 31, 60, 62]);
        timeline.record(&BatchStamps { card: card(1004, 1024), waited_ns: 6, ..all }, 0);
        timeline.record(&BatchStamps { card: card(1030, 1040), ..all }, 0);
        let t = timeline.times();
        assert_eq!((t.busy_ns, t.copies_ns), (14 + 10, 9 + 2 + 19 + 2));
        assert_eq!((t.between_ns, t.betweens, t.between_batches_ns()), (6, 1, Some(6)));
        // Stamps that fall say nothing.
        timeline.record(&BatchStamps { card: card(1035, 1020), ..all }, 0);
        let t = timeline.times();
        assert_eq!((t.busy_ns, t.betweens), (14 + 10 + 29, 1));
    }

    #[test]
    fn phases_are_parted_behind_the_last_batch_of_a_prompt() {
        let mut timeline = StageTimeline::new();
        let prompt = |all| BatchStamps { phase: Phase::Prompt, ..stamps(all) };
        timeline.record(&prompt([5, 10, 13, 20, 31, 60, 62]), 100);
        timeline.record(&stamps([62, 70, 70, 75, 75, 80, 90]), 10);
        timeline.record(&prompt([90, 91, 92, 93, 94, 99, 100]), 100);
        timeline.record(&stamps([100, 110, 111, 112, 113, 118, 120]), 10);
        timeline.record(&stamps([120, 125, 126, 127, 128, 133, 135]), 10);
        let (prompt, decode) = timeline.times_of_phases();
        assert_eq!((prompt.batches, prompt.handed_bytes, prompt.span_ns), (3, 210, 90));
        assert_eq!((decode.batches, decode.handed_bytes, decode.span_ns), (2, 20, 25));
        assert_eq!((decode.busy_ns, decode.waiting_in_ns), (10, 1 + 5 + 1));
        assert_eq!(timeline.times().batches, 5);
    }

    #[test]
    fn a_reset_starts_a_new_span_and_memory_stays_bounded() {
        let mut timeline = StageTimeline::new();
        for i in 0..10 * StageTimeline::LAST_MAX as u64 {
            timeline.record(&stamps([i; 7]), 1);
        }
        assert_eq!(timeline.last().count(), StageTimeline::LAST_MAX);
        assert!(timeline.has_passed(BatchId(1)) && !timeline.has_passed(BatchId(2)));
        timeline.reset();
        assert!(timeline.has_passed(BatchId(1)));
        assert_eq!((timeline.times(), timeline.last().count()), (StageTimes::default(), 0));
    }
}
