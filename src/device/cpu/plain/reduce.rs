//! The fixed shapes of every float sum: lanes with a halving tree, and the chain.
//!
//! Invariants: every lane starts at +0 and takes elements l, l + N, l + 2N, ... in rising order; lanes without
//! elements stay +0 and take part in the tree. Does not know: what is summed. Source: `docs/numerics.md`, Reductions.

/// Lanes of every dot product with float operands, and of sums over at most 256 values.
pub const SHORT_LANES: usize = 32;
/// Lanes of sums over more than 256 values.
pub const LONG_LANES: usize = 256;

/// Lane l += lane l + N/2 for l < N/2, then N/4, ... 1. N must be a power of two.
pub fn halving_tree<const N: usize>(mut lanes: [f32; N]) -> f32 {
    const { assert!(N.is_power_of_two(), "a halving tree needs a power of two") };
    let mut half = N / 2;
    while half > 0 {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// `lanes(N)` of the products `a[i] * b[i]`, by fma.
pub fn lanes_dot<const N: usize>(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "lanes_dot: rows of one length");
    let mut lanes = [0.0; N];
    for (i, (&x, &y)) in a.iter().zip(b).enumerate() {
        lanes[i % N] = x.mul_add(y, lanes[i % N]);
    }
    halving_tree(lanes)
}

/// `lanes(N)` of the values, by add.
pub fn lanes_sum<const N: usize>(a: &[f32]) -> f32 {
    let mut lanes = [0.0; N];
    for (i, &x) in a.iter().enumerate() {
        lanes[i % N] += x;
    }
    halving_tree(lanes)
}

/// The products' sum of a whole row: 256 lanes for more than 256 values, else 32.
pub fn row_lanes_dot(a: &[f32], b: &[f32]) -> f32 {
    if a.len() > LONG_LANES { lanes_dot::<LONG_LANES>(a, b) } else { lanes_dot::<SHORT_LANES>(a, b) }
}

/// The sum of a whole row: 256 lanes for more than 256 values, else 32.
pub fn row_lanes_sum(a: &[f32]) -> f32 {
    if a.len() > LONG_LANES { lanes_sum::<LONG_LANES>(a) } else { lanes_sum::<SHORT_LANES>(a) }
}

/// From +0, in rising order, one fma at a time.
pub fn chain_dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "chain_dot: rows of one length");
    a.iter().zip(b).fold(0.0, |r, (&x, &y)| x.mul_add(y, r))
}

/// From +0, in rising order, one add at a time.
pub fn chain_sum(a: &[f32]) -> f32 {
    a.iter().fold(0.0, |r, &x| r + x)
}
