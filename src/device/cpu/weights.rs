//! The weights of a stage on a virtual card: one arena, filled from the file by the team, page by page.
//!
//! Invariants: matrices are packed as `pack` says (in file order for float activations); vectors are f32; a tied
//! table is kept once where the stage embeds and heads; the file's pages are given back as they are read.
//! Does not know: ops, batches.

use std::sync::Mutex;

use super::memory::Arena;
use super::pack::{self, Layout, Matrix, TILE_ROWS};
use super::team::Team;
use crate::device::ledger::Ledger;
use crate::device::{CardError, LoadProgress};
use crate::gguf::{self, TensorInfo, formats};
use crate::model::facts::{Activations, CardId, StageProgram};
use crate::model::footprint::{self, ItemKind};
use crate::model::program::{WeightDecl, WeightId, WeightUse};

/// File bytes that one part of the loading work reads.
const PART_BYTES: usize = 1 << 20;

/// How a weight lies in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Packed tiles.
    Tiles,
    /// The file's bytes.
    FileOrder,
    /// f32 values, outside the arena.
    Vector,
}

/// A weight's place; a vector has none in the arena.
#[derive(Clone, Copy, Debug)]
struct Kept {
    form: Form,
    at: usize,
    bytes: usize,
}

/// All weights of a stage.
#[derive(Debug)]
pub struct Weights {
    arena: Arena,
    kept: Vec<Option<Kept>>,
    /// Values of vectors, by weight; empty for others.
    vectors: Vec<Vec<f32>>,
}

/// A matrix (of one expert) as products read it.
#[derive(Clone, Copy, Debug)]
pub enum Kernel<'a> {
    /// Packed, for 8-bit images.
    Packed(Matrix<'a>),
    /// The file's rows, for float products.
    Rows(&'a [u8]),
}

impl Weights {
    /// Books, allocates and fills the arena.
    pub fn load(
        ledger: &mut Ledger,
        card: CardId,
        stage: &StageProgram,
        file: &gguf::File,
        activations: Activations,
        team: &mut Team,
        progress: &dyn LoadProgress,
    ) -> Result<Weights, CardError> {
        let program = &stage.program;
        let mut kept: Vec<Option<Kept>> = vec![None; program.weights.len()];
        let mut at = 0usize;
        for (id, decl) in program.weights.iter().enumerate() {
            let Some(item) = footprint::item_of(stage, WeightId(id), decl) else { continue };
            let form = form_of(stage, decl, activations);
            let bytes = match form {
                Form::Tiles => pack::packed_bytes(decl.ty, decl.rows, decl.cols) * decl.experts,
                Form::FileOrder => decl.file_bytes() as usize,
                Form::Vector => 4 * decl.cols,
            };
            let whole = footprint::kept(bytes as u64);
            ledger.book(item, whole)?;
            kept[id] = Some(Kept { form, at, bytes });
            if form != Form::Vector {
                at += whole as usize;
            }
        }
        let mut arena = Arena::unbooked(card, ItemKind::Dense, at)?;
        let mut vectors = vec![Vec::new(); kept.len()];
        let mut rest = arena.bytes_mut();
        for (id, place) in kept.iter().enumerate() {
            let Some(place) = place else { continue };
            let decl = &program.weights[id];
            let tensor = file.tensor(&decl.name).ok_or_else(|| CardError::File {
                card,
                what: format!("tensor {} is gone from {}", decl.name, file.path().display()),
            })?;
            let whole = footprint::kept(place.bytes as u64) as usize;
            if place.form == Form::Vector {
                // Room for what was booked: whole cache lines.
                let mut values = Vec::with_capacity(whole / 4);
                values.resize(decl.cols, 0.0);
                formats::dequantize_row(decl.ty, file.data(tensor), &mut values);
                vectors[id] = values;
                progress.arrived(tensor.byte_len)?;
                continue;
            }
            let (here, behind) = rest.split_at_mut(whole);
            rest = behind;
            let here = &mut here[..place.bytes];
            match place.form {
                Form::Tiles => pack_matrix(team, file, tensor, decl, here, progress)?,
                _ => copy(team, file, tensor, here, progress)?,
            }
        }
        Ok(Weights { arena, kept, vectors })
    }

    fn kept(&self, id: WeightId) -> (Form, &[u8]) {
        let place = self.kept[id.0].expect("invariant: ops of a stage read weights of that stage only");
        (place.form, &self.arena.bytes()[place.at..place.at + place.bytes])
    }

    /// A vector's values.
    pub fn vector(&self, id: WeightId) -> &[f32] {
        &self.vectors[id.0]
    }

    /// The matrix of expert `expert` (0 for a plain matrix).
    pub fn kernel(&self, decl: &WeightDecl, id: WeightId, expert: usize) -> Kernel<'_> {
        let (form, bytes) = self.kept(id);
        let expert_bytes = bytes.len() / decl.experts;
        let bytes = &bytes[expert * expert_bytes..][..expert_bytes];
        match form {
            // Types without a tile form lie in file order behind the same face.
            Form::Tiles => Kernel::Packed(Matrix::new(decl.ty, decl.rows, decl.cols, bytes)),
            _ => Kernel::Rows(bytes),
        }
    }

    /// Row `row` of a table as f32.
    pub fn table_row(
        &self,
        decl: &WeightDecl,
        id: WeightId,
        row: usize,
        scratch: &mut Vec<u8>,
        out: &mut [f32],
    ) {
        let (form, bytes) = self.kept(id);
        let row_bytes = decl.ty.row_bytes(decl.cols);
        if form == Form::Tiles {
            scratch.resize(row_bytes, 0);
            pack::file_row(decl.ty, decl.cols, bytes, row, scratch);
            formats::dequantize_row(decl.ty, scratch, out);
        } else {
            formats::dequantize_row(decl.ty, &bytes[row * row_bytes..][..row_bytes], out);
        }
    }
}

fn form_of(stage: &StageProgram, decl: &WeightDecl, activations: Activations) -> Form {
    let packs = activations == Activations::Int8 && decl.ty.is_quantised();
    match decl.usage {
        WeightUse::Vector => Form::Vector,
        WeightUse::Table => Form::FileOrder,
        WeightUse::TiedTable if !stage.heads() => Form::FileOrder,
        // `pack` leaves types that have no tiles in file order, behind the same face.
        _ if packs => Form::Tiles,
        _ => Form::FileOrder,
    }
}

/// Packs all experts' tiles of a tensor, in parts of about a megabyte.
fn pack_matrix(
    team: &mut Team,
    file: &gguf::File,
    tensor: &TensorInfo,
    decl: &WeightDecl,
    out: &mut [u8],
    progress: &dyn LoadProgress,
) -> Result<(), CardError> {
    if Layout::of(decl.ty) == Layout::FileOrder {
        return copy(team, file, tensor, out, progress);
    }
    let row_bytes = decl.ty.row_bytes(decl.cols);
    let source = file.data(tensor);
    let failed = Failure::default();
    let expert_out = out.len() / decl.experts;
    let tile_bytes = TILE_ROWS * row_bytes;
    let part_tiles = (PART_BYTES / tile_bytes).max(1);
    for (e, out) in out.chunks_exact_mut(expert_out).enumerate() {
        let expert_at = e * decl.rows * row_bytes;
        team.chunks(out, part_tiles * tile_bytes, |part, out| {
            let first_row = part * part_tiles * TILE_ROWS;
            let start = expert_at + first_row * row_bytes;
            let mut end = start;
            for (t, out) in out.chunks_exact_mut(tile_bytes).enumerate() {
                let row = first_row + t * TILE_ROWS;
                let rows = TILE_ROWS.min(decl.rows - row);
                let from = expert_at + row * row_bytes;
                end = from + rows * row_bytes;
                pack::pack_tile(decl.ty, decl.cols, &source[from..end], out);
            }
            file.release(tensor, start..end);
            failed.note(progress.arrived((end - start) as u64));
        });
    }
    failed.result()
}

/// Copies a tensor's bytes as they are.
fn copy(
    team: &mut Team,
    file: &gguf::File,
    tensor: &TensorInfo,
    out: &mut [u8],
    progress: &dyn LoadProgress,
) -> Result<(), CardError> {
    let source = file.data(tensor);
    let failed = Failure::default();
    team.chunks(out, PART_BYTES, |part, out| {
        let range = part * PART_BYTES..part * PART_BYTES + out.len();
        out.copy_from_slice(&source[range.clone()]);
        let bytes = range.len() as u64;
        file.release(tensor, range);
        failed.note(progress.arrived(bytes));
    });
    failed.result()
}

/// The first error of a step's parts.
#[derive(Default)]
pub(super) struct Failure(Mutex<Option<CardError>>);

impl Failure {
    /// Keeps the first error.
    pub(super) fn note(&self, result: Result<(), CardError>) {
        if let Err(error) = result {
            let mut first = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            first.get_or_insert(error);
        }
    }

    /// It, or success.
    pub(super) fn result(self) -> Result<(), CardError> {
        self.0.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
