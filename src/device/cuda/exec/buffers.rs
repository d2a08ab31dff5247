//! Rows of a batch between steps on a card: declared rows, images, choices, expert pairs, attention's work, logits.
//!
//! Invariant: places have the widths of `GpuSizes` and fill the plan's items to their ends.
//! Does not know: steps, kernels.

use super::launch::{Image, Rows};
use crate::device::CardError;
use crate::device::StageSettings;
use crate::device::cuda::driver::Span;
use crate::device::cuda::memory::{Arena, Memory};
use crate::gguf::formats::ImageKind;
use crate::model::facts::StageProgram;
use crate::model::footprint::ItemKind;
use crate::model::footprint::gpu::{CONTROL_BYTES, GpuSizes, ImageBytes};

/// What the experts of a batch need, for every (row, rank) pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairPlaces {
    /// Gate, then the activated inner row.
    pub(super) gate: Span,
    /// Up.
    pub(super) up: Span,
    /// Output.
    pub(super) out: Span,
    /// Image of the inner row.
    pub(super) image: Image,
    /// The numbers of the pairs, sorted by expert.
    pub(super) order: Span,
    /// The tiles of the sorted pairs.
    pub(super) tiles: Span,
}

/// Where the logits are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadPlaces {
    /// The residual rows that want something.
    pub(super) wanted: Rows,
    /// Their logits.
    pub(super) logits: Rows,
    /// Keys of the best tokens, on their way from launch to launch.
    pub(super) keys: [Span; 2],
}

/// All buffers of a stage.
#[derive(Debug)]
pub(super) struct Buffers {
    /// Keep the places.
    _arenas: Vec<Arena>,
    /// The most rows.
    pub(super) rows_max: usize,
    /// One for each declared row.
    pub(super) rows: Vec<Rows>,
    /// The images of the input of the next products, A32 and A256.
    images: [Image; 2],
    /// Ids and weights of each declared choice.
    pub(super) choices: Vec<(Span, Span)>,
    /// For mixtures.
    pub(super) pairs: PairPlaces,
    /// Of the turns with the host.
    pub(super) control: Span,
    /// What the host sends with a batch.
    pub(super) block: Span,
    /// Of attention.
    pub(super) work: Span,
    /// Where the stage heads.
    pub(super) head: Option<HeadPlaces>,
}

impl Buffers {
    /// Books and takes the buffers.
    pub(super) fn new(
        memory: &mut Memory<'_>,
        stage: &StageProgram,
        settings: &StageSettings,
        sizes: &GpuSizes,
    ) -> Result<Buffers, CardError> {
        let rows_max = settings.batch_rows_max;
        let bytes = sizes.rows_bytes(rows_max, settings.kv_pages);
        let mut arena = memory.arena(ItemKind::Rows, bytes)?;
        let mut cut = |bytes: usize| arena.cut(bytes * rows_max);
        let rows = sizes.rows.iter().map(|&bytes| Rows { at: cut(bytes), stride: bytes / 4 }).collect();
        let mut image = |bytes: ImageBytes| Image { codes: cut(bytes.codes), scales: cut(bytes.scales) };
        let images = [image(sizes.a32), image(sizes.a256)];
        let choices = sizes.choices.iter().map(|&bytes| (cut(bytes), cut(bytes))).collect();
        let mut cut_pairs = |bytes: usize| cut(bytes * sizes.experts_used);
        let pairs = PairPlaces {
            gate: cut_pairs(sizes.pair.inner),
            up: cut_pairs(sizes.pair.inner),
            out: cut_pairs(sizes.pair.out),
            image: Image {
                codes: cut_pairs(sizes.pair.image.codes),
                scales: cut_pairs(sizes.pair.image.scales),
            },
            order: cut_pairs(4),
            tiles: arena.cut(sizes.tiles_bytes(rows_max) as usize),
        };
        let control = arena.cut(CONTROL_BYTES);
        let block = arena.cut(sizes.block_bytes(rows_max, settings.kv_pages) as usize);
        arena.whole();
        let mut attention =
            memory.arena(ItemKind::Attention, sizes.attention_bytes(settings.context, rows_max))?;
        let work = attention.cut(sizes.attention_bytes(settings.context, rows_max) as usize);
        let mut arenas = vec![arena, attention];
        let head = if stage.heads() {
            let most = settings.logits_rows_max;
            let mut arena = memory.arena(ItemKind::Logits, sizes.logits_bytes(most))?;
            let mut rows = |bytes: usize| Rows { at: arena.cut(bytes * most), stride: bytes / 4 };
            let (wanted, logits) = (rows(sizes.residual), rows(sizes.vocab));
            let keys = sizes.keys_bytes(most).map(|bytes| arena.cut(bytes));
            let places = HeadPlaces { wanted, logits, keys };
            arena.whole();
            arenas.push(arena);
            Some(places)
        } else {
            None
        };
        Ok(Buffers { _arenas: arenas, rows_max, rows, images, choices, pairs, control, block, work, head })
    }

    /// The image of a kind.
    pub(super) fn image(&self, kind: ImageKind) -> Image {
        match kind {
            ImageKind::A32 => self.images[0],
            ImageKind::A256 => self.images[1],
        }
    }
}
