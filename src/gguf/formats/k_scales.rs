//! The packed six-bit scales of the K formats.
//!
//! Invariant: every scale is a number of its six bits, whatever the bytes. Does not know: codes and float scales.
//! Source: gguf section 7.4.

/// The twelve bytes of Q4_K and Q5_K: eight scales and eight minimums, each 0..63.
#[inline]
pub(super) fn scales_and_mins(s: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scales[j] = s[j] & 63;
        mins[j] = s[j + 4] & 63;
        scales[j + 4] = (s[j + 8] & 15) | ((s[j] >> 6) << 4);
        mins[j + 4] = (s[j + 8] >> 4) | ((s[j + 4] >> 6) << 4);
    }
    (scales, mins)
}

/// The twelve bytes of Q3_K: sixteen scales -32..31.
#[inline]
pub(super) fn signed_scales(s: &[u8; 12]) -> [i16; 16] {
    std::array::from_fn(|i| {
        let low = if i < 8 { s[i] & 15 } else { s[i - 8] >> 4 };
        let high = (s[8 + (i & 3)] >> (2 * (i >> 2))) & 3;
        i16::from(low | (high << 4)) - 32
    })
}

/// One scale for each 32 values, listed for each 16.
#[inline]
pub(super) fn for_each_16(per_32: [i16; 8]) -> [i16; 16] {
    std::array::from_fn(|i| per_32[i / 2])
}
