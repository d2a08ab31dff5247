//! Images of activation rows: one definition, compiled for every tier.
//!
//! Invariant: the arithmetic is written without contraction or reassociation, so every compilation gives the same
//! bits. Rounding to the nearest even integer is an addition of 1.5 * 2^23, exact for the codes' range.

use super::super::tier::Tier;
use crate::device::cpu::image::{Finite, ImageShape, RECORD_BYTES, START_8_AT, START_128_AT, SUM_AT};
use crate::gguf::formats::ImageKind;

/// Below this largest magnitude (2^-120) a scale and its codes are zero.
const AMAX_MIN_BITS: u32 = 0x0380_0000;
const INFINITY_BITS: u32 = 0x7F80_0000;
const ROUND: f32 = 12_582_912.0;

/// Makes the image of `x`; sizes were checked by the caller.
pub fn row(tier: Tier, shape: ImageShape, x: &[f32], image: &mut [u8]) -> Finite {
    match tier {
        Tier::Plain => row_any(shape, x, image),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the witness says that this CPU has the features.
        Tier::Avx2(_) => unsafe { row_avx2(shape, x, image) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the witness says that this CPU has the features.
        Tier::Avx512(_) => unsafe { row_avx512(shape, x, image) },
        #[cfg(not(target_arch = "x86_64"))]
        Tier::Avx2(_) | Tier::Avx512(_) => row_any(shape, x, image),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn row_avx2(shape: ImageShape, x: &[f32], image: &mut [u8]) -> Finite {
    row_any(shape, x, image)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn row_avx512(shape: ImageShape, x: &[f32], image: &mut [u8]) -> Finite {
    row_any(shape, x, image)
}

#[inline(always)]
fn row_any(shape: ImageShape, x: &[f32], image: &mut [u8]) -> Finite {
    let (codes, rest) = image.split_at_mut(shape.scales_at());
    let (scales, rest) = rest.split_at_mut(shape.sums32_at() - shape.scales_at());
    let (sums32, sums16) = rest.split_at_mut(shape.sums16_at() - shape.sums32_at());
    let mut worst = 0;
    match shape.kind() {
        ImageKind::A32 => {
            let records =
                scales.as_chunks_mut::<RECORD_BYTES>().0.iter_mut().zip(sums16.as_chunks_mut::<8>().0);
            let blocks = x.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<32>().0);
            for ((x, codes), (record, sums16)) in blocks.zip(records) {
                let amax = amax_bits(x);
                worst = worst.max(amax);
                let (scale, inverse) = scale(amax);
                let (low, high) = encode(x, inverse, codes);
                record[..START_8_AT].copy_from_slice(&scale.to_le_bytes());
                record[START_8_AT..START_128_AT].copy_from_slice(&(-8 * (low + high)).to_le_bytes());
                record[START_128_AT..SUM_AT].copy_from_slice(&(-128 * (low + high)).to_le_bytes());
                record[SUM_AT..].copy_from_slice(&((low + high) as f32).to_le_bytes());
                sums16[..4].copy_from_slice(&(-128 * low).to_le_bytes());
                sums16[4..].copy_from_slice(&(-128 * high).to_le_bytes());
            }
        }
        ImageKind::A256 => {
            let scales = scales.as_chunks_mut::<4>().0;
            let (sums32, sums16) = (sums32.as_chunks_mut::<2>().0, sums16.as_chunks_mut::<4>().0);
            for (g, x) in x.as_chunks::<256>().0.iter().enumerate() {
                let amax = amax_bits(x);
                worst = worst.max(amax);
                let (scale, inverse) = scale(amax);
                scales[g] = scale.to_le_bytes();
                for (s, x) in x.as_chunks::<32>().0.iter().enumerate() {
                    let i = 8 * g + s;
                    let (low, high) = encode(x, inverse, &mut codes.as_chunks_mut::<32>().0[i]);
                    sums32[i] = ((low + high) as i16).to_le_bytes();
                    sums16[i][..2].copy_from_slice(&(low as i16).to_le_bytes());
                    sums16[i][2..].copy_from_slice(&(high as i16).to_le_bytes());
                }
            }
        }
    }
    if worst < INFINITY_BITS { Finite::Yes } else { Finite::No }
}

/// Bits of the largest magnitude; those of infinities and NaN are larger than all others.
#[inline(always)]
fn amax_bits<const N: usize>(x: &[f32; N]) -> u32 {
    let mut lanes = [0u32; 32];
    for part in x.as_chunks::<32>().0 {
        for (lane, v) in lanes.iter_mut().zip(part) {
            *lane = (*lane).max(v.to_bits() & 0x7FFF_FFFF);
        }
    }
    lanes.iter().fold(0, |a, &b| a.max(b))
}

/// The scale and the factor that makes codes.
#[inline(always)]
fn scale(amax_bits: u32) -> (f32, f32) {
    let amax = f32::from_bits(amax_bits);
    if amax_bits < AMAX_MIN_BITS { (0.0, 0.0) } else { (amax / 127.0, 127.0 / amax) }
}

/// Writes the codes and returns their sums over the first and the last 16.
#[inline(always)]
fn encode(x: &[f32; 32], inverse: f32, codes: &mut [u8; 32]) -> (i32, i32) {
    let mut wide = [0i32; 32];
    for (code, v) in wide.iter_mut().zip(x) {
        // The lowest byte of the sum's bits is the code in two's complement.
        *code = i32::from((v * inverse + ROUND).to_bits() as i8);
    }
    for (code, wide) in codes.iter_mut().zip(&wide) {
        *code = *wide as u8;
    }
    let sum = |half: &[i32]| half.iter().sum::<i32>();
    (sum(&wide[..16]), sum(&wide[16..]))
}
