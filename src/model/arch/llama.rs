//! `llama`: pre-norm decoders with rotary attention over neighbouring pairs, SwiGLU or a mixture of experts.
//!
//! Source: spec arch-llama. Llama 1-3, SmolLM2, Mistral 7B, Mixtral.

use super::blocks::{self, AttentionForm, DenseRows, MixtureRows, Rows};
use super::writer::Writer;
use crate::model::ModelError;
use crate::model::program::{Program, RopePairing};

/// The most values of an inner row.
const INNER_WIDTH_MAX: usize = 1 << 22;

/// Either feed-forward part.
enum FeedForward {
    Dense(DenseRows),
    Mixture(MixtureRows),
}

/// Writes the program.
pub(super) fn program(mut w: Writer<'_>) -> Result<Program, ModelError> {
    let s = w.sizes()?;
    let inner = w.per_layer("feed_forward_length", s.layers, None, INNER_WIDTH_MAX)?;
    let rows = Rows::declare(&mut w, &s);
    let feed_forward = match w.experts()? {
        Some((experts, used)) => FeedForward::Mixture(MixtureRows::declare(&mut w, experts, used)),
        None => {
            FeedForward::Dense(DenseRows::declare(&mut w, inner.iter().max().copied().unwrap_or_default()))
        }
    };
    let rope = w.rope(s.head_width, RopePairing::Neighbours)?;
    let form = AttentionForm { rope, head_norms: false };
    blocks::front(&mut w, &rows)?;
    for (layer, &inner_width) in inner.iter().enumerate() {
        let mut ops = Vec::new();
        blocks::attention(&mut w, &mut ops, &rows, &s, layer, &form)?;
        match &feed_forward {
            FeedForward::Dense(d) => blocks::dense(&mut w, &mut ops, &rows, d, &s, (layer, inner_width))?,
            FeedForward::Mixture(m) => blocks::mixture(&mut w, &mut ops, &rows, m, &s, (layer, inner_width))?,
        }
        w.layer(ops);
    }
    blocks::tail(w, &rows, s.epsilon)
}
