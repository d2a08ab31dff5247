//! The steps of a stage as launches: ops that one kernel does at once become one launch; the others stay as they are.
//!
//! Patterns: [what a layer leaves +] norm of the residual + images; norm, rope and append of heads; attention + images;
//! SwiGLU of two products; a product + residual add.
//! Invariants: launches do the ops in program order, so bits are the interpreter's; a row or an image is left unmade only
//! where nothing reads it before it is made again. Does not know: kernels' arguments, memory, batches.

use crate::device::lower::{LayerSteps, Mixture, RowOp, Step, Steps, Target};
use crate::gguf::formats::ImageKind;
use crate::model::program::{Program, RopeId, RowId, StateKind, View, WeightId};

/// The widest head of the kernels for heads.
const HEAD_WIDTH_MAX: usize = 256;

/// Which images are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Images {
    pub(super) a32: bool,
    pub(super) a256: bool,
}

impl Images {
    fn place(&mut self, kind: ImageKind) -> &mut bool {
        match kind {
            ImageKind::A32 => &mut self.a32,
            ImageKind::A256 => &mut self.a256,
        }
    }
}

/// A norm of a whole row with what stands around it.
#[derive(Clone, Debug)]
pub(super) struct Norm {
    pub(super) x: View,
    /// A row that is added to `x`, in place, before.
    pub(super) added: Option<View>,
    pub(super) weight: WeightId,
    pub(super) eps: f32,
    pub(super) out: View,
    /// Whether somebody reads `out` as floats.
    pub(super) floats: bool,
    pub(super) images: Images,
}

/// Norm, rope and append of the heads of one state.
#[derive(Clone, Debug)]
pub(super) struct Heads {
    pub(super) q: View,
    pub(super) k: View,
    pub(super) v: View,
    pub(super) q_norm: Option<WeightId>,
    pub(super) k_norm: Option<WeightId>,
    pub(super) eps: f32,
    pub(super) rope: Option<RopeId>,
    pub(super) state: usize,
}

/// Attention with the images of its output.
#[derive(Clone, Debug)]
pub(super) struct Attend {
    /// What makes its queries, keys and values; nobody else reads what it leaves in `q` and `k`.
    pub(super) heads: Option<Heads>,
    pub(super) q: View,
    pub(super) state: usize,
    pub(super) scale: f32,
    pub(super) out: View,
    pub(super) floats: bool,
    pub(super) images: Images,
}

/// What runs at once.
#[derive(Clone, Debug)]
pub(super) enum Launch {
    /// One op, row by row.
    Row(RowOp),
    Norm(Norm),
    Heads(Heads),
    Append {
        k: View,
        v: View,
        state: usize,
    },
    Attend(Attend),
    Products {
        x: View,
        targets: Vec<Target>,
    },
    /// One product whose result is added to a row. `own`: nothing else makes or reads its image.
    ProductAdd {
        x: View,
        target: Target,
        to: View,
        own: bool,
    },
    /// `out = silu(gate(x)) * up(x)`; each target's `out` is where its product goes where they are made one by one.
    GateUp {
        x: View,
        gate: Target,
        up: Target,
    },
    /// `summed`: into the mixture's `out`; else whatever follows sums.
    Experts {
        mixture: Box<Mixture>,
        summed: bool,
    },
    /// The experts' outputs, summed, added to a row.
    AddExperts {
        mixture: Box<Mixture>,
        to: View,
    },
    Head {
        x: View,
        weight: WeightId,
        image: Option<ImageKind>,
    },
}

/// The launches of a layer.
#[derive(Clone, Debug)]
pub(super) struct LayerLaunches {
    pub(super) layer: usize,
    pub(super) launches: Vec<Launch>,
}

/// A stage's launches, in the shape of its steps.
#[derive(Clone, Debug)]
pub(super) struct Launches {
    pub(super) front: Vec<Launch>,
    pub(super) layers: Vec<LayerLaunches>,
    pub(super) tail: Vec<Launch>,
}

/// Fuses what fits together. What a layer leaves for the residual row is added by the first launch of the next one, where
/// that begins with the norm of this row.
pub(super) fn fuse(program: &Program, steps: &Steps) -> Launches {
    let fusing = Fusing { program, first_state: steps.states.start };
    let layer = |l: &LayerSteps| LayerLaunches { layer: l.layer, launches: fusing.section(&l.steps) };
    let mut layers: Vec<LayerLaunches> = steps.layers.iter().map(layer).collect();
    for at in 1..layers.len() {
        let (before, after) = layers.split_at_mut(at);
        let (before, after) = (&mut before[at - 1].launches, &mut after[0].launches);
        if let (Some(last), Some(Launch::Norm(norm))) = (before.last(), after.first_mut())
            && let Some(added) = added_to(last, norm.x)
            && norm.added.is_none()
        {
            norm.added = Some(added);
            before.pop();
        }
    }
    Launches { front: fusing.section(&steps.front), layers, tail: fusing.section(&steps.tail) }
}

/// What a launch adds to `x`, where it does nothing else.
fn added_to(launch: &Launch, x: View) -> Option<View> {
    match launch {
        Launch::Row(RowOp::Add { x: to, y }) if same_span(*to, x) && y.is_dense() => Some(*y),
        _ => None,
    }
}

/// Whether two views are the same neighbouring values.
fn same_span(a: View, b: View) -> bool {
    let span = |v: View| (v.row, v.offset, v.len());
    a.is_dense() && b.is_dense() && span(a) == span(b)
}

fn overlap(a: View, b: View) -> bool {
    a.row == b.row && a.offset < b.end() && b.offset < a.end()
}

fn covers(a: View, b: View) -> bool {
    a.row == b.row && a.is_dense() && a.offset <= b.offset && b.end() <= a.end()
}

/// What a launch touches.
#[derive(Default)]
struct Touched {
    reads: Vec<View>,
    writes: Vec<View>,
    images_read: Vec<ImageKind>,
    images_made: Vec<(ImageKind, View)>,
}

impl Launch {
    fn touched(&self) -> Touched {
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
            Launch::Norm(n) => {
                t.reads.push(n.x);
                if let Some(added) = n.added {
                    t.reads.push(added);
                    t.writes.push(n.x);
                }
                t.writes.push(n.out);
                t.images_made.extend(n.images.kinds().map(|kind| (kind, n.out)));
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

impl Images {
    pub(super) fn kinds(self) -> impl Iterator<Item = ImageKind> {
        [(self.a32, ImageKind::A32), (self.a256, ImageKind::A256)]
            .into_iter()
            .filter_map(|(is_made, kind)| is_made.then_some(kind))
    }
}

struct Fusing<'a> {
    program: &'a Program,
    first_state: usize,
}

impl Fusing<'_> {
    /// Steps between which and others only the residual row is alive.
    fn section(&self, steps: &[Step]) -> Vec<Launch> {
        let mut launches = self.single(steps);
        self.fuse_heads(&mut launches);
        self.fuse_products(&mut launches);
        fuse_images(&mut launches);
        self.leave_sums(&mut launches);
        self.fuse_adds(&mut launches);
        own_images(&mut launches);
        self.leave_floats(&mut launches);
        self.leave_heads(&mut launches);
        launches
    }

    /// One launch an op, in the forms that may take up others.
    fn single(&self, steps: &[Step]) -> Vec<Launch> {
        let mut launches = Vec::new();
        for step in steps {
            match step {
                Step::Rows(ops) => launches.extend(ops.iter().map(|op| self.row(op))),
                Step::Products { x, targets } => {
                    launches.push(Launch::Products { x: *x, targets: targets.clone() });
                }
                Step::Append { k, v, state } => {
                    launches.push(Launch::Append { k: *k, v: *v, state: *state });
                }
                Step::Attend { q, state, scale, out, .. } => {
                    launches.push(Launch::Attend(Attend {
                        heads: None,
                        q: *q,
                        state: *state,
                        scale: *scale,
                        out: *out,
                        floats: true,
                        images: Images::default(),
                    }));
                }
                Step::Experts(mixture) => {
                    launches.push(Launch::Experts { mixture: mixture.clone(), summed: true });
                }
                Step::Head { x, weight, image } => {
                    launches.push(Launch::Head { x: *x, weight: *weight, image: *image });
                }
            }
        }
        launches
    }

    fn row(&self, op: &RowOp) -> Launch {
        match op {
            // Norms of a whole row into another.
            RowOp::Norm { x, weight, eps, out }
                if x.count == 1
                    && out.count == 1
                    && x.row != out.row
                    && self.program.weight(*weight).cols == x.width =>
            {
                Launch::Norm(Norm {
                    x: *x,
                    added: None,
                    weight: *weight,
                    eps: *eps,
                    out: *out,
                    floats: true,
                    images: Images::default(),
                })
            }
            _ => Launch::Row(op.clone()),
        }
    }

    /// Widths of a key and a value of one of the stage's states.
    fn widths(&self, state: usize) -> Option<(usize, usize)> {
        match self.program.states[self.first_state + state].kind {
            StateKind::Paged { key_width, value_width, .. } => Some((key_width, value_width)),
            StateKind::Fixed { .. } => None,
        }
    }

    /// Norms and ropes of heads, then append.
    fn fuse_heads(&self, launches: &mut Vec<Launch>) {
        let mut at = 0;
        while at < launches.len() {
            if let Some((count, heads)) = self.heads(&launches[at..]) {
                launches.splice(at..at + count, [Launch::Heads(heads)]);
            }
            at += 1;
        }
    }

    /// The launches that begin here and end with an append, if one kernel does them.
    fn heads(&self, launches: &[Launch]) -> Option<(usize, Heads)> {
        let is_of_heads = |l: &&Launch| matches!(l, Launch::Row(RowOp::Norm { .. } | RowOp::Rope { .. }));
        let before = launches.iter().take_while(is_of_heads).count();
        let (Launch::Append { k, v, state }, Launch::Attend(attend)) =
            (launches.get(before)?, launches.get(before + 1)?)
        else {
            return None;
        };
        let (key_width, value_width) = self.widths(*state)?;
        let q = attend.q;
        let shape = [q, *k, *v].iter().all(|view| view.is_dense()) && attend.state == *state;
        let fits = key_width.max(value_width) <= HEAD_WIDTH_MAX && q.width == key_width;
        let as_heads = k.width == key_width && v.width == value_width && k.count == v.count;
        if before == 0 || !shape || !fits || !as_heads {
            return None;
        }
        let mut heads =
            Heads { q, k: *k, v: *v, q_norm: None, k_norm: None, eps: 0.0, rope: None, state: *state };
        let (mut roped, mut eps_seen) = ([false; 2], None);
        for launch in &launches[..before] {
            let Launch::Row(op) = launch else { return None };
            let (RowOp::Norm { x, .. } | RowOp::Rope { x, .. }) = op else { return None };
            let side = [q, *k].iter().position(|view| view == x)?;
            match op {
                RowOp::Norm { weight, eps, out, .. } => {
                    let norm = if side == 0 { &mut heads.q_norm } else { &mut heads.k_norm };
                    let is_shared = self.program.weight(*weight).cols == x.width;
                    let is_first = norm.is_none() && !roped[side];
                    let same_eps = *eps_seen.get_or_insert(*eps) == *eps;
                    if out != x || !is_shared || !is_first || !same_eps {
                        return None;
                    }
                    *norm = Some(*weight);
                    heads.eps = *eps;
                }
                RowOp::Rope { rope, .. } => {
                    if roped[side] || *heads.rope.get_or_insert(*rope) != *rope {
                        return None;
                    }
                    roped[side] = true;
                }
                _ => return None,
            }
        }
        (roped[0] == roped[1]).then_some((before + 1, heads))
    }

    /// Gate and up of one type, one after the other, and their SwiGLU.
    fn fuse_products(&self, launches: &mut Vec<Launch>) {
        let mut at = 0;
        while at + 1 < launches.len() {
            let fused = match (&launches[at], &launches[at + 1]) {
                (Launch::Products { x, targets }, Launch::Row(RowOp::SwiGlu { gate, up }))
                    if targets.len() == 2
                        && same_span(targets[0].out, *gate)
                        && same_span(targets[1].out, *up)
                        && targets.iter().all(|t| t.image.is_some() && t.product.bias.is_none())
                        && self.same_form(&targets[0], &targets[1])
                        && !is_read_after(self.program.residual, launches, at + 1, *up) =>
                {
                    Some(Launch::GateUp { x: *x, gate: targets[0].clone(), up: targets[1].clone() })
                }
                _ => None,
            };
            if let Some(fused) = fused {
                launches.splice(at..at + 2, [fused]);
            }
            at += 1;
        }
    }

    fn same_form(&self, a: &Target, b: &Target) -> bool {
        let form = |t: &Target| {
            let weight = self.program.weight(t.product.weight);
            (weight.ty, weight.rows, weight.cols)
        };
        form(a) == form(b)
    }

    /// Sums of experts that are only added to a row are made where they are added.
    fn leave_sums(&self, launches: &mut [Launch]) {
        for at in 1..launches.len() {
            let (before, after) = launches.split_at(at);
            let (Some(Launch::Experts { mixture, .. }), Launch::Row(RowOp::Add { x, y })) =
                (before.last(), &after[0])
            else {
                continue;
            };
            if same_span(mixture.out, *y)
                && x.is_dense()
                && x.row != y.row
                && !is_read_after(self.program.residual, launches, at, *y)
            {
                let (to, mixture) = (*x, mixture.clone());
                launches[at - 1] = Launch::Experts { mixture: mixture.clone(), summed: false };
                launches[at] = Launch::AddExperts { mixture, to };
            }
        }
    }

    /// Adds join the product before them, or the norm behind them.
    fn fuse_adds(&self, launches: &mut Vec<Launch>) {
        let mut at = 1;
        while at < launches.len() {
            let fused = match (&launches[at - 1], &launches[at]) {
                (Launch::Products { x, targets }, Launch::Row(RowOp::Add { x: to, y }))
                    if targets.len() == 1
                        && targets[0].image.is_some()
                        && same_span(targets[0].out, *y)
                        && to.is_dense()
                        && to.row != y.row
                        && to.row != x.row
                        && !is_read_after(self.program.residual, launches, at, *y) =>
                {
                    Some(Launch::ProductAdd { x: *x, target: targets[0].clone(), to: *to, own: false })
                }
                (before, Launch::Norm(norm)) if norm.added.is_none() => added_to(before, norm.x)
                    .map(|added| Launch::Norm(Norm { added: Some(added), ..norm.clone() })),
                _ => None,
            };
            match fused {
                Some(fused) => drop(launches.splice(at - 1..=at, [fused])),
                None => at += 1,
            }
        }
    }

    /// Heads that only the attention behind them reads are made on its way.
    fn leave_heads(&self, launches: &mut Vec<Launch>) {
        let mut at = 1;
        while at < launches.len() {
            let is_read_again = |view| is_read_after(self.program.residual, launches, at, view);
            let taken = match (&launches[at - 1], &launches[at]) {
                (Launch::Heads(heads), Launch::Attend(attend))
                    if attend.state == heads.state
                        && same_span(attend.q, heads.q)
                        && !is_read_again(heads.q)
                        && !is_read_again(heads.k) =>
                {
                    Some(heads.clone())
                }
                _ => None,
            };
            if let (Launch::Attend(attend), Some(heads)) = (&mut launches[at], taken) {
                attend.heads = Some(heads);
                launches.remove(at - 1);
            }
            at += 1;
        }
    }

    fn leave_floats(&self, launches: &mut [Launch]) {
        for at in 0..launches.len() {
            let out = match &launches[at] {
                Launch::Norm(n) => n.out,
                Launch::Attend(a) => a.out,
                _ => continue,
            };
            let is_read = is_read_after(self.program.residual, launches, at, out);
            match &mut launches[at] {
                Launch::Norm(n) => n.floats = is_read,
                Launch::Attend(a) => a.floats = is_read,
                _ => {}
            }
        }
    }
}

/// Whether something behind launch `at` of a section reads the floats of `view` before all of them are made again.
fn is_read_after(residual: RowId, launches: &[Launch], at: usize, view: View) -> bool {
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

/// Images are made by the launch that makes their row, where the place of that kind is free until then.
fn fuse_images(launches: &mut Vec<Launch>) {
    let mut at = 0;
    while at < launches.len() {
        let Launch::Row(RowOp::Image { x, kind }) = launches[at] else {
            at += 1;
            continue;
        };
        match maker(&launches[..at], x, kind) {
            Some(maker) => {
                let images = match &mut launches[maker] {
                    Launch::Norm(n) => &mut n.images,
                    Launch::Attend(a) => &mut a.images,
                    other => unreachable!("{other:?} makes no images"),
                };
                *images.place(kind) = true;
                launches.remove(at);
            }
            None => at += 1,
        }
    }
}

/// Images that are read once, by the product that adds, become its own.
fn own_images(launches: &mut Vec<Launch>) {
    let mut at = 1;
    while at < launches.len() {
        let (before, rest) = launches.split_at_mut(at);
        let (
            Some(Launch::Row(RowOp::Image { x, kind })),
            Some((Launch::ProductAdd { x: of, target, own, .. }, after)),
        ) = (before.last(), rest.split_first_mut())
        else {
            at += 1;
            continue;
        };
        let is_read_again = after
            .iter()
            .take_while(|l| !l.touched().images_made.iter().any(|(made, _)| made == kind))
            .any(|l| l.touched().images_read.contains(kind));
        if same_span(*x, *of) && target.image == Some(*kind) && !is_read_again {
            *own = true;
            launches.remove(at - 1);
        } else {
            at += 1;
        }
    }
}

/// The launch of these that can make the image of `x` for what follows them.
fn maker(launches: &[Launch], x: View, kind: ImageKind) -> Option<usize> {
    for (at, launch) in launches.iter().enumerate().rev() {
        match launch {
            Launch::Norm(Norm { out, .. }) if same_span(*out, x) => return Some(at),
            Launch::Attend(Attend { out, .. }) if same_span(*out, x) => return Some(at),
            _ => {}
        }
        let touched = launch.touched();
        let is_written = touched.writes.iter().any(|&written| overlap(written, x));
        // The launch may read this very image: then the maker has made it.
        let is_taken = touched.images_made.iter().any(|&(other, of)| other == kind && !same_span(of, x))
            || (touched.images_read.contains(&kind) && !reads_image_of(launch, x));
        if is_written || is_taken {
            return None;
        }
    }
    None
}

/// Whether the images that a launch reads are those of `x`.
fn reads_image_of(launch: &Launch, x: View) -> bool {
    match launch {
        Launch::Products { x: of, .. }
        | Launch::ProductAdd { x: of, .. }
        | Launch::GateUp { x: of, .. }
        | Launch::Head { x: of, .. } => same_span(*of, x),
        Launch::Experts { mixture, .. } => same_span(mixture.x, x),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::device::lower::lower;
    use crate::gguf::{File, TensorType};
    use crate::model::arch;
    use crate::model::facts::{Activations, StageProgram};
    use crate::model::program::{Op, Product};

    fn program(name: &str) -> Program {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name);
        arch::program(&File::open(&path).unwrap()).unwrap()
    }

    /// The launches of all layers and of the tail, one word each: what is made, and of how many products.
    fn shown(program: Program, activations: Activations) -> (Vec<String>, String) {
        let stage = StageProgram { layers: 0..program.layers.len(), program: Arc::new(program) };
        let launches = fuse(&stage.program, &lower(&stage, activations).unwrap());
        let image = |images: Images| -> String { images.kinds().map(|kind| format!("+{kind:?}")).collect() };
        let floats = |made: bool| if made { "+f32" } else { "" };
        let heads = |h: &Heads| {
            let norms = h.q_norm.iter().chain(&h.k_norm).count();
            format!("heads:{norms}{}", if h.rope.is_some() { "+rope" } else { "" })
        };
        let word = |launch: &Launch| match launch {
            Launch::Row(op) => {
                let name = format!("{op:?}");
                name.split([' ', '{']).next().unwrap().to_lowercase()
            }
            Launch::Norm(n) => {
                let add = if n.added.is_some() { "add+" } else { "" };
                format!("{add}norm{}{}", image(n.images), floats(n.floats))
            }
            Launch::Heads(h) => heads(h),
            Launch::Append { .. } => "append".to_owned(),
            Launch::Attend(a) => {
                let heads = a.heads.as_ref().map_or(String::new(), |h| heads(h) + "+");
                format!("{heads}attend{}{}", image(a.images), floats(a.floats))
            }
            Launch::Products { targets, .. } => format!("products:{}", targets.len()),
            Launch::ProductAdd { own, .. } => if *own { "own+product+add" } else { "product+add" }.to_owned(),
            Launch::GateUp { .. } => "gate+up".to_owned(),
            Launch::Experts { summed, .. } => if *summed { "experts+sum" } else { "experts" }.to_owned(),
            Launch::AddExperts { .. } => "sum+add".to_owned(),
            Launch::Head { .. } => "head".to_owned(),
        };
        let words = |launches: &[Launch]| launches.iter().map(word).collect::<Vec<_>>().join(" ");
        let layers = launches.layers.iter().map(|l| words(&l.launches)).collect();
        (layers, words(&launches.tail))
    }

    /// The products of a layer's ops that have `part` in their weights' names.
    fn products<'a>(program: &'a mut Program, layer: usize, part: &str) -> Vec<&'a mut Product> {
        let weights = &program.weights;
        let of = |op: &'a mut Op| match op {
            Op::Linear { product, .. } => Some(product),
            _ => None,
        };
        let named = |p: &&mut Product| weights[p.weight.0].name.contains(part);
        program.layers[layer].ops.iter_mut().filter_map(of).filter(named).collect()
    }

    fn set_type(program: &mut Program, part: &str, ty: TensorType) {
        let mut named = program.weights.iter_mut().filter(|w| w.name.contains(part)).peekable();
        assert!(named.peek().is_some(), "no weight is named {part}");
        named.for_each(|w| w.ty = ty);
    }

    const LLAMA: &str =
        "norm+A256 products:3 heads:0+rope+attend+A256 product+add norm+A256 gate+up own+product+add";

    /// A llama whose matrices are all of one type.
    fn llama() -> Program {
        let mut p = program("rand-llama.gguf");
        for w in p.weights.iter_mut().filter(|w| w.rows > 1) {
            w.ty = TensorType::Q4_K;
        }
        p
    }

    #[test]
    fn a_dense_layer_is_seven_launches() {
        let (layers, tail) = shown(llama(), Activations::Int8);
        assert_eq!(layers, [LLAMA; 4]);
        assert_eq!(tail, "norm+A256 head");
    }

    #[test]
    fn a_mixture_layer_is_nine_launches() {
        let mut p = program("rand-qwen3moe.gguf");
        let experts = p.weights.iter_mut().filter(|w| w.rows > 1 && w.ty.is_quantised());
        experts.for_each(|w| w.ty = TensorType::Q4_K);
        let (layers, tail) = shown(p, Activations::Int8);
        let layer = "norm+A256 products:3 heads:2+rope+attend+A256 product+add \
                     norm+A256+f32 products:1 route experts sum+add";
        assert_eq!(layers, [layer; 4]);
        assert_eq!(tail, "norm+A256 head");
    }

    #[test]
    fn products_of_several_types_get_both_images_from_one_norm() {
        let mut p = llama();
        set_type(&mut p, "attn_v", TensorType::Q8_0);
        set_type(&mut p, "ffn_up", TensorType::Q8_0);
        let (layers, _) = shown(p, Activations::Int8);
        let layer = "norm+A32+A256 products:3 heads:0+rope+attend+A256 product+add \
                     norm+A32+A256 products:2 swiglu own+product+add";
        assert_eq!(layers, [layer; 4]);
    }

    #[test]
    fn float_products_read_rows_and_adds_join_the_next_norm() {
        let (layers, tail) = shown(llama(), Activations::F32);
        let first = "norm+f32 products:3 heads:0+rope+attend+f32 products:1 \
                     add+norm+f32 products:2 swiglu products:1";
        assert_eq!(layers[0], first);
        assert_eq!(layers[1], format!("add+{first}"));
        assert_eq!(layers[3], format!("add+{first} add"), "between layers and tail rows are chosen");
        assert_eq!(tail, "norm+f32 head");
    }

    #[test]
    fn a_bias_is_part_of_its_product_but_not_of_gate_and_up() {
        let mut p = llama();
        let bias = products(&mut p, 1, "attn_q")[0].weight;
        products(&mut p, 1, "attn_q")[0].bias = Some(bias);
        assert_eq!(shown(p, Activations::Int8).0, [LLAMA; 4]);
        let mut p = llama();
        products(&mut p, 2, "ffn_gate")[0].bias = Some(bias);
        let (layers, _) = shown(p, Activations::Int8);
        assert_eq!(layers[1], LLAMA);
        assert_eq!(layers[2], LLAMA.replace("gate+up", "products:2 swiglu"));
    }

    #[test]
    fn heads_of_two_ropes_or_epsilons_are_not_placed_at_once() {
        let mut p = llama();
        p.ropes.push(p.ropes[0].clone());
        let ropes = p.layers[0].ops.iter_mut().filter_map(|op| match op {
            Op::Rope { rope, .. } => Some(rope),
            _ => None,
        });
        *ropes.last().unwrap() = RopeId(1);
        let (layers, _) = shown(p, Activations::Int8);
        assert_eq!(layers[0], LLAMA.replace("heads:0+rope+attend", "rope rope append attend"));
        assert_eq!(layers[1], LLAMA);

        let mut p = program("rand-qwen3moe.gguf");
        let heads = p.layers[0].ops.iter_mut().filter_map(|op| match op {
            Op::Norm { x, eps, .. } if x.count > 1 => Some(eps),
            _ => None,
        });
        *heads.last().unwrap() += 1.0;
        let (layers, _) = shown(p, Activations::Int8);
        assert!(layers[0].contains("norm heads:1+rope"), "{}", layers[0]);
        assert!(layers[1].contains("heads:2+rope"), "{}", layers[1]);
    }

    #[test]
    fn heads_that_are_read_behind_attention_have_a_launch_of_their_own() {
        let mut p = llama();
        let mut ropes = p.layers[0].ops.iter().filter_map(|op| match op {
            Op::Rope { x, .. } => Some(*x),
            _ => None,
        });
        let k = ropes.next_back().unwrap();
        let x = View::span(p.residual, 0, k.len());
        p.layers[0].ops.push(Op::Add { x, y: View::span(k.row, k.offset, k.len()), out: x });
        let (layers, _) = shown(p, Activations::Int8);
        assert_eq!(layers[0], LLAMA.replace("rope+attend", "rope attend") + " add");
        assert_eq!(layers[1], LLAMA);
    }

    #[test]
    fn a_row_that_is_read_again_is_written() {
        // The up row is read by a second add: gate and up stay two products.
        let mut p = llama();
        let up = p.layers[0].ops.iter().find_map(|op| match op {
            Op::SwiGlu { up, .. } => Some(*up),
            _ => None,
        });
        let up = up.unwrap();
        let x = View::span(p.residual, 0, p.rows[p.residual.0].width.min(up.width));
        let y = View::span(up.row, up.offset, x.width);
        p.layers[0].ops.push(Op::Add { x, y, out: x });
        let (layers, _) = shown(p, Activations::Int8);
        assert_eq!(layers[0], LLAMA.replace("gate+up", "products:2 swiglu"));
        assert_eq!(layers[1], format!("add+{LLAMA}"));
    }
}
