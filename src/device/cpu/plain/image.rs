//! Activation images: a row as signed 8-bit codes with one f32 scale for each 32 (A32) or 256 values (A256).
//!
//! Invariants: the scale is amax / 127 and stays f32; codes lie in -127 ..= 127; a block below 2^-120 is all zeros.
//! Does not know: weights. Source: `docs/numerics.md`, Activation images.

use super::NotFinite;

/// Values of a block of an A32 image.
pub const A32_VALUES: usize = 32;
/// Values of a block of an A256 image.
pub const A256_VALUES: usize = 256;
/// Blocks whose largest value is smaller than this are zeros: 2^-120.
pub const AMAX_MIN: f32 = f32::from_bits((127 - 120) << 23);

/// One row's image.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Values that share a scale: 32 or 256.
    pub block_values: usize,
    /// One code a value.
    pub codes: Vec<i8>,
    /// One scale a block.
    pub scales: Vec<f32>,
}

impl Image {
    /// The image of a row of whole blocks.
    pub fn of(x: &[f32], block_values: usize) -> Result<Image, NotFinite> {
        let mut codes = vec![0; x.len()];
        let mut scales = vec![0.0; x.len() / block_values];
        quantise(x, block_values, &mut codes, &mut scales)?;
        Ok(Image { block_values, codes, scales })
    }
}

/// Writes the image of `x`: one code a value, one scale a block. Fails at the first block that is not finite.
pub fn quantise(
    x: &[f32],
    block_values: usize,
    codes: &mut [i8],
    scales: &mut [f32],
) -> Result<(), NotFinite> {
    assert_eq!(x.len() % block_values, 0, "an image has whole blocks");
    assert_eq!(x.len(), codes.len(), "a code for each value");
    assert_eq!(x.len() / block_values, scales.len(), "a scale for each block");
    let blocks = x.chunks_exact(block_values).zip(codes.chunks_exact_mut(block_values));
    for ((x, codes), scale) in blocks.zip(scales) {
        *scale = quantise_block(x, codes)?;
    }
    Ok(())
}

/// Writes the codes of one block and returns its scale.
pub fn quantise_block(x: &[f32], codes: &mut [i8]) -> Result<f32, NotFinite> {
    if !x.iter().all(|v| v.is_finite()) {
        return Err(NotFinite);
    }
    let amax = x.iter().fold(0.0, |amax: f32, v| amax.max(v.abs()));
    if amax < AMAX_MIN {
        codes.fill(0);
        return Ok(0.0);
    }
    let per_unit = 127.0 / amax;
    for (code, &v) in codes.iter_mut().zip(x) {
        *code = (v * per_unit).round_ties_even() as i8;
    }
    Ok(amax / 127.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_not_finite_is_refused() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 31, 32, 63] {
                let mut x = [0.5; 64];
                x[place] = bad;
                assert_eq!(Image::of(&x, A32_VALUES), Err(NotFinite), "{bad} at {place}");
            }
        }
    }

    #[test]
    fn the_largest_finite_value_gets_the_largest_code() {
        let mut x = [0.0; 32];
        x[3] = f32::MAX;
        x[4] = f32::MIN;
        let image = Image::of(&x, A32_VALUES).unwrap();
        assert_eq!((image.codes[3], image.codes[4]), (127, -127));
        assert_eq!(image.scales, [f32::MAX / 127.0]);
    }
}
