//! Where the time of a window and of a prompt chunk goes on each card of a plan, stage by stage, without an engine.
//!
//! Invariants: stages are loaded one after another, as the plan says, and are gone afterwards; keys and values in front of
//! the batches are those of the same model, made from the given tokens. Does not know: requests, links, how it is shown.

use std::ops::Range;

use super::open::{CardChoice, Model, OpenError, cuda_stage};
use super::options::EngineOptions;
use crate::device::LoadProgress;
use crate::device::batch::{Batch, BatchId, BatchRow, PageTables, RowWants};
use crate::device::cuda::exec::profile::BatchProfile;
use crate::model::facts::{PAGE_POSITIONS, PageId, StateId, WINDOW_ROWS_MAX};
use crate::split::plan::Plan;

/// What is profiled.
#[derive(Clone, Debug)]
pub struct ProfileOrder {
    /// Of one sequence; the last one is that of the window, those before it the prompt.
    pub tokens: Vec<u32>,
    /// The window's rows, each of a sequence of its own.
    pub sequences: usize,
}

/// A stage.
#[derive(Clone, Debug, serde::Serialize)]
pub struct StageProfile {
    /// The card's name.
    pub card: String,
    /// Its layers.
    pub layers: Range<usize>,
    /// The prompt's last chunk, where it is one.
    pub chunk: Option<BatchProfile>,
    /// The window behind the prompt.
    pub window: BatchProfile,
}

/// Profiles each stage of a plan whose cards are all GPUs.
pub fn profile(
    model: &Model,
    choice: &CardChoice,
    plan: &Plan,
    options: &EngineOptions,
    order: &ProfileOrder,
    progress: &dyn LoadProgress,
) -> Result<Vec<StageProfile>, OpenError> {
    if let Some(stage) = plan.stages.iter().find(|s| !choice.facts(s.card).kind.is_gpu()) {
        let what = format!(
            "--profile takes launches on GPUs apart, and {} is a virtual card; it needs a computer with a GPU \
             (`tandem devices` lists them), where --gpus names GPUs alone",
            stage.name
        );
        return Err(OpenError::NoProfile { what });
    }
    let settings = options.stage_settings();
    let sequences = order.sequences.min(WINDOW_ROWS_MAX);
    let pages = order.tokens.len().div_ceil(PAGE_POSITIONS) as u32;
    let of_sequence = |s: u32| (0..pages).map(|p| PageId(p * sequences as u32 + s)).collect();
    let tables = PageTables { states: (0..sequences as u32).map(of_sequence).collect() };
    let (prompt, next) = (order.tokens.len() - 1, order.tokens.len() - 1..order.tokens.len());
    let last_chunk = prompt.saturating_sub(options.chunk_rows.min(prompt))..prompt;
    let mut profiles = Vec::new();
    for stage in &plan.stages {
        let mut exec = cuda_stage(model, choice, stage, &settings, progress)?.exec;
        for state in 0..sequences as u32 {
            for first in (0..prompt).step_by(options.chunk_rows) {
                let end = prompt.min(first + options.chunk_rows);
                exec.run_alone(&batch(rows(order, state, first..end, RowWants::Nothing)), &tables)?;
            }
        }
        let chunk = batch(rows(order, 0, last_chunk.clone(), RowWants::Nothing));
        let chunk =
            (chunk.rows.len() > WINDOW_ROWS_MAX).then(|| exec.profile(&chunk, &tables)).transpose()?;
        let window = (0..sequences as u32)
            .flat_map(|state| rows(order, state, next.clone(), RowWants::Best(1)))
            .collect();
        let window = exec.profile(&batch(window), &tables)?;
        profiles.push(StageProfile { card: stage.name.clone(), layers: stage.layers.clone(), chunk, window });
    }
    Ok(profiles)
}

fn batch(rows: Vec<BatchRow>) -> Batch {
    Batch::new(BatchId(0), rows)
}

fn rows(order: &ProfileOrder, state: u32, positions: Range<usize>, wants: RowWants) -> Vec<BatchRow> {
    let row = |position: usize| BatchRow {
        state: StateId(state),
        position: position as u32,
        token: order.tokens[position],
        wants,
    };
    positions.map(row).collect()
}
