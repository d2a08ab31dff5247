//! Products of more rows than a window has: with images on the matrix units, experts sorted so that each one's weights
//! are read once for all its rows.
//!
//! Invariants: a result has the bits that `formats.cu` gives it, so who multiplies never shows; grids follow the head of
//! `kernels/prompt.cu`. Does not know: programs' order, where rows lie.

use super::launch::{self, Experts, Image, Input, Matrix, Rows, int, some};
use super::launch_rows;
use super::window;
use super::{CudaExec, GRID_MAX, Met, Run};
use crate::device::cuda::CudaError;
use crate::device::cuda::driver::Argument::{I64, Pointer};
use crate::device::cuda::driver::{Kernel, Span, Stream};
use crate::device::lower::Mixture;
use crate::gguf::formats::ImageKind;
use crate::model::facts::WINDOW_ROWS_MAX;
use crate::model::footprint::gpu::TILE_COLUMNS;
use crate::model::program::Product;

/// Weight rows of a tile.
const TILE_ROWS: usize = 128;

/// Shared memory of a block that multiplies with images of a kind.
pub(super) fn shared_bytes(kind: ImageKind) -> usize {
    match kind {
        ImageKind::A32 => 48 << 10,
        ImageKind::A256 => 64 << 10,
    }
}

type Queued = Result<(), CudaError>;

/// Pairs of rows and experts, sorted.
#[derive(Clone, Copy, Debug)]
struct Groups {
    order: Span,
    tiles: Span,
    tiles_max: usize,
    pairs: usize,
}

impl CudaExec {
    /// A matrix with `n` rows.
    pub(super) fn multiply(&self, product_of: &Product, input: Input, out: Rows, n: usize) -> Queued {
        let (s, kernels, weight, matrix) =
            (&self.stream, &self.kernels, product_of.weight, self.matrix(product_of));
        match input {
            Input::Image(image) if n > WINDOW_ROWS_MAX => {
                product(s, kernels.prompt(weight), &matrix, image, out, n)
            }
            Input::Image(image) => {
                window::product_many(s, kernels.window(weight), &[(matrix, out)], image, None, n)
            }
            Input::Floats(rows) => launch::product_float(s, kernels.product(weight), &matrix, rows, out, n),
        }
    }

    /// The outputs of a chunk's experts, pair by pair.
    pub(super) fn experts_of_chunk(&self, m: &Mixture, run: &Run<'_>, layer: usize) -> Queued {
        let (s, kernels, places) = (&self.stream, &self.kernels, self.buffers.pairs);
        let decl = &self.program.choices[m.choice.0];
        let (ids, _) = self.buffers.choices[m.choice.0];
        let (pairs, f) = (run.n * decl.used, m.inner_width);
        let tiles_max = pairs / TILE_COLUMNS + decl.experts.min(pairs);
        let groups = Groups { order: places.order, tiles: places.tiles, tiles_max, pairs };
        if m.images.iter().any(Option::is_some) {
            group_pairs(s, &kernels.group_pairs, ids, decl.experts, &groups)?;
        }
        for (side, out) in [(0, places.gate), (1, places.up)] {
            let (e, x) = (self.experts_with(m, &m.products[side], false), self.input(m.x, m.images[side]));
            self.multiply_experts(&m.products[side], &e, x, out, &groups)?;
        }
        let (gate, up) = (Rows { at: places.gate, stride: f }, Rows { at: places.up, stride: f });
        for (first, n) in pieces(pairs, GRID_MAX) {
            launch_rows::pairwise(s, &kernels.swiglu, gate.behind(first), up.behind(first), f, n)?;
        }
        let inner = match m.images[2] {
            Some(kind) => {
                let fault = self.fault(run, Met::Inner, layer);
                for (first, n) in pieces(pairs, GRID_MAX) {
                    let to = places.image.behind(kind, f, first);
                    launch_rows::quantise(s, kernels.quantise(kind), gate.behind(first), to, f, n, fault)?;
                }
                Input::Image(places.image)
            }
            None => Input::Floats(gate),
        };
        let e = self.experts_with(m, &m.products[2], true);
        self.multiply_experts(&m.products[2], &e, inner, places.out, &groups)
    }

    fn multiply_experts(
        &self,
        product: &Product,
        e: &Experts,
        input: Input,
        out: Span,
        groups: &Groups,
    ) -> Queued {
        let s = &self.stream;
        match input {
            Input::Image(image) => {
                expert_product(s, self.kernels.prompt(product.weight), e, image, out, groups)
            }
            Input::Floats(rows) => {
                let kernel = self.kernels.product(product.weight);
                // Pieces begin with a row's first pair.
                for (first, n) in pieces(groups.pairs, GRID_MAX / e.used * e.used) {
                    let rows = rows.behind(if e.per_pair { first } else { first / e.used });
                    let ids = e.ids.from(4 * first as u64);
                    let out = out.from((4 * first * e.matrix.rows) as u64);
                    launch::expert_product_float(s, kernel, &Experts { ids, ..*e }, rows, out, n)?;
                }
                Ok(())
            }
        }
    }
}

/// `count` things, at most `most` at a time: (first, how many).
fn pieces(count: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).step_by(most).map(move |first| (first, most.min(count - first)))
}

fn group_pairs(s: &Stream, k: &Kernel, ids: Span, experts: usize, groups: &Groups) -> Queued {
    let arguments = [some(ids), int(groups.pairs), int(experts), some(groups.order), some(groups.tiles)];
    s.launch(k, [experts, 1, 1], 1024, &arguments)
}

fn product(s: &Stream, k: &Kernel, m: &Matrix, x: Image, out: Rows, n: usize) -> Queued {
    let arguments = [
        some(m.at),
        I64(0),
        Pointer(None),
        Pointer(None),
        int(1),
        some(x.codes),
        some(x.scales),
        some(out.at),
        int(out.stride),
        int(m.rows),
        int(m.cols),
        int(n),
        Pointer(m.scale),
        int(0),
        Pointer(m.bias),
    ];
    s.launch(k, [n.div_ceil(TILE_COLUMNS), m.rows.div_ceil(TILE_ROWS), 1], 256, &arguments)
}

/// Every pair's row of `out`, dense.
fn expert_product(s: &Stream, k: &Kernel, e: &Experts, x: Image, out: Span, groups: &Groups) -> Queued {
    let m = &e.matrix;
    let arguments = [
        some(m.at),
        I64(e.expert_bytes as i64),
        some(groups.tiles),
        some(groups.order),
        int(if e.per_pair { 1 } else { e.used }),
        some(x.codes),
        some(x.scales),
        some(out),
        int(m.rows),
        int(m.rows),
        int(m.cols),
        int(groups.pairs),
        Pointer(m.scale),
        int(usize::from(e.scale_per_expert)),
        Pointer(None),
    ];
    s.launch(k, [groups.tiles_max, m.rows.div_ceil(TILE_ROWS), 1], 256, &arguments)
}

#[cfg(test)]
mod tests {
    use super::{TILE_ROWS, pieces, shared_bytes};
    use crate::device::cuda::source::PROMPT;
    use crate::gguf::formats::ImageKind;
    use crate::model::footprint::gpu::TILE_COLUMNS;

    #[test]
    fn tiles_and_their_memory_are_those_of_the_source() {
        let value = |name: &str| -> usize {
            let (_, rest) = PROMPT.text.split_once(&format!("constexpr i32 {name} = ")).unwrap();
            let (text, _) = rest.split_once(';').unwrap();
            text.split('*').map(|factor| factor.trim().parse::<usize>().unwrap()).product()
        };
        assert_eq!(value("SUPER_BYTES"), shared_bytes(ImageKind::A256));
        assert_eq!(value("STEPS_BYTES"), shared_bytes(ImageKind::A32));
        assert_eq!((value("TILE_ROWS"), value("TILE_COLUMNS")), (TILE_ROWS, TILE_COLUMNS));
    }

    #[test]
    fn pieces_follow_each_other_to_the_end() {
        for (count, most, want) in [
            (0, 4, vec![]),
            (3, 4, vec![(0, 3)]),
            (8, 4, vec![(0, 4), (4, 4)]),
            (9, 4, vec![(0, 4), (4, 4), (8, 1)]),
        ] {
            assert_eq!(pieces(count, most).collect::<Vec<_>>(), want, "{count} by {most}");
        }
    }
}
