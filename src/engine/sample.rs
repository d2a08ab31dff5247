//! From a row of logits to a token (`docs/numerics.md`, Sampling).
//!
//! Order: bias, penalties over the last tokens, then greedy (ties: lower id) or temperature, top-k, top-p, min-p and
//! a draw. Sums run in f64 in rising id; only the running sum that top-p cuts at follows falling probability.
//! Where options look at the best tokens alone, [`SamplingOptions::wants`] asks for no others.
//! Invariants: the token is a function of logits, history, options, seed and position alone, never of what else
//! ran; the logits are given back unchanged. Does not know: batches, sequences, text.

use std::cmp::Ordering;

use super::error::EngineError;
use super::random::uniform;
use crate::device::batch::RowWants;
use crate::device::best::{self, NotFinite, all_finite, argmax};
use crate::model::facts::BEST_MAX;

/// How tokens are chosen. The default is greedy without penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// Logits are divided by it; 0: greedy.
    pub temperature: f32,
    /// Only the best `top_k` tokens; 0: all.
    pub top_k: usize,
    /// Only the fewest tokens whose probabilities reach it; 1: all.
    pub top_p: f32,
    /// Only tokens of at least this share of the best one's probability; 0: all.
    pub min_p: f32,
    /// Logits of recent tokens are divided by it where positive and multiplied where negative; 1: off.
    pub repeat_penalty: f32,
    /// Taken from the logit of each recent token; 0: off.
    pub presence_penalty: f32,
    /// Taken from the logit of each recent token for every time it occurs; 0: off.
    pub frequency_penalty: f32,
    /// How many of the last tokens, prompt included, are recent.
    pub penalty_window: usize,
    /// Added to the logits of the named tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Of the generator.
    pub seed: u64,
}

impl Default for SamplingOptions {
    fn default() -> SamplingOptions {
        SamplingOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingOptions {
    /// Refuses values outside their ranges.
    pub fn check(&self) -> Result<(), EngineError> {
        let finite = f32::MIN..=f32::MAX;
        let rules = [
            ("--temperature", self.temperature, 0.0..=f32::MAX, "from 0 to 3.4e38"),
            ("--top-p", self.top_p, f32::MIN_POSITIVE..=1.0, "from 1.2e-38 to 1"),
            ("--min-p", self.min_p, 0.0..=1.0, "from 0 to 1"),
            ("--repeat-penalty", self.repeat_penalty, f32::MIN_POSITIVE..=f32::MAX, "from 1.2e-38 to 3.4e38"),
            ("--presence-penalty", self.presence_penalty, finite.clone(), "from -3.4e38 to 3.4e38"),
            ("--frequency-penalty", self.frequency_penalty, finite, "from -3.4e38 to 3.4e38"),
        ];
        for (option, value, allowed, range) in rules {
            if !allowed.contains(&value) {
                return Err(EngineError::Sampling { option, value, range });
            }
        }
        match self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            Some(&(_, bias)) => {
                let (option, range) = ("a logit bias", "finite or -inf");
                Err(EngineError::Sampling { option, value: bias, range })
            }
            None => Ok(()),
        }
    }

    /// What a token is chosen from: the best tokens where that gives the token that all logits give.
    pub fn wants(&self, vocab: usize) -> RowWants {
        let count = if self.temperature == 0.0 { 1 } else { self.top_k };
        let changes = self.penalises() || !self.logit_bias.is_empty();
        if changes || !(1..=BEST_MAX.min(vocab)).contains(&count) {
            RowWants::Logits
        } else {
            RowWants::Best(count)
        }
    }

    /// True where the options read the tokens before the row.
    fn penalises(&self) -> bool {
        self.penalty_window > 0
            && (self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0)
    }
}

/// One token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    id: u32,
    logit: f32,
    weight: f64,
}

/// Chooses tokens; keeps its buffers between rows.
#[derive(Debug, Default)]
pub struct Sampler {
    candidates: Vec<Candidate>,
    changed: Vec<(u32, f32)>,
    recent: Vec<u32>,
}

impl Sampler {
    /// The token at `position`, from the logits of the row before it. `history` are all tokens of the sequence so
    /// far, prompt included.
    pub fn sample(
        &mut self,
        options: &SamplingOptions,
        history: &[u32],
        position: u32,
        logits: &mut [f32],
    ) -> Result<u32, NotFinite> {
        if !all_finite(logits) {
            return Err(NotFinite);
        }
        self.adjust(options, history, logits);
        let token = if options.temperature == 0.0 {
            argmax(logits)
        } else {
            select_top(logits, options.top_k, &mut self.candidates);
            self.draw(options, position).unwrap_or_else(|| argmax(logits))
        };
        // Backwards: where a token was changed twice, its first value is the model's.
        for &(id, logit) in self.changed.iter().rev() {
            logits[id as usize] = logit;
        }
        Ok(token)
    }

    /// The token at `position`, from the best tokens of the row before it, as many as [`SamplingOptions::wants`] asks for.
    pub fn sample_best(
        &mut self,
        options: &SamplingOptions,
        position: u32,
        values: &[f32],
    ) -> Result<u32, NotFinite> {
        let mut tokens = best::read(values)?;
        if options.temperature == 0.0 {
            return tokens.next().map(|token| token.id).ok_or(NotFinite);
        }
        self.candidates.clear();
        self.candidates.extend(tokens.map(|t| Candidate { id: t.id, logit: t.logit, weight: 0.0 }));
        self.candidates.sort_unstable_by_key(|c| c.id);
        Ok(self.draw(options, position).unwrap_or(0))
    }

    /// Bias and penalties, in place; `changed` remembers the model's values.
    fn adjust(&mut self, options: &SamplingOptions, history: &[u32], logits: &mut [f32]) {
        self.changed.clear();
        for &(id, bias) in &options.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                self.changed.push((id, *logit));
                *logit += bias;
            }
        }
        if !options.penalises() {
            return;
        }
        self.recent.clear();
        self.recent.extend_from_slice(&history[history.len().saturating_sub(options.penalty_window)..]);
        self.recent.sort_unstable();
        for run in self.recent.chunk_by(|a, b| a == b) {
            let Some(logit) = logits.get_mut(run[0] as usize) else { continue };
            self.changed.push((run[0], *logit));
            let penalty = options.repeat_penalty;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            *logit -= run.len() as f32 * options.frequency_penalty;
            *logit -= options.presence_penalty;
        }
    }

    /// Temperature, top-p, min-p, and the draw among what is left of the candidates, which have rising ids; none where all
    /// their logits are -inf.
    fn draw(&mut self, options: &SamplingOptions, position: u32) -> Option<u32> {
        let kept = &mut self.candidates;
        let best = kept.iter().fold(f32::NEG_INFINITY, |m, c| m.max(c.logit));
        if best == f32::NEG_INFINITY {
            return None;
        }
        let temperature = f64::from(options.temperature);
        let mut total = 0.0f64;
        for c in kept.iter_mut() {
            c.weight = libm::exp((f64::from(c.logit) - f64::from(best)) / temperature);
            total += c.weight;
        }
        if options.top_p < 1.0 {
            keep_nucleus(kept, f64::from(options.top_p) * total);
        }
        // The best weight is exp(0) = 1.
        let floor = f64::from(options.min_p);
        kept.retain(|c| c.weight >= floor && c.weight > 0.0);
        let total: f64 = kept.iter().map(|c| c.weight).sum();
        let target = uniform(options.seed, position) * total;
        let mut reached = 0.0f64;
        for c in kept.iter() {
            reached += c.weight;
            if reached > target {
                return Some(c.id);
            }
        }
        // Rounding can leave `target` at the whole sum.
        kept.last().map(|c| c.id)
    }
}

/// The `count` best tokens (all for 0) in rising id; among equals the lower id is better.
fn select_top(logits: &[f32], count: usize, kept: &mut Vec<Candidate>) {
    kept.clear();
    let all = logits.iter().enumerate().map(|(i, &logit)| Candidate { id: i as u32, logit, weight: 0.0 });
    if count == 0 || count >= logits.len() {
        kept.extend(all);
        return;
    }
    // Most values fail one comparison; the buffer is cut back to the best `count` whenever it has doubled.
    let capacity = 2 * count.max(64);
    let mut least = f32::NEG_INFINITY;
    let mut is_cut = false;
    for c in all {
        // Ids rise: an equal value that comes later is worse than all kept ones.
        if c.logit > least || !is_cut {
            kept.push(c);
            if kept.len() == capacity {
                cut_to_best(kept, count);
                least = kept.iter().fold(f32::INFINITY, |m, c| m.min(c.logit));
                is_cut = true;
            }
        }
    }
    if kept.len() > count {
        cut_to_best(kept, count);
    }
    kept.sort_unstable_by_key(|c| c.id);
}

fn cut_to_best(kept: &mut Vec<Candidate>, count: usize) {
    // Not `total_cmp`: -0 and +0 are equal logits, and the lower id wins.
    let falling = |a: &Candidate, b: &Candidate| b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal);
    kept.select_nth_unstable_by(count - 1, |a, b| falling(a, b).then(a.id.cmp(&b.id)));
    kept.truncate(count);
}

/// Keeps the fewest best candidates whose weights reach `enough`, in rising id.
fn keep_nucleus(kept: &mut Vec<Candidate>, enough: f64) {
    // Sorting the whole vocabulary would dominate a step: the nucleus is searched in growing heads of the order.
    let by_weight = |a: &Candidate, b: &Candidate| b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id));
    let mut head = 256.min(kept.len());
    loop {
        if head < kept.len() {
            kept.select_nth_unstable_by(head - 1, by_weight);
        }
        kept[..head].sort_unstable_by(by_weight);
        let mut reached = 0.0f64;
        let nucleus = kept[..head].iter().position(|c| {
            reached += c.weight;
            reached >= enough
        });
        if let Some(last) = nucleus {
            kept.truncate(last + 1);
            break;
        }
        if head == kept.len() {
            break;
        }
        head = (4 * head).min(kept.len());
    }
    kept.sort_unstable_by_key(|c| c.id);
}

#[cfg(test)]
mod tests;
