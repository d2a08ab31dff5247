//! The launches of a batch.
//!
//! Invariant: launches follow each other in program order on one stream, so an op sees what those before it wrote.
//! Does not know: which ops fit into one launch, how rows came to the card, or where they go.

use super::fuse::{Attend, Heads, Images, Launch, Norm, Router};
use super::launch::{self, Attention, Experts, ImagePlaces, Input, Matrix, Pieces, PlaceHeads, Rows};
use super::launch_rows::{self, NormImages, NormRouter};
use super::prompt_attention::Chunk;
use super::window;
use super::{CudaExec, Met, Run};
use crate::device::cuda::CudaError;
use crate::device::cuda::driver::Span;
use crate::device::lower::{Mixture, RowOp, Target};
use crate::gguf::formats::ImageKind;
use crate::model::program::{Product, RopeId, RopePairing, View, WeightId};

/// Rows whose images every block of a product makes again rather than one launch before it.
const OWN_ROWS_MAX: usize = 2;

type Queued = Result<(), CudaError>;

impl CudaExec {
    pub(super) fn launch(&self, launch: &Launch, run: &Run<'_>, layer: usize) -> Queued {
        match launch {
            Launch::Row(op) => self.row_op(op, run, layer),
            Launch::Norm(norm) => self.norm(norm, run, layer),
            Launch::Router(router) => self.router(router, run, layer),
            Launch::Heads(heads) => self.heads(heads, run, layer),
            Launch::Append { k, v, state } => {
                let rows = (self.dense(*k), self.dense(*v));
                let fault = self.fault(run, Met::Append, layer);
                let (pool, standing) = (&self.pools[*state], &run.places.standing);
                launch::append(&self.stream, &self.kernels.append, rows, standing, pool, run.n, fault)
            }
            Launch::Attend(attend) => {
                let takes = self.kernels.tiles.takes(&self.pools[attend.state], attend.q.count);
                if takes && run.is_window() {
                    return self.attend_by_tiles(attend, run, layer);
                }
                if let Some(heads) = &attend.heads {
                    self.heads(heads, run, layer)?;
                }
                self.attend(attend, run, layer)
            }
            Launch::Products { x, targets } => self.products(*x, targets, run),
            Launch::ProductAdd { x, target, to, own } => {
                self.product_add((*x, *own), target, *to, run, layer)
            }
            Launch::GateUp { x, gate, up } => self.gate_up(*x, gate, up, run, layer),
            Launch::Experts { mixture, summed } => {
                self.experts(mixture, run, layer)?;
                if *summed { self.combine(mixture, (mixture.out, false), run) } else { Ok(()) }
            }
            Launch::AddExperts { mixture, to } => self.combine(mixture, (*to, true), run),
            Launch::Head { x, weight, image } => {
                let head = self.buffers.head.expect("invariant: a stage with a head has its places");
                let product = Product { weight: *weight, scale: None, bias: None };
                self.multiply(&product, self.input(*x, *image), head.logits, run.n)
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
                launch_rows::rms_norm(
                    s,
                    &kernels.rms_norm,
                    self.pieces(*x),
                    self.pieces(*out),
                    weight,
                    *eps,
                    n,
                )
            }
            RowOp::Rope { x, rope } => {
                launch_rows::rope(s, &kernels.rope, self.pieces(*x), self.angles(*rope, run), n)
            }
            RowOp::SwiGlu { gate, up } => {
                launch_rows::pairwise(s, &kernels.swiglu, self.dense(*gate), self.dense(*up), gate.len(), n)
            }
            RowOp::Add { x, y } => {
                launch_rows::pairwise(s, &kernels.add, self.dense(*x), self.dense(*y), x.len(), n)
            }
            RowOp::Route { logits, choice } => {
                let decl = &self.program.choices[choice.0];
                let (experts, to) = ((decl.experts, decl.used), self.buffers.choices[choice.0]);
                let fault = self.fault(run, Met::Router, layer);
                launch_rows::route(s, &kernels.route, self.dense(*logits), experts, to, n, fault)
            }
            RowOp::Image { x, kind } => {
                let (image, fault) = (self.buffers.image(*kind), self.fault(run, Met::Input, layer));
                launch_rows::quantise(s, kernels.quantise(*kind), self.dense(*x), image, x.len(), n, fault)
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
    pub(super) fn dense(&self, view: View) -> Rows {
        assert!(view.is_dense(), "a kernel of neighbouring values cannot take {view:?}");
        self.rows(view)
    }

    fn pieces(&self, view: View) -> Pieces {
        Pieces { rows: self.rows(view), count: view.count, width: view.width, stride: view.stride }
    }

    pub(super) fn input(&self, x: View, image: Option<ImageKind>) -> Input {
        match image {
            Some(kind) => Input::Image(self.buffers.image(kind)),
            None => Input::Floats(self.dense(x)),
        }
    }

    pub(super) fn matrix(&self, product: &Product) -> Matrix {
        let decl = self.program.weight(product.weight);
        let vector = |id: Option<WeightId>| id.map(|id| self.weights.place(id));
        let (scale, bias) = (vector(product.scale), vector(product.bias));
        Matrix { at: self.weights.place(product.weight), rows: decl.rows, cols: decl.cols, scale, bias }
    }

    /// Neighbours of one type share a launch.
    fn products(&self, x: View, targets: &[Target], run: &Run<'_>) -> Queued {
        let form = |t: &Target| (self.program.weight(t.product.weight).ty, t.image);
        for same in targets.chunk_by(|a, b| form(a) == form(b)) {
            match self.input(x, same[0].image) {
                Input::Image(image) if run.is_window() => {
                    let kernels = self.kernels.window(same[0].product.weight);
                    for few in same.chunks(window::TARGETS) {
                        let matrices: Vec<_> =
                            few.iter().map(|t| (self.matrix(&t.product), self.dense(t.out))).collect();
                        window::product_many(&self.stream, kernels, &matrices, image, None, run.n)?;
                    }
                }
                input => {
                    for t in same {
                        self.multiply(&t.product, input, self.dense(t.out), run.n)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A product that is added to the rows of `to`; with an image of its own, few rows have that made by every block.
    fn product_add(
        &self,
        (x, own): (View, bool),
        target: &Target,
        to: View,
        run: &Run<'_>,
        layer: usize,
    ) -> Queued {
        let kind = target.image.expect("invariant: products that add read images");
        let (s, kernels) = (&self.stream, self.kernels.window(target.product.weight));
        let (matrix, rows) = (self.matrix(&target.product), self.dense(to));
        if own && run.n <= OWN_ROWS_MAX && matrix.cols <= window::OWN_COLS {
            let input = (self.dense(x), self.fault(run, Met::Input, layer));
            return window::own_product(s, kernels, (matrix, rows), input, Some(rows), run.n);
        }
        if own {
            self.row_op(&RowOp::Image { x, kind }, run, layer)?;
        }
        if run.is_window() {
            return window::product_many(
                s,
                kernels,
                &[(matrix, rows)],
                self.buffers.image(kind),
                Some(rows),
                run.n,
            );
        }
        self.multiply(&target.product, self.input(x, target.image), self.dense(target.out), run.n)?;
        self.row_op(&RowOp::Add { x: to, y: target.out }, run, layer)
    }

    /// `silu(gate(x)) * up(x)`.
    fn gate_up(&self, x: View, gate: &Target, up: &Target, run: &Run<'_>, layer: usize) -> Queued {
        let Input::Image(image) = self.input(x, gate.image) else {
            panic!("gate and up read an image of {x:?}");
        };
        if run.is_window() {
            let (kernels, out) = (self.kernels.window(gate.product.weight), self.dense(gate.out));
            let matrices = [&gate.product, &up.product].map(|p| self.matrix(p));
            return window::gate_up(&self.stream, kernels, matrices, image, out, run.n);
        }
        for target in [gate, up] {
            self.multiply(&target.product, Input::Image(image), self.dense(target.out), run.n)?;
        }
        self.row_op(&RowOp::SwiGlu { gate: gate.out, up: up.out }, run, layer)
    }

    /// The values of a rope, pairs of a piece, and whether halves pair.
    fn angles(&self, rope: RopeId, run: &Run<'_>) -> (Span, usize, bool) {
        let decl = &self.program.ropes[rope.0];
        (run.places.angles[rope.0], decl.frequencies.len(), decl.pairing == RopePairing::Halves)
    }

    fn images(&self, images: Images) -> ImagePlaces {
        let place = |is_made: bool, kind| is_made.then(|| self.buffers.image(kind));
        ImagePlaces { a32: place(images.a32, ImageKind::A32), a256: place(images.a256, ImageKind::A256) }
    }

    fn norm_images(&self, norm: &Norm) -> NormImages {
        NormImages {
            x: self.dense(norm.x),
            added: norm.added.map(|y| self.dense(y)),
            weight: self.weights.place(norm.weight),
            width: norm.x.len(),
            eps: norm.eps,
            out: norm.floats.then(|| self.dense(norm.out)),
            images: self.images(norm.images),
        }
    }

    fn norm(&self, norm: &Norm, run: &Run<'_>, layer: usize) -> Queued {
        let fault = self.fault(run, Met::Input, layer);
        launch_rows::norm_images(
            &self.stream,
            &self.kernels.norm_images,
            &self.norm_images(norm),
            run.n,
            fault,
        )
    }

    /// A window's rows at once, a chunk's op by op.
    fn router(&self, router: &Router, run: &Run<'_>, layer: usize) -> Queued {
        let Router { norm, target } = router;
        let (product, logits) = (&target.product, self.dense(target.out));
        if !run.is_window() {
            self.norm(&Norm { floats: true, ..norm.clone() }, run, layer)?;
            return self.multiply(product, Input::Floats(self.dense(norm.out)), logits, run.n);
        }
        let call = NormRouter { norm: self.norm_images(norm), router: self.matrix(product), logits };
        let (kernel, fault) = (self.kernels.norm_router(product.weight), self.fault(run, Met::Input, layer));
        launch_rows::norm_router(&self.stream, kernel, &call, run.n, fault)
    }

    fn heads(&self, heads: &Heads, run: &Run<'_>, layer: usize) -> Queued {
        let (pool, standing) = (&self.pools[heads.state], &run.places.standing);
        let fault = self.fault(run, Met::Append, layer);
        let placed = self.place_heads(heads, run);
        launch::place_heads(&self.stream, &self.kernels.place_heads, &placed, standing, pool, run.n, fault)
    }

    fn place_heads(&self, heads: &Heads, run: &Run<'_>) -> PlaceHeads {
        let weight = |id: Option<WeightId>| id.map(|id| self.weights.place(id));
        PlaceHeads {
            q: self.dense(heads.q),
            heads: heads.q.count,
            keys_values: Some((self.dense(heads.k), self.dense(heads.v))),
            q_norm: weight(heads.q_norm),
            k_norm: weight(heads.k_norm),
            eps: heads.eps,
            angles: heads.rope.map(|rope| self.angles(rope, run)),
        }
    }

    /// Rows that attention runs at a time, as many as the work's memory has room for, and what `parts` of each leave.
    fn work_rows(&self, a: &Attend, parts: usize) -> (usize, usize) {
        let part_bytes = 4 * a.q.count * (self.pools[a.state].value_width + 2);
        let rows_max = self.buffers.work.bytes() as usize / (part_bytes * parts);
        (rows_max.max(1), part_bytes * parts)
    }

    /// Of a window: norm, rope and append of its heads on the way.
    fn attend_by_tiles(&self, a: &Attend, run: &Run<'_>, layer: usize) -> Queued {
        let (s, pool, standing) = (&self.stream, &self.pools[a.state], &run.places.standing);
        let parts = standing.pages_per_state;
        let (rows_max, row_bytes) = self.work_rows(a, parts);
        let placed = PlaceHeads::placed(self.dense(a.q), a.q.count);
        let placed = a.heads.as_ref().map_or(placed, |heads| self.place_heads(heads, run));
        let [appended, made] = [Met::Append, Met::Input].map(|met| self.fault(run, met, layer));
        for first in (0..run.n).step_by(rows_max) {
            let n = rows_max.min(run.n - first);
            let work = self.buffers.work.part(0, (row_bytes * n) as u64);
            let attention = Attention { heads: a.q.count, scale: a.scale, work, parts, n };
            let pairs = placed.angles.map_or(0, |angles| angles.1);
            let kernel = self.kernels.tiles.kernel(pool, a.q.count, pairs, parts * n);
            let rows = (first, run.n);
            launch::attend_tile(s, kernel, &placed, standing, pool, &attention, rows, appended)?;
            let images = self.images(a.images).behind(first, a.out.len());
            let to = (a.floats.then_some(self.dense(a.out).behind(first)), images);
            let merge = &self.kernels.merge_images;
            launch::merge_images(s, merge, &standing.behind(first), pool, &attention, to, made)?;
        }
        Ok(())
    }

    /// Of a chunk, or of heads that tiles do not take.
    fn attend(&self, a: &Attend, run: &Run<'_>, layer: usize) -> Queued {
        let (s, pool) = (&self.stream, &self.pools[a.state]);
        let (queries, outputs, heads) = (self.dense(a.q), self.dense(a.out), a.q.count);
        let of_chunk = self.kernels.prompt_attention.of(pool, heads).filter(|_| !run.is_window());
        if let Some(kernel) = of_chunk {
            let chunk = Chunk { q: queries, heads, scale: a.scale, out: outputs, work: self.buffers.work };
            kernel.attend(s, &run.batch.rows, &run.places.standing, pool, &chunk)?;
        } else {
            let parts = run.places.spans;
            let (rows_max, row_bytes) = self.work_rows(a, parts);
            for first in (0..run.n).step_by(rows_max) {
                let n = rows_max.min(run.n - first);
                let standing = run.places.standing.behind(first);
                let work = self.buffers.work.part(0, (row_bytes * n) as u64);
                let attention = Attention { heads, scale: a.scale, work, parts, n };
                let (kernel, merge) = (&self.kernels.attend_span, &self.kernels.attend_merge);
                launch::attend_span(s, kernel, queries.behind(first), &standing, pool, &attention)?;
                launch::attend_merge(s, merge, &standing, pool, &attention, outputs.behind(first))?;
            }
        }
        let x = View::span(a.out.row, a.out.offset, a.out.len());
        a.images.kinds().try_for_each(|kind| self.row_op(&RowOp::Image { x, kind }, run, layer))
    }

    /// Whom a mixture's product asks.
    pub(super) fn experts_with(&self, m: &Mixture, product: &Product, per_pair: bool) -> Experts {
        let decl = self.program.weight(product.weight);
        let scale_per_expert = product.scale.is_some_and(|id| self.program.weight(id).cols > 1);
        Experts {
            matrix: self.matrix(product),
            expert_bytes: decl.ty.row_bytes(decl.cols) * decl.rows,
            scale_per_expert,
            ids: self.buffers.choices[m.choice.0].0,
            used: self.program.choices[m.choice.0].used,
            per_pair,
        }
    }

    fn experts(&self, m: &Mixture, run: &Run<'_>, layer: usize) -> Queued {
        if !run.is_window() {
            return self.experts_of_chunk(m, run, layer);
        }
        let (s, kernels, places) = (&self.stream, &self.kernels, self.buffers.pairs);
        let used = self.program.choices[m.choice.0].used;
        let (pairs, f) = (run.n * used, m.inner_width);
        let [gate, up, down] = &m.products;
        let gate_rows = Rows { at: places.gate, stride: f };
        let form = |p: &Product| {
            let weight = self.program.weight(p.weight);
            (weight.ty, weight.rows, weight.cols)
        };
        let ids_settled = match m.images[0] {
            Some(kind) if form(gate) == form(up) => {
                let both = [&self.experts_with(m, gate, false), &self.experts_with(m, up, false)];
                let (gate_kernels, image) = (kernels.window(gate.weight), self.buffers.image(kind));
                window::expert_gate_up(s, gate_kernels, both, image, places.gate, pairs)?;
                true
            }
            _ => {
                for (side, out) in [(0, places.gate), (1, places.up)] {
                    let product = &m.products[side];
                    let (e, x) = (self.experts_with(m, product, false), self.input(m.x, m.images[side]));
                    self.expert_product(product, &e, x, out, pairs)?;
                }
                let up_rows = Rows { at: places.up, stride: f };
                launch_rows::pairwise(s, &kernels.swiglu, gate_rows, up_rows, f, pairs)?;
                false
            }
        };
        let (e, fault) = (self.experts_with(m, down, true), self.fault(run, Met::Inner, layer));
        match m.images[2] {
            Some(_) if f <= window::OWN_COLS => {
                let e = (&e, ids_settled);
                window::expert_down(s, kernels.window(down.weight), e, (gate_rows, fault), places.out, pairs)
            }
            Some(kind) => {
                let kernel = kernels.quantise(kind);
                launch_rows::quantise(s, kernel, gate_rows, places.image, f, pairs, fault)?;
                self.expert_product(down, &e, Input::Image(places.image), places.out, pairs)
            }
            None => self.expert_product(down, &e, Input::Floats(gate_rows), places.out, pairs),
        }
    }

    /// Sums the experts' outputs of each row, or adds the sum.
    fn combine(&self, m: &Mixture, (to, is_added): (View, bool), run: &Run<'_>) -> Queued {
        let (_, weights) = self.buffers.choices[m.choice.0];
        let pairs = (self.buffers.pairs.out, weights, self.program.choices[m.choice.0].used);
        let out = (self.dense(to), is_added);
        launch_rows::combine(&self.stream, &self.kernels.combine, pairs, out, to.len(), run.n)
    }

    fn expert_product(&self, product: &Product, e: &Experts, x: Input, out: Span, pairs: usize) -> Queued {
        let (s, kernels) = (&self.stream, &self.kernels);
        match x {
            Input::Image(image) => {
                window::expert_product(s, kernels.window(product.weight), e, image, out, pairs)
            }
            Input::Floats(rows) => {
                launch::expert_product_float(s, kernels.product(product.weight), e, rows, out, pairs)
            }
        }
    }
}
