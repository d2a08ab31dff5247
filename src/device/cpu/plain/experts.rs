//! The sum over a row's chosen experts, in rank order, and the shared expert's part.
//!
//! Invariant: one fma at a time from +0; partial sums do not exist, so it never shows where an expert's row was made.
//! Does not know: experts' products. Source: `docs/numerics.md`, Router and experts.

use super::functions::sigmoid;

/// `out = fma(w_k, e_k, ...)` over the rows `e_k` of `out.len()` values each, in rank order.
pub fn experts_sum(weights: &[f32], rows: &[f32], out: &mut [f32]) {
    assert_eq!(rows.len(), weights.len() * out.len(), "experts_sum: a row for each weight");
    out.fill(0.0);
    for (&w, row) in weights.iter().zip(rows.chunks_exact(out.len())) {
        for (acc, &e) in out.iter_mut().zip(row) {
            *acc = w.mul_add(e, *acc);
        }
    }
}

/// Adds the shared expert's row, times `sigmoid(gate)` (rounded) where it has a gate.
pub fn add_shared(out: &mut [f32], shared: &[f32], gate: Option<f32>) {
    assert_eq!(out.len(), shared.len(), "add_shared: rows of one length");
    let factor = gate.map(sigmoid);
    for (acc, &s) in out.iter_mut().zip(shared) {
        *acc += factor.map_or(s, |f| f * s);
    }
}
