//! The plan: which card runs which layers, what every byte is for, and what time is predicted.
//!
//! Invariants: stages follow each other over all layers; no stage is over its card's budget; each card is a stage or
//! idle, never both. A card allocates what its items say, nothing else.
//! Does not know: how it was found, devices.

use std::ops::Range;

use crate::model::facts::{CardId, LinkKind, RateSource, StageId};
use crate::model::footprint::{Item, ItemKind, StageSizes};

use super::budget::sum_bytes;
use super::cost::Cost;

/// One card with its layers.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StagePlan {
    /// Place in the pipeline.
    pub stage: StageId,
    /// Which card.
    pub card: CardId,
    /// The card's name for people.
    pub name: String,
    /// Layers of the model.
    pub layers: Range<usize>,
    /// Everything that the card allocates.
    pub items: Vec<Item>,
    /// The card's memory.
    pub memory_bytes: u64,
    /// Kept free, for the user and for the card's driver.
    pub reserve_bytes: u64,
    /// Of these, the driver's.
    pub driver_bytes: u64,
    /// What items may take: memory less reserve.
    pub budget_bytes: u64,
    /// What the items take.
    pub used_bytes: u64,
    /// Predicted time of one decode row, without hand-offs.
    pub decode_us: f64,
    /// Predicted time of one prompt row as part of a chunk, without hand-offs.
    pub prompt_us_per_row: f64,
    /// How rows arrive; nothing on the first.
    pub arrives: Option<LinkKind>,
    /// Of the slots in which they arrive, the bytes that lie in the computer's memory and belong to no card.
    pub arrives_host_bytes: u64,
    /// Predicted hand-off of one decode row from the stage before; 0 on the first.
    pub arrival_us: f64,
    /// Predicted hand-off of one prompt row from the stage before, as part of a chunk; 0 on the first.
    pub arrival_us_per_row: f64,
}

impl StagePlan {
    /// Budget that no item takes.
    pub fn free_bytes(&self) -> u64 {
        self.budget_bytes - self.used_bytes
    }

    /// Bytes of the items of these kinds.
    pub fn bytes_of(&self, kinds: &[ItemKind]) -> u64 {
        self.items.iter().filter(|i| kinds.contains(&i.kind)).map(|i| i.bytes).sum()
    }
}

/// A card without layers.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct IdleCard {
    /// Which card.
    pub card: CardId,
    /// The card's name for people.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// The part of the pipeline that is busiest in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// A stage.
    Stage(StageId),
    /// The hand-off into a stage.
    ArrivalAt(StageId),
    /// All stages: they take turns on the same threads.
    Turns,
}

/// Predicted speed.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Predicted {
    /// Where the rates of the plan's cards come from; nothing where some were measured and others not.
    pub rates: Option<RateSource>,
    /// True where the rates are too high: they are of 8-bit images, and floats are multiplied (`--activations f32`).
    pub float_products: bool,
    /// The position of the decode rows that are counted.
    pub decode_position: usize,
    /// One sequence alone, through all stages and hand-offs.
    pub decode_us: f64,
    /// Tokens a second of one sequence alone.
    pub decode_tok_s: f64,
    /// Tokens a second of all sequences of the plan together.
    pub decode_tok_s_all: f64,
    /// The slowest stage or hand-off of a long prompt.
    pub prompt_us_per_row: f64,
    /// Rows a second of a long prompt.
    pub prompt_tok_s: f64,
    /// What bounds a round of all sequences and their prompts.
    pub bound: Bound,
}

/// A model over cards.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Plan {
    /// Stages in pipeline order.
    pub stages: Vec<StagePlan>,
    /// Cards without layers.
    pub idle: Vec<IdleCard>,
    /// What the items were made for.
    pub sizes: StageSizes,
    /// Bytes of a decode row between stages.
    pub handoff_row_bytes: u64,
    /// Bytes of a full chunk between stages.
    pub handoff_chunk_bytes: u64,
    /// Predicted speed.
    pub predicted: Predicted,
    /// What the planner minimised.
    pub cost: Cost,
}

impl Plan {
    /// Layers of the model.
    pub fn layer_count(&self) -> usize {
        self.stages.last().map_or(0, |s| s.layers.end)
    }

    /// Notes that rows reach `stage` by another kind of link, through slots of `ring_bytes` in the computer's memory.
    pub fn arrive_otherwise(&mut self, stage: StageId, kind: LinkKind, ring_bytes: u64) {
        let stage = &mut self.stages[stage.index()];
        stage.items.retain(|item| item.kind != ItemKind::LinkSlots);
        stage.used_bytes = sum_bytes(&stage.items);
        (stage.arrives, stage.arrives_host_bytes) = (Some(kind), ring_bytes);
    }

    /// Bytes that all cards allocate.
    pub fn used_bytes(&self) -> u64 {
        self.stages.iter().map(|s| s.used_bytes).sum()
    }
}
