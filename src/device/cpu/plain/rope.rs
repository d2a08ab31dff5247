//! Rope: the angles of a position, and the rotation of one head by them.
//!
//! Invariants: angles are f64 (sine and cosine of the pure-Rust `libm`, the same on every platform), times the
//! factor, rounded once; in the rotation each product is rounded, then one add.
//! Does not know: how a family chooses its frequencies. Source: `docs/numerics.md`, rule 3 and Norms.

use crate::model::program::RopePairing;

/// Cosines and sines of `position * frequency`, times `factor`, one for each frequency.
pub fn angles(position: u32, frequencies: &[f64], factor: f64, cos: &mut [f32], sin: &mut [f32]) {
    assert_eq!((frequencies.len(), frequencies.len()), (cos.len(), sin.len()), "an angle for each frequency");
    for ((&frequency, cos), sin) in frequencies.iter().zip(cos).zip(sin) {
        let theta = f64::from(position) * frequency;
        *cos = (libm::cos(theta) * factor) as f32;
        *sin = (libm::sin(theta) * factor) as f32;
    }
}

/// Rotates the first 2 * `cos.len()` values of a head in place; the others stay.
pub fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32], pairing: RopePairing) {
    assert_eq!(cos.len(), sin.len(), "a sine for each cosine");
    assert!(2 * cos.len() <= head.len(), "rope: {} angles for {} values", cos.len(), head.len());
    for (j, (&c, &s)) in cos.iter().zip(sin).enumerate() {
        let (first, second) = match pairing {
            RopePairing::Neighbours => (2 * j, 2 * j + 1),
            RopePairing::Halves => (j, j + cos.len()),
        };
        let (x0, x1) = (head[first], head[second]);
        head[first] = x0 * c - x1 * s;
        head[second] = x0 * s + x1 * c;
    }
}
