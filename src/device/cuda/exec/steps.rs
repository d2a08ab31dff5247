//! The steps of a batch as launches.
//!
//! Invariant: launches follow each other in program order on one stream, so an op sees what those before it wrote.
//! Does not know: how rows came to the card, or where they go.

use super::launch::{self, Attention, Experts, Input, Matrix, Pieces, Rows};
use super::prompt_attention::Chunk;
use super::{CudaExec, Met, Run};
use crate::device::batch::BatchKind;
use crate::device::cuda::CudaError;
use crate::device::lower::{Mixture, RowOp, Step, Target};
use crate::gguf::formats::ImageKind;
use crate::model::footprint::gpu::SPAN_POSITIONS;
use crate::model::program::{Product, RopePairing, View, WeightId};

type Queued = Result<(), CudaError>;

impl CudaExec {
    pub(super) fn step(&mut self, step: &Step, run: &Run<'_>, layer: usize) -> Queued {
        match step {
            Step::Rows(ops) => ops.iter().try_for_each(|op| self.row_op(op, run, layer)),
            Step::Products { x, targets } => targets.iter().try_for_each(|t| self.product(*x, t, run.n)),
            Step::Append { k, v, state } => {
                let rows = (self.dense(*k), self.dense(*v));
                let fault = self.fault(run, Met::Append, layer);
                let (pool, standing) = (&self.pools[*state], &run.places.standing);
                launch::append(&self.stream, &self.kernels.append, rows, standing, pool, run.n, fault)
            }
            Step::Attend { q, state, scale, out, .. } => self.attend(*q, *state, *scale, *out, run),
            Step::Experts(mixture) => self.experts(mixture, run, layer),
            Step::Head { x, weight, image } => {
                let head = self.buffers.head.expect("invariant: a stage with a head has its places");
                let product = Product { weight: *weight, scale: None, bias: None };
                let (matrix, input) = (self.matrix(&product), self.input(*x, *image));
                launch::product(
                    &self.stream,
                    self.kernels.product(*weight),
                    &matrix,
                    input,
                    head.logits,
                    run.n,
                )
            }
        }
    }

    fn row_op(&self, op: &RowOp, run: &Run<'_>, layer: usize) -> Queued {
        let (s, n, kernels) = (&self.stream, run.n, &self.kernels);
        match op {
            RowOp::Embed { table, out } => {
                let cols = self.program.weight(*table).cols;
                let kernel = kernels.embed(*table);
                launch::embed(
                    s,
                    kernel,
                    (self.weights.place(*table), cols),
                    run.places.tokens,
                    self.dense(*out),
                    n,
                )
            }
            RowOp::Norm { x, weight, eps, out } => {
                let per_piece = self.program.weight(*weight).cols != x.width;
                let weight = (self.weights.place(*weight), per_piece);
                launch::rms_norm(s, &kernels.rms_norm, self.pieces(*x), self.pieces(*out), weight, *eps, n)
            }
            RowOp::Rope { x, rope } => {
                let decl = &self.program.ropes[rope.0];
                let halves = decl.pairing == RopePairing::Halves;
                let angles = (run.places.angles[rope.0], decl.frequencies.len(), halves);
                launch::rope(s, &kernels.rope, self.pieces(*x), angles, n)
            }
            RowOp::SwiGlu { gate, up } => {
                launch::pairwise(s, &kernels.swiglu, self.dense(*gate), self.dense(*up), gate.len(), n)
            }
            RowOp::Add { x, y } => {
                launch::pairwise(s, &kernels.add, self.dense(*x), self.dense(*y), x.len(), n)
            }
            RowOp::Route { logits, choice } => {
                let decl = &self.program.choices[choice.0];
                let (experts, to) = ((decl.experts, decl.used), self.buffers.choices[choice.0]);
                let fault = self.fault(run, Met::Router, layer);
                launch::route(s, &kernels.route, self.dense(*logits), experts, to, n, fault)
            }
            RowOp::Image { x, kind } => {
                let (image, fault) = (self.buffers.image(*kind), self.fault(run, Met::Input, layer));
                launch::quantise(s, kernels.quantise(*kind), self.dense(*x), image, x.len(), n, fault)
            }
        }
    }

    /// The rows of a view, from its first value on.
    fn rows(&self, view: View) -> Rows {
        let is_residual = view.row == self.program.residual;
        let rows = if is_residual { self.residual } else { self.buffers.rows[view.row.0] };
        Rows { at: rows.at.from(4 * view.offset as u64), stride: rows.stride }
    }

    /// The same where the kernel reads neighbouring values.
    fn dense(&self, view: View) -> Rows {
        assert!(view.is_dense(), "a kernel of neighbouring values cannot take {view:?}");
        self.rows(view)
    }

    fn pieces(&self, view: View) -> Pieces {
        Pieces { rows: self.rows(view), count: view.count, width: view.width, stride: view.stride }
    }

    fn input(&self, x: View, image: Option<ImageKind>) -> Input {
        match image {
            Some(kind) => Input::Image(self.buffers.image(kind)),
            None => Input::Floats(self.dense(x)),
        }
    }

    fn matrix(&self, product: &Product) -> Matrix {
        let decl = self.program.weight(product.weight);
        let vector = |id: Option<WeightId>| id.map(|id| self.weights.place(id));
        let (scale, bias) = (vector(product.scale), vector(product.bias));
        Matrix { at: self.weights.place(product.weight), rows: decl.rows, cols: decl.cols, scale, bias }
    }

    fn product(&self, x: View, target: &Target, n: usize) -> Queued {
        let (matrix, input) = (self.matrix(&target.product), self.input(x, target.image));
        let kernel = self.kernels.product(target.product.weight);
        launch::product(&self.stream, kernel, &matrix, input, self.dense(target.out), n)
    }

    /// As many rows at a time as the work's memory has spans for.
    fn attend(&self, q: View, state: usize, scale: f32, out: View, run: &Run<'_>) -> Queued {
        let (s, pool) = (&self.stream, &self.pools[state]);
        let (queries, outputs) = (self.dense(q), self.dense(out));
        if run.batch.kind() == BatchKind::Chunk
            && let Some(kernel) = self.kernels.prompt_attention.of(pool, q.count)
        {
            let chunk = Chunk { q: queries, heads: q.count, scale, out: outputs, work: self.buffers.work };
            return kernel.attend(s, &run.batch.rows, &run.places.standing, pool, &chunk);
        }
        let span_bytes = 4 * q.count * (pool.value_width + 2);
        let spans_of = |position: u32| position as usize / SPAN_POSITIONS + 1;
        let positions = run.batch.rows.iter().map(|r| r.position).max().unwrap_or(0);
        let spans = spans_of(positions);
        let rows_max = (self.buffers.work.bytes() as usize / (span_bytes * spans)).max(1);
        for first in (0..run.n).step_by(rows_max) {
            let n = rows_max.min(run.n - first);
            let standing = run.places.standing.behind(first);
            let work = self.buffers.work.part(0, (span_bytes * spans * n) as u64);
            let attention = Attention { heads: q.count, scale, work, spans, n };
            let queries = queries.behind(first);
            launch::attend_span(s, &self.kernels.attend_span, queries, &standing, pool, &attention)?;
            let outputs = outputs.behind(first);
            launch::attend_merge(s, &self.kernels.attend_merge, &standing, pool, &attention, outputs)?;
        }
        Ok(())
    }

    fn experts(&self, m: &Mixture, run: &Run<'_>, layer: usize) -> Queued {
        let (s, kernels, places) = (&self.stream, &self.kernels, self.buffers.pairs);
        let used = self.program.choices[m.choice.0].used;
        let (ids, weights) = self.buffers.choices[m.choice.0];
        let (pairs, f) = (run.n * used, m.inner_width);
        let experts = |product: &Product, per_pair: bool| {
            let decl = self.program.weight(product.weight);
            let scale_per_expert = product.scale.is_some_and(|id| self.program.weight(id).cols > 1);
            let expert_bytes = decl.ty.row_bytes(decl.cols) * decl.rows;
            let matrix = self.matrix(product);
            Experts { matrix, expert_bytes, scale_per_expert, ids, used, per_pair }
        };
        for (side, out) in [(0, places.gate), (1, places.up)] {
            let (e, x) = (experts(&m.products[side], false), self.input(m.x, m.images[side]));
            launch::expert_product(s, kernels.product(m.products[side].weight), &e, x, out, pairs)?;
        }
        let (gate, up) = (Rows { at: places.gate, stride: f }, Rows { at: places.up, stride: f });
        launch::pairwise(s, &kernels.swiglu, gate, up, f, pairs)?;
        let inner = match m.images[2] {
            Some(kind) => {
                let fault = self.fault(run, Met::Inner, layer);
                launch::quantise(s, kernels.quantise(kind), gate, places.image, f, pairs, fault)?;
                Input::Image(places.image)
            }
            None => Input::Floats(gate),
        };
        let e = experts(&m.products[2], true);
        launch::expert_product(s, kernels.product(m.products[2].weight), &e, inner, places.out, pairs)?;
        let out = (places.out, weights, used);
        launch::combine(s, &kernels.combine, out, self.dense(m.out), m.out.len(), run.n)
    }
}
