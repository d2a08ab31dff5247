//! Q5_K: 256 values of five bits; a scale and a minimum of six bits for each 32.
//!
//! Layout: d f16, dmin f16, 12 scale bytes, 32 bytes of fifth bits (bit s of byte l belongs to value 32 s + l), 128 bytes as in Q4_K.
//! code = q; value = d * scale * code - dmin * min.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::k_scales::{for_each_16, scales_and_mins};
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct Q5_K;

impl Block<{ 2 + 2 + 12 + 32 + 128 }> for Q5_K {
    const TYPE: TensorType = TensorType::Q5_K;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 2 + 2 + 12 + 32 + 128], out: &mut Codes) {
        let (scales, mins) = scales_and_mins(run(block, 4));
        out.set_scales(f16_at(block, 0), for_each_16(scales.map(i16::from)));
        (out.m[0], out.has_min) = (f16_at(block, 2), true);
        out.min = for_each_16(mins.map(i16::from));
        let fifth = run::<32>(block, 16);
        for pair in 0..4 {
            let q = run::<32>(block, 48 + 32 * pair);
            let low = |l: usize| (q[l] & 15) | (fifth[l] >> (2 * pair) & 1) << 4;
            let high = |l: usize| (q[l] >> 4) | (fifth[l] >> (2 * pair + 1) & 1) << 4;
            out.put(64 * pair, std::array::from_fn::<i8, 32, _>(|l| low(l) as i8));
            out.put(64 * pair + 32, std::array::from_fn::<i8, 32, _>(|l| high(l) as i8));
        }
    }
}
