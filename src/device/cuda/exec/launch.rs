//! One function a kernel: its arguments in the order of its source, its grid, its block.
//!
//! Invariants: grids follow the heads of the kernel files; strides and widths count values, not bytes.
//! Does not know: programs, steps, where rows lie.

use super::prompt_attention::Chunk;
use crate::device::cuda::CudaError;
use crate::device::cuda::driver::Argument::{F32, I32, I64, Pointer, U32};
use crate::device::cuda::driver::{Argument, Kernel, Span, Stream};
use crate::gguf::formats::ImageKind;
use crate::model::facts::PAGE_POSITIONS;
use crate::model::footprint::gpu::{ImageBytes, SPAN_POSITIONS, block_values};

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

    fn arguments(self) -> [Argument; 4] {
        let both = |image: Option<Image>| [image.map(|i| i.codes), image.map(|i| i.scales)].map(Pointer);
        let ([codes32, scales32], [codes256, scales256]) = (both(self.a32), both(self.a256));
        [codes32, scales32, codes256, scales256]
    }
}

/// A norm of whole rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct NormImages {
    pub(super) x: Rows,
    /// Added to `x` before.
    pub(super) added: Option<Rows>,
    pub(super) weight: Span,
    pub(super) width: usize,
    pub(super) eps: f32,
    /// Floats.
    pub(super) out: Option<Rows>,
    pub(super) images: ImagePlaces,
}

fn stride(rows: Option<Rows>) -> Argument {
    int(rows.map_or(0, |r| r.stride))
}

pub(super) fn norm_images(s: &Stream, k: &Kernel, norm: &NormImages, n: usize, fault: Fault) -> Launched {
    let [codes32, scales32, codes256, scales256] = norm.images.arguments();
    let arguments = [
        some(norm.x.at),
        int(norm.x.stride),
        Pointer(norm.added.map(|y| y.at)),
        stride(norm.added),
        some(norm.weight),
        int(norm.width),
        F32(norm.eps),
        Pointer(norm.out.map(|o| o.at)),
        stride(norm.out),
        codes32,
        scales32,
        codes256,
        scales256,
        int(n),
        some(fault.word),
        U32(fault.id),
    ];
    s.launch(k, [n, 1, 1], 256, &arguments)
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
    s.launch(k, [n, 1, 1], 128, &arguments)
}

/// Sums the `used` rows of each row's pairs by their weights; `is_added`: to what is there.
pub(super) fn combine(
    s: &Stream,
    k: &Kernel,
    pairs: (Span, Span, usize),
    (out, is_added): (Rows, bool),
    width: usize,
    n: usize,
) -> Launched {
    let (rows, weights, used) = pairs;
    let (at, stride) = (some(out.at), int(out.stride));
    let arguments = [some(rows), some(weights), at, stride, int(width), int(used), flag(is_added), int(n)];
    s.launch(k, [width.div_ceil(BLOCK_VALUES), n, 1], 256, &arguments)
}

/// Weight rows of a block that multiplies with floats, batch rows that share them, and rows of a small matrix.
const PRODUCT_ROWS: usize = 4;
const SHARED_ROWS: usize = 8;
const FEW_ROWS: usize = 1024;

/// Weight rows of a block that multiplies with images, and batch rows that share them in the narrow kernel.
const TILE_ROWS: usize = 16;
const NARROW_ROWS: usize = 2;

/// Columns of which a warp makes one value.
const GROUP_VALUES: usize = 256;

/// Warps of a block that multiplies with images.
const WINDOW_WARPS: usize = 8;

/// Tiles of a matrix from which on a block makes several, because starting a block takes time.
const MANY_TILES: usize = 4096;

/// Matrices of one launch, at most.
pub(super) const TARGETS: usize = 3;

/// Columns of a row of floats of which a block makes the image itself, at most.
pub(super) const OWN_COLS: usize = 4096;

/// The kernels that multiply matrices of a type with images: a block for few batch rows, and for more.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) narrow: Kernel,
    pub(super) wide: Kernel,
}

/// A launch of a window's kernels: all arguments, of which most are absent.
struct WindowCall<'a> {
    targets: &'a [(Matrix, Rows)],
    /// The first two targets make one row of the first.
    paired: bool,
    image: Option<Image>,
    add: Option<Rows>,
    experts: Option<&'a Experts>,
    /// Bit k: target k has a scale an expert.
    scales_per_expert: usize,
    floats: Option<(Rows, Fault)>,
}

impl WindowCall<'_> {
    /// Tiles that a block makes, as a power of two: more than one where one leaves warps without a group, or where tiles
    /// are many.
    fn tiles_log(&self, narrow: bool) -> usize {
        let first = &self.targets[0].0;
        let (most, most_many) = if narrow { (3, 2) } else { (1, 1) };
        if first.rows / TILE_ROWS >= MANY_TILES {
            return most_many;
        }
        let items = first.cols.div_ceil(GROUP_VALUES) << usize::from(self.paired);
        (0..most).find(|log| items << log >= WINDOW_WARPS).unwrap_or(most)
    }

    /// `n`: batch rows, or pairs of experts.
    fn launch(&self, s: &Stream, k: &Window, n: usize) -> Launched {
        assert!((1..=TARGETS).contains(&self.targets.len()), "a launch has 1 to {TARGETS} matrices");
        let (first, cols) = (&self.targets[0].0, self.targets[0].0.cols);
        assert!(self.targets.iter().all(|(m, _)| m.cols == cols), "matrices of a launch share their input");
        assert!(self.floats.is_none() || cols <= OWN_COLS, "a block makes images of {OWN_COLS} columns");
        let single = self.experts.is_some() || self.floats.is_some();
        let (kernel, shares) = match n {
            _ if single => (&k.narrow, n),
            0..=NARROW_ROWS => (&k.narrow, 1),
            _ => (&k.wide, n.div_ceil(SHARED_ROWS)),
        };
        let tiles_log = self.tiles_log(single || n <= NARROW_ROWS);
        let blocks_of = |m: &Matrix| m.rows.div_ceil(TILE_ROWS << tiles_log);
        let blocks =
            if self.paired { blocks_of(first) } else { self.targets.iter().map(|(m, _)| blocks_of(m)).sum() };
        let of = |f: fn(&(Matrix, Rows)) -> Argument, none: Argument| {
            [0, 1, 2].map(|i| self.targets.get(i).map_or(none, f))
        };
        let none = Pointer(None);
        let image = self.image.map(|i| [i.codes, i.scales]);
        let (floats, fault) = (self.floats.map(|f| f.0), self.floats.map(|f| f.1));
        let used = self.experts.map_or(1, |e| if e.per_pair { 1 } else { e.used });
        let arguments = [
            of(|(m, _)| some(m.at), none),
            of(|(_, out)| some(out.at), none),
            of(|(_, out)| int(out.stride), int(0)),
            of(|(m, _)| int(m.rows), int(0)),
            of(|(m, _)| Pointer(m.scale), none),
            of(|(m, _)| Pointer(m.bias), none),
        ];
        let others = [
            flag(self.paired),
            int(tiles_log),
            Pointer(image.map(|i| i[0])),
            Pointer(image.map(|i| i[1])),
            int(cols),
            int(n),
            Pointer(self.add.map(|rows| rows.at)),
            int(self.add.map_or(0, |rows| rows.stride)),
            Pointer(self.experts.map(|e| e.ids)),
            I64(self.experts.map_or(0, |e| e.expert_bytes as i64)),
            int(used),
            int(self.scales_per_expert),
            Pointer(floats.map(|rows| rows.at)),
            int(floats.map_or(0, |rows| rows.stride)),
            Pointer(fault.map(|f| f.word)),
            U32(fault.map_or(0, |f| f.id)),
        ];
        let arguments = [arguments.as_flattened(), &others].concat();
        s.launch(kernel, [blocks, shares, 1], 32 * WINDOW_WARPS, &arguments)
    }
}

/// What most launches have none of.
const PLAIN: WindowCall<'static> = WindowCall {
    targets: &[],
    paired: false,
    image: None,
    add: None,
    experts: None,
    scales_per_expert: 0,
    floats: None,
};

/// Products of up to three matrices of one type with one input. `add`: rows that the products are added to, which may be
/// those of the target.
pub(super) fn product_many(
    s: &Stream,
    k: &Window,
    targets: &[(Matrix, Rows)],
    x: Image,
    add: Option<Rows>,
    n: usize,
) -> Launched {
    WindowCall { targets, image: Some(x), add, ..PLAIN }.launch(s, k, n)
}

/// silu(gate x) * (up x).
pub(super) fn gate_up(
    s: &Stream,
    k: &Window,
    [gate, up]: [Matrix; 2],
    x: Image,
    out: Rows,
    n: usize,
) -> Launched {
    let targets = &[(gate, out), (up, out)];
    WindowCall { targets, paired: true, image: Some(x), ..PLAIN }.launch(s, k, n)
}

/// A product with rows of floats, at most `OWN_COLS` wide, whose images are made on the way.
pub(super) fn own_product(
    s: &Stream,
    k: &Window,
    target: (Matrix, Rows),
    x: (Rows, Fault),
    add: Option<Rows>,
    n: usize,
) -> Launched {
    WindowCall { targets: &[target], add, floats: Some(x), ..PLAIN }.launch(s, k, n)
}

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

/// Every pair's row of `out`, dense.
pub(super) fn expert_product(
    s: &Stream,
    k: &Window,
    e: &Experts,
    x: Image,
    out: Span,
    pairs: usize,
) -> Launched {
    let targets = &[(e.matrix, Rows { at: out, stride: e.matrix.rows })];
    let scales_per_expert = usize::from(e.scale_per_expert);
    WindowCall { targets, image: Some(x), experts: Some(e), scales_per_expert, ..PLAIN }.launch(s, k, pairs)
}

/// silu(gate x) * (up x) of every pair, dense. Gate and up have one type and one shape.
pub(super) fn expert_gate_up(
    s: &Stream,
    k: &Window,
    [gate, up]: [&Experts; 2],
    x: Image,
    out: Span,
    pairs: usize,
) -> Launched {
    let out = Rows { at: out, stride: gate.matrix.rows };
    let targets = &[(gate.matrix, out), (up.matrix, out)];
    let scales_per_expert = usize::from(gate.scale_per_expert) | usize::from(up.scale_per_expert) << 1;
    let call =
        WindowCall { targets, paired: true, image: Some(x), experts: Some(gate), scales_per_expert, ..PLAIN };
    call.launch(s, k, pairs)
}

/// Every pair's product with a row of floats of its own, at most `OWN_COLS` wide, whose image is made on the way.
pub(super) fn expert_down(
    s: &Stream,
    k: &Window,
    e: &Experts,
    x: (Rows, Fault),
    out: Span,
    pairs: usize,
) -> Launched {
    assert!(e.per_pair, "a pair has its own input");
    let targets = &[(e.matrix, Rows { at: out, stride: e.matrix.rows })];
    let scales_per_expert = usize::from(e.scale_per_expert);
    WindowCall { targets, experts: Some(e), scales_per_expert, floats: Some(x), ..PLAIN }.launch(s, k, pairs)
}

/// The same with rows of floats, whose products are those of floats.
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

/// By tiles, of rows `first` on of a batch of `n`; a block of the kernel takes `heads_at_once` heads of one K/V head.
#[expect(clippy::too_many_arguments, reason = "a launch's own arguments beside what it computes")]
pub(super) fn attend_tile(
    s: &Stream,
    (k, heads_at_once): (&Kernel, usize),
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
    let grid = [pool.heads * (a.heads / pool.heads).div_ceil(heads_at_once), a.parts, a.n];
    s.launch(k, grid, 256, &arguments)
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
