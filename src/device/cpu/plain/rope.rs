//! Rope: the angles of a position, and the rotation of one head by them.
//!
//! Invariants: angles are [`RopeDecl::cos_sin`], f64 rounded once; in the rotation each product is rounded, then
//! one add.
//! Does not know: how a family chooses its frequencies. Source: `docs/numerics.md`, rule 3 and Norms.

use crate::model::program::{RopeDecl, RopePairing};

/// Cosines and sines of a position's angles, one for each pair. `divisors` are the values of `rope.divisors`.
pub fn angles(rope: &RopeDecl, divisors: Option<&[f32]>, position: u32, cos: &mut [f32], sin: &mut [f32]) {
    let pairs = rope.frequencies.len();
    assert_eq!((cos.len(), sin.len()), (pairs, pairs), "rope: an angle for each frequency");
    for (pair, (cos, sin)) in cos.iter_mut().zip(sin).enumerate() {
        (*cos, *sin) = rope.cos_sin(pair, position, divisors.map_or(1.0, |d| d[pair]));
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
