//! A stage on a virtual card, ready to run: its steps, weights, pages and buffers.
//!
//! Invariants: a run allocates nothing that grows with the model (its buffers are booked when the stage is lowered;
//! lists of rows are small); the bits of a row depend on that row and its state alone (`docs/numerics.md`, L1).
//! Does not know: sequences, links, the split.

mod attend;
mod buffers;
mod experts;
mod products;
mod rows;

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::kv_store::KvStore;
use super::simd::tier::Tier;
use super::team::Team;
use super::weights::Weights;
use crate::device::batch::{Batch, BatchRow, Interest, PageTables, RowWants};
use crate::device::best::Chooser;
use crate::device::lower::{Step, Steps};
use crate::device::{CardError, RunStamp, StageExec};
use crate::model::facts::{CardId, PageId};
use crate::model::program::Program;

pub use buffers::Buffers;

/// A lowered stage.
pub struct CpuExec {
    pub(super) card: CardId,
    pub(super) program: Arc<Program>,
    pub(super) tier: Tier,
    pub(super) steps: Arc<Steps>,
    pub(super) weights: Weights,
    pub(super) store: KvStore,
    pub(super) buffers: Buffers,
    /// Of a window whose rows do not all want them; empty where the stage makes none.
    pub(super) logits: Vec<f32>,
    pub(super) chooser: Chooser,
    pub(super) team: Mutex<Team>,
    pub(super) threads: usize,
    pub(super) rest: Rest,
    /// In the batch that runs.
    pub(super) interest: Interest,
}

/// What the team does between two batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Workers wait awake for a while: nobody else needs their CPUs.
    Awake,
    /// Workers park at once: another card computes next on the same CPUs.
    Parked,
}

/// What the steps of one batch share.
struct Run<'a> {
    rows: &'a [BatchRow],
    pages: &'a PageTables,
}

/// Room that a part of a step works in, one for each thread that ever needs one; it belongs to the process like the
/// threads' stacks.
#[derive(Debug, Default)]
pub(super) struct ScratchPool(Mutex<Vec<Vec<f32>>>);

impl ScratchPool {
    /// Lends `values` floats to `work`.
    fn with<T>(&self, values: usize, work: impl FnOnce(&mut [f32]) -> T) -> T {
        let mut scratch = self.0.lock().pop().unwrap_or_default();
        if scratch.len() < values {
            scratch.resize(values, 0.0);
        }
        let result = work(&mut scratch[..values]);
        self.0.lock().push(scratch);
        result
    }
}

impl StageExec for CpuExec {
    fn run(
        &mut self,
        batch: &Batch,
        pages: &PageTables,
        input: &[f32],
        output: &mut [f32],
    ) -> Result<RunStamp, CardError> {
        let start = Instant::now();
        let result = self.run_batch(batch, pages, input, output);
        if self.rest == Rest::Parked {
            self.team.lock().rest();
        }
        result.map(|()| RunStamp { busy_ns: start.elapsed().as_nanos() as u64, card: None, waited_ns: 0 })
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), CardError> {
        self.store.copy_page(from, to);
        Ok(())
    }
}

impl CpuExec {
    fn run_batch(
        &mut self,
        batch: &Batch,
        pages: &PageTables,
        input: &[f32],
        output: &mut [f32],
    ) -> Result<(), CardError> {
        let n = batch.rows.len();
        let residual = self.program.residual.0;
        let width = self.program.rows[residual].width;
        assert!(n <= self.buffers.rows_max, "a batch of {n} rows, at most {}", self.buffers.rows_max);
        let run = Run { rows: &batch.rows, pages };
        self.interest = batch.interest.clone();
        self.angles(&run);
        if self.steps.front.is_empty() {
            assert_eq!(input.len(), n * width, "input rows");
            self.buffers.rows[residual][..n * width].copy_from_slice(input);
        }
        let steps = self.steps.clone();
        self.run_steps(&steps, &run, output)?;
        if steps.tail.is_empty() {
            output.copy_from_slice(&self.buffers.rows[residual][..n * width]);
        }
        Ok(())
    }

    fn run_steps(&mut self, steps: &Steps, run: &Run<'_>, output: &mut [f32]) -> Result<(), CardError> {
        let first = steps.layers.first().map_or(0, |l| l.layer);
        for step in &steps.front {
            self.step(step, run, first, output)?;
        }
        for layer in &steps.layers {
            for step in &layer.steps {
                self.step(step, run, layer.layer, output)?;
            }
        }
        if steps.tail.is_empty() {
            return Ok(());
        }
        let (wanted, vocab) = (self.gather_wanted(run.rows), self.program.facts.vocab);
        let values: usize = wanted.iter().map(|row| row.wants.values(vocab)).sum();
        assert_eq!(output.len(), values, "values that rows want");
        if wanted.is_empty() {
            return Ok(());
        }
        let last = steps.layers.last().map_or(0, |l| l.layer);
        let tail = Run { rows: &wanted, pages: run.pages };
        if wanted.iter().all(|row| row.wants == RowWants::Logits) {
            return steps.tail.iter().try_for_each(|step| self.step(step, &tail, last, output));
        }
        let mut logits = std::mem::take(&mut self.logits);
        let made = &mut logits[..wanted.len() * vocab];
        let ran = steps.tail.iter().try_for_each(|step| self.step(step, &tail, last, made));
        let mut rest = output;
        for (row, logits) in wanted.iter().zip(made.chunks_exact(vocab)) {
            let (values, behind) = rest.split_at_mut(row.wants.values(vocab));
            match row.wants {
                RowWants::Nothing => {}
                RowWants::Best(_) => self.chooser.choose(logits, values),
                RowWants::Logits => values.copy_from_slice(logits),
            }
            rest = behind;
        }
        self.logits = logits;
        ran
    }

    /// Moves the residual rows that want something to the front; gives their batch rows.
    fn gather_wanted(&mut self, rows: &[BatchRow]) -> Vec<BatchRow> {
        let residual = self.program.residual.0;
        let width = self.program.rows[residual].width;
        let wanted = rows.iter().enumerate().filter(|(_, r)| r.wants.is_some());
        let wanted: Vec<(usize, BatchRow)> = wanted.map(|(i, r)| (i, *r)).collect();
        for (to, (from, _)) in wanted.iter().enumerate() {
            self.buffers.rows[residual].copy_within(from * width..(from + 1) * width, to * width);
        }
        wanted.into_iter().map(|(_, r)| r).collect()
    }

    fn step(
        &mut self,
        step: &Step,
        run: &Run<'_>,
        layer: usize,
        output: &mut [f32],
    ) -> Result<(), CardError> {
        if self.interest.is_lost() {
            return Ok(());
        }
        match step {
            Step::Rows(ops) => self.rows_step(ops, run, layer),
            Step::Products { x, targets } => {
                self.products_step(*x, targets, run.rows.len());
                Ok(())
            }
            Step::Append { k, v, state } => self.append_step(*k, *v, *state, run, layer),
            Step::Attend { q, state, heads, scale, out } => {
                self.attend_step((*q, *out), (*state, *heads), *scale, run);
                Ok(())
            }
            Step::Experts(mixture) => self.experts_step(mixture, run.rows.len(), layer),
            Step::Head { x, weight, image } => {
                self.head_step(*x, *weight, *image, run.rows.len(), output);
                Ok(())
            }
        }
    }

    /// A step of the team that reads this stage. Parts are left out once nobody wants the batch.
    fn team_run(&self, parts: usize, step: &(dyn Fn(usize) + Sync)) {
        self.team.lock().run(parts, &|part| {
            if !self.interest.is_lost() {
                step(part);
            }
        });
    }

    fn not_finite(&self, op: &'static str, layer: usize) -> CardError {
        CardError::NotFinite { card: self.card, op, layer }
    }

    /// Rope angles of the batch's positions.
    fn angles(&mut self, run: &Run<'_>) {
        for (decl, angles) in self.program.ropes.iter().zip(&mut self.buffers.angles) {
            let pairs = decl.frequencies.len();
            let divisors = decl.divisors.map(|id| self.weights.vector(id));
            let angles = &mut angles[..2 * pairs * run.rows.len()];
            let row = |r: usize, angles: &mut [f32]| {
                let (cos, sin) = angles.split_at_mut(pairs);
                for (j, (c, s)) in cos.iter_mut().zip(sin).enumerate() {
                    (*c, *s) = decl.cos_sin(j, run.rows[r].position, divisors.map_or(1.0, |d| d[j]));
                }
            };
            if run.rows.len() < rows::TEAM_ROWS {
                angles.chunks_exact_mut(2 * pairs).enumerate().for_each(|(r, a)| row(r, a));
            } else {
                self.team.lock().chunks(angles, 2 * pairs, row);
            }
        }
    }
}
