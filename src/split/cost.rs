//! Predicted time of a split: what the planner minimises, in whole picoseconds.
//!
//! One round gives each of S sequences one token and reads the prompt rows that come with it. With `decode(s)` the
//! time of one decode row on stage s and `busy(s) = (S - 1) * decode(s) + S * w * prompt(s)`,
//!
//! `cost = sum of decode over stages and hand-offs + max of busy over stages and hand-offs`
//!
//! The sum is the latency of one sequence. The maximum is the wait for the slowest part of the pipeline: the other
//! sequences follow the first one through it, and so do prompt chunks. For one sequence it is `w` times the prompt
//! time of a row. Decode reads the chosen weights, half a context of K/V, and on the last stage the head, and each op
//! of a layer takes a time of its own; of prompt rows the products with weights count, without attention and head. Hand-offs
//! run beside the computing.
//!
//! Invariants: sums are exact (integers), so equal plans cost the same in any order of evaluation; a time is at
//! least 0 and at most [`TERM_PS_MAX`] a layer. Does not know: memory, devices.

use std::ops::Range;

use crate::model::facts::{CardFacts, LinkFacts, PAGE_POSITIONS};
use crate::model::footprint::{Footprint, StageSizes};

use super::error::SplitError;

/// Prompt rows that come with each decoded token, where nothing else is asked: prompts about as long as answers.
pub const PROMPT_ROWS_PER_TOKEN: f64 = 1.0;

/// Longest time of one layer or hand-off, 5 s: keeps every sum of a plan inside 63 bits.
pub const TERM_PS_MAX: u64 = 5_000_000_000_000;

const PS_PER_S: f64 = 1e12;
const PS_PER_US: f64 = 1e6;
const F32_BYTES: usize = 4;

/// A stage of a plan in the making: the position of a card in the list, and its layers.
pub type Assignment = (usize, Range<usize>);

/// What a plan costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Cost {
    /// One decode row through all stages and hand-offs.
    pub decode_ps: u64,
    /// The busiest stage or hand-off of a round.
    pub busy_ps_max: u64,
}

impl Cost {
    /// What the planner minimises.
    pub fn total_ps(&self) -> u64 {
        self.decode_ps + self.busy_ps_max
    }
}

/// Times of all layers on all cards and of all hand-offs.
#[derive(Clone, Debug)]
pub struct TimeModel {
    layers: usize,
    cards: Vec<CardTimes>,
    links: Vec<Vec<LinkTimes>>,
}

/// Sums from layer 0 to each layer, and the head.
#[derive(Clone, Debug)]
struct CardTimes {
    decode_ps: Vec<u64>,
    busy_ps: Vec<u64>,
    prompt_ps: Vec<u64>,
    head_decode_ps: u64,
    head_busy_ps: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct LinkTimes {
    decode_ps: u64,
    busy_ps: u64,
    prompt_ps: u64,
}

impl TimeModel {
    /// The times of `footprint` on `cards`, with `rows_per_token` prompt rows for each decoded token.
    pub fn new(
        footprint: &Footprint,
        cards: &[CardFacts],
        links: &LinkFacts,
        sizes: &StageSizes,
        rows_per_token: f64,
    ) -> Result<TimeModel, SplitError> {
        check_rates(cards, links, rows_per_token)?;
        let weights = BusyWeights {
            decode: sizes.sequences.saturating_sub(1) as f64,
            prompt: sizes.sequences as f64 * rows_per_token,
        };
        let card_times = cards.iter().map(|c| CardTimes::new(footprint, c, sizes, weights)).collect();
        let row_bytes = (F32_BYTES * footprint.residual_width) as f64;
        let link_times = |from: usize, to: usize| {
            if from == to {
                return LinkTimes::default();
            }
            let rate = links.rates[from][to];
            let (latency_s, row_s) = (rate.latency_us * 1e-6, row_bytes / rate.bytes_per_s);
            let prompt_s = latency_s / sizes.batch_rows_max.max(1) as f64 + row_s;
            LinkTimes {
                decode_ps: ps(latency_s + row_s),
                busy_ps: ps(weights.of(latency_s + row_s, prompt_s)),
                prompt_ps: ps(prompt_s),
            }
        };
        let links = (0..cards.len()).map(|f| (0..cards.len()).map(|t| link_times(f, t)).collect()).collect();
        Ok(TimeModel { layers: footprint.layers.len(), cards: card_times, links })
    }

    /// Layers of the model.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// The cost of a whole split. Stages must follow each other from the first layer to the last.
    pub fn cost(&self, stages: &[Assignment]) -> Cost {
        let mut cost = Cost { decode_ps: 0, busy_ps_max: 0 };
        for (at, (card, layers)) in stages.iter().enumerate() {
            cost.decode_ps += self.decode_ps(*card, layers.clone());
            cost.busy_ps_max = cost.busy_ps_max.max(self.busy_ps(*card, layers.clone()));
            if at > 0 {
                let before = stages[at - 1].0;
                cost.decode_ps += self.link_decode_ps(before, *card);
                cost.busy_ps_max = cost.busy_ps_max.max(self.link_busy_ps(before, *card));
            }
        }
        cost
    }

    /// One decode row through `layers` on `card`, with the head behind the last layer.
    pub fn decode_ps(&self, card: usize, layers: Range<usize>) -> u64 {
        let times = &self.cards[card];
        let head_ps = if layers.end == self.layers { times.head_decode_ps } else { 0 };
        times.decode_ps[layers.end] - times.decode_ps[layers.start] + head_ps
    }

    /// A round's time of `layers` on `card`.
    pub fn busy_ps(&self, card: usize, layers: Range<usize>) -> u64 {
        let times = &self.cards[card];
        let head_ps = if layers.end == self.layers { times.head_busy_ps } else { 0 };
        times.busy_ps[layers.end] - times.busy_ps[layers.start] + head_ps
    }

    /// One prompt row through `layers` on `card`.
    pub fn prompt_ps(&self, card: usize, layers: Range<usize>) -> u64 {
        let times = &self.cards[card];
        times.prompt_ps[layers.end] - times.prompt_ps[layers.start]
    }

    /// Hand-off of one decode row.
    pub fn link_decode_ps(&self, from: usize, to: usize) -> u64 {
        self.links[from][to].decode_ps
    }

    /// A round's hand-offs.
    pub fn link_busy_ps(&self, from: usize, to: usize) -> u64 {
        self.links[from][to].busy_ps
    }

    /// Hand-off of one prompt row, as part of a full chunk.
    pub fn link_prompt_ps(&self, from: usize, to: usize) -> u64 {
        self.links[from][to].prompt_ps
    }
}

#[derive(Clone, Copy)]
struct BusyWeights {
    decode: f64,
    prompt: f64,
}

impl BusyWeights {
    fn of(self, decode_s: f64, prompt_s: f64) -> f64 {
        self.decode * decode_s + self.prompt * prompt_s
    }
}

impl CardTimes {
    fn new(footprint: &Footprint, card: &CardFacts, sizes: &StageSizes, weights: BusyWeights) -> CardTimes {
        let mut times = CardTimes {
            decode_ps: vec![0],
            busy_ps: vec![0],
            prompt_ps: vec![0],
            head_decode_ps: 0,
            head_busy_ps: 0,
        };
        let push = |sums: &mut Vec<u64>, seconds: f64| sums.push(sums[sums.len() - 1] + ps(seconds));
        for layer in &footprint.layers {
            let page_share = decode_position(sizes) as f64 / PAGE_POSITIONS as f64;
            let kv_bytes = layer.page_bytes(sizes.kv) as f64 * page_share;
            let read_bytes = layer.read_bytes_per_row.on(card.kind) as f64 + kv_bytes;
            let decode_s = read_bytes / card.decode_bytes_per_s + layer.ops as f64 * card.decode_op_us * 1e-6;
            let prompt_s = layer.macs_per_row as f64 / card.prompt_macs_per_s;
            push(&mut times.decode_ps, decode_s);
            push(&mut times.prompt_ps, prompt_s);
            push(&mut times.busy_ps, weights.of(decode_s, prompt_s));
        }
        let head_s = footprint.head_bytes.on(card.kind) as f64 / card.decode_bytes_per_s;
        times.head_decode_ps = ps(head_s);
        times.head_busy_ps = ps(weights.of(head_s, 0.0));
        times
    }
}

/// The position of the decode rows that are counted: behind half a context.
pub fn decode_position(sizes: &StageSizes) -> usize {
    sizes.context / 2
}

/// Whole picoseconds, bounded.
fn ps(seconds: f64) -> u64 {
    ((seconds * PS_PER_S).round() as u64).min(TERM_PS_MAX)
}

/// Microseconds of `ps` picoseconds.
pub(super) fn us(ps: u64) -> f64 {
    ps as f64 / PS_PER_US
}

fn check_rates(cards: &[CardFacts], links: &LinkFacts, rows_per_token: f64) -> Result<(), SplitError> {
    let count = cards.len();
    if links.rates.len() < count || links.rates.iter().take(count).any(|row| row.len() < count) {
        let rows = links.rates.iter().map(Vec::len).min().unwrap_or(0).min(links.rates.len());
        return Err(SplitError::Links { rows, cards: count });
    }
    // NaN is not above 0 either.
    let above_zero = |what: String, value: f64| {
        if value > 0.0 { Ok(()) } else { Err(SplitError::Rate { what, value }) }
    };
    let not_below_zero = |what: String, value: f64| {
        if value >= 0.0 && value.is_finite() { Ok(()) } else { Err(SplitError::Rate { what, value }) }
    };
    above_zero("the weight of prompt rows".to_string(), rows_per_token)?;
    for card in cards {
        above_zero(format!("{}: the decode rate", card.name), card.decode_bytes_per_s)?;
        above_zero(format!("{}: the prompt rate", card.name), card.prompt_macs_per_s)?;
        not_below_zero(format!("{}: the time of an op", card.name), card.decode_op_us)?;
    }
    for (from, row) in links.rates.iter().enumerate().take(count) {
        for (to, rate) in row.iter().enumerate().take(count).filter(|&(to, _)| to != from) {
            above_zero(format!("link {from} to {to}: the rate"), rate.bytes_per_s)?;
            not_below_zero(format!("link {from} to {to}: the latency"), rate.latency_us)?;
        }
    }
    Ok(())
}
