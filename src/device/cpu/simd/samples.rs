//! Seeded inputs of the kernels' tests: many magnitudes, both zeros, denormals, huge values.
//!
//! Invariant: the same seed gives the same values. Does not know: kernels.

/// `count` values, most between -2 and 2; some are +-0, denormal, tiny or huge (but far from overflow in a product).
pub fn values(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    (0..count)
        .map(|_| {
            let x = (next() >> 8) as f32 / (1 << 22) as f32 - 2.0;
            match next() % 40 {
                0 => 0.0,
                1 => -0.0,
                2 => x * f32::from_bits(1 << 20),
                3 => x * 1e-30,
                4 => x * 1e15,
                5..10 => x * 20.0,
                _ => x,
            }
        })
        .collect()
}

/// As [`values`] without the huge ones: fit for scores and for every stored form of K and V.
pub fn small_values(seed: u32, count: usize) -> Vec<f32> {
    values(seed, count).into_iter().map(|x| if x.abs() > 100.0 { x * 1e-15 } else { x }).collect()
}

/// Compares bits; NaNs are equal.
pub fn assert_bits(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan()),
            "{what}: value {i} is {g:e} ({:08x}), not {w:e} ({:08x})",
            g.to_bits(),
            w.to_bits()
        );
    }
}
