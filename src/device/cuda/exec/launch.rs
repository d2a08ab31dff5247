//! One function a kernel: its arguments in the order of its source, its grid, its block.
//!
//! Invariants: grids follow the heads of the kernel files; strides and widths count values, not bytes.
//! Does not know: programs, steps, where rows lie.

use super::prompt_attention::Chunk;
use crate::device::cuda::CudaError;
use crate::device::cuda::driver::Argument::{F32, I32, I64, Pointer, U32};
use crate::device::cuda::driver::{Argument, Kernel, Span, Stream};

/// Values that a block of 256 threads takes.
const BLOCK_VALUES: usize = 256;

/// Rows of a batch, each `stride` values behind the one before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) at: Span,
    pub(super) stride: usize,
}

impl Rows {
    /// From row `first` on.
    pub(super) fn behind(self, first: usize) -> Rows {
        Rows { at: self.at.from((4 * first * self.stride) as u64), stride: self.stride }
    }
}

/// Pieces of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    pub(super) rows: Rows,
    pub(super) count: usize,
    pub(super) width: usize,
    pub(super) stride: usize,
}

/// An image's two arrays, dense.
#[derive(Clone, Copy, Debug)]
pub(super) struct Image {
    pub(super) codes: Span,
    pub(super) scales: Span,
}

/// What a product reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Input {
    Image(Image),
    Floats(Rows),
}

/// The word that tells a value that is not finite, and what is written there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) word: Span,
    pub(super) id: u32,
}

/// A matrix with what follows its sum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub(super) at: Span,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) scale: Option<Span>,
    pub(super) bias: Option<Span>,
}

/// The matrices of experts, and who is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experts {
    pub(super) matrix: Matrix,
    pub(super) expert_bytes: usize,
    /// One scale an expert, not one for all.
    pub(super) scale_per_expert: bool,
    pub(super) ids: Span,
    pub(super) used: usize,
    /// Each pair has an input of its own, not each row.
    pub(super) per_pair: bool,
}

/// Keys and values of one state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    pub(super) at: Span,
    pub(super) page_bytes: usize,
    pub(super) heads: usize,
    pub(super) key_width: usize,
    pub(super) value_width: usize,
}

/// Where the rows of a batch stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) positions: Span,
    pub(super) states: Span,
    pub(super) pages: Span,
    pub(super) pages_per_state: usize,
}

impl Standing {
    /// From row `first` on.
    pub(super) fn behind(self, first: usize) -> Standing {
        let at = 4 * first as u64;
        Standing { positions: self.positions.from(at), states: self.states.from(at), ..self }
    }
}

/// Widths and counts are those of a model that fits on a card.
fn int(value: usize) -> Argument {
    I32(i32::try_from(value).expect("invariant: counts of a batch fit 31 bits"))
}

fn some(span: Span) -> Argument {
    Pointer(Some(span))
}

fn flag(value: bool) -> Argument {
    I32(i32::from(value))
}

type Launched = Result<(), CudaError>;

pub(super) fn embed(
    s: &Stream,
    k: &Kernel,
    table: (Span, usize),
    tokens: Span,
    out: Rows,
    n: usize,
) -> Launched {
    let (table, cols) = table;
    s.launch(
        k,
        [n, 1, 1],
        256,
        &[some(table), some(tokens), some(out.at), int(out.stride), int(cols), int(n)],
    )
}

pub(super) fn rms_norm(
    s: &Stream,
    k: &Kernel,
    x: Pieces,
    y: Pieces,
    w: (Span, bool),
    eps: f32,
    n: usize,
) -> Launched {
    let (weight, per_piece) = w;
    let arguments = [
        some(x.rows.at),
        int(x.rows.stride),
        int(x.stride),
        some(y.rows.at),
        int(y.rows.stride),
        int(y.stride),
        some(weight),
        flag(per_piece),
        int(x.width),
        F32(eps),
        int(n),
    ];
    s.launch(k, [x.count, n, 1], 256, &arguments)
}

pub(super) fn quantise(
    s: &Stream,
    k: &Kernel,
    x: Rows,
    to: Image,
    cols: usize,
    n: usize,
    fault: Fault,
) -> Launched {
    let arguments = [
        some(x.at),
        int(x.stride),
        some(to.codes),
        some(to.scales),
        int(cols),
        int(n),
        some(fault.word),
        U32(fault.id),
    ];
    s.launch(k, [cols.div_ceil(BLOCK_VALUES), n, 1], 256, &arguments)
}

/// `angles`: the values, pairs of a piece, and whether halves pair.
pub(super) fn rope(s: &Stream, k: &Kernel, x: Pieces, angles: (Span, usize, bool), n: usize) -> Launched {
    let (cos_sin, pairs, halves) = angles;
    let arguments =
        [some(x.rows.at), int(x.rows.stride), int(x.stride), some(cos_sin), int(pairs), flag(halves), int(n)];
    s.launch(k, [x.count, n, 1], 64, &arguments)
}

/// `add` and `swiglu`: x is replaced.
pub(super) fn pairwise(s: &Stream, k: &Kernel, x: Rows, y: Rows, width: usize, n: usize) -> Launched {
    let arguments = [some(x.at), int(x.stride), some(y.at), int(y.stride), int(width), int(n)];
    s.launch(k, [width.div_ceil(BLOCK_VALUES), n, 1], 256, &arguments)
}

pub(super) fn gather(
    s: &Stream,
    k: &Kernel,
    x: Rows,
    y: Rows,
    which: Span,
    width: usize,
    n: usize,
) -> Launched {
    let arguments = [some(x.at), int(x.stride), some(y.at), int(y.stride), some(which), int(width), int(n)];
    s.launch(k, [width.div_ceil(BLOCK_VALUES), n, 1], 256, &arguments)
}

/// `experts`: all, and how many are chosen; `to`: their ids and weights.
pub(super) fn route(
    s: &Stream,
    k: &Kernel,
    logits: Rows,
    experts: (usize, usize),
    to: (Span, Span),
    n: usize,
    fault: Fault,
) -> Launched {
    let arguments = [
        some(logits.at),
        int(logits.stride),
        int(experts.0),
        int(experts.1),
        some(to.0),
        some(to.1),
        int(n),
        some(fault.word),
        U32(fault.id),
    ];
    s.launch(k, [n, 1, 1], 256, &arguments)
}

/// Sums the `used` rows of each row's pairs by their weights.
pub(super) fn combine(
    s: &Stream,
    k: &Kernel,
    pairs: (Span, Span, usize),
    out: Rows,
    width: usize,
    n: usize,
) -> Launched {
    let (rows, weights, used) = pairs;
    let arguments = [some(rows), some(weights), some(out.at), int(out.stride), int(width), int(used), int(n)];
    s.launch(k, [width.div_ceil(BLOCK_VALUES), n, 1], 256, &arguments)
}

/// Weight rows of a block, and batch rows that share them.
const PRODUCT_ROWS: usize = 4;
const SHARED_ROWS: usize = 8;

pub(super) fn product(s: &Stream, k: &Kernel, m: &Matrix, x: Input, out: Rows, n: usize) -> Launched {
    let grid = [m.rows.div_ceil(PRODUCT_ROWS), n.div_ceil(SHARED_ROWS), 1];
    let input = match x {
        Input::Image(image) => [some(image.codes), some(image.scales)],
        Input::Floats(rows) => [some(rows.at), int(rows.stride)],
    };
    let arguments = [
        some(m.at),
        input[0],
        input[1],
        some(out.at),
        int(out.stride),
        int(m.rows),
        int(m.cols),
        int(n),
        Pointer(m.scale),
        Pointer(m.bias),
    ];
    s.launch(k, grid, 128, &arguments)
}

/// Every pair's row of `out`, dense.
pub(super) fn expert_product(
    s: &Stream,
    k: &Kernel,
    e: &Experts,
    x: Input,
    out: Span,
    pairs: usize,
) -> Launched {
    let grid = [e.matrix.rows.div_ceil(PRODUCT_ROWS), pairs, 1];
    let input = match x {
        Input::Image(image) => [some(image.codes), some(image.scales)],
        Input::Floats(rows) => [some(rows.at), int(rows.stride)],
    };
    let arguments = [
        some(e.matrix.at),
        I64(e.expert_bytes as i64),
        some(e.ids),
        int(e.used),
        flag(e.per_pair),
        input[0],
        input[1],
        some(out),
        int(e.matrix.rows),
        int(e.matrix.cols),
        int(pairs),
        Pointer(e.matrix.scale),
        flag(e.scale_per_expert),
    ];
    s.launch(k, grid, 128, &arguments)
}

pub(super) fn append(
    s: &Stream,
    k: &Kernel,
    rows: (Rows, Rows),
    standing: &Standing,
    pool: &Pool,
    n: usize,
    fault: Fault,
) -> Launched {
    let (keys, values) = rows;
    let arguments = [
        some(keys.at),
        int(keys.stride),
        some(values.at),
        int(values.stride),
        int(pool.heads),
        int(pool.key_width),
        int(pool.value_width),
        some(standing.positions),
        some(standing.states),
        some(standing.pages),
        int(standing.pages_per_state),
        some(pool.at),
        I64(pool.page_bytes as i64),
        int(n),
        some(fault.word),
        U32(fault.id),
    ];
    s.launch(k, [pool.heads, n, 1], 64, &arguments)
}

/// Attention of `n` rows with `heads` query heads; `work` holds `spans` spans of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attention {
    pub(super) heads: usize,
    pub(super) scale: f32,
    pub(super) work: Span,
    pub(super) spans: usize,
    pub(super) n: usize,
}

pub(super) fn attend_span(
    s: &Stream,
    k: &Kernel,
    q: Rows,
    standing: &Standing,
    pool: &Pool,
    a: &Attention,
) -> Launched {
    let arguments = [
        some(q.at),
        int(q.stride),
        int(a.heads),
        int(pool.heads),
        int(pool.key_width),
        int(pool.value_width),
        F32(a.scale),
        some(standing.positions),
        some(standing.states),
        some(standing.pages),
        int(standing.pages_per_state),
        some(pool.at),
        I64(pool.page_bytes as i64),
        some(a.work),
        int(a.spans),
        int(a.n),
    ];
    s.launch(k, [a.spans, a.heads, a.n], 512, &arguments)
}

pub(super) fn attend_merge(
    s: &Stream,
    k: &Kernel,
    standing: &Standing,
    pool: &Pool,
    a: &Attention,
    out: Rows,
) -> Launched {
    let arguments = [
        some(a.work),
        int(a.spans),
        some(standing.positions),
        some(out.at),
        int(out.stride),
        int(a.heads),
        int(pool.value_width),
        int(a.n),
    ];
    s.launch(k, [a.heads, a.n, 1], 128, &arguments)
}

/// `work`: where every span leaves what it sums, and how many they are; without it a block has all spans of its rows.
#[expect(clippy::too_many_arguments, reason = "a launch's own arguments beside what it computes")]
pub(super) fn attend_prompt(
    s: &Stream,
    k: &Kernel,
    grid: [usize; 3],
    standing: &Standing,
    pool: &Pool,
    chunk: &Chunk,
    work: Option<(Span, usize)>,
    n: usize,
) -> Launched {
    let arguments = [
        some(chunk.q.at),
        int(chunk.q.stride),
        int(chunk.heads),
        int(pool.heads),
        int(pool.key_width),
        int(pool.value_width),
        F32(chunk.scale),
        some(standing.positions),
        some(standing.states),
        some(standing.pages),
        int(standing.pages_per_state),
        some(pool.at),
        I64(pool.page_bytes as i64),
        Pointer(work.map(|(span, _)| span)),
        int(work.map_or(1, |(_, spans)| spans)),
        some(chunk.out.at),
        int(chunk.out.stride),
        int(n),
    ];
    s.launch(k, grid, 128, &arguments)
}

pub(super) fn attend_prompt_merge(
    s: &Stream,
    k: &Kernel,
    standing: &Standing,
    pool: &Pool,
    chunk: &Chunk,
    spans: usize,
    n: usize,
) -> Launched {
    let arguments = [
        some(chunk.work),
        int(spans),
        some(standing.positions),
        some(chunk.out.at),
        int(chunk.out.stride),
        int(chunk.heads),
        int(pool.value_width),
        int(n),
    ];
    s.launch(k, [chunk.heads, n, 1], 128, &arguments)
}

pub(super) fn copy_page(
    s: &Stream,
    k: &Kernel,
    pages: Span,
    page_bytes: usize,
    from: usize,
    to: usize,
) -> Launched {
    let arguments = [some(pages), I64(page_bytes as i64), int(from), int(to)];
    s.launch(k, [64, 1, 1], 256, &arguments)
}
