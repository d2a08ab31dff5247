//! Writes a program down while reading a file's metadata and tensor directory.
//!
//! Invariants: every weight that is declared exists in the file with the dimensions declared; a finished program
//! has passed [`Program::check`]. Does not know: what a family computes.

use std::collections::HashSet;

use crate::gguf::{File, TensorInfo};
use crate::model::ModelError;
use crate::model::program::{
    ChoiceDecl, ChoiceId, LayerProgram, ModelFacts, Op, Product, Program, RopeDecl, RopeId, RopePairing,
    RowDecl, RowId, StateDecl, StateDeclId, StateKind, WeightDecl, WeightId, WeightUse,
};

/// Bounds of metadata numbers (spec: gguf section 5).
const LAYERS_MAX: usize = 1024;
const EXPERTS_MAX: usize = 65_536;
const HEADS_MAX: usize = 65_536;
const WIDTH_MAX: usize = 1 << 20;

/// A program under construction.
pub(super) struct Writer<'f> {
    file: &'f File,
    used: HashSet<String>,
    program: Program,
}

impl<'f> Writer<'f> {
    /// An empty program over `file`.
    pub(super) fn new(file: &'f File) -> Writer<'f> {
        let facts = ModelFacts {
            architecture: file.architecture().to_owned(),
            vocab: 0,
            context_length: 0,
            embedding_width: 0,
        };
        let program = Program {
            facts,
            rows: Vec::new(),
            residual: RowId(0),
            weights: Vec::new(),
            states: Vec::new(),
            choices: Vec::new(),
            ropes: Vec::new(),
            front: Vec::new(),
            layers: Vec::new(),
            tail: Vec::new(),
        };
        Writer { file, used: HashSet::new(), program }
    }

    /// `{arch}.{key}`.
    pub(super) fn full_key(&self, key: &str) -> String {
        format!("{}.{key}", self.file.architecture())
    }

    fn key_error(&self, key: &str, what: impl Into<String>) -> ModelError {
        ModelError::Key { key: self.full_key(key), what: what.into() }
    }

    fn missing_key(&self, key: &str) -> ModelError {
        ModelError::MissingKey { key: self.full_key(key), architecture: self.file.architecture().to_owned() }
    }

    /// An optional count or size.
    pub(super) fn number(&self, key: &str) -> Result<Option<usize>, ModelError> {
        Ok(self.file.metadata().u32(&self.full_key(key))?.map(|v| v as usize))
    }

    /// A required number in `1..=max`.
    pub(super) fn positive(
        &self,
        key: &str,
        default: Option<usize>,
        max: usize,
    ) -> Result<usize, ModelError> {
        let v = self.number(key)?.or(default).ok_or_else(|| self.missing_key(key))?;
        if v == 0 || v > max {
            return Err(self.key_error(key, format!("{v} is outside 1..={max}; the file is damaged")));
        }
        Ok(v)
    }

    /// One number, or one for each layer; always `layers` numbers in `1..=max`.
    pub(super) fn per_layer(
        &self,
        key: &str,
        layers: usize,
        default: Option<&[usize]>,
        max: usize,
    ) -> Result<Vec<usize>, ModelError> {
        let list: Vec<usize> = match (self.file.metadata().u32s(&self.full_key(key))?, default) {
            (Some(v), _) => v.iter().map(|&v| v as usize).collect(),
            (None, Some(d)) => d.to_vec(),
            (None, None) => return Err(self.missing_key(key)),
        };
        let list = if list.len() == 1 { vec![list[0]; layers] } else { list };
        if list.len() != layers {
            return Err(self.key_error(key, format!("{} values for {layers} layers", list.len())));
        }
        match list.iter().find(|&&v| v == 0 || v > max) {
            Some(v) => Err(self.key_error(key, format!("{v} is outside 1..={max}; the file is damaged"))),
            None => Ok(list),
        }
    }

    /// An optional float.
    pub(super) fn float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.file.metadata().f32(&self.full_key(key))?)
    }

    /// The epsilon of all norms.
    pub(super) fn epsilon(&self) -> Result<f32, ModelError> {
        let key = "attention.layer_norm_rms_epsilon";
        let eps = self.float(key)?.ok_or_else(|| self.missing_key(key))?;
        if eps.is_finite() && eps >= 0.0 {
            Ok(eps)
        } else {
            Err(self.key_error(key, format!("{eps} is no epsilon; the file is damaged")))
        }
    }

    /// Reads the sizes that every family has.
    pub(super) fn sizes(&mut self) -> Result<Sizes, ModelError> {
        let layers = self.positive("block_count", None, LAYERS_MAX)?;
        let width = self.positive("embedding_length", None, WIDTH_MAX)?;
        let context = self.positive("context_length", None, u32::MAX as usize)?;
        let heads = self.per_layer("attention.head_count", layers, None, HEADS_MAX)?;
        let kv_heads = self.per_layer("attention.head_count_kv", layers, Some(&heads), HEADS_MAX)?;
        for (l, (q, kv)) in heads.iter().zip(&kv_heads).enumerate() {
            if q % kv != 0 {
                let what = format!("{kv} K/V heads do not divide the {q} query heads of layer {l}");
                return Err(self.key_error("attention.head_count_kv", what));
            }
        }
        let head_width = self.positive("attention.key_length", Some(width / heads[0]), WIDTH_MAX)?;
        let value_width = self.positive("attention.value_length", Some(width / heads[0]), WIDTH_MAX)?;
        if value_width != head_width {
            let what = format!("{value_width}, but attention.key_length is {head_width}; they must be equal");
            return Err(self.key_error("attention.value_length", what));
        }
        self.program.facts.context_length = context;
        self.program.facts.embedding_width = width;
        Ok(Sizes { layers, width, heads, kv_heads, head_width, epsilon: self.epsilon()? })
    }

    /// Expert count and experts used; `None` where the file has no experts.
    pub(super) fn experts(&self) -> Result<Option<(usize, usize)>, ModelError> {
        let (count, used) = (self.number("expert_count")?.unwrap_or(0), self.number("expert_used_count")?);
        if count == 0 {
            return Ok(None);
        }
        if count > EXPERTS_MAX {
            return Err(self.key_error("expert_count", format!("{count} is outside 1..={EXPERTS_MAX}")));
        }
        match used.unwrap_or(0) {
            used if (1..=count).contains(&used) => Ok(Some((count, used))),
            used => Err(self.key_error("expert_used_count", format!("{used} is outside 1..={count}"))),
        }
    }

    /// The rope table of the family (spec: arch-llama section 4).
    pub(super) fn rope(&mut self, head_width: usize, pairing: RopePairing) -> Result<RopeId, ModelError> {
        let rotated = self.positive("rope.dimension_count", Some(head_width), WIDTH_MAX)?;
        if rotated != head_width || rotated % 2 != 0 {
            let what =
                format!("{rotated} of {head_width} values rotate; this family needs all, an even number");
            return Err(self.key_error("rope.dimension_count", what));
        }
        let base = f64::from(self.float("rope.freq_base")?.unwrap_or(10_000.0));
        if !(base.is_finite() && base > 1.0) {
            return Err(self.key_error("rope.freq_base", format!("{base} is no base of frequencies")));
        }
        let kind_key = self.full_key("rope.scaling.type");
        let kind = self.file.metadata().str(&kind_key)?.unwrap_or("linear");
        let given = self.float("rope.scaling.factor")?.filter(|f| *f != 0.0);
        let factor =
            f64::from(given.or(self.float("rope.scale_linear")?).filter(|f| *f != 0.0).unwrap_or(1.0));
        if !(factor.is_finite() && factor > 0.0) {
            return Err(self.key_error("rope.scaling.factor", format!("{factor} is no scaling factor")));
        }
        let magnitude = f64::from(self.float("rope.scaling.attn_factor")?.unwrap_or(1.0));
        let pairs = rotated / 2;
        let (scale, keep, magnitude) = match kind {
            "none" => (1.0, Vec::new(), magnitude),
            "linear" => (1.0 / factor, Vec::new(), magnitude),
            "yarn" => {
                let trained = self.number("rope.scaling.original_context_length")?;
                let trained = trained.unwrap_or(self.program.facts.context_length) as f64;
                let more = if factor > 1.0 { 1.0 + 0.1 * libm::log(factor) } else { 1.0 };
                (1.0 / factor, yarn_keep(rotated, base, trained), magnitude * more)
            }
            other => {
                let what = format!("`{other}` is not supported; supported are none, linear, yarn");
                return Err(self.key_error("rope.scaling.type", what));
            }
        };
        let divisors = match self.file.tensor("rope_freqs.weight") {
            Some(_) => Some(self.vector("rope_freqs.weight", pairs, None)?),
            None => None,
        };
        let frequencies = (0..pairs).map(|j| libm::pow(base, -2.0 * j as f64 / rotated as f64)).collect();
        self.program.ropes.push(RopeDecl { frequencies, scale, keep, factor: magnitude, divisors, pairing });
        Ok(RopeId(self.program.ropes.len() - 1))
    }

    /// Declares a row.
    pub(super) fn row(&mut self, name: &'static str, width: usize) -> RowId {
        self.program.rows.push(RowDecl { name, width });
        RowId(self.program.rows.len() - 1)
    }

    /// Declares a router's choice.
    pub(super) fn choice(&mut self, experts: usize, used: usize) -> ChoiceId {
        self.program.choices.push(ChoiceDecl { experts, used });
        ChoiceId(self.program.choices.len() - 1)
    }

    /// Declares a state.
    pub(super) fn state(&mut self, layer: usize, kind: StateKind) -> StateDeclId {
        self.program.states.push(StateDecl { layer, kind });
        StateDeclId(self.program.states.len() - 1)
    }

    /// True where the file has the tensor.
    pub(super) fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    fn tensor(&mut self, name: &str) -> Result<&'f TensorInfo, ModelError> {
        self.used.insert(name.to_owned());
        self.file.tensor(name).ok_or_else(|| ModelError::MissingTensor {
            name: name.to_owned(),
            architecture: self.file.architecture().to_owned(),
        })
    }

    fn declare(&mut self, decl: WeightDecl) -> WeightId {
        self.program.weights.push(decl);
        WeightId(self.program.weights.len() - 1)
    }

    /// The embedding table; its rows are the vocabulary.
    pub(super) fn table(&mut self, name: &str, cols: usize) -> Result<WeightId, ModelError> {
        let t = self.tensor(name)?;
        let rows = t.dims[1] as usize;
        self.program.facts.vocab = rows;
        self.matrix_of(name, [cols, rows, 1], WeightUse::Table, None)
    }

    /// The head: `output.weight`, or the embedding table where the file has none.
    pub(super) fn head(&mut self, cols: usize) -> Result<WeightId, ModelError> {
        if self.has("output.weight") {
            return self.matrix("output.weight", cols, self.program.facts.vocab, None);
        }
        let table = self.program.weights.iter().position(|w| w.usage == WeightUse::Table);
        let table = table.expect("invariant: the front declares the table before the tail asks for the head");
        self.program.weights[table].usage = WeightUse::TiedTable;
        Ok(WeightId(table))
    }

    /// A matrix of `rows` outputs.
    pub(super) fn matrix(
        &mut self,
        name: &str,
        cols: usize,
        rows: usize,
        layer: Option<usize>,
    ) -> Result<WeightId, ModelError> {
        self.matrix_of(name, [cols, rows, 1], WeightUse::Matrix, layer)
    }

    fn matrix_of(
        &mut self,
        name: &str,
        [cols, rows, experts]: [usize; 3],
        usage: WeightUse,
        layer: Option<usize>,
    ) -> Result<WeightId, ModelError> {
        let t = self.tensor(name)?;
        check_dims(t, &[cols as u64, rows as u64, experts as u64])?;
        if !(t.ty.is_float() || t.ty.is_quantised()) {
            return Err(ModelError::Type {
                name: name.to_owned(),
                ty: t.ty,
                place: "as a matrix",
                supported: "F32, F16, BF16 and the block types",
            });
        }
        Ok(self.declare(WeightDecl { name: name.to_owned(), ty: t.ty, cols, rows, experts, usage, layer }))
    }

    /// A vector of floats.
    pub(super) fn vector(
        &mut self,
        name: &str,
        width: usize,
        layer: Option<usize>,
    ) -> Result<WeightId, ModelError> {
        let t = self.tensor(name)?;
        check_dims(t, &[width as u64, 1, 1])?;
        if !t.ty.is_float() {
            return Err(ModelError::Type {
                name: name.to_owned(),
                ty: t.ty,
                place: "as a vector",
                supported: "F32, F16, BF16",
            });
        }
        let (name, ty, usage) = (name.to_owned(), t.ty, WeightUse::Vector);
        Ok(self.declare(WeightDecl { name, ty, cols: width, rows: 1, experts: 1, usage, layer }))
    }

    /// A product with `{base}.weight`, its companion `{base}.scale` and its `{base}.bias` where the file has them.
    pub(super) fn product(
        &mut self,
        base: &str,
        cols: usize,
        rows: usize,
        layer: usize,
    ) -> Result<Product, ModelError> {
        let weight = self.matrix(&format!("{base}.weight"), cols, rows, Some(layer))?;
        let scale = self.companion(&format!("{base}.scale"), 1, layer)?;
        let bias_name = format!("{base}.bias");
        let bias =
            if self.has(&bias_name) { Some(self.vector(&bias_name, rows, Some(layer))?) } else { None };
        Ok(Product { weight, scale, bias })
    }

    /// The products of all experts with `{base}.weight` {cols, rows, experts}.
    pub(super) fn expert_product(
        &mut self,
        base: &str,
        [cols, rows, experts]: [usize; 3],
        layer: usize,
    ) -> Result<Product, ModelError> {
        let name = format!("{base}.weight");
        let weight = self.matrix_of(&name, [cols, rows, experts], WeightUse::Experts, Some(layer))?;
        let scale = self.companion(&format!("{base}.scale"), experts, layer)?;
        Ok(Product { weight, scale, bias: None })
    }

    /// A companion scale of 1 or `most` values (spec: gguf section 8).
    fn companion(&mut self, name: &str, most: usize, layer: usize) -> Result<Option<WeightId>, ModelError> {
        match self.file.tensor(name).map(|t| t.dims[0] as usize) {
            None => Ok(None),
            Some(1) => self.vector(name, 1, Some(layer)).map(Some),
            Some(_) => self.vector(name, most, Some(layer)).map(Some),
        }
    }

    /// Ops before the first layer.
    pub(super) fn front(&mut self, residual: RowId, ops: Vec<Op>) {
        self.program.residual = residual;
        self.program.front = ops;
    }

    /// The next layer.
    pub(super) fn layer(&mut self, ops: Vec<Op>) {
        self.program.layers.push(LayerProgram { ops });
    }

    /// Ops behind the last layer; ends the program. Tensors that nothing reads are reported in the log.
    pub(super) fn finish(mut self, tail: Vec<Op>) -> Result<Program, ModelError> {
        self.program.tail = tail;
        let unread = |t: &&TensorInfo| !self.used.contains(&t.name);
        let extra: Vec<&str> = self.file.tensors().iter().filter(unread).map(|t| t.name.as_str()).collect();
        if let Some(first) = extra.first() {
            tracing::warn!(
                count = extra.len(),
                "tensors that `{}` does not read are left out, {first} the first",
                self.program.facts.architecture
            );
        }
        self.program.check();
        Ok(self.program)
    }
}

/// Sizes that every family has.
pub(super) struct Sizes {
    /// L.
    pub(super) layers: usize,
    /// n.
    pub(super) width: usize,
    /// Query heads of each layer.
    pub(super) heads: Vec<usize>,
    /// K/V heads of each layer.
    pub(super) kv_heads: Vec<usize>,
    /// D.
    pub(super) head_width: usize,
    /// eps.
    pub(super) epsilon: f32,
}

/// Yarn: the share of the unscaled angle that each pair keeps (1 fast, 0 slow dimensions).
fn yarn_keep(rotated: usize, base: f64, trained: f64) -> Vec<f64> {
    let n = rotated as f64;
    let dim =
        |beta: f64| n * libm::log(trained / (beta * 2.0 * std::f64::consts::PI)) / (2.0 * libm::log(base));
    let low = dim(32.0).floor().max(0.0);
    let high = dim(1.0).ceil().min(n - 1.0);
    let width = (high - low).max(0.001);
    (0..rotated / 2).map(|j| 1.0 - ((j as f64 - low) / width).clamp(0.0, 1.0)).collect()
}

fn check_dims(t: &TensorInfo, expected: &[u64; 3]) -> Result<(), ModelError> {
    if t.dims[..3] == expected[..] && t.dims[3] == 1 {
        return Ok(());
    }
    let show = |d: &[u64]| {
        let n = d.iter().rposition(|&v| v != 1).map_or(1, |i| i + 1);
        format!("{{{}}}", d[..n].iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
    };
    Err(ModelError::Shape { name: t.name.clone(), found: show(&t.dims), expected: show(expected) })
}
