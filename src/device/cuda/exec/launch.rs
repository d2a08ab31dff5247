//! One function a kernel: its arguments in the order of its source, its grid, its block (`launch_rows` has more).
//!
//! Invariants: grids follow the heads of the kernel files; strides and widths count values, not bytes.
//! Does not know: programs, steps, where rows lie.

use super::prompt_attention::Chunk;
use super::tile_attention::TileKernel;
use crate::device::cuda::CudaError;
use crate::device::cuda::driver::Argument::{F32, I32, I64, Pointer, U32};
use crate::device::cuda::driver::{Argument, Kernel, Span, Stream};
use crate::gguf::formats::ImageKind;
use crate::model::facts::PAGE_POSITIONS;
use crate::model::footprint::gpu::{BEST_PIECE, ImageBytes, SPAN_POSITIONS, block_values};

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

impl Image {
    /// From row `first` of `cols` values on.
    pub(super) fn behind(self, kind: ImageKind, cols: usize, first: usize) -> Image {
        let row = ImageBytes::of(kind, cols);
        Image {
            codes: self.codes.from((row.codes * first) as u64),
            scales: self.scales.from((row.scales * first) as u64),
        }
    }
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
    /// All rows are of state 0.
    pub(super) has_one_state: bool,
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
pub(super) fn int(value: usize) -> Argument {
    I32(i32::try_from(value).expect("invariant: counts of a batch fit 31 bits"))
}

pub(super) fn some(span: Span) -> Argument {
    Pointer(Some(span))
}

pub(super) fn flag(value: bool) -> Argument {
    I32(i32::from(value))
}

pub(super) type Launched = Result<(), CudaError>;

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

/// Of the first `logits.1` logits of each row.
pub(super) fn best_of_logits(
    s: &Stream,
    k: &Kernel,
    logits: (Rows, usize),
    to: Span,
    count: usize,
    n: usize,
) -> Launched {
    let (Rows { at, stride }, values) = logits;
    let arguments = [some(at), int(stride), int(values), some(to), int(count), int(n)];
    s.launch(k, [values.div_ceil(BEST_PIECE), n, 1], 256, &arguments)
}

/// Of `keys.1` keys a row.
pub(super) fn best_of_keys(
    s: &Stream,
    k: &Kernel,
    keys: (Span, usize),
    to: Span,
    count: usize,
    n: usize,
) -> Launched {
    let (at, values) = keys;
    let arguments = [some(at), int(values), some(to), int(count), int(n)];
    s.launch(k, [values.div_ceil(BEST_PIECE), n, 1], 256, &arguments)
}

/// Where both images of a row go; `None`: nobody reads that one.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImagePlaces {
    pub(super) a32: Option<Image>,
    pub(super) a256: Option<Image>,
}

impl ImagePlaces {
    /// From row `first` of `cols` values on.
    pub(super) fn behind(self, first: usize, cols: usize) -> ImagePlaces {
        let from = |image: Option<Image>, kind: ImageKind| {
            image.map(|image| {
                let scales = 4 * first * (cols / block_values(kind));
                Image {
                    codes: image.codes.from((first * cols) as u64),
                    scales: image.scales.from(scales as u64),
                }
            })
        };
        ImagePlaces { a32: from(self.a32, ImageKind::A32), a256: from(self.a256, ImageKind::A256) }
    }

    pub(super) fn arguments(self) -> [Argument; 4] {
        let both = |image: Option<Image>| [image.map(|i| i.codes), image.map(|i| i.scales)].map(Pointer);
        let ([codes32, scales32], [codes256, scales256]) = (both(self.a32), both(self.a256));
        [codes32, scales32, codes256, scales256]
    }
}

pub(super) fn stride(rows: Option<Rows>) -> Argument {
    int(rows.map_or(0, |r| r.stride))
}

/// Weight rows of a block that multiplies with floats, batch rows that share them, and rows of a small matrix.
const PRODUCT_ROWS: usize = 4;
const SHARED_ROWS: usize = 8;
const FEW_ROWS: usize = 1024;

pub(super) fn product_float(s: &Stream, k: &Kernel, m: &Matrix, x: Rows, out: Rows, n: usize) -> Launched {
    // Few rows, those of a router, are spread over as many multiprocessors.
    let warps = if m.rows <= FEW_ROWS { 1 } else { PRODUCT_ROWS };
    let grid = [m.rows.div_ceil(warps), n.div_ceil(SHARED_ROWS), 1];
    let arguments = [
        some(m.at),
        some(x.at),
        int(x.stride),
        some(out.at),
        int(out.stride),
        int(m.rows),
        int(m.cols),
        int(n),
        Pointer(m.scale),
        Pointer(m.bias),
    ];
    s.launch(k, grid, 32 * warps, &arguments)
}

/// Every pair's product with a row of floats.
pub(super) fn expert_product_float(
    s: &Stream,
    k: &Kernel,
    e: &Experts,
    x: Rows,
    out: Span,
    pairs: usize,
) -> Launched {
    let arguments = [
        some(e.matrix.at),
        I64(e.expert_bytes as i64),
        some(e.ids),
        int(e.used),
        flag(e.per_pair),
        some(x.at),
        int(x.stride),
        some(out),
        int(e.matrix.rows),
        int(e.matrix.cols),
        int(pairs),
        Pointer(e.matrix.scale),
        flag(e.scale_per_expert),
    ];
    s.launch(k, [e.matrix.rows.div_ceil(PRODUCT_ROWS), pairs, 1], 128, &arguments)
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
    let heads = [
        some(keys.at),
        int(keys.stride),
        some(values.at),
        int(values.stride),
        int(pool.heads),
        int(pool.key_width),
        int(pool.value_width),
    ];
    let others = [int(n), some(fault.word), U32(fault.id)];
    let arguments = [&heads[..], &pages_arguments(standing, pool), &others].concat();
    s.launch(k, [pool.heads, n, 1], 64, &arguments)
}

/// Heads between products and attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceHeads {
    pub(super) q: Rows,
    pub(super) heads: usize,
    /// `None`: norm and rope are done, keys and values in their pages.
    pub(super) keys_values: Option<(Rows, Rows)>,
    pub(super) q_norm: Option<Span>,
    pub(super) k_norm: Option<Span>,
    pub(super) eps: f32,
    /// The values, pairs of a head, and whether halves pair.
    pub(super) angles: Option<(Span, usize, bool)>,
}

impl PlaceHeads {
    /// Queries to which nothing is to be done.
    pub(super) fn placed(q: Rows, heads: usize) -> PlaceHeads {
        PlaceHeads { q, heads, keys_values: None, q_norm: None, k_norm: None, eps: 0.0, angles: None }
    }

    fn arguments(&self, pool: &Pool) -> [Argument; 16] {
        let (k, v) = (self.keys_values.map(|kv| kv.0), self.keys_values.map(|kv| kv.1));
        [
            some(self.q.at),
            int(self.q.stride),
            int(self.heads),
            Pointer(k.map(|rows| rows.at)),
            stride(k),
            Pointer(v.map(|rows| rows.at)),
            stride(v),
            int(pool.heads),
            int(pool.key_width),
            int(pool.value_width),
            Pointer(self.q_norm),
            Pointer(self.k_norm),
            F32(self.eps),
            Pointer(self.angles.map(|a| a.0)),
            int(self.angles.map_or(0, |a| a.1)),
            flag(self.angles.is_some_and(|a| a.2)),
        ]
    }
}

/// Where the rows of a batch and their keys and values are.
fn pages_arguments(standing: &Standing, pool: &Pool) -> [Argument; 6] {
    [
        some(standing.positions),
        some(standing.states),
        some(standing.pages),
        int(standing.pages_per_state),
        some(pool.at),
        I64(pool.page_bytes as i64),
    ]
}

pub(super) fn place_heads(
    s: &Stream,
    k: &Kernel,
    h: &PlaceHeads,
    standing: &Standing,
    pool: &Pool,
    n: usize,
    fault: Fault,
) -> Launched {
    /// Warps of a block, each with a head.
    const WARPS: usize = 4;
    let others = [int(n), some(fault.word), U32(fault.id)];
    let arguments = [&h.arguments(pool)[..], &pages_arguments(standing, pool), &others].concat();
    s.launch(k, [(h.heads + 2 * pool.heads).div_ceil(WARPS), n, 1], 32 * WARPS, &arguments)
}

/// Attention of `n` rows with `heads` query heads; `work` holds `parts` spans of each, or tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attention {
    pub(super) heads: usize,
    pub(super) scale: f32,
    pub(super) work: Span,
    pub(super) parts: usize,
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
    let heads = [
        some(q.at),
        int(q.stride),
        int(a.heads),
        int(pool.heads),
        int(pool.key_width),
        int(pool.value_width),
        F32(a.scale),
    ];
    let work = [some(a.work), int(a.parts), int(a.n)];
    let arguments = [&heads[..], &pages_arguments(standing, pool), &work].concat();
    s.launch(k, [a.parts, a.heads, a.n], 512, &arguments)
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
        int(a.parts),
        some(standing.positions),
        some(out.at),
        int(out.stride),
        int(a.heads),
        int(pool.value_width),
        int(a.n),
    ];
    s.launch(k, [a.heads, a.n, 1], 128, &arguments)
}

/// By tiles, of rows `first` on of a batch of `n`.
#[expect(clippy::too_many_arguments, reason = "a launch's own arguments beside what it computes")]
pub(super) fn attend_tile(
    s: &Stream,
    k: TileKernel<'_>,
    h: &PlaceHeads,
    standing: &Standing,
    pool: &Pool,
    a: &Attention,
    (first, n): (usize, usize),
    fault: Fault,
) -> Launched {
    let work = [some(a.work), int(a.parts), int(first), int(n), some(fault.word), U32(fault.id)];
    let mut pages = pages_arguments(standing, pool);
    if standing.has_one_state {
        // One load less before those of keys and values.
        pages[1] = Pointer(None);
    }
    let arguments = [&h.arguments(pool)[..], &[F32(a.scale)], &pages, &work].concat();
    let grid = [pool.heads * (a.heads / pool.heads).div_ceil(k.at_once), a.parts, a.n];
    s.launch(k.kernel, grid, 256, &arguments)
}

pub(super) fn merge_images(
    s: &Stream,
    k: &Kernel,
    standing: &Standing,
    pool: &Pool,
    a: &Attention,
    to: (Option<Rows>, ImagePlaces),
    fault: Fault,
) -> Launched {
    /// Tiles of a span, and spans that a block takes at a time.
    const SPAN_TILES: usize = SPAN_POSITIONS / PAGE_POSITIONS;
    const SLICES: std::ops::RangeInclusive<usize> = 4..=8;
    /// Threads of a span.
    const SPAN_THREADS: usize = 64;
    let (out, images) = to;
    let [codes32, scales32, codes256, scales256] = images.arguments();
    let arguments = [
        some(a.work),
        int(a.parts),
        some(standing.positions),
        Pointer(out.map(|o| o.at)),
        stride(out),
        int(a.heads),
        int(pool.value_width),
        codes32,
        scales32,
        codes256,
        scales256,
        int(a.n),
        some(fault.word),
        U32(fault.id),
    ];
    let slices = a.parts.div_ceil(SPAN_TILES).clamp(*SLICES.start(), *SLICES.end());
    let blocks = (a.heads * pool.value_width).div_ceil(BLOCK_VALUES);
    s.launch(k, [blocks, a.n, 1], SPAN_THREADS * slices, &arguments)
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
