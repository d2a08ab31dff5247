//! Lowering: a stage's ops become steps, each a piece of work that a whole card shares.
//!
//! Fusions: neighbouring ops that touch one row only (embed, add, norm, rope, SwiGLU, routing and the 8-bit image of
//! a product's input) become one [`Step::Rows`], so that a row may pass through them in one thread's cache; products
//! of one input become one [`Step::Products`]. Invariant: steps do the ops in program order, so bits are the interpreter's.
//! Does not know: memory, threads, batches.

use std::ops::Range;

use crate::gguf::formats::ImageKind;
use crate::model::facts::{Activations, StageProgram};
use crate::model::footprint::image_of;
use crate::model::program::{ChoiceId, Op, Product, Program, RopeId, StateDeclId, View, WeightId};

/// Work on one row that needs no other row; the fields are those of the [`Op`] of the same name.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the fields are documented at `Op`")]
pub enum RowOp {
    /// See [`Op::Embed`].
    Embed { table: WeightId, out: View },
    /// See [`Op::Norm`].
    Norm { x: View, weight: WeightId, eps: f32, out: View },
    /// See [`Op::Rope`].
    Rope { x: View, rope: RopeId },
    /// See [`Op::SwiGlu`]; `out` is `gate`.
    SwiGlu { gate: View, up: View },
    /// See [`Op::Add`]; `out` is `x`.
    Add { x: View, y: View },
    /// See [`Op::Route`].
    Route { logits: View, choice: ChoiceId },
    /// The 8-bit image of a product's input.
    Image { x: View, kind: ImageKind },
}

/// A product of a step, and where its result goes.
#[derive(Clone, Debug)]
pub struct Target {
    /// Matrix, scale, bias.
    pub product: Product,
    /// Which image it reads; `None`: the row itself.
    pub image: Option<ImageKind>,
    /// A dense span.
    pub out: View,
}

/// The experts of a layer.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// Input.
    pub x: View,
    /// Which experts.
    pub choice: ChoiceId,
    /// Gate, up, down.
    pub products: [Product; 3],
    /// What each reads.
    pub images: [Option<ImageKind>; 3],
    /// F.
    pub inner_width: usize,
    /// Output.
    pub out: View,
}

/// Work between two barriers (the experts: a few).
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the fields are documented at `Op`")]
pub enum Step {
    /// Row by row.
    Rows(Vec<RowOp>),
    /// Products of one input.
    Products { x: View, targets: Vec<Target> },
    /// Stores keys and values; the state counts among the stage's.
    Append { k: View, v: View, state: usize },
    /// Attention.
    Attend { q: View, state: usize, heads: usize, scale: f32, out: View },
    /// The chosen experts.
    Experts(Box<Mixture>),
    /// Logits of the rows that want them.
    Head { x: View, weight: WeightId, image: Option<ImageKind> },
}

/// The steps of a layer.
#[derive(Clone, Debug)]
pub struct LayerSteps {
    /// Which; for error messages.
    pub layer: usize,
    /// In order.
    pub steps: Vec<Step>,
}

/// A stage's steps.
#[derive(Clone, Debug)]
pub struct Steps {
    /// Token to residual; empty where the stage does not embed.
    pub front: Vec<Step>,
    /// The stage's layers.
    pub layers: Vec<LayerSteps>,
    /// Residual to logits; empty where the stage has no head.
    pub tail: Vec<Step>,
    /// The program's states that the stage keeps, in order.
    pub states: Range<usize>,
}

/// Lowers a stage. `Err` names an op that has a form no step computes.
pub fn lower(stage: &StageProgram, activations: Activations) -> Result<Steps, String> {
    let program = &*stage.program;
    let first_state = program.states.iter().take_while(|s| s.layer < stage.layers.start).count();
    let own_states = program.states.iter().filter(|s| stage.layers.contains(&s.layer)).count();
    let lowering = Lowering { program, activations, first_state };
    let layers = stage.layers.clone().map(|layer| {
        let steps = lowering.steps(&program.layers[layer].ops)?;
        Ok(LayerSteps { layer, steps })
    });
    Ok(Steps {
        front: if stage.embeds() { lowering.steps(&program.front)? } else { Vec::new() },
        layers: layers.collect::<Result<_, String>>()?,
        tail: if stage.heads() { lowering.steps(&program.tail)? } else { Vec::new() },
        states: first_state..first_state + own_states,
    })
}

struct Lowering<'a> {
    program: &'a Program,
    activations: Activations,
    first_state: usize,
}

impl Lowering<'_> {
    fn steps(&self, ops: &[Op]) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        for op in ops {
            self.add(op, &mut steps)?;
        }
        Ok(steps)
    }

    fn image(&self, p: &Product) -> Option<ImageKind> {
        image_of(self.program.weight(p.weight).ty, self.activations)
    }

    fn add(&self, op: &Op, steps: &mut Vec<Step>) -> Result<(), String> {
        let same = |a: &View, b: &View, what: &str| {
            if a == b { Ok(()) } else { Err(format!("{what} must work in place, not from {a:?} to {b:?}")) }
        };
        match op {
            Op::Embed { table, out } => row_op(steps, RowOp::Embed { table: *table, out: *out }),
            Op::Norm { x, weight, eps, out } => {
                row_op(steps, RowOp::Norm { x: *x, weight: *weight, eps: *eps, out: *out });
            }
            Op::Rope { x, rope } => row_op(steps, RowOp::Rope { x: *x, rope: *rope }),
            Op::SwiGlu { gate, up, out } => {
                same(gate, out, "swiglu")?;
                row_op(steps, RowOp::SwiGlu { gate: *gate, up: *up });
            }
            Op::Add { x, y, out } => {
                same(x, out, "add")?;
                row_op(steps, RowOp::Add { x: *x, y: *y });
            }
            Op::Route { logits, choice } => row_op(steps, RowOp::Route { logits: *logits, choice: *choice }),
            Op::Append { k, v, state } => {
                steps.push(Step::Append { k: *k, v: *v, state: self.own_state(*state) });
            }
            Op::Attend { q, state, scale, out } => {
                let heads = match self.program.states[state.0].kind {
                    crate::model::program::StateKind::Paged { heads, .. } => heads,
                    crate::model::program::StateKind::Fixed { .. } => {
                        return Err("attend: no pages".to_owned());
                    }
                };
                let state = self.own_state(*state);
                steps.push(Step::Attend { q: *q, state, heads, scale: *scale, out: *out });
            }
            Op::Linear { x, product, out } => self.linear(steps, *x, product, *out)?,
            Op::Experts { x, choice, gate, up, down, inner_width, out } => {
                let images = [gate, up, down].map(|p| self.image(p));
                for kind in [images[0], images[1]].into_iter().flatten() {
                    image_op(steps, *x, kind);
                }
                steps.push(Step::Experts(Box::new(Mixture {
                    x: *x,
                    choice: *choice,
                    products: [gate.clone(), up.clone(), down.clone()],
                    images,
                    inner_width: *inner_width,
                    out: *out,
                })));
            }
            Op::Head { x, weight } => {
                let image = self.image(&Product { weight: *weight, scale: None, bias: None });
                if let Some(kind) = image {
                    image_op(steps, *x, kind);
                }
                steps.push(Step::Head { x: *x, weight: *weight, image });
            }
        }
        Ok(())
    }

    fn own_state(&self, state: StateDeclId) -> usize {
        state.0 - self.first_state
    }

    fn linear(&self, steps: &mut Vec<Step>, x: View, product: &Product, out: View) -> Result<(), String> {
        if x.row == out.row || !x.is_dense() || !out.is_dense() {
            return Err(format!("a product needs dense spans of two rows, not {x:?} and {out:?}"));
        }
        let image = self.image(product);
        let target = Target { product: product.clone(), image, out };
        if let Some(Step::Products { x: same, targets }) = steps.last_mut() {
            let has_image = image.is_none() || targets.iter().any(|t| t.image == image);
            if *same == x && has_image {
                targets.push(target);
                return Ok(());
            }
            if *same == x {
                // The second kind of image joins the rows before the products of this input.
                let place = steps.len() - 1;
                let kind = image.expect("invariant: a product without an image has joined");
                match place.checked_sub(1).map(|before| &mut steps[before]) {
                    Some(Step::Rows(ops)) => ops.push(RowOp::Image { x, kind }),
                    _ => steps.insert(place, Step::Rows(vec![RowOp::Image { x, kind }])),
                }
                if let Some(Step::Products { targets, .. }) = steps.last_mut() {
                    targets.push(target);
                }
                return Ok(());
            }
        }
        if let Some(kind) = image {
            image_op(steps, x, kind);
        }
        steps.push(Step::Products { x, targets: vec![target] });
        Ok(())
    }
}

fn row_op(steps: &mut Vec<Step>, op: RowOp) {
    match steps.last_mut() {
        Some(Step::Rows(ops)) => ops.push(op),
        _ => steps.push(Step::Rows(vec![op])),
    }
}

/// Adds an image unless the row steps before have just made it.
fn image_op(steps: &mut Vec<Step>, x: View, kind: ImageKind) {
    let made = |op: &RowOp| matches!(op, RowOp::Image { x: y, kind: k } if *y == x && *k == kind);
    if let Some(Step::Rows(ops)) = steps.last()
        && ops.last().is_some_and(made)
    {
        return;
    }
    row_op(steps, RowOp::Image { x, kind });
}
