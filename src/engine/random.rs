//! The generator behind draws: a number is a function of seed and position, so no draw depends on another.
//!
//! Does not know: what is drawn.
//! Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10); known answers from Random123.

/// A number in [0, 1) that depends on seed and position alone: 53 bits of Philox4x32-10 with the seed as key and the
/// position as counter.
pub fn uniform(seed: u64, position: u32) -> f64 {
    let bits = philox4x32([position, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let wide = u64::from(bits[0]) << 32 | u64::from(bits[1]);
    (wide >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Ten rounds of Philox4x32.
fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
        }
        let a = 0xd251_1f53u64 * u64::from(counter[0]);
        let b = 0xcd9e_8d57u64 * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32(counter, key), expected);
        }
    }

    #[test]
    fn numbers_fill_the_unit_interval_evenly() {
        let mut counts = [0usize; 10];
        (0..10_000).for_each(|position| counts[(uniform(42, position) * 10.0) as usize] += 1);
        assert!(counts.iter().all(|c| c.abs_diff(1_000) < 120), "{counts:?}");
    }
}
