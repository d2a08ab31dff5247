//! Sizes that follow from a program: the planner's only input about a model, and what a card may allocate.
//!
//! Kinds of cards keep things differently (virtual cards fill matrices up to whole tiles, GPUs keep the file's bytes),
//! so sizes that depend on it are [`ByKind`].
//! Invariant: a card allocates exactly what [`Footprint::stage_items`] says for its stage; a test holds the ledger
//! against it. Does not know: devices, files, the planner.

pub mod gpu;

use std::fmt;
use std::ops::Range;

use self::gpu::GpuSizes;
use super::facts::{Activations, CardKind, KvFormat, PAGE_POSITIONS, StageProgram, WINDOW_ROWS_MAX};
use super::program::{Op, Product, Program, StateKind, WeightDecl, WeightId, WeightUse};
use crate::gguf::TensorType;
use crate::gguf::formats::{ImageKind, format};

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
    /// What the spans of attention leave for each other (GPUs).
    Attention,
    /// Slots of the links into and out of the stage.
    LinkSlots,
    /// Logits on their way from the last stage to the sampler; on a GPU, where they are made.
    Logits,
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
            ItemKind::Attention => "attention",
            ItemKind::LinkSlots => "link slots",
            ItemKind::Logits => "logits",
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
    /// Slots of a link's ring, in the receiving card's account.
    pub link_slots: usize,
    /// Slots that each side of a link has beside the ring: 1 where rows are copied through host memory.
    pub link_side_slots: usize,
    /// Slots of a ring that lies in the memory of a receiving GPU; 0 where rows pass through host memory.
    pub link_card_slots: usize,
}

/// Buffers for logits: one is written while another is read.
pub const LOGITS_BUFFERS: usize = 2;

/// Logits that a virtual card keeps because only the best tokens leave it: those of a window's rows.
pub fn kept_logits(logits_rows_max: usize, vocab: usize) -> usize {
    logits_rows_max.min(WINDOW_ROWS_MAX) * vocab
}

impl StageSizes {
    /// Bytes of all buffers in which logits go to the coordinator.
    pub fn logits_bytes(&self, vocab: usize) -> u64 {
        (LOGITS_BUFFERS * self.logits_rows_max * vocab * size_of::<f32>()) as u64
    }

    /// K/V pages of a card: every sequence can fill its context.
    pub fn kv_pages(&self) -> usize {
        self.sequences * self.context.div_ceil(PAGE_POSITIONS)
    }
}

/// Bytes that depend on how a kind of card keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ByKind {
    /// Virtual cards: matrices in tiles.
    pub cpu: u64,
    /// GPUs: matrices as in the file.
    pub cuda: u64,
}

impl ByKind {
    /// The same on every card.
    pub fn same(bytes: u64) -> ByKind {
        ByKind { cpu: bytes, cuda: bytes }
    }

    /// On a card of this kind.
    pub fn on(self, kind: CardKind) -> u64 {
        match kind {
            CardKind::Cpu => self.cpu,
            CardKind::Cuda | CardKind::Hip => self.cuda,
        }
    }

    /// A part of all.
    fn share(self, of: u64, parts: u64) -> ByKind {
        ByKind { cpu: self.cpu / parts * of, cuda: self.cuda / parts * of }
    }
}

impl std::ops::AddAssign for ByKind {
    fn add_assign(&mut self, other: ByKind) {
        self.cpu += other.cpu;
        self.cuda += other.cuda;
    }
}

/// Sizes of one layer.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct LayerFootprint {
    /// Matrices that every row reads, as the card keeps them.
    pub dense_bytes: ByKind,
    /// All experts.
    pub expert_bytes: ByKind,
    /// Norms, biases, scales.
    pub vector_bytes: u64,
    /// Weight bytes that one decode row reads (chosen experts only).
    pub read_bytes_per_row: ByKind,
    /// Multiply-adds of one row, without attention.
    pub macs_per_row: u64,
    /// Ops of the program.
    pub ops: usize,
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
    pub head_bytes: ByKind,
    /// Of `embedding_bytes`, those saved where one stage holds table and head and they are one tensor.
    pub tied_bytes: u64,
    /// Final norm and other vectors of the tail.
    pub tail_vector_bytes: u64,
    /// Divisors of rope angles, which every stage keeps.
    pub rope_vector_bytes: u64,
    /// Multiply-adds of the head for one row.
    pub head_macs: u64,
    /// Values of the row that travels between cards.
    pub residual_width: usize,
    /// Values of a logits row.
    pub vocab: usize,
    /// True where weights that have 8-bit images are multiplied with floats: slower than the rates of cards say.
    pub float_products: bool,
    /// Bytes of a virtual card's buffers between ops, for each batch row.
    pub row_bytes: u64,
    /// The buffers of a GPU.
    pub gpu: GpuSizes,
}

/// Output rows that the CPU's packed matrices keep side by side.
pub const TILE_ROWS: usize = 16;

/// Block formats that a card keeps in tiles of [`TILE_ROWS`] rows; the others stay in file order.
pub const TILED: &[TensorType] = &[
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::IQ4_NL,
    TensorType::MXFP4,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::IQ4_XS,
    TensorType::TQ2_0,
];

/// Bytes that cards keep of a matrix (of all experts): the file's; on virtual cards with rows filled up to whole tiles.
pub fn matrix_bytes(weight: &WeightDecl, activations: Activations) -> ByKind {
    let tiled = activations == Activations::Int8 && TILED.contains(&weight.ty);
    let rows = if tiled { weight.rows.next_multiple_of(TILE_ROWS) } else { weight.rows };
    let cpu = kept(weight.ty.row_bytes(weight.cols) as u64 * rows as u64 * weight.experts as u64);
    ByKind { cpu, cuda: kept(weight.file_bytes()) }
}

/// Bytes of a place in a card's arena: whole cache lines.
pub const fn kept(bytes: u64) -> u64 {
    bytes.next_multiple_of(64)
}

/// Bytes that the CPU keeps of an image row: codes, scales with what follows from them per 32 values, and sums per 16
/// codes, filled up to an odd multiple of 64 bytes so that many rows do not fall into one set of a cache.
pub fn image_row_bytes(kind: ImageKind, cols: usize) -> usize {
    let bytes = match kind {
        ImageKind::A32 => cols + cols / 32 * 16 + cols / 16 * 4,
        ImageKind::A256 => cols + cols / 256 * 4 + cols / 32 * 2 + cols / 16 * 2,
    };
    64 * (bytes.div_ceil(64) | 1)
}

/// The item that a weight belongs to; `None` where the stage does not hold it.
pub fn item_of(stage: &StageProgram, id: WeightId, decl: &WeightDecl) -> Option<ItemKind> {
    let tail_reads = || {
        stage.program.tail.iter().any(|op| match op {
            Op::Norm { weight, .. } | Op::Head { weight, .. } => *weight == id,
            _ => false,
        })
    };
    let rope_reads = || stage.program.ropes.iter().any(|r| r.divisors == Some(id));
    match (decl.usage, decl.layer) {
        (WeightUse::Vector, Some(l)) => stage.layers.contains(&l).then_some(ItemKind::Vectors),
        (WeightUse::Matrix, Some(l)) => stage.layers.contains(&l).then_some(ItemKind::Dense),
        (WeightUse::Experts, Some(l)) => stage.layers.contains(&l).then_some(ItemKind::Experts),
        (WeightUse::Table, _) => stage.embeds().then_some(ItemKind::Embedding),
        (WeightUse::TiedTable, _) if stage.heads() => Some(ItemKind::Head),
        (WeightUse::TiedTable, _) => stage.embeds().then_some(ItemKind::Embedding),
        (WeightUse::Vector, None) if rope_reads() => Some(ItemKind::Vectors),
        (_, None) => (stage.heads() && tail_reads()).then_some(if decl.usage == WeightUse::Vector {
            ItemKind::Vectors
        } else {
            ItemKind::Head
        }),
    }
}

/// The image that products with weights of this type read; `None` for float weights.
pub fn image_of(ty: TensorType, activations: Activations) -> Option<ImageKind> {
    match activations {
        Activations::Int8 => format(ty).map(|f| f.image),
        Activations::F32 => None,
    }
}

/// True where some weight of a product has 8-bit images.
fn has_images(program: &Program) -> bool {
    let mut products = program.ops().flat_map(|(_, op)| op.products());
    products.any(|p| image_of(program.weight(p.weight).ty, Activations::Int8).is_some())
}

impl Footprint {
    /// Sizes of `program`.
    pub fn of(program: &Program, activations: Activations) -> Footprint {
        let mut layers: Vec<LayerFootprint> = (0..program.layers.len())
            .map(|l| {
                let own = program.states.iter().filter(|s| s.layer == l);
                let paged = own.clone().filter_map(|s| match s.kind {
                    StateKind::Paged { heads, key_width, value_width } => {
                        Some((heads, key_width, value_width))
                    }
                    StateKind::Fixed { .. } => None,
                });
                let fixed = own.clone().filter_map(|s| match s.kind {
                    StateKind::Fixed { values } => Some(values as u64),
                    StateKind::Paged { .. } => None,
                });
                LayerFootprint {
                    dense_bytes: ByKind::default(),
                    expert_bytes: ByKind::default(),
                    vector_bytes: 0,
                    read_bytes_per_row: ByKind::default(),
                    macs_per_row: 0,
                    ops: program.layers[l].ops.len(),
                    paged: paged.collect(),
                    fixed_values: fixed.sum(),
                }
            })
            .collect();
        let (mut embedding_bytes, mut tied_bytes, mut tail_vector_bytes) = (0, 0, 0);
        let mut head_bytes = ByKind::default();
        let mut rope_vector_bytes = 0;
        let mut head_macs = 0;
        for (id, w) in program.weights.iter().enumerate() {
            let matrix = matrix_bytes(w, activations);
            let (table, vector) = (kept(w.file_bytes()), kept(4 * w.cols as u64));
            let values = (w.rows * w.cols * w.experts) as u64;
            match (w.usage, w.layer) {
                (WeightUse::Vector, Some(l)) => layers[l].vector_bytes += vector,
                (WeightUse::Vector, None)
                    if program.ropes.iter().any(|r| r.divisors == Some(WeightId(id))) =>
                {
                    rope_vector_bytes += vector;
                }
                (WeightUse::Vector, None) => tail_vector_bytes += vector,
                (WeightUse::Table, _) => embedding_bytes += table,
                (WeightUse::TiedTable, _) => {
                    embedding_bytes += table;
                    tied_bytes += table;
                    head_bytes += matrix;
                    head_macs += values;
                }
                (WeightUse::Matrix, None) => {
                    head_bytes += matrix;
                    head_macs += values;
                }
                (WeightUse::Matrix, Some(l)) => {
                    layers[l].dense_bytes += matrix;
                    layers[l].read_bytes_per_row += matrix;
                    layers[l].macs_per_row += values;
                }
                (WeightUse::Experts, Some(l)) => layers[l].expert_bytes += matrix,
                (WeightUse::Experts, None) => unreachable!("experts belong to a layer"),
            }
        }
        for (layer, op) in program.ops() {
            let (Some(l), Op::Experts { choice, gate, up, down, .. }) = (layer, op) else { continue };
            let used = program.choices[choice.0].used as u64;
            for product in [gate, up, down] {
                let w = program.weight(product.weight);
                layers[l].read_bytes_per_row += matrix_bytes(w, activations).share(used, w.experts as u64);
                layers[l].macs_per_row += (w.rows * w.cols) as u64 * used;
            }
        }
        Footprint {
            layers,
            embedding_bytes,
            head_bytes,
            tied_bytes,
            tail_vector_bytes,
            rope_vector_bytes,
            head_macs,
            residual_width: program.rows[program.residual.0].width,
            vocab: program.facts.vocab,
            float_products: activations == Activations::F32 && has_images(program),
            row_bytes: RowBytes::of(program, activations).total(program) as u64,
            gpu: GpuSizes::of(program, activations),
        }
    }

    /// Bytes that one layer more adds to a range on a card of `kind`, wherever it stands.
    pub fn layer_bytes(&self, kind: CardKind, layer: usize, sizes: &StageSizes) -> u64 {
        let own = &self.layers[layer];
        let fixed_bytes = 4 * own.fixed_values * sizes.sequences as u64;
        own.dense_bytes.on(kind)
            + own.expert_bytes.on(kind)
            + own.vector_bytes
            + own.page_bytes(sizes.kv) * sizes.kv_pages() as u64
            + fixed_bytes
    }

    /// Everything that a card of `kind` allocates for `layers`. `stages` tells whether rows arrive and leave.
    pub fn stage_items(&self, kind: CardKind, layers: Range<usize>, sizes: &StageSizes) -> Vec<Item> {
        let (embeds, heads) = (layers.start == 0, layers.end == self.layers.len());
        let own = &self.layers[layers];
        let sum = |f: fn(&LayerFootprint) -> u64| own.iter().map(f).sum::<u64>();
        let kept = |f: fn(&LayerFootprint) -> ByKind| own.iter().map(|l| f(l).on(kind)).sum::<u64>();
        let page_bytes: u64 = own.iter().map(|l| l.page_bytes(sizes.kv)).sum();
        let fixed_bytes = 4 * sum(|l| l.fixed_values) * sizes.sequences as u64;
        let table = if embeds { self.embedding_bytes - if heads { self.tied_bytes } else { 0 } } else { 0 };
        let tail = if heads { self.tail_vector_bytes } else { 0 };
        let residual_bytes = (4 * self.residual_width * sizes.batch_rows_max) as u64;
        let (rows, attention, slots, logits) = match kind {
            CardKind::Cpu => {
                let slots_in = if embeds { 0 } else { sizes.link_slots + sizes.link_side_slots };
                let slots_out = if heads { 0 } else { sizes.link_side_slots };
                let slots = (slots_in + slots_out) as u64 * residual_bytes;
                let logits = sizes.logits_bytes(self.vocab)
                    + 4 * kept_logits(sizes.logits_rows_max, self.vocab) as u64;
                (self.row_bytes * sizes.batch_rows_max as u64, 0, slots, logits)
            }
            // What leaves a GPU, and what is on its way to it, lies in the computer's memory, or in the next GPU's.
            CardKind::Cuda | CardKind::Hip => {
                let slots_in = if embeds { 0 } else { sizes.link_card_slots };
                let slots = slots_in as u64 * gpu::slot_bytes(self.residual_width * sizes.batch_rows_max);
                let rows = self.gpu.rows_bytes(sizes.batch_rows_max, sizes.kv_pages());
                let attention = self.gpu.attention_bytes(sizes.context, sizes.batch_rows_max);
                (rows, attention, slots, self.gpu.logits_bytes(sizes.logits_rows_max))
            }
        };
        let items = [
            (ItemKind::Embedding, table),
            (ItemKind::Dense, kept(|l| l.dense_bytes)),
            (ItemKind::Experts, kept(|l| l.expert_bytes)),
            (ItemKind::Vectors, sum(|l| l.vector_bytes) + tail + self.rope_vector_bytes),
            (ItemKind::Head, if heads { self.head_bytes.on(kind) } else { 0 }),
            (ItemKind::KvPages, page_bytes * sizes.kv_pages() as u64 + fixed_bytes),
            (ItemKind::Rows, rows),
            (ItemKind::Attention, attention),
            (ItemKind::LinkSlots, slots),
            (ItemKind::Logits, if heads { logits } else { 0 }),
        ];
        items.into_iter().filter(|i| i.1 > 0).map(|(kind, bytes)| Item { kind, bytes }).collect()
    }
}

/// Widest inputs of products by image, and what a mixture needs beside the declared rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowBytes {
    /// Widest input of products that read A32 images; 0: none.
    pub a32_cols: usize,
    /// The same for A256.
    pub a256_cols: usize,
    /// Experts of a row.
    pub experts_used: usize,
    /// Widest inner row of an expert.
    pub inner_width: usize,
    /// Widest output of an expert.
    pub expert_width: usize,
    /// Bytes of the images of one expert's inner row.
    pub inner_image_bytes: usize,
    /// Widest input that is gathered for experts with float products; 0: none.
    pub gathered_width: usize,
}

impl RowBytes {
    /// Reads them off the program.
    pub fn of(program: &Program, activations: Activations) -> RowBytes {
        let mut r = RowBytes::default();
        for (_, op) in program.ops() {
            for p in op.products() {
                let w = program.weight(p.weight);
                match image_of(w.ty, activations) {
                    Some(ImageKind::A32) => r.a32_cols = r.a32_cols.max(w.cols),
                    Some(ImageKind::A256) => r.a256_cols = r.a256_cols.max(w.cols),
                    None => {}
                }
            }
            if let Op::Experts { x, choice, gate, up, down, inner_width, out } = op {
                r.experts_used = r.experts_used.max(program.choices[choice.0].used);
                r.inner_width = r.inner_width.max(*inner_width);
                r.expert_width = r.expert_width.max(out.len());
                let kind = image_of(program.weight(down.weight).ty, activations);
                let bytes = kind.map_or(0, |k| image_row_bytes(k, *inner_width));
                r.inner_image_bytes = r.inner_image_bytes.max(bytes);
                let float = |p: &Product| image_of(program.weight(p.weight).ty, activations).is_none();
                if float(gate) || float(up) {
                    r.gathered_width = r.gathered_width.max(x.len());
                }
            }
        }
        r
    }

    /// Bytes of everything for one batch row: the declared rows, images, rope angles, the experts of the row with
    /// their ids, weights, inner rows, images and outputs.
    pub fn total(&self, program: &Program) -> usize {
        let rows: usize = program.rows.iter().map(|r| 4 * r.width).sum();
        let image = |kind, cols| if cols == 0 { 0 } else { image_row_bytes(kind, cols) };
        let images = image(ImageKind::A32, self.a32_cols) + image(ImageKind::A256, self.a256_cols);
        let angles: usize = program.ropes.iter().map(|r| 8 * r.frequencies.len()).sum();
        let choices: usize = program.choices.iter().map(|c| 8 * c.used).sum();
        let expert =
            8 * self.inner_width + 4 * (self.expert_width + self.gathered_width) + self.inner_image_bytes;
        rows + images + angles + choices + self.experts_used * expert
    }
}
