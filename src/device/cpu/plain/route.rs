//! The router: softmax over all experts, the best of them in rank order, and their weights.
//!
//! Invariants: the maximum is exact; equal probabilities rank by the lower index; weights are divided by
//! max(sum, 2^-14). Does not know: experts' products. Source: `docs/numerics.md`, Router and experts.

use super::functions::exp;
use super::reduce::{chain_sum, row_lanes_sum};

/// The least divisor of the chosen probabilities: 2^-14.
pub const WEIGHT_SUM_MIN: f32 = f32::from_bits((127 - 14) << 23);

/// The chosen experts of one row.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Chosen {
    /// Experts in rank order.
    pub ids: Vec<usize>,
    /// Their weights.
    pub weights: Vec<f32>,
}

/// Replaces logits by probabilities.
pub fn softmax(row: &mut [f32]) {
    let max = row.iter().fold(f32::NEG_INFINITY, |max, &l| max.max(l));
    for l in row.iter_mut() {
        *l = exp(*l - max);
    }
    let sum = row_lanes_sum(row);
    for e in row.iter_mut() {
        *e /= sum;
    }
}

/// The `count` best by (value descending, index ascending).
pub fn top(values: &[f32], count: usize) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..values.len()).collect();
    // The sort is stable: equal values keep their rising index.
    ids.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    ids.truncate(count);
    ids
}

/// The best `used` experts and their probabilities.
pub fn choose(logits: &[f32], used: usize) -> Chosen {
    let mut probabilities = logits.to_vec();
    softmax(&mut probabilities);
    let ids = top(&probabilities, used);
    let weights = ids.iter().map(|&id| probabilities[id]).collect();
    Chosen { ids, weights }
}

/// Divides the weights by their sum (a chain in rank order), or by 2^-14 where that is larger.
pub fn normalise(weights: &mut [f32]) {
    let sum = chain_sum(weights).max(WEIGHT_SUM_MIN);
    for w in weights {
        *w /= sum;
    }
}
