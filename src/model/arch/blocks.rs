//! Pieces that families share: attention, the dense feed-forward part, the mixture of experts, front and tail.
//!
//! Invariant: each piece appends ops to a layer and leaves its result in the residual row.
//! Source: spec arch-llama sections 3 and 5, arch-qwen3moe section 3.

use super::writer::{Sizes, Writer};
use crate::model::ModelError;
use crate::model::program::{ChoiceId, Op, Product, Program, RopeId, RowId, StateKind, View};

/// Rows that every layer uses.
pub(super) struct Rows {
    /// n values, alive between layers.
    pub(super) residual: RowId,
    normed: RowId,
    qkv: RowId,
    attended: RowId,
    delta: RowId,
    width: usize,
}

impl Rows {
    /// Declares them.
    pub(super) fn declare(w: &mut Writer<'_>, s: &Sizes) -> Rows {
        let heads_max = (0..s.layers).map(|l| s.heads[l] + 2 * s.kv_heads[l]).max().unwrap_or(0);
        let query_max = s.heads.iter().max().copied().unwrap_or(0);
        Rows {
            residual: w.row("residual", s.width),
            normed: w.row("normed", s.width),
            qkv: w.row("qkv", heads_max * s.head_width),
            attended: w.row("attended", query_max * s.head_width),
            delta: w.row("delta", s.width),
            width: s.width,
        }
    }

    fn whole(&self, row: RowId) -> View {
        View::span(row, 0, self.width)
    }
}

/// The embedding: token to residual.
pub(super) fn front(w: &mut Writer<'_>, rows: &Rows) -> Result<(), ModelError> {
    let table = w.table("token_embd.weight", rows.width)?;
    w.front(rows.residual, vec![Op::Embed { table, out: rows.whole(rows.residual) }]);
    Ok(())
}

/// Final norm and head; without `output.weight` the head is the embedding table.
pub(super) fn tail(mut w: Writer<'_>, rows: &Rows, eps: f32) -> Result<Program, ModelError> {
    let weight = w.vector("output_norm.weight", rows.width, None)?;
    let head = w.head(rows.width)?;
    let (x, out) = (rows.whole(rows.residual), rows.whole(rows.normed));
    w.finish(vec![Op::Norm { x, weight, eps, out }, Op::Head { x: out, weight: head }])
}

/// How a family's attention differs.
pub(super) struct AttentionForm {
    /// Rope table.
    pub(super) rope: RopeId,
    /// Norms of each query and key head before rope.
    pub(super) head_norms: bool,
}

/// `x = x + Wo attention(norm(x))`.
pub(super) fn attention(
    w: &mut Writer<'_>,
    ops: &mut Vec<Op>,
    rows: &Rows,
    s: &Sizes,
    layer: usize,
    form: &AttentionForm,
) -> Result<(), ModelError> {
    let (hq, hkv, d) = (s.heads[layer], s.kv_heads[layer], s.head_width);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let (x, h) = (rows.whole(rows.residual), rows.whole(rows.normed));
    let weight = w.vector(&name("attn_norm.weight"), s.width, Some(layer))?;
    ops.push(Op::Norm { x, weight, eps: s.epsilon, out: h });

    let q = View::heads(rows.qkv, 0, hq, d);
    let k = View::heads(rows.qkv, hq * d, hkv, d);
    let v = View::heads(rows.qkv, (hq + hkv) * d, hkv, d);
    if w.has(&name("attn_qkv.weight")) {
        let product = w.product(&name("attn_qkv"), s.width, (hq + 2 * hkv) * d, layer)?;
        ops.push(Op::Linear { x: h, product, out: View::span(rows.qkv, 0, (hq + 2 * hkv) * d) });
    } else {
        for (part, out) in [("attn_q", q), ("attn_k", k), ("attn_v", v)] {
            let product = w.product(&name(part), s.width, out.len(), layer)?;
            ops.push(Op::Linear { x: h, product, out: View::span(out.row, out.offset, out.len()) });
        }
    }
    if form.head_norms {
        for (part, x) in [("attn_q_norm.weight", q), ("attn_k_norm.weight", k)] {
            let weight = w.vector(&name(part), d, Some(layer))?;
            ops.push(Op::Norm { x, weight, eps: s.epsilon, out: x });
        }
    }
    ops.push(Op::Rope { x: q, rope: form.rope });
    ops.push(Op::Rope { x: k, rope: form.rope });
    let state = w.state(layer, StateKind::Paged { heads: hkv, key_width: d, value_width: d });
    ops.push(Op::Append { k, v, state });
    let attended = View::heads(rows.attended, 0, hq, d);
    let scale = (1.0 / (d as f64).sqrt()) as f32;
    ops.push(Op::Attend { q, state, scale, out: attended });
    let product = w.product(&name("attn_output"), hq * d, s.width, layer)?;
    let delta = rows.whole(rows.delta);
    ops.push(Op::Linear { x: View::span(rows.attended, 0, hq * d), product, out: delta });
    ops.push(Op::Add { x, y: delta, out: x });
    Ok(())
}

/// Rows of the dense feed-forward part.
pub(super) struct DenseRows {
    gate: RowId,
    up: RowId,
}

impl DenseRows {
    /// Declares them, wide enough for every layer.
    pub(super) fn declare(w: &mut Writer<'_>, inner_width_max: usize) -> DenseRows {
        DenseRows { gate: w.row("gate", inner_width_max), up: w.row("up", inner_width_max) }
    }
}

/// `x = x + Wdown(silu(Wgate h) * (Wup h))`, h = norm(x).
pub(super) fn dense(
    w: &mut Writer<'_>,
    ops: &mut Vec<Op>,
    rows: &Rows,
    inner: &DenseRows,
    s: &Sizes,
    (layer, inner_width): (usize, usize),
) -> Result<(), ModelError> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let (x, h, delta) = (rows.whole(rows.residual), rows.whole(rows.normed), rows.whole(rows.delta));
    ffn_norm(w, ops, rows, s, layer)?;
    let gate = View::span(inner.gate, 0, inner_width);
    let up = View::span(inner.up, 0, inner_width);
    for (part, out) in [("ffn_gate", gate), ("ffn_up", up)] {
        let product = w.product(&name(part), s.width, inner_width, layer)?;
        ops.push(Op::Linear { x: h, product, out });
    }
    ops.push(Op::SwiGlu { gate, up, out: gate });
    let product = w.product(&name("ffn_down"), inner_width, s.width, layer)?;
    ops.push(Op::Linear { x: gate, product, out: delta });
    ops.push(Op::Add { x, y: delta, out: x });
    Ok(())
}

/// Rows and choice of a mixture of experts.
pub(super) struct MixtureRows {
    logits: RowId,
    choice: ChoiceId,
    experts: usize,
}

impl MixtureRows {
    /// Declares them.
    pub(super) fn declare(w: &mut Writer<'_>, experts: usize, used: usize) -> MixtureRows {
        MixtureRows { logits: w.row("router", experts), choice: w.choice(experts, used), experts }
    }
}

/// `x = x + sum of the chosen experts' outputs on h`, h = norm(x).
pub(super) fn mixture(
    w: &mut Writer<'_>,
    ops: &mut Vec<Op>,
    rows: &Rows,
    mixture: &MixtureRows,
    s: &Sizes,
    (layer, inner_width): (usize, usize),
) -> Result<(), ModelError> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let (x, h, delta) = (rows.whole(rows.residual), rows.whole(rows.normed), rows.whole(rows.delta));
    ffn_norm(w, ops, rows, s, layer)?;
    let logits = View::span(mixture.logits, 0, mixture.experts);
    let weight = w.matrix(&name("ffn_gate_inp.weight"), s.width, mixture.experts, Some(layer))?;
    ops.push(Op::Linear { x: h, product: Product { weight, scale: None, bias: None }, out: logits });
    ops.push(Op::Route { logits, choice: mixture.choice });
    let (n, e) = (s.width, mixture.experts);
    let gate = w.expert_product(&name("ffn_gate_exps"), [n, inner_width, e], layer)?;
    let up = w.expert_product(&name("ffn_up_exps"), [n, inner_width, e], layer)?;
    let down = w.expert_product(&name("ffn_down_exps"), [inner_width, n, e], layer)?;
    ops.push(Op::Experts { x: h, choice: mixture.choice, gate, up, down, inner_width, out: delta });
    ops.push(Op::Add { x, y: delta, out: x });
    Ok(())
}

fn ffn_norm(
    w: &mut Writer<'_>,
    ops: &mut Vec<Op>,
    rows: &Rows,
    s: &Sizes,
    layer: usize,
) -> Result<(), ModelError> {
    let weight = w.vector(&format!("blk.{layer}.ffn_norm.weight"), s.width, Some(layer))?;
    let (x, out) = (rows.whole(rows.residual), rows.whole(rows.normed));
    ops.push(Op::Norm { x, weight, eps: s.epsilon, out });
    Ok(())
}
