//! The experts of a layer: rows are grouped by expert, so that each expert's weights are read once for all of them.
//!
//! Invariant: an expert's row is a function of (expert, input row); the sum runs in rank order (`docs/numerics.md`,
//! Router and experts). Does not know: routing.

use std::sync::atomic::{AtomicBool, Ordering};

use super::products::{Input, Multiplier, multiply, parts};
use super::rows::TEAM_ROWS;
use super::{CpuExec, buffers::Choice};
use crate::device::CardError;
use crate::device::cpu::columns::{ColumnsMut, PARTS_MAX};
use crate::device::cpu::image::{Finite, ImageShape, Images, quantise_row};
use crate::device::cpu::simd::elementwise::{accumulate, swiglu_in_place};
use crate::device::cpu::simd::products::{Finish, Rows};
use crate::device::lower::Mixture;
use crate::model::program::Product;

/// The (row, rank) pairs of a batch in the order of their experts.
struct Groups {
    /// Experts that have rows, rising.
    experts: Vec<usize>,
    /// Where each expert's pairs begin, and the end.
    starts: Vec<usize>,
    /// The row of each pair.
    rows: Vec<u32>,
    /// Where the pair of (row, rank) stands: `row * used + rank`.
    place: Vec<usize>,
}

impl Groups {
    fn of(choice: &Choice, n: usize) -> Groups {
        let ids = &choice.ids[..n * choice.used];
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_by_key(|&p| (ids[p], p));
        let (mut experts, mut starts, mut rows) = (Vec::new(), Vec::new(), Vec::with_capacity(ids.len()));
        let mut place = vec![0; ids.len()];
        for (at, &pair) in order.iter().enumerate() {
            if experts.last() != Some(&(ids[pair] as usize)) {
                experts.push(ids[pair] as usize);
                starts.push(at);
            }
            rows.push((pair / choice.used) as u32);
            place[pair] = at;
        }
        starts.push(ids.len());
        Groups { experts, starts, rows, place }
    }
}

impl CpuExec {
    pub(super) fn experts_step(&mut self, m: &Mixture, n: usize, layer: usize) -> Result<(), CardError> {
        let groups = Groups::of(&self.buffers.choices[m.choice.0], n);
        let mut rows = std::mem::take(&mut self.buffers.experts);
        let mut out = std::mem::take(&mut self.buffers.rows[m.out.row.0]);
        self.inner(m, &groups, &mut rows, n);
        let finite = self.activate(m, groups.rows.len(), &mut rows);
        self.outer(m, &groups, &mut rows);
        self.sum(m, &groups, &rows.out, &mut out, n);
        self.buffers.experts = rows;
        self.buffers.rows[m.out.row.0] = out;
        if finite == Finite::Yes { Ok(()) } else { Err(self.not_finite("the inner row of an expert", layer)) }
    }

    /// Gate and up of every pair.
    fn inner(&self, m: &Mixture, groups: &Groups, rows: &mut super::buffers::ExpertRows, n: usize) {
        let (pairs, f) = (groups.rows.len(), m.inner_width);
        let (x_width, k) = (self.program.rows[m.x.row.0].width, m.x.len());
        if m.images[0].is_none() || m.images[1].is_none() {
            for (to, &row) in rows.gathered.chunks_exact_mut(k).zip(&groups.rows) {
                let from = row as usize * x_width + m.x.offset;
                to.copy_from_slice(&self.buffers.rows[m.x.row.0][from..from + k]);
            }
        }
        let cut = self.expert_parts(&m.products[0], groups);
        let gate = ColumnsMut::banded(&mut rows.gate[..pairs * f], f, &groups.starts, cut);
        let up = ColumnsMut::banded(&mut rows.up[..pairs * f], f, &groups.starts, cut);
        let gathered = &rows.gathered;
        self.team_run(2 * groups.experts.len() * cut, &|part| {
            let (band, side, part) = (part / (2 * cut), part / cut % 2, part % cut);
            let range = groups.starts[band]..groups.starts[band + 1];
            let out = if side == 0 { &gate } else { &up };
            let input = match m.images[side] {
                Some(kind) => Input::Images(self.images(kind, m.x, n), Rows::Picked(&groups.rows[range])),
                None => Input::Floats(&gathered[range.start * k..range.end * k]),
            };
            let multiplier = self.expert(&m.products[side], groups.experts[band]);
            multiply(self.tier, &multiplier, &input, &mut out.claim_in(band, part), &self.buffers.scratch);
        });
    }

    /// `silu(gate) * up` and its image, for every pair.
    fn activate(&self, m: &Mixture, pairs: usize, rows: &mut super::buffers::ExpertRows) -> Finite {
        let f = m.inner_width;
        let shape = m.images[2].map(|kind| ImageShape::new(kind, f));
        let step = shape.map_or(0, ImageShape::row_bytes);
        let mut images = if step == 0 { None } else { Some(rows.images.chunks_exact_mut(step)) };
        let inner = rows.gate.chunks_exact_mut(f).zip(rows.up.chunks_exact(f)).take(pairs);
        let mut slots: Vec<(&mut [f32], &[f32], &mut [u8])> = inner
            .map(|(gate, up)| (gate, up, images.as_mut().and_then(Iterator::next).unwrap_or(&mut [])))
            .collect();
        let failed = AtomicBool::new(false);
        let work = |(gate, up, image): &mut (&mut [f32], &[f32], &mut [u8])| {
            swiglu_in_place(self.tier, gate, up);
            if shape.is_some_and(|shape| quantise_row(self.tier, shape, gate, image) == Finite::No) {
                failed.store(true, Ordering::Relaxed);
            }
        };
        if pairs < 4 * TEAM_ROWS {
            slots.iter_mut().for_each(work);
        } else {
            self.team.lock().chunks(&mut slots, 2 * TEAM_ROWS, |_, slots| slots.iter_mut().for_each(work));
        }
        if failed.into_inner() { Finite::No } else { Finite::Yes }
    }

    /// Down of every pair.
    fn outer(&self, m: &Mixture, groups: &Groups, rows: &mut super::buffers::ExpertRows) {
        let (pairs, f, n_out) = (groups.rows.len(), m.inner_width, m.out.len());
        let cut = self.expert_parts(&m.products[2], groups);
        let out = ColumnsMut::banded(&mut rows.out[..pairs * n_out], n_out, &groups.starts, cut);
        let (gate, images) = (&rows.gate, &rows.images);
        self.team_run(groups.experts.len() * cut, &|part| {
            let (band, part) = (part / cut, part % cut);
            let range = groups.starts[band]..groups.starts[band + 1];
            let input = match m.images[2] {
                Some(kind) => {
                    let shape = ImageShape::new(kind, f);
                    Input::Images(
                        Images::new(shape, &images[..pairs * shape.row_bytes()]),
                        Rows::Range(range),
                    )
                }
                None => Input::Floats(&gate[range.start * f..range.end * f]),
            };
            let multiplier = self.expert(&m.products[2], groups.experts[band]);
            multiply(self.tier, &multiplier, &input, &mut out.claim_in(band, part), &self.buffers.scratch);
        });
    }

    /// The weighted sum of each row, in rank order.
    fn sum(&self, m: &Mixture, groups: &Groups, pairs: &[f32], out: &mut [f32], n: usize) {
        let (width, n_out) = (self.program.rows[m.out.row.0].width, m.out.len());
        let choice = &self.buffers.choices[m.choice.0];
        let row = |r: usize, out: &mut [f32]| {
            let out = &mut out[m.out.offset..m.out.offset + n_out];
            out.fill(0.0);
            for pair in r * choice.used..(r + 1) * choice.used {
                let e = &pairs[groups.place[pair] * n_out..][..n_out];
                accumulate(self.tier, out, choice.weights[pair], e);
            }
        };
        if n < TEAM_ROWS {
            out.chunks_exact_mut(width).take(n).enumerate().for_each(|(r, out)| row(r, out));
        } else {
            self.team.lock().chunks(&mut out[..n * width], width, row);
        }
    }

    fn expert_parts(&self, product: &Product, groups: &Groups) -> usize {
        parts(self.program.weight(product.weight), self.threads, groups.rows.len())
            .min(PARTS_MAX / groups.experts.len())
            .max(1)
    }

    fn expert(&self, product: &Product, expert: usize) -> Multiplier<'_> {
        let decl = self.program.weight(product.weight);
        let scale = product.scale.map(|s| {
            let scales = self.weights.vector(s);
            if scales.len() == 1 { scales[0] } else { scales[expert] }
        });
        let kernel = self.weights.kernel(decl, product.weight, expert);
        Multiplier { decl, kernel, finish: Finish { scale, bias: None } }
    }
}
