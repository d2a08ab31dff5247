//! One function a kernel of `rows.cu` and `router.cu`: its arguments in the order of its source, its grid, its block.
//!
//! Invariants: grids follow the heads of the kernel files; strides and widths count values, not bytes.
//! Does not know: programs, steps, where rows lie.

use super::launch::{Fault, Image, ImagePlaces, Launched, Matrix, Pieces, Rows, flag, int, some, stride};
use crate::device::cuda::driver::Argument::{F32, Pointer, U32};
use crate::device::cuda::driver::{Kernel, Span, Stream};

/// The widest row that a block keeps in shared memory.
pub(super) const SHARED_ROW_MAX: usize = 8192;

/// Values that a block of 256 threads takes.
const BLOCK_VALUES: usize = 256;

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

/// A norm of whole rows to which nothing is added, and their products with a router.
#[derive(Clone, Copy, Debug)]
pub(super) struct NormRouter {
    pub(super) norm: NormImages,
    pub(super) router: Matrix,
    pub(super) logits: Rows,
}

pub(super) fn norm_router(s: &Stream, k: &Kernel, call: &NormRouter, n: usize, fault: Fault) -> Launched {
    /// Warps of a block, each with a row of the router.
    const WARPS: usize = 8;
    let NormRouter { norm, router, logits } = call;
    assert!(norm.added.is_none() && norm.width == router.cols, "a router reads a row that is whole");
    let [codes32, scales32, codes256, scales256] = norm.images.arguments();
    let arguments = [
        some(norm.x.at),
        int(norm.x.stride),
        some(norm.weight),
        int(norm.width),
        F32(norm.eps),
        Pointer(norm.out.map(|o| o.at)),
        stride(norm.out),
        codes32,
        scales32,
        codes256,
        scales256,
        some(router.at),
        Pointer(router.scale),
        Pointer(router.bias),
        some(logits.at),
        int(logits.stride),
        int(router.rows),
        int(n),
        some(fault.word),
        U32(fault.id),
    ];
    s.launch(k, [router.rows.div_ceil(WARPS) + 1, n, 1], 32 * WARPS, &arguments)
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
    /// Experts among which a warp chooses; among more a block does.
    const WARP_EXPERTS_MAX: usize = 256;
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
    let threads = if experts.0 <= WARP_EXPERTS_MAX { 32 } else { 256 };
    s.launch(k, [n, 1, 1], threads, &arguments)
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
