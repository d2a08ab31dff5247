//! The exact search: among all contiguous splits over the orders of a graph, the one of least cost.
//!
//! Cost is a sum plus a maximum (`cost.rs`). For a bound on the maximum, `sums.rs` finds the least sum; this file
//! searches the bound over the values that a maximum can have, leaving out intervals that cannot hold the optimum.
//! Ties, in this order: the lower maximum, more stages, the earlier card order, the lower first layers.
//!
//! Invariants: the result is optimal over the graph and depends on nothing but the input.
//! Does not know: bytes (only `Reach`), names, flags.

use super::cost::{Assignment, TimeModel};
use super::fit::Reach;
use super::orders::Orders;
use super::sums::NEVER;

/// What is searched.
pub(super) struct Search<'a> {
    pub(super) orders: &'a Orders,
    pub(super) model: &'a TimeModel,
    /// For each class.
    pub(super) reach: Vec<&'a Reach>,
}

/// The best split so far: its cost and its maximum.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Best {
    total_ps: u64,
    busy_ps_max: u64,
}

/// Bounds (by index) still to be looked at, and what their sums cannot be below: the least sum of a wider bound.
struct Open {
    start: usize,
    end: usize,
    least_ps: u64,
}

impl<'a> Search<'a> {
    /// A search over `orders`; `reach` is given for each card.
    pub(super) fn new(orders: &'a Orders, model: &'a TimeModel, reach: &'a [Reach]) -> Search<'a> {
        let reach = (0..orders.classes.len()).map(|class| &reach[orders.card_of(class)]).collect();
        Search { orders, model, reach }
    }

    /// The best split, or `None` where none fits.
    pub(super) fn best(&self) -> Option<Vec<Assignment>> {
        let bounds = self.bounds();
        // Whether a bound can be met is known much faster than the least sum under it.
        let least = bounds.partition_point(|&bound_ps| !self.fits(bound_ps));
        let mut best: Option<Best> = None;
        // Open intervals of bounds; none is infeasible.
        let mut open = vec![Open { start: least, end: bounds.len(), least_ps: 0 }];
        while let Some(Open { start, end, least_ps }) = open.pop() {
            // An interval that may hold an equal cost stays: its maximum is lower.
            let hopeless = |best: Best| bounds[start] + least_ps > best.total_ps;
            if start >= end || best.is_some_and(hopeless) {
                continue;
            }
            // The widest bound first: its sum bounds all others.
            let middle = if best.is_none() { end - 1 } else { start + (end - start) / 2 };
            let sums = self.sums(bounds[middle]);
            let cost = self.model.cost(&self.some_split(&sums));
            let found = Best { total_ps: cost.total_ps(), busy_ps_max: cost.busy_ps_max };
            best = best.filter(|best| *best <= found).or(Some(found));
            // Wider bounds pay only with a lower sum; between the split's maximum and the bound nothing changes.
            if cost.decode_ps > least_ps {
                open.push(Open { start: middle + 1, end, least_ps });
            }
            let below = bounds.partition_point(|&b| b < cost.busy_ps_max);
            open.push(Open { start, end: below, least_ps: cost.decode_ps });
        }
        let best = best?;
        Some(self.first_split(&self.sums(best.busy_ps_max)))
    }

    /// True where some split fits with no maximum above `bound_ps`.
    pub(super) fn fits(&self, bound_ps: u64) -> bool {
        // Arriving farther with the same cards is never worse: the later ranges only lose layers.
        let (layers, classes) = (self.model.layers(), self.orders.classes.len());
        let ends: Vec<Vec<usize>> = (0..classes).map(|c| self.farthest_ends(c, bound_ps)).collect();
        let step = |start: usize, class: usize| {
            if self.allowed(class, start, layers, bound_ps) {
                return Some(layers);
            }
            Some(ends[class][start]).filter(|&end| end > start)
        };
        let mut arrived = vec![None; self.orders.nodes.len()];
        for &node in &self.orders.first {
            arrived[node] = step(0, self.orders.nodes[node].class);
        }
        for node in 0..arrived.len() {
            let Some(end) = arrived[node] else { continue };
            if end == layers {
                return true;
            }
            let class = self.orders.nodes[node].class;
            for &next in &self.orders.nodes[node].next {
                let to = self.orders.nodes[next].class;
                if self.link(class, to, bound_ps) < NEVER {
                    arrived[next] = arrived[next].max(step(end, to));
                }
            }
        }
        false
    }

    /// All values that a maximum can have, rising.
    fn bounds(&self) -> Vec<u64> {
        let (layers, classes) = (self.model.layers(), self.orders.classes.len());
        let mut bounds = Vec::new();
        for class in 0..classes {
            let card = self.orders.card_of(class);
            for start in 0..layers {
                bounds.extend((start + 1..=layers).map(|end| self.model.busy_ps(card, start..end)));
            }
            for to in 0..classes {
                let (from, to) = self.orders.pair_of(class, to);
                bounds.push(self.model.link_busy_ps(from, to));
            }
        }
        bounds.sort_unstable();
        bounds.dedup();
        bounds
    }
}
