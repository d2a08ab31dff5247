//! Sizes that follow from a program: the planner's only input about a model, and what a card may allocate.
//!
//! Invariant: a card allocates exactly what [`Footprint::stage_items`] says for its stage; a test holds the ledger
//! against it. Does not know: devices, files, the planner.

use std::fmt;
use std::ops::Range;

use super::facts::{CardKind, KvFormat, PAGE_POSITIONS};

/// One line of a card's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemKind {
    /// The token table.
    Embedding,
    /// Matrices of the layers that every row reads.
    Dense,
    /// Matrices of experts.
    Experts,
    /// Norms, biases and scales, as f32.
    Vectors,
    /// The head.
    Head,
    /// K/V pages.
    KvPages,
    /// Rows of a batch between ops, and their 8-bit images.
    Rows,
    /// Angles of rope.
    Rope,
    /// Slots of the links into and out of the stage.
    LinkSlots,
}

impl fmt::Display for ItemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ItemKind::Embedding => "embedding",
            ItemKind::Dense => "dense weights",
            ItemKind::Experts => "experts",
            ItemKind::Vectors => "norms and biases",
            ItemKind::Head => "head",
            ItemKind::KvPages => "K/V pages",
            ItemKind::Rows => "rows of a batch",
            ItemKind::Rope => "rope angles",
            ItemKind::LinkSlots => "link slots",
        })
    }
}

/// Bytes of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Item {
    /// For what.
    pub kind: ItemKind,
    /// How much.
    pub bytes: u64,
}

/// What is asked of a stage beside its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StageSizes {
    /// How K and V are kept.
    pub kv: KvFormat,
    /// Positions of each sequence.
    pub context: usize,
    /// Sequences at once.
    pub sequences: usize,
    /// The most rows of a batch.
    pub batch_rows_max: usize,
    /// The most rows of a batch with logits.
    pub logits_rows_max: usize,
    /// Slots of a link.
    pub link_slots: usize,
}

impl StageSizes {
    /// K/V pages of a card: every sequence can fill its context.
    pub fn kv_pages(&self) -> usize {
        self.sequences * self.context.div_ceil(PAGE_POSITIONS)
    }
}

/// Sizes of one layer.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct LayerFootprint {
    /// Matrices that every row reads, as the card keeps them.
    pub dense_bytes: u64,
    /// All experts.
    pub expert_bytes: u64,
    /// Norms, biases, scales.
    pub vector_bytes: u64,
    /// Weight bytes that one decode row reads (chosen experts only).
    pub read_bytes_per_row: u64,
    /// Multiply-adds of one row, without attention.
    pub macs_per_row: u64,
    /// K/V heads with the widths of a key and a value, for each paged state.
    pub paged: Vec<(usize, usize, usize)>,
    /// f32 values of running state.
    pub fixed_values: u64,
}

impl LayerFootprint {
    /// Bytes of this layer's part of a page.
    pub fn page_bytes(&self, kv: KvFormat) -> u64 {
        let rows = self.paged.iter().map(|&(h, k, v)| h * (kv.row_bytes(k) + kv.row_bytes(v)));
        (rows.sum::<usize>() * PAGE_POSITIONS) as u64
    }
}

/// Sizes of a model, for one kind of activations.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Footprint {
    /// Layer by layer.
    pub layers: Vec<LayerFootprint>,
    /// The table, as the first stage keeps it.
    pub embedding_bytes: u64,
    /// The head, as the last stage keeps it.
    pub head_bytes: u64,
    /// Of `embedding_bytes`, those saved where one stage holds table and head and they are one tensor.
    pub tied_bytes: u64,
    /// Final norm and other vectors of the tail.
    pub tail_vector_bytes: u64,
    /// Multiply-adds of the head for one row.
    pub head_macs: u64,
    /// Values of the row that travels between cards.
    pub residual_width: usize,
    /// Values of a logits row.
    pub vocab: usize,
    /// Bytes of the buffers between ops, for each batch row.
    pub row_bytes: u64,
    /// Bytes of rope angles, for each position.
    pub rope_bytes_per_position: u64,
}

impl Footprint {
    /// Everything that a card of `kind` allocates for `layers`. `stages` tells whether rows arrive and leave.
    pub fn stage_items(&self, kind: CardKind, layers: Range<usize>, sizes: &StageSizes) -> Vec<Item> {
        let CardKind::Cpu = kind;
        let (embeds, heads) = (layers.start == 0, layers.end == self.layers.len());
        let own = &self.layers[layers];
        let sum = |f: fn(&LayerFootprint) -> u64| own.iter().map(f).sum::<u64>();
        let page_bytes: u64 = own.iter().map(|l| l.page_bytes(sizes.kv)).sum();
        let fixed_bytes = 4 * sum(|l| l.fixed_values) * sizes.sequences as u64;
        let table = if embeds { self.embedding_bytes - if heads { self.tied_bytes } else { 0 } } else { 0 };
        let tail = if heads { self.tail_vector_bytes } else { 0 };
        let residual_bytes = (4 * self.residual_width * sizes.batch_rows_max) as u64;
        let slots = if embeds { 0 } else { sizes.link_slots as u64 * residual_bytes };
        let items = [
            (ItemKind::Embedding, table),
            (ItemKind::Dense, sum(|l| l.dense_bytes)),
            (ItemKind::Experts, sum(|l| l.expert_bytes)),
            (ItemKind::Vectors, sum(|l| l.vector_bytes) + tail),
            (ItemKind::Head, if heads { self.head_bytes } else { 0 }),
            (ItemKind::KvPages, page_bytes * sizes.kv_pages() as u64 + fixed_bytes),
            (ItemKind::Rows, self.row_bytes * sizes.batch_rows_max as u64),
            (ItemKind::Rope, self.rope_bytes_per_position * sizes.context as u64),
            (ItemKind::LinkSlots, slots),
        ];
        items.into_iter().filter(|i| i.1 > 0).map(|(kind, bytes)| Item { kind, bytes }).collect()
    }
}
