//! The vocabulary of a model: operations over named rows, weights and state, as plain data.
//!
//! A [`Program`] says what is computed, never how or where. Each row of a batch runs through it by itself; only
//! `Append` and `Attend` see other rows, through the state. Families (`arch/`) compose these ops; a new op enters
//! only with new mathematics, and never changes the ones here.
//!
//! Invariants, checked by `Program::check`: every id is in range, every view lies inside its row, widths agree,
//! a state belongs to one layer, and between layers only the residual row is alive.
//! Does not know: devices, files, batches, splits.

use crate::gguf::TensorType;

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
        pub struct $name(pub usize);
    };
}

index!(/// A named row: `Program::rows`.
    RowId);
index!(/// A weight: `Program::weights`.
    WeightId);
index!(/// A state declaration: `Program::states`.
    StateDeclId);
index!(/// A router's choice (ids and weights of experts for each row): `Program::choices`.
    ChoiceId);
index!(/// A table of rope angles: `Program::ropes`.
    RopeId);

/// A row of the program: one vector of f32 for every batch row.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct RowDecl {
    /// For people and for error messages.
    pub name: &'static str,
    /// Values.
    pub width: usize,
}

/// Part of a row: `count` pieces of `width` values, `stride` apart, from `offset`. A whole row is one piece; the
/// heads of a projection are `count` pieces; gated attention reads every second piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct View {
    /// Of which row.
    pub row: RowId,
    /// First value.
    pub offset: usize,
    /// Pieces.
    pub count: usize,
    /// Values of a piece.
    pub width: usize,
    /// Values from the start of a piece to the start of the next.
    pub stride: usize,
}

impl View {
    /// `width` values from `offset`, in one piece.
    pub fn span(row: RowId, offset: usize, width: usize) -> View {
        View { row, offset, count: 1, width, stride: width }
    }

    /// `count` neighbouring pieces of `width` values from `offset`.
    pub fn heads(row: RowId, offset: usize, count: usize, width: usize) -> View {
        View { row, offset, count, width, stride: width }
    }

    /// All values.
    pub fn len(&self) -> usize {
        self.count * self.width
    }

    /// True for a view of nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One past the last value touched.
    pub fn end(&self) -> usize {
        self.offset + self.count.saturating_sub(1) * self.stride + self.width
    }

    /// True where the values lie side by side.
    pub fn is_dense(&self) -> bool {
        self.count == 1 || self.stride == self.width
    }
}

/// How a weight is read, which decides how a card keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightUse {
    /// Rows looked up by token id.
    Table,
    /// A matrix of products.
    Matrix,
    /// A matrix per expert.
    Experts,
    /// A table that is the head's matrix as well.
    TiedTable,
    /// A vector of floats, kept as f32 (norms, biases, scales).
    Vector,
}

/// A tensor of the file that the program reads.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct WeightDecl {
    /// Name in the file.
    pub name: String,
    /// Block format in the file.
    pub ty: TensorType,
    /// Values of a row, K of a product.
    pub cols: usize,
    /// Rows of one matrix, outputs of a product.
    pub rows: usize,
    /// Matrices one after another (1 where there are no experts).
    pub experts: usize,
    /// How it is read.
    pub usage: WeightUse,
    /// Of which layer; `None`: embedding, final norm, head.
    pub layer: Option<usize>,
}

impl WeightDecl {
    /// Bytes in the file.
    pub fn file_bytes(&self) -> u64 {
        self.ty.row_bytes(self.cols) as u64 * self.rows as u64 * self.experts as u64
    }
}

/// What a layer remembers of a sequence.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub enum StateKind {
    /// Something for every position, in pages: keys and values of `heads` heads. It rolls back by truncation.
    Paged {
        /// K/V heads.
        heads: usize,
        /// Values of a key of one head.
        key_width: usize,
        /// Values of a value of one head.
        value_width: usize,
    },
    /// Running values without history (delta net, convolutions). They roll back by snapshot only.
    Fixed {
        /// f32 values.
        values: usize,
    },
}

/// A state of one layer.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StateDecl {
    /// Of which layer.
    pub layer: usize,
    /// What is kept.
    pub kind: StateKind,
}

/// A router's result: the chosen experts of each row, in rank order.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ChoiceDecl {
    /// Experts to choose from.
    pub experts: usize,
    /// Chosen for a row.
    pub used: usize,
}

/// Which values of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RopePairing {
    /// (2j, 2j + 1).
    Neighbours,
    /// (j, j + n_rot / 2), NeoX.
    Halves,
}

/// Rope angles. For pair j at position p, with f the divisor of the pair (1 without divisors), in f64 and this order:
/// `theta = p * frequencies[j] / f`, `angle = theta * scale`, and with yarn `angle = angle * (1 - keep[j]) + theta *
/// keep[j]` (spec: arch-llama section 4). Cosine and sine are multiplied by `factor` and rounded once to f32.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct RopeDecl {
    /// `base^(-2j / n_rot)`, one for each rotated pair.
    pub frequencies: Vec<f64>,
    /// 1 / scaling factor.
    pub scale: f64,
    /// Yarn: how much of the unscaled angle pair j keeps, one for each pair; empty without yarn.
    pub keep: Vec<f64>,
    /// Times cosine and sine.
    pub factor: f64,
    /// Where the family divides by frequency factors: an F32 tensor of the file, one for each pair.
    pub divisors: Option<WeightId>,
    /// Which values pair.
    pub pairing: RopePairing,
}

impl RopeDecl {
    /// (cosine, sine) of pair `pair` at `position`; `divisor` is 1 where there are no divisors.
    pub fn cos_sin(&self, pair: usize, position: u32, divisor: f32) -> (f32, f32) {
        let theta = f64::from(position) * self.frequencies[pair];
        let theta = if self.divisors.is_some() { theta / f64::from(divisor) } else { theta };
        let mut angle = theta * self.scale;
        if let Some(keep) = self.keep.get(pair) {
            angle = angle * (1.0 - keep) + theta * keep;
        }
        ((libm::cos(angle) * self.factor) as f32, (libm::sin(angle) * self.factor) as f32)
    }
}

/// A product with a weight matrix, then its companion scale, then its bias.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Product {
    /// The matrix (or the matrices of the experts).
    pub weight: WeightId,
    /// `X.scale`: one factor, or one for each expert.
    pub scale: Option<WeightId>,
    /// `X.bias`, added after the scale.
    pub bias: Option<WeightId>,
}

/// One operation on every row of a batch. The order of each float sum stands in `docs/numerics.md`.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub enum Op {
    /// `out = table[token]`.
    Embed {
        /// {n, V}.
        table: WeightId,
        /// n values.
        out: View,
    },
    /// RMS norm of each piece: `out = (x * (1 / sqrt(mean(x^2) + eps))) * weight`. The weight has the values of one
    /// piece (shared by all pieces) or of all pieces.
    Norm {
        /// Pieces; the mean runs over one piece.
        x: View,
        /// Multipliers.
        weight: WeightId,
        /// Inside the root.
        eps: f32,
        /// As `x`; may be `x`.
        out: View,
    },
    /// `out = product(x)`.
    Linear {
        /// K values.
        x: View,
        /// The matrix with its companions.
        product: Product,
        /// As many values as the matrix has rows.
        out: View,
    },
    /// Rotates each piece in place by the angles of the row's position.
    Rope {
        /// Heads.
        x: View,
        /// Which angles.
        rope: RopeId,
    },
    /// Stores the row's key and value at its position.
    Append {
        /// Key heads.
        k: View,
        /// Value heads.
        v: View,
        /// A paged state.
        state: StateDeclId,
    },
    /// Causal attention of each query head over the stored keys of positions up to the row's own.
    Attend {
        /// Query heads; head h reads K/V head h / (query heads / K/V heads).
        q: View,
        /// A paged state.
        state: StateDeclId,
        /// Times q.k.
        scale: f32,
        /// Pieces of a value's width.
        out: View,
    },
    /// `out = silu(gate) * up`.
    SwiGlu {
        /// Gate values.
        gate: View,
        /// As many.
        up: View,
        /// As many.
        out: View,
    },
    /// `out = x + y`.
    Add {
        /// Left operand.
        x: View,
        /// Right operand.
        y: View,
        /// May be `x`.
        out: View,
    },
    /// Softmax over all experts, the best `used` by (probability descending, index ascending), their weights divided
    /// by `max(sum, 2^-14)`.
    Route {
        /// Router logits, one value an expert.
        logits: View,
        /// Where the choice goes.
        choice: ChoiceId,
    },
    /// `out = sum over the chosen, in rank order, of w * down(silu(gate(x)) * up(x))`.
    Experts {
        /// Input of every expert.
        x: View,
        /// Which experts.
        choice: ChoiceId,
        /// {n, F, E}.
        gate: Product,
        /// {n, F, E}.
        up: Product,
        /// {F, n, E}.
        down: Product,
        /// Inner width F.
        inner_width: usize,
        /// n values.
        out: View,
    },
    /// The vocabulary's logits, for the rows that asked for them; only the last op of the tail.
    Head {
        /// n values.
        x: View,
        /// {n, V}.
        weight: WeightId,
    },
}

/// One layer: ops in order.
#[derive(Clone, Debug, PartialEq, Default, serde::Serialize)]
pub struct LayerProgram {
    /// In program order.
    pub ops: Vec<Op>,
}

/// Sizes that people and the engine ask for.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ModelFacts {
    /// `general.architecture`.
    pub architecture: String,
    /// Rows of the embedding and of the head.
    pub vocab: usize,
    /// The context that the model was trained for.
    pub context_length: usize,
    /// Width of the residual row.
    pub embedding_width: usize,
}

/// A whole model as data.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Program {
    /// Sizes.
    pub facts: ModelFacts,
    /// Named rows.
    pub rows: Vec<RowDecl>,
    /// The row that lives between layers, and travels between cards.
    pub residual: RowId,
    /// Weights.
    pub weights: Vec<WeightDecl>,
    /// States, in layer order.
    pub states: Vec<StateDecl>,
    /// Router choices.
    pub choices: Vec<ChoiceDecl>,
    /// Rope tables.
    pub ropes: Vec<RopeDecl>,
    /// Before the first layer: token to residual.
    pub front: Vec<Op>,
    /// The layers.
    pub layers: Vec<LayerProgram>,
    /// After the last layer: residual to logits.
    pub tail: Vec<Op>,
}

impl Op {
    /// For people and error messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::Norm { .. } => "norm",
            Op::Linear { .. } => "linear",
            Op::Rope { .. } => "rope",
            Op::Append { .. } => "append",
            Op::Attend { .. } => "attend",
            Op::SwiGlu { .. } => "swiglu",
            Op::Add { .. } => "add",
            Op::Route { .. } => "route",
            Op::Experts { .. } => "experts",
            Op::Head { .. } => "head",
        }
    }

    /// The products of this op, with the width of their input.
    pub fn products(&self) -> Vec<Product> {
        match self {
            Op::Linear { product, .. } => vec![product.clone()],
            Op::Experts { gate, up, down, .. } => vec![gate.clone(), up.clone(), down.clone()],
            Op::Head { weight, .. } => vec![Product { weight: *weight, scale: None, bias: None }],
            _ => Vec::new(),
        }
    }

    fn views(&self) -> Vec<View> {
        match self {
            Op::Embed { out, .. } => vec![*out],
            Op::Norm { x, out, .. } | Op::Linear { x, out, .. } | Op::Experts { x, out, .. } => {
                vec![*x, *out]
            }
            Op::Rope { x, .. } | Op::Head { x, .. } => vec![*x],
            Op::Append { k, v, .. } => vec![*k, *v],
            Op::Attend { q, out, .. } => vec![*q, *out],
            Op::SwiGlu { gate, up, out } => vec![*gate, *up, *out],
            Op::Add { x, y, out } => vec![*x, *y, *out],
            Op::Route { logits, .. } => vec![*logits],
        }
    }
}

impl Program {
    /// A weight's declaration.
    pub fn weight(&self, id: WeightId) -> &WeightDecl {
        &self.weights[id.0]
    }

    /// All ops in program order, with the layer they belong to (`None`: front and tail).
    pub fn ops(&self) -> impl Iterator<Item = (Option<usize>, &Op)> {
        let layers =
            self.layers.iter().enumerate().flat_map(|(l, p)| p.ops.iter().map(move |o| (Some(l), o)));
        self.front.iter().map(|o| (None, o)).chain(layers).chain(self.tail.iter().map(|o| (None, o)))
    }

    /// Panics where an invariant of this module does not hold: a family wrote a wrong program.
    pub fn check(&self) {
        for (layer, op) in self.ops() {
            let place = || format!("{} of layer {layer:?}", op.name());
            for v in op.views() {
                let width = self.rows[v.row.0].width;
                assert!(v.end() <= width, "{}: {v:?} ends behind its row of {width} values", place());
                assert!(v.count <= 1 || v.stride >= v.width, "{}: pieces of {v:?} overlap", place());
            }
            let same = |a: usize, b: usize| assert_eq!(a, b, "{}: widths differ", place());
            match op {
                Op::Embed { table, out } => same(self.weight(*table).cols, out.len()),
                Op::Norm { x, weight, out, .. } => {
                    let w = self.weight(*weight).cols;
                    assert!(w == x.width || w == x.len(), "{}: {w} multipliers", place());
                    same(x.len(), out.len());
                    same(x.width, out.width);
                }
                Op::Linear { x, product, out } => {
                    same(self.weight(product.weight).cols, x.len());
                    same(self.weight(product.weight).rows, out.len());
                }
                Op::Rope { x, rope } => {
                    assert!(
                        2 * self.ropes[rope.0].frequencies.len() <= x.width,
                        "{}: rope is wider",
                        place()
                    );
                }
                Op::Append { k, v, state } => match &self.states[state.0].kind {
                    StateKind::Paged { heads, key_width, value_width } => {
                        assert_eq!(Some(self.states[state.0].layer), layer, "{}: foreign state", place());
                        same(k.len(), heads * key_width);
                        same(v.len(), heads * value_width);
                    }
                    StateKind::Fixed { .. } => panic!("{}: the state is not paged", place()),
                },
                Op::Attend { q, state, out, .. } => match &self.states[state.0].kind {
                    StateKind::Paged { heads, key_width, value_width } => {
                        same(q.width, *key_width);
                        same(out.width, *value_width);
                        same(q.count, out.count);
                        same(q.count % heads, 0);
                    }
                    StateKind::Fixed { .. } => panic!("{}: the state is not paged", place()),
                },
                Op::SwiGlu { gate, up, out } => {
                    same(gate.len(), up.len());
                    same(gate.len(), out.len());
                }
                Op::Add { x, y, out } => {
                    same(x.len(), y.len());
                    same(x.len(), out.len());
                }
                Op::Route { logits, choice } => same(logits.len(), self.choices[choice.0].experts),
                Op::Experts { x, choice, gate, up, down, inner_width, out } => {
                    same(self.weight(gate.weight).cols, x.len());
                    same(self.weight(gate.weight).rows, *inner_width);
                    same(self.weight(up.weight).rows, *inner_width);
                    same(self.weight(down.weight).cols, *inner_width);
                    same(self.weight(down.weight).rows, out.len());
                    same(self.weight(gate.weight).experts, self.choices[choice.0].experts);
                }
                Op::Head { x, weight } => {
                    same(self.weight(*weight).cols, x.len());
                    same(self.weight(*weight).rows, self.facts.vocab);
                }
            }
        }
    }
}
