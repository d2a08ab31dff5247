//! `qwen3moe`: norms on every query and key head, NeoX rope, every layer a mixture of experts.
//!
//! Source: spec arch-qwen3moe. Qwen3 30B-A3B, 235B-A22B.

use super::blocks::{self, AttentionForm, MixtureRows, Rows};
use super::writer::Writer;
use crate::model::ModelError;
use crate::model::program::{Program, RopePairing};

/// The most values of an expert's inner row.
const INNER_WIDTH_MAX: usize = 1 << 22;

/// Writes the program.
pub(super) fn program(mut w: Writer<'_>) -> Result<Program, ModelError> {
    let s = w.sizes()?;
    let (experts, used) = w.experts()?.ok_or_else(|| ModelError::MissingKey {
        key: w.full_key("expert_count"),
        architecture: "qwen3moe".to_owned(),
    })?;
    let default = w.number("feed_forward_length")?.map(|f| f / used);
    let inner_width = w.positive("expert_feed_forward_length", default, INNER_WIDTH_MAX)?;
    let rows = Rows::declare(&mut w, &s);
    let mixture = MixtureRows::declare(&mut w, experts, used);
    let rope = w.rope(s.head_width, RopePairing::Halves)?;
    let form = AttentionForm { rope, head_norms: true };
    blocks::front(&mut w, &rows)?;
    for layer in 0..s.layers {
        let mut ops = Vec::new();
        blocks::attention(&mut w, &mut ops, &rows, &s, layer, &form)?;
        blocks::mixture(&mut w, &mut ops, &rows, &mixture, &s, (layer, inner_width))?;
        w.layer(ops);
    }
    blocks::tail(w, &rows, s.epsilon)
}
