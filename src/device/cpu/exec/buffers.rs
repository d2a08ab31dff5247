//! Rows of a batch between steps, with their images, choices, and the experts' inner rows.
//!
//! Invariant: the bytes are those of `RowBytes::total` for every batch row, booked as one item.
//! Does not know: steps.

use super::ScratchPool;
use crate::device::CardError;
use crate::device::ledger::Ledger;
use crate::model::facts::Activations;
use crate::model::footprint::{ImageKind, ItemKind, RowBytes, image_row_bytes};
use crate::model::program::Program;

/// A router's choice for every row.
#[derive(Debug)]
pub struct Choice {
    /// Experts of a row.
    pub used: usize,
    /// In rank order, row after row.
    pub ids: Vec<u32>,
    /// As many.
    pub weights: Vec<f32>,
}

/// What the experts of a batch need, for every (row, rank) pair.
#[derive(Debug, Default)]
pub struct ExpertRows {
    /// Gate, then the activated inner row.
    pub gate: Vec<f32>,
    /// Up.
    pub up: Vec<f32>,
    /// Output.
    pub out: Vec<f32>,
    /// Images of inner rows.
    pub images: Vec<u8>,
    /// Inputs side by side, for float products.
    pub gathered: Vec<f32>,
}

/// All buffers of a stage.
#[derive(Debug)]
pub struct Buffers {
    /// The most rows.
    pub rows_max: usize,
    /// One for each declared row.
    pub rows: Vec<Vec<f32>>,
    /// Images of the input of the next products, A32 and A256.
    pub images: [Vec<u8>; 2],
    /// Cosines, then sines, of each row; one for each rope.
    pub angles: Vec<Vec<f32>>,
    /// One for each declared choice.
    pub choices: Vec<Choice>,
    /// For mixtures.
    pub experts: ExpertRows,
    pub(super) scratch: ScratchPool,
}

/// Index of an image kind.
pub fn image_index(kind: ImageKind) -> usize {
    match kind {
        ImageKind::A32 => 0,
        ImageKind::A256 => 1,
    }
}

impl Buffers {
    /// Books and allocates the buffers for batches of up to `rows_max` rows.
    pub fn new(
        ledger: &mut Ledger,
        program: &Program,
        activations: Activations,
        rows_max: usize,
    ) -> Result<Buffers, CardError> {
        let sizes = RowBytes::of(program, activations);
        ledger.book(ItemKind::Rows, (sizes.total(program) * rows_max) as u64)?;
        let image =
            |kind, cols: usize| vec![0u8; if cols == 0 { 0 } else { image_row_bytes(kind, cols) * rows_max }];
        let pairs = sizes.experts_used * rows_max;
        let buffers = Buffers {
            rows_max,
            rows: program.rows.iter().map(|r| vec![0.0; r.width * rows_max]).collect(),
            images: [image(ImageKind::A32, sizes.a32_cols), image(ImageKind::A256, sizes.a256_cols)],
            angles: program.ropes.iter().map(|r| vec![0.0; 2 * r.frequencies.len() * rows_max]).collect(),
            choices: program
                .choices
                .iter()
                .map(|c| Choice {
                    used: c.used,
                    ids: vec![0; c.used * rows_max],
                    weights: vec![0.0; c.used * rows_max],
                })
                .collect(),
            experts: ExpertRows {
                gate: vec![0.0; sizes.inner_width * pairs],
                up: vec![0.0; sizes.inner_width * pairs],
                out: vec![0.0; sizes.expert_width * pairs],
                images: vec![0; sizes.inner_image_bytes * pairs],
                gathered: vec![0.0; sizes.gathered_width * pairs],
            },
            scratch: ScratchPool::default(),
        };
        assert_eq!(buffers.bytes(), sizes.total(program) * rows_max, "buffers are what was booked");
        Ok(buffers)
    }

    fn bytes(&self) -> usize {
        let floats = self.rows.iter().chain(&self.angles).map(Vec::len).sum::<usize>();
        let choices: usize = self.choices.iter().map(|c| c.ids.len() + c.weights.len()).sum();
        let e = &self.experts;
        let experts = e.gate.len() + e.up.len() + e.out.len() + e.gathered.len();
        4 * (floats + choices + experts) + self.images[0].len() + self.images[1].len() + e.images.len()
    }
}
