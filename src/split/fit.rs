//! Which ranges of layers fit on a card: the planner's view of memory.
//!
//! Invariant: a range inside the model (neither the first layer nor the last) that fits, fits with fewer layers too,
//! so a start has a farthest end and that end never moves back as the start rises. The two ranges at the rims carry
//! the table, the head and no arriving rows; they are asked for one by one.
//! Does not know: time, card orders.

use crate::model::facts::CardKind;
use crate::model::footprint::{Footprint, StageSizes};

use super::budget::{Budget, sum_bytes};

/// Bytes of every range of layers on one kind of card.
pub(super) struct RangeBytes {
    layers: usize,
    bytes: Vec<u64>,
}

impl RangeBytes {
    /// Sums the items of every range.
    pub(super) fn new(footprint: &Footprint, kind: CardKind, sizes: &StageSizes) -> RangeBytes {
        let layers = footprint.layers.len();
        let mut bytes = vec![0; (layers + 1) * (layers + 1)];
        for start in 0..layers {
            for end in start + 1..=layers {
                bytes[start * (layers + 1) + end] =
                    sum_bytes(&footprint.stage_items(kind, start..end, sizes));
            }
        }
        RangeBytes { layers, bytes }
    }

    /// Layers of the model.
    pub(super) fn layers(&self) -> usize {
        self.layers
    }

    /// Bytes of the items of `start..end`.
    pub(super) fn of(&self, start: usize, end: usize) -> u64 {
        self.bytes[start * (self.layers + 1) + end]
    }

    /// The ranges that `budget` holds.
    pub(super) fn reach(&self, budget: &Budget) -> Reach {
        let (layers, budget_bytes) = (self.layers, budget.budget_bytes());
        let fits = |start: usize, end: usize| self.of(start, end) <= budget_bytes;
        let mut inner_end: Vec<usize> = (0..layers).collect();
        let mut farthest = 0;
        for (start, end) in inner_end.iter_mut().enumerate() {
            // From the first layer on the far end is found anew: the table may make its range shorter.
            farthest = if start <= 1 { start } else { farthest.max(start) };
            while farthest + 1 < layers && fits(start, farthest + 1) {
                farthest += 1;
            }
            *end = farthest;
        }
        Reach { inner_end, tail: (0..layers).map(|start| fits(start, layers)).collect() }
    }
}

/// What fits on one card.
#[derive(Clone)]
pub(super) struct Reach {
    /// For each first layer the farthest end before the model's; the first layer itself where nothing fits.
    pub(super) inner_end: Vec<usize>,
    /// For each first layer: true where all layers from it to the end, and the head, fit.
    pub(super) tail: Vec<bool>,
}

impl Reach {
    /// True where some range of layers fits.
    pub(super) fn holds_any(&self) -> bool {
        self.tail.iter().any(|&fits| fits)
            || self.inner_end.iter().enumerate().any(|(start, &end)| end > start)
    }
}
