//! RMS norm of one piece of a row.
//!
//! Invariant: the reciprocal root is computed once per piece, by division and square root that are correctly rounded.
//! Does not know: heads, rows. Source: `docs/numerics.md`, Norms.

use super::reduce::row_lanes_dot;

/// `1 / sqrt(mean(x^2) + eps)`.
pub fn reciprocal_root(x: &[f32], eps: f32) -> f32 {
    let sum = row_lanes_dot(x, x);
    1.0 / (sum / x.len() as f32 + eps).sqrt()
}

/// `out = (x * reciprocal_root) * weight`, without the second product where there is no weight.
pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "rms_norm: rows of one length");
    let root = reciprocal_root(x, eps);
    for (out, &x) in out.iter_mut().zip(x) {
        *out = x * root;
    }
    if let Some(weight) = weight {
        assert_eq!(x.len(), weight.len(), "rms_norm: a weight for each value");
        for (out, &w) in out.iter_mut().zip(weight) {
            *out *= w;
        }
    }
}
