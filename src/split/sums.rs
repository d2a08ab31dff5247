//! Least sums under a bound: dynamic programming over (node of the order graph, first layer).
//!
//! For a node and a first layer, the node's stage ends anywhere up to the farthest end that memory and bound allow.
//! Times of ranges are differences of running sums and farthest ends never move back, so the best end is the minimum
//! of a sliding window: linear time a node.
//!
//! Invariants: sums are whole numbers, so "reaches the least sum" is an equality and the traces below are exact.
//! Does not know: how the bound is chosen.

use super::cost::Assignment;
use super::search::Search;

/// A sum counts 64ths of picoseconds, and each stage takes one off: among equal times, more stages win.
const STAGE_UNIT: i64 = 64;

/// The most cards of a plan: fewer than the units of a picosecond.
pub const CARDS_MAX: usize = STAGE_UNIT as usize - 1;

/// No way. Three of these do not overflow.
pub(super) const NEVER: i64 = i64::MAX / 4;

/// Least sums under one bound.
pub(super) struct Sums {
    bound_ps: u64,
    /// For each node and next layer: the rest of the model, beginning with a hand-off.
    rest: Vec<i64>,
    /// For each node and its own first layer: the node's stage and the rest.
    own: Vec<i64>,
    /// The whole model; `NEVER` or more where nothing fits under the bound.
    pub(super) best: i64,
}

impl Search<'_> {
    /// Works from the last layer and the fullest nodes back to the first layer.
    pub(super) fn sums(&self, bound_ps: u64) -> Sums {
        let (layers, classes) = (self.model.layers(), self.orders.classes.len());
        let (width, count) = (layers + 1, self.orders.nodes.len());
        let ends: Vec<Vec<usize>> = (0..classes).map(|c| self.farthest_ends(c, bound_ps)).collect();
        let running: Vec<Vec<i64>> = (0..classes).map(|c| self.running_sums(c)).collect();
        let links: Vec<i64> =
            (0..classes * classes).map(|i| self.link(i / classes, i % classes, bound_ps)).collect();
        let tails: Vec<Vec<bool>> = (0..classes)
            .map(|c| (0..layers).map(|start| self.allowed(c, start, layers, bound_ps)).collect())
            .collect();
        let mut is_first = vec![false; count];
        self.orders.first.iter().for_each(|&node| is_first[node] = true);

        let mut rest = vec![NEVER; count * width];
        let mut own = vec![NEVER; count * width];
        let (mut through, mut window) = (vec![NEVER; width], Vec::with_capacity(width));
        for node in (0..count).rev() {
            let class = self.orders.nodes[node].class;
            let rest_row = &mut rest[node * width..][..width];
            rest_row[layers] = 0;
            for &next in &self.orders.nodes[node].next {
                let link = links[class * classes + self.orders.nodes[next].class];
                if link < NEVER {
                    let next_row = &own[next * width..][..width];
                    for (sum, &after) in rest_row[1..layers].iter_mut().zip(&next_row[1..layers]) {
                        *sum = (*sum).min(after + link);
                    }
                }
            }
            let (running, ends, tails) = (&running[class], &ends[class], &tails[class]);
            // Beyond an end: the layers up to it and the rest. A stage's start is subtracted when it is known.
            for (end, through) in through.iter_mut().enumerate() {
                *through = running[end] + rest_row[end];
            }
            let own_row = &mut own[node * width..][..width];
            let mut close = |start: usize, inner: i64| {
                let tail = if tails[start] { through[layers] } else { NEVER };
                let least = inner.min(tail);
                if least < NEVER {
                    own_row[start] = least - running[start] - 1;
                }
            };
            // `window[oldest..]` holds ends, far ones first, with rising sums: a near end removes the far ones that
            // are no better, since it stays allowed longer. So the first is the least.
            window.clear();
            let mut oldest = 0;
            for start in (1..layers).rev() {
                let near = start + 1;
                if near < layers {
                    while window.len() > oldest
                        && window.last().is_some_and(|&e: &usize| through[e] >= through[near])
                    {
                        window.pop();
                    }
                    window.push(near);
                }
                while oldest < window.len() && window[oldest] > ends[start] {
                    oldest += 1;
                }
                close(start, window.get(oldest).map_or(NEVER, |&end| through[end]));
            }
            if is_first[node] {
                close(0, through[1..=ends[0].max(1)].iter().take(ends[0]).copied().min().unwrap_or(NEVER));
            }
        }
        let best = self.orders.first.iter().map(|&node| own[node * width]).min().unwrap_or(NEVER);
        Sums { bound_ps, rest, own, best }
    }

    /// Some split with the least sum.
    pub(super) fn some_split(&self, sums: &Sums) -> Vec<Assignment> {
        let layers = self.model.layers();
        let mut used = vec![0; self.orders.classes.len()];
        let mut stages: Vec<Assignment> = Vec::new();
        let (mut start, mut want, mut options, mut before) = (0, sums.best, &self.orders.first, None);
        while start < layers {
            let entry = |&node: &usize| self.entry(before, node, sums) + sums.own[self.at(node, start)];
            let node = options.iter().copied().find(|node| entry(node) == want);
            let node = node.expect("invariant: some node reaches the least sum");
            let own = sums.own[self.at(node, start)];
            let end = (start + 1..=layers).find(|&end| self.through(node, start, end, sums) == own);
            let end = end.expect("invariant: some end reaches the least sum");
            let class = self.orders.nodes[node].class;
            stages.push((self.orders.classes[class][used[class]], start..end));
            used[class] += 1;
            (start, want) = (end, sums.rest[self.at(node, end)]);
            (options, before) = (&self.orders.nodes[node].next, Some(node));
        }
        stages
    }

    /// Of all splits with the least sum the one with the earliest card order, and of those the one with the lowest
    /// first layers.
    pub(super) fn first_split(&self, sums: &Sums) -> Vec<Assignment> {
        let (layers, width) = (self.model.layers(), self.model.layers() + 1);
        let mut used = vec![0; self.orders.classes.len()];
        let mut path: Vec<(usize, usize)> = Vec::new();
        // For each step of the path and each layer: the sum up to it, where a least split of this order passes.
        let mut passed = vec![vec![NEVER; width]];
        passed[0][0] = 0;
        while passed[path.len()][layers] != sums.best {
            let (before, at) = (path.last().map(|p| p.1), &passed[path.len()]);
            let options = before.map_or(&self.orders.first, |node| &self.orders.nodes[node].next);
            let card_of = |node: usize| {
                let class = self.orders.nodes[node].class;
                self.orders.classes[class][used[class]]
            };
            let steps = options.iter().map(|&node| (card_of(node), node, self.pass(before, node, at, sums)));
            let earliest =
                steps.filter(|s| s.2.iter().any(|&sum| sum < NEVER)).min_by_key(|s| self.orders.ranks[s.0]);
            let (card, node, next) = earliest.expect("invariant: some order reaches the least sum");
            used[self.orders.nodes[node].class] += 1;
            path.push((card, node));
            passed.push(next);
        }
        // Backwards: which layers lead to the end in this order; then the lowest of them, forwards.
        let mut leads = vec![vec![false; width]; path.len() + 1];
        leads[path.len()][layers] = true;
        let goes = |step: usize, start: usize, end: usize| {
            let before = step.checked_sub(1).map(|s| path[s].1);
            let node = path[step].1;
            let edge = self.entry(before, node, sums) + self.stage(node, start, end, sums);
            passed[step][start] < NEVER && passed[step][start] + edge == passed[step + 1][end]
        };
        for step in (0..path.len()).rev() {
            for start in 0..layers {
                leads[step][start] =
                    (start + 1..=layers).any(|end| leads[step + 1][end] && goes(step, start, end));
            }
        }
        let mut start = 0;
        let mut stages = Vec::new();
        for (step, &(card, _)) in path.iter().enumerate() {
            let end = (start + 1..=layers).find(|&end| leads[step + 1][end] && goes(step, start, end));
            let end = end.expect("invariant: the marked layers lead to the end");
            stages.push((card, start..end));
            start = end;
        }
        stages
    }

    /// Sums up to each layer after `node`, where a least split passes; `NEVER` elsewhere.
    fn pass(&self, before: Option<usize>, node: usize, at: &[i64], sums: &Sums) -> Vec<i64> {
        let layers = self.model.layers();
        let entry = self.entry(before, node, sums);
        let mut next = vec![NEVER; layers + 1];
        for start in (0..layers).filter(|&s| at[s] < NEVER) {
            // Only starts from which this node goes on at least cost.
            if at[start] + entry + sums.own[self.at(node, start)] != sums.best {
                continue;
            }
            for (end, next) in next.iter_mut().enumerate().skip(start + 1) {
                let sum = at[start] + entry + self.stage(node, start, end, sums);
                if sum + sums.rest[self.at(node, end)] == sums.best {
                    *next = sum;
                }
            }
        }
        next
    }

    fn at(&self, node: usize, layer: usize) -> usize {
        node * (self.model.layers() + 1) + layer
    }

    /// The hand-off into `node`.
    fn entry(&self, before: Option<usize>, node: usize, sums: &Sums) -> i64 {
        let class = |node: usize| self.orders.nodes[node].class;
        before.map_or(0, |before| self.link(class(before), class(node), sums.bound_ps))
    }

    /// The stage of `node` over `start..end`, `NEVER` where it does not fit under the bound.
    fn stage(&self, node: usize, start: usize, end: usize, sums: &Sums) -> i64 {
        let class = self.orders.nodes[node].class;
        match self.allowed(class, start, end, sums.bound_ps) {
            true => self.model.decode_ps(self.orders.card_of(class), start..end) as i64 * STAGE_UNIT - 1,
            false => NEVER,
        }
    }

    /// The stage of `node` over `start..end` and the rest behind it.
    fn through(&self, node: usize, start: usize, end: usize, sums: &Sums) -> i64 {
        self.stage(node, start, end, sums) + sums.rest[self.at(node, end)]
    }

    /// True where `class` may run `start..end` under the bound.
    pub(super) fn allowed(&self, class: usize, start: usize, end: usize, bound_ps: u64) -> bool {
        let reach = self.reach[class];
        let fits = if end == self.model.layers() { reach.tail[start] } else { end <= reach.inner_end[start] };
        fits && self.model.busy_ps(self.orders.card_of(class), start..end) <= bound_ps
    }

    /// A hand-off between classes, `NEVER` where it is over the bound.
    pub(super) fn link(&self, from: usize, to: usize, bound_ps: u64) -> i64 {
        let (from, to) = self.orders.pair_of(from, to);
        match self.model.link_busy_ps(from, to) <= bound_ps {
            true => self.model.link_decode_ps(from, to) as i64 * STAGE_UNIT,
            false => NEVER,
        }
    }

    /// Decode time of the layers before each layer; the last with the head.
    fn running_sums(&self, class: usize) -> Vec<i64> {
        let card = self.orders.card_of(class);
        (0..=self.model.layers())
            .map(|end| if end == 0 { 0 } else { self.model.decode_ps(card, 0..end) as i64 * STAGE_UNIT })
            .collect()
    }

    /// For each first layer the farthest end before the model's.
    pub(super) fn farthest_ends(&self, class: usize, bound_ps: u64) -> Vec<usize> {
        let card = self.orders.card_of(class);
        let mut end = 0;
        let farthest = |(start, &inner_end): (usize, &usize)| {
            end = end.max(start);
            while end + 1 < self.model.layers() && self.model.busy_ps(card, start..end + 1) <= bound_ps {
                end += 1;
            }
            end.min(inner_end)
        };
        self.reach[class].inner_end.iter().enumerate().map(farthest).collect()
    }
}
