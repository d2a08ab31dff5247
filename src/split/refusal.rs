//! A refusal: which items did not fit where, how much is missing, and the nearest plan that would fit.
//!
//! Invariants: the cards shown are those of the split that goes least over the budgets; the nearest plan was planned
//! and fits. Does not know: how either was found.

use std::fmt;
use std::ops::Range;

use crate::model::facts::CardId;
use crate::model::footprint::{Item, StageSizes};

use super::budget::{format_bytes, format_bytes_up};
use super::plan::Plan;
use super::table::{items_in_words, write_aligned};

/// What a card would need.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct CardNeed {
    /// Which card.
    pub card: CardId,
    /// The card's name for people.
    pub name: String,
    /// Layers that it would run.
    pub layers: Range<usize>,
    /// What they need.
    pub items: Vec<Item>,
    /// All items.
    pub needed_bytes: u64,
    /// What items may take.
    pub budget_bytes: u64,
    /// Kept free beside the budget, for the user and for the card's driver.
    pub reserve_bytes: u64,
    /// Of these, the driver's.
    pub driver_bytes: u64,
    /// Bytes that `--card-memory` could add.
    pub addable_bytes: u64,
    /// What the card needs more.
    pub missing_bytes: u64,
}

/// What to ask for instead.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Nearest {
    /// Sizes that fit.
    pub sizes: StageSizes,
    /// The flags that ask for them.
    pub flags: String,
    /// The plan that they give.
    pub plan: Plan,
}

/// The model does not fit.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct NoFit {
    /// The split that goes least over the budgets.
    pub cards: Vec<CardNeed>,
    /// The cards that this split leaves idle.
    pub idle: Vec<CardNeed>,
    /// Items of all those cards.
    pub needed_bytes: u64,
    /// Budgets of all cards named, also of those that this split leaves idle.
    pub available_bytes: u64,
    /// Bytes that would make it fit, if the cards over budget had as many more.
    pub missing_bytes: u64,
    /// The nearest plan that fits, if smaller sizes can help.
    pub nearest: Option<Box<Nearest>>,
    /// True where `--layer-split` decided the layers.
    pub layers_given: bool,
}

impl std::error::Error for NoFit {}

/// One line.
impl fmt::Display for NoFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; `tandem plan` with these flags shows each item", self.summary())
    }
}

impl NoFit {
    /// The line for those who see [`NoFit::itemised`].
    pub fn summary(&self) -> String {
        let (needed, available) = (format_bytes(self.needed_bytes), format_bytes(self.available_bytes));
        let advice = self.advice();
        format!("the model does not fit: {needed} are needed, {available} are available; {advice}")
    }

    /// What to ask for instead.
    fn advice(&self) -> String {
        let smaller = match &self.nearest {
            Some(nearest) => format!("it fits with {}, or", nearest.flags),
            None => "no smaller --ctx, --kv, --sequences or --chunk helps, it fits".to_owned(),
        };
        let short = || self.cards.iter().filter(|c| c.missing_bytes > 0);
        let each = |words: &dyn Fn(&str, &str) -> String| {
            let of_card = |c: &CardNeed| words(&format_bytes_up(c.missing_bytes), &c.name);
            short().map(of_card).collect::<Vec<_>>().join(", ")
        };
        let reserved = |c: &CardNeed| c.reserve_bytes - c.driver_bytes;
        let or_reserve = if short().any(|c| reserved(c) > 0) { ", --vram-reserve" } else { "" };
        let more = if short().all(|c| reserved(c) >= c.missing_bytes) {
            format!("{} (--vram-reserve)", each(&|bytes, name| format!("{bytes} less reserved on {name}")))
        } else if short().all(|c| c.addable_bytes >= c.missing_bytes) {
            let more = each(&|bytes, name| format!("{bytes} more on {name}"));
            format!("{more} (--card-memory{or_reserve})")
        } else {
            // No flag makes a GPU larger than it is.
            let free = each(&|bytes, name| format!("{bytes} more free on {name}"));
            format!("{free} (end what else uses it{or_reserve}), or with further cards (--gpus)")
        };
        let split = if self.layers_given { ", or another --layer-split" } else { "" };
        format!("{smaller} with {more}{split}")
    }
}

/// A table of the split that was closest, then the advice.
pub struct Itemised<'a>(&'a NoFit);

impl NoFit {
    /// The refusal over several lines: every item of every card.
    pub fn itemised(&self) -> Itemised<'_> {
        Itemised(self)
    }
}

impl fmt::Display for Itemised<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows =
            vec![["card", "layers", "needs", "budget", "reserve", "missing"].map(str::to_string).to_vec()];
        for card in self.0.cards.iter().chain(&self.0.idle) {
            let or_dash = |bytes: u64| if bytes == 0 { "-".to_string() } else { format_bytes_up(bytes) };
            rows.push(vec![
                card.name.clone(),
                match card.layers.end {
                    0 => "-".to_owned(),
                    end => format!("{}-{}", card.layers.start, end - 1),
                },
                or_dash(card.needed_bytes),
                format_bytes(card.budget_bytes),
                or_dash(card.reserve_bytes),
                or_dash(card.missing_bytes),
            ]);
        }
        write_aligned(f, &rows)?;
        for card in self.0.cards.iter().filter(|c| c.missing_bytes > 0) {
            writeln!(f, "{}: {}", card.name, items_in_words(&card.items))?;
        }
        match &self.0.nearest {
            Some(nearest) => write!(f, "the nearest plan that fits: {}", nearest.flags),
            None => write!(f, "missing: {}", format_bytes_up(self.0.missing_bytes)),
        }
    }
}
