//! The closest miss: where no split fits, the one that goes least over the budgets, to show and to count from.
//!
//! Invariant: its excess is the least number of bytes that, added to the cards it names, makes the model fit; among
//! equals the one whose worst card is over by least.
//! Does not know: time.

use super::budget::Budget;
use super::cost::Assignment;
use super::fit::RangeBytes;
use super::orders::Orders;

/// Bytes over budget: of all cards, and of the worst one.
type Excess = (u64, u64);

/// Bytes over budget in all, and the split.
pub(super) fn closest(orders: &Orders, bytes: &[&RangeBytes], budgets: &[Budget]) -> (u64, Vec<Assignment>) {
    let layers = bytes[0].layers();
    let width = layers + 1;
    let excess = |class: usize, start: usize, end: usize| {
        let card = orders.card_of(class);
        budgets[card].missing_of(bytes[card].of(start, end))
    };
    // For each node and first layer: least excess from there to the end, and where the node's stage ends.
    let mut own: Vec<(Excess, usize)> = vec![((0, 0), layers); orders.nodes.len() * width];
    let least = |nodes: &[usize], start: usize, own: &[(Excess, usize)]| {
        nodes.iter().map(|&node| (own[node * width + start].0, node)).min()
    };
    for node in (0..orders.nodes.len()).rev() {
        let class = orders.nodes[node].class;
        let rest: Vec<Option<Excess>> =
            (0..layers).map(|end| least(&orders.nodes[node].next, end, &own).map(|found| found.0)).collect();
        for start in 0..layers {
            let alone = excess(class, start, layers);
            let inner = (start + 1..layers).filter_map(|end| {
                let (after, worst) = rest[end]?;
                let over = excess(class, start, end);
                Some(((over.saturating_add(after), over.max(worst)), end))
            });
            own[node * width + start] = inner.fold(((alone, alone), layers), Ord::min);
        }
    }
    let mut stages: Vec<Assignment> = Vec::new();
    let mut used = vec![0; orders.classes.len()];
    let (mut start, mut options, mut excess_bytes) = (0, &orders.first, None);
    while start < layers {
        let (sum, node) =
            least(options, start, &own).expect("invariant: a stage that ends early has a next one");
        excess_bytes.get_or_insert(sum.0);
        let (class, end) = (orders.nodes[node].class, own[node * width + start].1);
        stages.push((orders.classes[class][used[class]], start..end));
        used[class] += 1;
        (start, options) = (end, &orders.nodes[node].next);
    }
    (excess_bytes.unwrap_or(0), stages)
}
