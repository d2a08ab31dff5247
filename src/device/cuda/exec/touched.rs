//! What a launch reads and writes, rows and images: what may be left unmade, and where an image's place is free.
//!
//! Does not know: what launches compute, patterns.

use super::fuse::{Launch, Norm};
use crate::device::lower::RowOp;
use crate::gguf::formats::ImageKind;
use crate::model::program::{RowId, View};

/// Whether two views are the same neighbouring values.
pub(super) fn same_span(a: View, b: View) -> bool {
    let span = |v: View| (v.row, v.offset, v.len());
    a.is_dense() && b.is_dense() && span(a) == span(b)
}

pub(super) fn overlap(a: View, b: View) -> bool {
    a.row == b.row && a.offset < b.end() && b.offset < a.end()
}

fn covers(a: View, b: View) -> bool {
    a.row == b.row && a.is_dense() && a.offset <= b.offset && b.end() <= a.end()
}

/// What a launch touches.
#[derive(Default)]
pub(super) struct Touched {
    pub(super) reads: Vec<View>,
    pub(super) writes: Vec<View>,
    pub(super) images_read: Vec<ImageKind>,
    pub(super) images_made: Vec<(ImageKind, View)>,
}

impl Launch {
    pub(super) fn touched(&self) -> Touched {
        let mut t = Touched::default();
        let input = |t: &mut Touched, x: View, image: Option<ImageKind>| match image {
            Some(kind) => t.images_read.push(kind),
            None => t.reads.push(x),
        };
        match self {
            Launch::Row(op) => match op {
                RowOp::Embed { out, .. } => t.writes.push(*out),
                RowOp::Norm { x, out, .. } => {
                    t.reads.push(*x);
                    t.writes.push(*out);
                }
                RowOp::Rope { x, .. } => {
                    t.reads.push(*x);
                    t.writes.push(*x);
                }
                RowOp::SwiGlu { gate, up } => {
                    t.reads.extend([*gate, *up]);
                    t.writes.push(*gate);
                }
                RowOp::Add { x, y } => {
                    t.reads.extend([*x, *y]);
                    t.writes.push(*x);
                }
                RowOp::Route { logits, .. } => t.reads.push(*logits),
                RowOp::Image { x, kind } => {
                    t.reads.push(*x);
                    t.images_made.push((*kind, *x));
                }
            },
            Launch::Norm(n) => n.touch(&mut t),
            Launch::Router(r) => {
                r.norm.touch(&mut t);
                t.writes.push(r.target.out);
            }
            Launch::Heads(h) => {
                t.reads.extend([h.q, h.k, h.v]);
                t.writes.extend([h.q, h.k]);
            }
            Launch::Append { k, v, .. } => t.reads.extend([*k, *v]),
            Launch::Attend(a) => {
                t.reads.push(a.q);
                if let Some(h) = &a.heads {
                    t.reads.extend([h.k, h.v]);
                    t.writes.extend([h.q, h.k]);
                }
                t.writes.push(a.out);
                t.images_made.extend(a.images.kinds().map(|kind| (kind, a.out)));
            }
            Launch::Products { x, targets } => {
                for target in targets {
                    input(&mut t, *x, target.image);
                    t.writes.push(target.out);
                }
            }
            Launch::ProductAdd { x, target, to, own } => {
                input(&mut t, *x, target.image.filter(|_| !own));
                t.images_made.extend(target.image.filter(|_| *own).map(|kind| (kind, *x)));
                t.reads.push(*to);
                t.writes.extend([target.out, *to]);
            }
            Launch::GateUp { x, gate, up } => {
                for target in [gate, up] {
                    input(&mut t, *x, target.image);
                    t.writes.push(target.out);
                }
            }
            Launch::Experts { mixture, summed } => {
                for image in &mixture.images[..2] {
                    input(&mut t, mixture.x, *image);
                }
                if *summed {
                    t.writes.push(mixture.out);
                }
            }
            Launch::AddExperts { to, .. } => {
                t.reads.push(*to);
                t.writes.push(*to);
            }
            Launch::Head { x, image, .. } => input(&mut t, *x, *image),
        }
        t
    }
}

impl Norm {
    fn touch(&self, t: &mut Touched) {
        t.reads.push(self.x);
        if let Some(added) = self.added {
            t.reads.push(added);
            t.writes.push(self.x);
        }
        t.writes.push(self.out);
        t.images_made.extend(self.images.kinds().map(|kind| (kind, self.out)));
    }
}

/// Whether something behind launch `at` of a section reads the floats of `view` before all of them are made again.
pub(super) fn is_read_after(residual: RowId, launches: &[Launch], at: usize, view: View) -> bool {
    for launch in &launches[at + 1..] {
        let touched = launch.touched();
        if touched.reads.iter().any(|&read| overlap(read, view)) {
            return true;
        }
        if touched.writes.iter().any(|&written| covers(written, view)) {
            return false;
        }
    }
    view.row == residual
}

/// Whether the images that a launch reads are those of `x`.
pub(super) fn reads_image_of(launch: &Launch, x: View) -> bool {
    match launch {
        Launch::Products { x: of, .. }
        | Launch::ProductAdd { x: of, .. }
        | Launch::GateUp { x: of, .. }
        | Launch::Head { x: of, .. } => same_span(*of, x),
        Launch::Experts { mixture, .. } => same_span(mixture.x, x),
        _ => false,
    }
}
