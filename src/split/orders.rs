//! Card orders as a graph: the search walks it once instead of trying every order.
//!
//! A node is "these cards are used, this one last". Cards that nothing tells apart form a class, and a node counts
//! how many of each class are used, so equal cards are never permuted. A fixed order is the graph of one path with
//! skips. Invariants: edges lead to higher nodes; every path takes each card at most once.
//! Does not know: layers, memory of ranges, what is minimised.

use super::budget::Budget;
use crate::model::facts::{CardFacts, LinkFacts};

/// Nodes of the largest graph that is searched as a whole: eight different cards have 1,024.
const NODES_MAX: usize = 1_100;

/// Cards used, and the last of them.
pub(super) struct Node {
    /// Class of the last card.
    pub(super) class: usize,
    /// Nodes with one card more.
    pub(super) next: Vec<usize>,
}

/// All orders to search.
pub(super) struct Orders {
    /// Cards (positions in the list) of each class, rising.
    pub(super) classes: Vec<Vec<usize>>,
    /// Nodes; edges lead to higher ones.
    pub(super) nodes: Vec<Node>,
    /// Nodes with one card.
    pub(super) first: Vec<usize>,
    /// For each card its place where orders are compared: as named, or in the one order.
    pub(super) ranks: Vec<usize>,
}

impl Orders {
    /// Every order of every choice of cards, or `None` where they are too many to search.
    pub(super) fn all(cards: &[CardFacts], budgets: &[Budget], links: &LinkFacts) -> Option<Orders> {
        let classes = classes(cards, budgets, links);
        // A state counts the used cards of each class, in mixed radix.
        let mut radix = Vec::new();
        let mut states = 1usize;
        for members in &classes {
            radix.push(states);
            states = states.checked_mul(members.len() + 1).filter(|&s| s <= NODES_MAX)?;
        }
        let used = |state: usize, class: usize| state / radix[class] % (classes[class].len() + 1);
        let mut id = vec![vec![usize::MAX; classes.len()]; states];
        let mut nodes = Vec::new();
        for (state, ids) in id.iter_mut().enumerate() {
            for class in (0..classes.len()).filter(|&c| used(state, c) > 0) {
                ids[class] = nodes.len();
                nodes.push((state, class));
            }
        }
        if nodes.len() > NODES_MAX {
            return None;
        }
        let after = |state: usize| {
            let open = (0..classes.len()).filter(|&c| used(state, c) < classes[c].len());
            open.map(|c| id[state + radix[c]][c]).collect::<Vec<_>>()
        };
        let first = after(0);
        let nodes = nodes.iter().map(|&(state, class)| Node { class, next: after(state) }).collect();
        Some(Orders { classes, nodes, first, ranks: (0..cards.len()).collect() })
    }

    /// The one order `cards`; each card may be skipped.
    pub(super) fn fixed(cards: &[usize]) -> Orders {
        let count = cards.len();
        let mut ranks = vec![count; cards.iter().max().map_or(0, |&last| last + 1)];
        cards.iter().enumerate().for_each(|(rank, &card)| ranks[card] = rank);
        Orders {
            ranks,
            classes: cards.iter().map(|&card| vec![card]).collect(),
            nodes: (0..count).map(|class| Node { class, next: (class + 1..count).collect() }).collect(),
            first: (0..count).collect(),
        }
    }

    /// A card that stands for its class.
    pub(super) fn card_of(&self, class: usize) -> usize {
        self.classes[class][0]
    }

    /// Two different cards that stand for a hand-off between the classes.
    pub(super) fn pair_of(&self, from: usize, to: usize) -> (usize, usize) {
        let second = if from == to { self.classes[to].len().min(2) - 1 } else { 0 };
        (self.classes[from][0], self.classes[to][second])
    }
}

/// Groups cards that can change places without any effect on memory or time.
fn classes(cards: &[CardFacts], budgets: &[Budget], links: &LinkFacts) -> Vec<Vec<usize>> {
    let alike = |a: usize, b: usize| {
        let (x, y) = (&cards[a], &cards[b]);
        let rate = |from: usize, to: usize| links.rates[from][to];
        x.kind == y.kind
            && budgets[a].budget_bytes() == budgets[b].budget_bytes()
            && budgets[a].deficit_bytes() == budgets[b].deficit_bytes()
            && x.decode_bytes_per_s == y.decode_bytes_per_s
            && x.decode_op_us == y.decode_op_us
            && x.prompt_macs_per_s == y.prompt_macs_per_s
            && rate(a, b) == rate(b, a)
            && (0..cards.len())
                .filter(|&c| c != a && c != b)
                .all(|c| rate(a, c) == rate(b, c) && rate(c, a) == rate(c, b))
    };
    let mut classes: Vec<Vec<usize>> = Vec::new();
    for card in 0..cards.len() {
        match classes.iter_mut().find(|members| alike(members[0], card)) {
            Some(members) => members.push(card),
            None => classes.push(vec![card]),
        }
    }
    classes
}
