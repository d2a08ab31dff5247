//! Random blocks: any codes, and a scale with which the values have a wanted root mean square.
//!
//! Invariants: every block dequantises to finite numbers; the bytes depend on the seed alone.
//! Does not know: tensors, files.

use half::{bf16, f16};

use super::super::tensor_type::TensorType;
use super::{dequantize_row, format};

/// Blocks from which a scale is found.
const SAMPLE_BLOCKS: usize = 64;

/// Makes random rows of one type.
#[derive(Clone, Debug)]
pub struct RandomBlocks {
    ty: TensorType,
    scale: Scale,
}

/// What follows the random codes.
#[derive(Clone, Debug)]
enum Scale {
    /// f16 numbers at these bytes of each block.
    Halves(Vec<(usize, [u8; 2])>),
    /// The four quarters of one f16 in the highest bits of four 16-bit words.
    Quarters { at: usize, half: u16 },
    /// The same byte at the first `count` places.
    Bytes { byte: u8, count: usize },
    /// Floats around the centre, uniform in both directions up to the second.
    Uniform { centre: f32, most: f32 },
}

impl RandomBlocks {
    /// Blocks of `ty` whose values have about the root mean square `rms`. `None`: a type that no weight has.
    pub fn new(ty: TensorType, rms: f32) -> Option<RandomBlocks> {
        if ty.is_float() {
            return RandomBlocks::around(ty, 0.0, rms);
        }
        format(ty)?;
        let scale = match ty {
            TensorType::MXFP4 => nearest_byte(ty, rms, 1),
            TensorType::NVFP4 => nearest_byte(ty, rms, 4),
            _ => {
                let one = with_scale(ty, 1.0);
                let unit_rms = root_mean_square(ty, &one);
                with_scale(ty, rms / unit_rms)
            }
        };
        Some(RandomBlocks { ty, scale })
    }

    /// The same around another centre than 0, for float types only.
    pub fn around(ty: TensorType, centre: f32, rms: f32) -> Option<RandomBlocks> {
        let scale = Scale::Uniform { centre, most: rms * 3f32.sqrt() };
        ty.is_float().then_some(RandomBlocks { ty, scale })
    }

    /// Fills whole blocks.
    pub fn fill(&self, seed: u64, blocks: &mut [u8]) {
        let mut random = Random(seed);
        if let Scale::Uniform { centre, most } = self.scale {
            return self.floats(centre, most, &mut random, blocks);
        }
        for bytes in blocks.chunks_mut(8) {
            bytes.copy_from_slice(&random.next().to_le_bytes()[..bytes.len()]);
        }
        for block in blocks.chunks_exact_mut(self.ty.block_bytes()) {
            match &self.scale {
                Scale::Halves(halves) => {
                    halves.iter().for_each(|(at, half)| block[*at..at + 2].copy_from_slice(half));
                }
                Scale::Quarters { at, half } => {
                    for (i, word) in block[*at..at + 8].chunks_exact_mut(2).enumerate() {
                        word[1] = word[1] & 0x0f | ((half >> (4 * i)) as u8 & 0x0f) << 4;
                    }
                }
                Scale::Bytes { byte, count } => block[..*count].fill(*byte),
                Scale::Uniform { .. } => {}
            }
        }
    }

    fn floats(&self, centre: f32, most: f32, random: &mut Random, bytes: &mut [u8]) {
        let mut value = || ((random.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * most + centre;
        match self.ty {
            TensorType::F32 => {
                bytes.chunks_exact_mut(4).for_each(|b| b.copy_from_slice(&value().to_le_bytes()));
            }
            TensorType::F16 => {
                let mut half = || f16::from_f32(value()).to_le_bytes();
                bytes.chunks_exact_mut(2).for_each(|b| b.copy_from_slice(&half()));
            }
            _ => {
                let mut half = || bf16::from_f32(value()).to_le_bytes();
                bytes.chunks_exact_mut(2).for_each(|b| b.copy_from_slice(&half()));
            }
        }
    }
}

/// The places of a format's scale, and of its minimum with the factor that centres uniform codes.
fn with_scale(ty: TensorType, d: f32) -> Scale {
    let half = |value: f32| f16::from_f32(value).to_le_bytes();
    let halves = |places: &[(usize, f32)]| {
        Scale::Halves(places.iter().map(|&(at, factor)| (at, half(d * factor))).collect())
    };
    match ty {
        TensorType::Q4_1 => halves(&[(0, 1.0), (2, -7.5)]),
        TensorType::Q5_1 => halves(&[(0, 1.0), (2, -15.5)]),
        TensorType::Q2_K => halves(&[(80, 1.0), (82, 1.5)]),
        TensorType::Q3_K => halves(&[(108, 1.0)]),
        TensorType::Q4_K => halves(&[(0, 1.0), (2, 7.5)]),
        TensorType::Q5_K => halves(&[(0, 1.0), (2, 15.5)]),
        TensorType::Q6_K => halves(&[(208, 1.0)]),
        TensorType::TQ1_0 => halves(&[(52, 1.0)]),
        TensorType::TQ2_0 => halves(&[(64, 1.0)]),
        TensorType::IQ1_M => Scale::Quarters { at: 48, half: f16::from_f32(d).to_bits() },
        _ => halves(&[(0, 1.0)]),
    }
}

/// Of all scale bytes the one with which the values come nearest to `rms`.
fn nearest_byte(ty: TensorType, rms: f32, count: usize) -> Scale {
    let distance = |byte: u8| {
        let found = root_mean_square(ty, &Scale::Bytes { byte, count });
        // Ratios, not differences: scales are powers of two.
        if found > 0.0 && found.is_finite() { (found / rms).ln().abs() } else { f32::INFINITY }
    };
    let bytes = (0..=u8::MAX).map(|byte| (distance(byte), byte));
    let nearest = bytes.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0, |(_, byte)| byte);
    Scale::Bytes { byte: nearest, count }
}

fn root_mean_square(ty: TensorType, scale: &Scale) -> f32 {
    let mut blocks = vec![0u8; SAMPLE_BLOCKS * ty.block_bytes()];
    RandomBlocks { ty, scale: scale.clone() }.fill(1, &mut blocks);
    let mut values = vec![0f32; SAMPLE_BLOCKS * ty.block_values()];
    dequantize_row(ty, &blocks, &mut values);
    let squares: f64 = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    (squares / values.len() as f64).sqrt() as f32
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_every_type_are_finite_centred_and_of_the_wanted_size() {
        for &ty in TensorType::ALL {
            let Some(random) = RandomBlocks::new(ty, 0.03) else {
                assert!(format(ty).is_none() && !ty.is_float());
                continue;
            };
            let blocks = 256 * 32 / ty.block_values();
            let mut bytes = vec![0u8; blocks * ty.block_bytes()];
            random.fill(7, &mut bytes);
            let mut values = vec![0f32; blocks * ty.block_values()];
            dequantize_row(ty, &bytes, &mut values);
            assert!(values.iter().all(|v| v.is_finite()), "{ty}");
            let n = values.len() as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
            let rms = (values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n).sqrt();
            // Scales of whole powers of two miss by up to 1.41.
            assert!((0.02..0.045).contains(&rms), "{ty}: {rms}");
            // The four codes of these stand for -1 to 2.
            let most = if matches!(ty, TensorType::TQ2_0 | TensorType::Q2_0) { 0.5 } else { 0.25 };
            assert!(mean.abs() < most * rms, "{ty}: mean {mean}, rms {rms}");
            let mut again = vec![0u8; bytes.len()];
            random.fill(7, &mut again);
            assert_eq!(bytes, again, "{ty}");
            random.fill(8, &mut again);
            assert_ne!(bytes, again, "{ty}");
        }
        assert!(RandomBlocks::new(TensorType::I32, 1.0).is_none());
    }
}
