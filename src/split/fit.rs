//! Which ranges of layers fit on a card: the planner's view of memory.
//!
//! Invariant: a range inside the model (neither the first layer nor the last) that fits, fits with fewer layers too,
//! so a start has a farthest end and that end never moves back as the start rises. The two ranges at the rims carry
//! the table, the head and no arriving rows; they are asked for one by one.
//! Does not know: time, card orders.

use std::ops::Range;

use crate::model::facts::CardKind;
use crate::model::footprint::{Footprint, StageSizes};

use super::budget::{Budget, sum_bytes};

/// Bytes of every range of layers on one kind of card: what its layers add, and what it has of the rims.
pub(super) struct RangeBytes {
    /// Of the layers before each layer, and of all.
    running: Vec<u64>,
    /// Of ranges beside their layers, by whether they embed and head.
    rims: [[u64; 2]; 2],
}

impl RangeBytes {
    /// Takes time for each layer, not for each range.
    pub(super) fn new(footprint: &Footprint, kind: CardKind, sizes: &StageSizes) -> RangeBytes {
        let layers = footprint.layers.len();
        let mut running = vec![0; layers + 1];
        for layer in 0..layers {
            running[layer + 1] = running[layer] + footprint.layer_bytes(kind, layer, sizes);
        }
        // Any range with these rims stands for all of them; a model of two layers has none without both.
        let rim = |range: Range<usize>| match range.is_empty() {
            true => 0,
            false => {
                let own = running[range.end] - running[range.start];
                sum_bytes(&footprint.stage_items(kind, range, sizes)) - own
            }
        };
        let last = layers.saturating_sub(1);
        let rims = [[rim(1..last), rim(last.max(1)..layers)], [rim(0..last), rim(0..layers)]];
        RangeBytes { running, rims }
    }

    /// Layers of the model.
    pub(super) fn layers(&self) -> usize {
        self.running.len() - 1
    }

    /// Bytes of the items of `start..end`.
    pub(super) fn of(&self, start: usize, end: usize) -> u64 {
        let rims = self.rims[usize::from(start == 0)][usize::from(end == self.layers())];
        self.running[end] - self.running[start] + rims
    }

    /// The ranges that `budget` holds.
    pub(super) fn reach(&self, budget: &Budget) -> Reach {
        let (layers, budget_bytes) = (self.layers(), budget.budget_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::KvFormat;
    use crate::model::footprint::gpu::GpuSizes;
    use crate::model::footprint::{ByKind, LayerFootprint};

    fn footprint(layers: usize) -> Footprint {
        let layer = |l: usize| LayerFootprint {
            dense_bytes: ByKind { cpu: 1_000 + l as u64, cuda: 900 + 3 * l as u64 },
            expert_bytes: ByKind { cpu: 70 * (l % 3) as u64, cuda: 60 * (l % 3) as u64 },
            vector_bytes: 5 + l as u64,
            read_bytes_per_row: ByKind::same(1_000),
            macs_per_row: 10,
            ops: 3,
            paged: if l.is_multiple_of(2) { vec![(2, 64, 32)] } else { Vec::new() },
            fixed_values: 7 * (l % 4) as u64,
        };
        Footprint {
            layers: (0..layers).map(layer).collect(),
            embedding_bytes: 50_000,
            head_bytes: ByKind { cpu: 51_000, cuda: 49_000 },
            tied_bytes: 20_000,
            tail_vector_bytes: 300,
            rope_vector_bytes: 11,
            head_macs: 100,
            residual_width: 32,
            vocab: 1_000,
            float_products: false,
            row_bytes: 640,
            gpu: GpuSizes::default(),
        }
    }

    fn sizes() -> StageSizes {
        StageSizes {
            kv: KvFormat::F16,
            context: 500,
            sequences: 3,
            batch_rows_max: 64,
            logits_rows_max: 8,
            link_slots: 2,
            link_side_slots: 1,
            link_card_slots: 2,
        }
    }

    #[test]
    fn sums_of_ranges_are_those_of_their_items() {
        for layers in 1..9 {
            let footprint = footprint(layers);
            for kind in [CardKind::Cpu, CardKind::Cuda, CardKind::Hip] {
                let sums = RangeBytes::new(&footprint, kind, &sizes());
                assert_eq!(sums.layers(), layers);
                for (start, end) in (0..layers).flat_map(|s| (s + 1..=layers).map(move |e| (s, e))) {
                    let items = footprint.stage_items(kind, start..end, &sizes());
                    assert_eq!(
                        sums.of(start, end),
                        sum_bytes(&items),
                        "{start}..{end} of {layers}, {kind:?}"
                    );
                }
            }
        }
    }
}
