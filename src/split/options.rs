//! What a user may say about a split, checked against the model and the cards.
//!
//! Invariant: after [`SplitOptions::check`] every number is in range, a given order names each card once, and a
//! given split cuts the model into as many pieces as there are cards.
//! Does not know: how a plan is found.

use std::str::FromStr;

use crate::model::facts::{CardFacts, KvFormat};
use crate::model::footprint::{Footprint, StageSizes};

use super::budget::Budget;
use super::cost::PROMPT_ROWS_PER_TOKEN;
use super::error::SplitError;
use super::sums::CARDS_MAX;

/// The longest context. This and the limits below are far beyond any computer, and small enough that no size of any
/// model overflows 64 bits.
pub const CONTEXT_MAX: usize = 1 << 24;

/// The most sequences at once.
pub const SEQUENCES_MAX: usize = 1 << 12;

/// The most rows of a batch.
pub const BATCH_ROWS_MAX: usize = 1 << 16;

/// The most batches under way on a link.
pub const LINK_SLOTS_MAX: usize = 1 << 8;

const SIZES_MAX: [(&str, usize); 4] = [
    ("--ctx", CONTEXT_MAX),
    ("--sequences", SEQUENCES_MAX),
    ("--chunk", BATCH_ROWS_MAX),
    ("link slots", LINK_SLOTS_MAX),
];

/// Whether cards compute at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Computing {
    /// Each has means of its own.
    Together,
    /// One after the other on the same threads: more cards give more memory, not more speed.
    InTurn,
}

/// Card order (`--gpu-order`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuOrder {
    /// As the user named them.
    AsGiven,
    /// The card with the highest decode rate runs the last layers and the head.
    FastestLast,
    /// Positions in the list of cards, each once.
    Explicit(Vec<usize>),
}

impl FromStr for GpuOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<GpuOrder, String> {
        match text {
            "as-given" => return Ok(GpuOrder::AsGiven),
            "fastest-last" => return Ok(GpuOrder::FastestLast),
            _ => {}
        }
        let cards: Result<Vec<usize>, _> = text.split(',').map(|n| n.trim().parse()).collect();
        cards.map(GpuOrder::Explicit).map_err(|_| {
            format!(
                "{text:?} is not a card order; write as-given, fastest-last or positions in --gpus such as 2,0,1"
            )
        })
    }
}

/// What the planner is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitOptions {
    /// Context, sequences, K/V format, rows, link slots.
    pub sizes: StageSizes,
    /// First layer of each card after the first (`--layer-split`); needs one number less than cards.
    pub layer_split: Option<Vec<usize>>,
    /// Card order (`--gpu-order`); all orders are searched without one, except that `layer_split` takes the cards
    /// as given.
    pub gpu_order: Option<GpuOrder>,
    /// Bytes kept free on the first card named (`--vram-reserve`).
    pub vram_reserve_bytes: u64,
    /// Bytes kept free on each other card (`--vram-reserve-later`); the same as on the first without it.
    pub vram_reserve_later_bytes: Option<u64>,
    /// Use the first card of the order alone if everything fits there (`--skip-split-if-fits`).
    pub skip_split_if_fits: bool,
    /// Prompt rows that come with each decoded token: the weight of prompt time.
    pub prompt_rows_per_token: f64,
    /// How the cards compute; changes what is predicted, not the split.
    pub computing: Computing,
}

impl SplitOptions {
    /// Options that leave everything but the sizes to the planner.
    pub fn new(sizes: StageSizes) -> SplitOptions {
        SplitOptions {
            sizes,
            layer_split: None,
            gpu_order: None,
            vram_reserve_bytes: 0,
            vram_reserve_later_bytes: None,
            skip_split_if_fits: false,
            prompt_rows_per_token: PROMPT_ROWS_PER_TOKEN,
            computing: Computing::Together,
        }
    }

    /// Says what is out of range, in terms of flags.
    pub fn check(&self, footprint: &Footprint, cards: &[CardFacts]) -> Result<(), SplitError> {
        let layers = footprint.layers.len();
        if cards.is_empty() {
            return Err(SplitError::NoCards);
        }
        if cards.len() > CARDS_MAX {
            return Err(SplitError::TooManyCards { cards: cards.len(), max: CARDS_MAX });
        }
        if layers == 0 {
            return Err(SplitError::NoLayers);
        }
        let StageSizes { context, sequences, batch_rows_max, link_slots, .. } = self.sizes;
        for ((flag, max), value) in
            SIZES_MAX.into_iter().zip([context, sequences, batch_rows_max, link_slots])
        {
            if !(1..=max).contains(&value) {
                return Err(SplitError::Size { flag, value, min: 1, max });
            }
        }
        if self.sizes.kv == KvFormat::Q8_0
            && let Some((layer, width)) = width_against_q8_0(footprint)
        {
            return Err(SplitError::KvWidth { layer, width });
        }
        if let Some(GpuOrder::Explicit(order)) = &self.gpu_order {
            check_order(order, cards.len())?;
        }
        self.layer_split.as_ref().map_or(Ok(()), |starts| check_starts(starts, cards.len(), layers))
    }

    /// Positions of cards in the order asked for, if there is one.
    pub(super) fn order(&self, cards: &[CardFacts]) -> Option<Vec<usize>> {
        let given: Vec<usize> = (0..cards.len()).collect();
        match &self.gpu_order {
            None if self.layer_split.is_some() => Some(given),
            None => None,
            Some(GpuOrder::AsGiven) => Some(given),
            Some(GpuOrder::FastestLast) => {
                let mut order = given;
                order.sort_by(|&a, &b| cards[a].decode_bytes_per_s.total_cmp(&cards[b].decode_bytes_per_s));
                Some(order)
            }
            Some(GpuOrder::Explicit(order)) => Some(order.clone()),
        }
    }

    /// Budgets of the cards.
    pub fn budgets(&self, cards: &[CardFacts]) -> Vec<Budget> {
        let later_bytes = self.vram_reserve_later_bytes.unwrap_or(self.vram_reserve_bytes);
        let reserve = |at: usize| if at == 0 { self.vram_reserve_bytes } else { later_bytes };
        cards.iter().enumerate().map(|(at, card)| Budget::new(card, reserve(at))).collect()
    }
}

/// The first layer whose heads q8_0 cannot hold, and the width.
pub(super) fn width_against_q8_0(footprint: &Footprint) -> Option<(usize, usize)> {
    let widths = footprint.layers.iter().enumerate().flat_map(|(layer, sizes)| {
        sizes.paged.iter().flat_map(move |&(_, key, value)| [(layer, key), (layer, value)])
    });
    widths.into_iter().find(|(_, width)| width % 32 != 0)
}

fn check_order(order: &[usize], cards: usize) -> Result<(), SplitError> {
    let mut named = vec![false; cards];
    for &card in order {
        match named.get_mut(card) {
            None => return Err(SplitError::OrderUnknown { card, last: cards - 1 }),
            Some(true) => return Err(SplitError::OrderTwice { card }),
            Some(seen) => *seen = true,
        }
    }
    named.iter().position(|&seen| !seen).map_or(Ok(()), |card| Err(SplitError::OrderMissing { card }))
}

fn check_starts(starts: &[usize], cards: usize, layers: usize) -> Result<(), SplitError> {
    if cards > layers {
        return Err(SplitError::LayerSplitCards { cards, layers });
    }
    if starts.len() != cards - 1 {
        return Err(SplitError::LayerSplitCount { values: starts.len(), cards, needed: cards - 1 });
    }
    if let Some(&value) = starts.iter().find(|&&start| start == 0 || start >= layers) {
        return Err(SplitError::LayerSplitRange { value, max: layers - 1, layers });
    }
    let fall = starts.windows(2).find(|pair| pair[1] <= pair[0]);
    fall.map_or(Ok(()), |pair| Err(SplitError::LayerSplitOrder { before: pair[0], value: pair[1] }))
}
