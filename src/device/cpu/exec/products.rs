//! The product step: one input, one or several matrices, shared by columns among the team.
//!
//! Invariant: a value's bits depend on its weight row and its input row alone. Does not know: attention, experts'
//! grouping (`experts.rs` calls [`multiply`] for each expert).

use std::ops::Range;

use super::buffers::image_index;
use super::{CpuExec, ScratchPool};
use crate::device::cpu::columns::{Columns, ColumnsMut};
use crate::device::cpu::image::{ImageShape, Images};
use crate::device::cpu::pack::tile_count;
use crate::device::cpu::simd::elementwise::scale_and_bias;
use crate::device::cpu::simd::float_product::{
    FloatRows, dequantised_values, product as float_product, product_dequantised,
};
use crate::device::cpu::simd::products::{Finish, Rows, product};
use crate::device::cpu::simd::tier::Tier;
use crate::device::cpu::weights::Kernel;
use crate::device::lower::Target;
use crate::gguf::formats::{self, ImageKind};
use crate::model::facts::WINDOW_ROWS_MAX;
use crate::model::program::{View, WeightDecl, WeightId};

/// Weight bytes that are worth a part of their own.
const PART_BYTES: usize = 16 << 10;

/// Parts for each thread: late workers find work, and neighbours on the machine cost little.
const PARTS_PER_THREAD: usize = 8;

/// What a product reads.
pub(super) enum Input<'a> {
    /// Images, of the rows named.
    Images(Images<'a>, Rows<'a>),
    /// Rows side by side.
    Floats(&'a [f32]),
}

/// One matrix and what follows its sum.
pub(super) struct Multiplier<'a> {
    pub(super) decl: &'a WeightDecl,
    pub(super) kernel: Kernel<'a>,
    pub(super) finish: Finish<'a>,
}

/// Parts into which a matrix of `rows` outputs is cut, for `n` inputs.
pub(super) fn parts(decl: &WeightDecl, threads: usize, n: usize) -> usize {
    // One thread needs no parts, but a chunk looks between them whether it is still wanted.
    if threads == 1 && n <= WINDOW_ROWS_MAX {
        return 1;
    }
    let bytes = decl.ty.row_bytes(decl.cols) * decl.rows;
    (bytes / PART_BYTES).clamp(1, PARTS_PER_THREAD * threads).min(tile_count(decl.rows))
}

/// Computes some columns.
pub(super) fn multiply(
    tier: Tier,
    m: &Multiplier<'_>,
    input: &Input<'_>,
    out: &mut Columns<'_>,
    scratch: &ScratchPool,
) {
    match (m.kernel, input) {
        (Kernel::Packed(matrix), Input::Images(images, rows)) => {
            product(tier, &matrix, images, rows, m.finish, out);
        }
        (Kernel::Rows(bytes), Input::Floats(x)) => {
            let (ty, cols) = (m.decl.ty, m.decl.cols);
            if ty.is_float() {
                float_product(tier, &FloatRows::new(ty, cols, bytes), x, out);
            } else {
                let row_bytes = ty.row_bytes(cols);
                scratch.with(dequantised_values(cols), |values| {
                    let mut dequantise = |row: usize, out: &mut [f32]| {
                        formats::dequantize_row(ty, &bytes[row * row_bytes..][..row_bytes], out);
                    };
                    product_dequantised(tier, cols, &mut dequantise, x, out, values);
                });
            }
            let columns = out.range();
            let bias = m.finish.bias.map(|b| &b[columns.clone()]);
            if m.finish.scale.is_some() || bias.is_some() {
                for r in 0..out.rows() {
                    scale_and_bias(tier, out.row_mut(r, columns.clone()), m.finish.scale, bias);
                }
            }
        }
        (Kernel::Packed(_), Input::Floats(_)) | (Kernel::Rows(_), Input::Images(..)) => {
            panic!("a product of {} got the other kind of input", m.decl.name)
        }
    }
}

/// Rows of a view side by side, copied only where the buffer's rows are wider.
pub(super) fn side_by_side(
    buffer: &[f32],
    width: usize,
    view: View,
    n: usize,
) -> std::borrow::Cow<'_, [f32]> {
    if view.offset == 0 && view.len() == width {
        return std::borrow::Cow::Borrowed(&buffer[..n * width]);
    }
    let row = |r: usize| &buffer[r * width + view.offset..][..view.len()];
    std::borrow::Cow::Owned((0..n).flat_map(|r| row(r).iter().copied()).collect())
}

impl CpuExec {
    /// The images of kind `kind` that the rows of `x` left.
    pub(super) fn images(&self, kind: ImageKind, x: View, n: usize) -> Images<'_> {
        let shape = ImageShape::new(kind, x.len());
        Images::new(shape, &self.buffers.images[image_index(kind)][..n * shape.row_bytes()])
    }

    pub(super) fn products_step(&mut self, x: View, targets: &[Target], n: usize) {
        let threads = self.threads;
        // The buffers that are written leave the rest, which is read.
        let mut taken: Vec<(usize, Vec<f32>)> = Vec::new();
        for t in targets {
            if taken.iter().all(|(row, _)| *row != t.out.row.0) {
                taken.push((t.out.row.0, std::mem::take(&mut self.buffers.rows[t.out.row.0])));
            }
        }
        {
            let this = &*self;
            let mut outputs: Vec<Option<ColumnsMut<'_>>> = targets.iter().map(|_| None).collect();
            for (row, buffer) in &mut taken {
                let width = this.program.rows[*row].width;
                let mut here: Vec<usize> =
                    (0..targets.len()).filter(|&i| targets[i].out.row.0 == *row).collect();
                here.sort_by_key(|&i| targets[i].out.offset);
                let span = |i: usize| {
                    let (t, decl) = (&targets[i], this.program.weight(targets[i].product.weight));
                    (t.out.offset..t.out.offset + t.out.len(), parts(decl, threads, n))
                };
                let spans: Vec<(Range<usize>, usize)> = here.iter().map(|&i| span(i)).collect();
                let columns = ColumnsMut::side_by_side(&mut buffer[..n * width], width, &spans);
                here.iter().zip(columns).for_each(|(&i, c)| outputs[i] = Some(c));
            }
            let width = this.program.rows[x.row.0].width;
            let floats = targets.iter().any(|t| t.image.is_none());
            let floats = floats.then(|| side_by_side(&this.buffers.rows[x.row.0], width, x, n));
            let jobs: Vec<_> = targets
                .iter()
                .zip(&outputs)
                .map(|(t, out)| {
                    let input = match t.image {
                        Some(kind) => Input::Images(this.images(kind, x, n), Rows::Range(0..n)),
                        None => Input::Floats(floats.as_deref().unwrap_or(&[])),
                    };
                    let out = out.as_ref().expect("invariant: every target has its columns");
                    (this.multiplier(t.product.weight, t, 0), input, out)
                })
                .collect();
            let total: usize = jobs.iter().map(|j| j.2.parts()).sum();
            let (tier, scratch) = (self.tier, &this.buffers.scratch);
            // The team is borrowed apart from everything the jobs read.
            let step = |mut part: usize| {
                for (m, input, out) in &jobs {
                    if part < out.parts() {
                        return multiply(tier, m, input, &mut out.claim(part), scratch);
                    }
                    part -= out.parts();
                }
            };
            this.team_run(total, &step);
        }
        for (row, buffer) in taken {
            self.buffers.rows[row] = buffer;
        }
    }

    fn multiplier(&self, id: WeightId, target: &Target, expert: usize) -> Multiplier<'_> {
        let decl = self.program.weight(id);
        let scale = target.product.scale.map(|s| self.weights.vector(s)[0]);
        let bias = target.product.bias.map(|b| self.weights.vector(b));
        Multiplier { decl, kernel: self.weights.kernel(decl, id, expert), finish: Finish { scale, bias } }
    }

    pub(super) fn head_step(
        &mut self,
        x: View,
        weight: WeightId,
        image: Option<ImageKind>,
        n: usize,
        output: &mut [f32],
    ) {
        let this = &*self;
        let decl = this.program.weight(weight);
        let width = this.program.rows[x.row.0].width;
        let floats = side_by_side(&this.buffers.rows[x.row.0], width, x, n);
        let input = match image {
            Some(kind) => Input::Images(this.images(kind, x, n), Rows::Range(0..n)),
            None => Input::Floats(&floats),
        };
        let kernel = this.weights.kernel(decl, weight, 0);
        let m = Multiplier { decl, kernel, finish: Finish::default() };
        let out = ColumnsMut::new(output, decl.rows, parts(decl, this.threads, n));
        this.team_run(out.parts(), &|part| {
            multiply(this.tier, &m, &input, &mut out.claim(part), &this.buffers.scratch);
        });
    }
}
