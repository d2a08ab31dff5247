//! The row-by-row step: each row passes through a list of ops by itself; the store of keys and values.
//!
//! Invariant: rows are independent, so the team's cut of them never shows. Does not know: products, attention.

use std::sync::atomic::{AtomicBool, Ordering};

use super::buffers::{Buffers, image_index};
use super::{CpuExec, Run};
use crate::device::CardError;
use crate::device::batch::BatchRow;
use crate::device::cpu::image::{Finite, ImageShape, quantise_row};
use crate::device::cpu::simd::tier::Tier;
use crate::device::cpu::simd::{elementwise, norm, route};
use crate::device::cpu::weights::Weights;
use crate::device::lower::RowOp;
use crate::model::facts::PAGE_POSITIONS;
use crate::model::program::{Program, View};

/// From so many rows on the team shares them; fewer are done sooner than workers wake.
pub(super) const TEAM_ROWS: usize = 4;

/// Rows of one part.
const PART_ROWS: usize = 4;

/// One batch row's places in all buffers.
struct Slot<'a> {
    row: BatchRow,
    frame: Vec<&'a mut [f32]>,
    images: [&'a mut [u8]; 2],
    angles: Vec<&'a [f32]>,
    choices: Vec<(&'a mut [u32], &'a mut [f32])>,
}

/// What every row's ops read.
struct Context<'a> {
    program: &'a Program,
    weights: &'a Weights,
    tier: Tier,
}

impl CpuExec {
    pub(super) fn rows_step(&mut self, ops: &[RowOp], run: &Run<'_>, layer: usize) -> Result<(), CardError> {
        let shapes = image_shapes(ops);
        let mut slots = slots(&self.program, &mut self.buffers, shapes, run.rows);
        let context = Context { program: &self.program, weights: &self.weights, tier: self.tier };
        let failed = AtomicBool::new(false);
        let work = |slot: &mut Slot<'_>| {
            if context.run(ops, shapes, slot) == Finite::No {
                failed.store(true, Ordering::Relaxed);
            }
        };
        if slots.len() < TEAM_ROWS {
            slots.iter_mut().for_each(work);
        } else {
            self.team.lock().chunks(&mut slots, PART_ROWS, |_, slots| slots.iter_mut().for_each(work));
        }
        drop(slots);
        if failed.into_inner() { Err(self.not_finite("the input of a product", layer)) } else { Ok(()) }
    }

    pub(super) fn append_step(
        &mut self,
        k: View,
        v: View,
        state: usize,
        run: &Run<'_>,
        layer: usize,
    ) -> Result<(), CardError> {
        for (r, row) in run.rows.iter().enumerate() {
            let position = row.position as usize;
            let page = run.pages.of(row.state)[position / PAGE_POSITIONS];
            let part = |view: View| {
                let width = self.program.rows[view.row.0].width;
                &self.buffers.rows[view.row.0][r * width + view.offset..][..view.len()]
            };
            let place = (page, position % PAGE_POSITIONS);
            let (keys, values) = (part(k), part(v));
            if self.store.append(self.tier, place, state, keys, values).is_err() {
                return Err(self.not_finite("append (a key or value)", layer));
            }
        }
        Ok(())
    }
}

/// The shape of the images that a list of ops makes, by kind.
fn image_shapes(ops: &[RowOp]) -> [Option<ImageShape>; 2] {
    let mut shapes = [None; 2];
    for op in ops {
        if let RowOp::Image { x, kind } = op {
            shapes[image_index(*kind)] = Some(ImageShape::new(*kind, x.len()));
        }
    }
    shapes
}

fn slots<'a>(
    program: &Program,
    buffers: &'a mut Buffers,
    shapes: [Option<ImageShape>; 2],
    rows: &[BatchRow],
) -> Vec<Slot<'a>> {
    let [a32, a256] = &mut buffers.images;
    // Without an image of a kind every row gets an empty place.
    let mut images = [(a32, shapes[0]), (a256, shapes[1])].map(|(bytes, shape)| {
        let step = shape.map_or(0, ImageShape::row_bytes);
        let used = &mut bytes[..step * rows.len()];
        (step > 0).then(|| used.chunks_exact_mut(step))
    });
    let mut frames: Vec<_> =
        buffers.rows.iter_mut().zip(&program.rows).map(|(b, r)| b.chunks_exact_mut(r.width)).collect();
    let mut angles: Vec<_> = buffers
        .angles
        .iter()
        .zip(&program.ropes)
        .map(|(b, r)| b.chunks_exact(2 * r.frequencies.len()))
        .collect();
    let mut choices: Vec<_> = buffers
        .choices
        .iter_mut()
        .map(|c| (c.ids.chunks_exact_mut(c.used), c.weights.chunks_exact_mut(c.used)))
        .collect();
    let enough = "invariant: buffers hold every row of a batch";
    rows.iter()
        .map(|row| Slot {
            row: *row,
            frame: frames.iter_mut().map(|f| f.next().expect(enough)).collect(),
            images: images.each_mut().map(|i| i.as_mut().map_or(&mut [][..], |i| i.next().expect(enough))),
            angles: angles.iter_mut().map(|a| a.next().expect(enough)).collect(),
            choices: choices
                .iter_mut()
                .map(|(i, w)| (i.next().expect(enough), w.next().expect(enough)))
                .collect(),
        })
        .collect()
}

fn span(view: View) -> std::ops::Range<usize> {
    view.offset..view.offset + view.len()
}

impl Context<'_> {
    fn run(&self, ops: &[RowOp], shapes: [Option<ImageShape>; 2], slot: &mut Slot<'_>) -> Finite {
        let tier = self.tier;
        let mut finite = Finite::Yes;
        for op in ops {
            match op {
                RowOp::Embed { table, out } => {
                    let decl = self.program.weight(*table);
                    let (token, out) = (slot.row.token as usize, &mut slot.frame[out.row.0][span(*out)]);
                    self.weights.table_row(decl, *table, token, &mut Vec::new(), out);
                }
                RowOp::Norm { x, weight, eps, out } => {
                    let weight = self.weights.vector(*weight);
                    if x == out {
                        let x_values = &mut slot.frame[x.row.0][span(*x)];
                        norm::rms_norm_in_place(tier, x_values, x.width, weight, *eps);
                    } else {
                        let [from, to] = two(&mut slot.frame, *x, *out);
                        norm::rms_norm(tier, from, x.width, weight, *eps, to);
                    }
                }
                RowOp::Rope { x, rope } => {
                    let (cos, sin) = slot.angles[rope.0].split_at(slot.angles[rope.0].len() / 2);
                    let pairing = self.program.ropes[rope.0].pairing;
                    norm::rope(tier, &mut slot.frame[x.row.0][span(*x)], x.width, cos, sin, pairing);
                }
                RowOp::SwiGlu { gate, up } => {
                    let [gate, up] = two(&mut slot.frame, *gate, *up);
                    elementwise::swiglu_in_place(tier, gate, up);
                }
                RowOp::Add { x, y } => {
                    let [x, y] = two(&mut slot.frame, *x, *y);
                    elementwise::add_to(tier, x, y);
                }
                RowOp::Route { logits, choice } => {
                    let (ids, weights) = &mut slot.choices[choice.0];
                    let logits = &mut slot.frame[logits.row.0][span(*logits)];
                    if logits.iter().any(|l| !l.is_finite()) {
                        return Finite::No;
                    }
                    route::choose_normalised(tier, logits, ids, weights);
                }
                RowOp::Image { x, kind } => {
                    let i = image_index(*kind);
                    let shape = shapes[i].expect("invariant: shapes were read off these ops");
                    let x = &slot.frame[x.row.0][span(*x)];
                    finite = finite.and(quantise_row(tier, shape, x, slot.images[i]));
                }
            }
        }
        finite
    }
}

/// Two views of different rows.
fn two<'a>(frame: &'a mut [&mut [f32]], a: View, b: View) -> [&'a mut [f32]; 2] {
    let rows = frame.get_disjoint_mut([a.row.0, b.row.0]);
    let [x, y] = rows.expect("invariant: lowering lets two views of an op be of different rows");
    [&mut x[span(a)], &mut y[span(b)]]
}
