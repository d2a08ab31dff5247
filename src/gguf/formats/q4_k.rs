//! Q4_K: 256 values of four bits; a scale and a minimum of six bits for each 32.
//!
//! Layout: d f16, dmin f16, 12 scale bytes, 128 bytes; the nibble s & 1 of byte 32 (s >> 1) + l belongs to value 32 s + l.
//! code = nibble; value = d * scale * code - dmin * min.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::k_scales::{for_each_16, scales_and_mins};
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct Q4_K;

impl Block<{ 2 + 2 + 12 + 128 }> for Q4_K {
    const TYPE: TensorType = TensorType::Q4_K;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 2 + 2 + 12 + 128], out: &mut Codes) {
        let (scales, mins) = scales_and_mins(run(block, 4));
        out.set_scales(f16_at(block, 0), for_each_16(scales.map(i16::from)));
        (out.m[0], out.has_min) = (f16_at(block, 2), true);
        out.min = for_each_16(mins.map(i16::from));
        for pair in 0..4 {
            let q = run::<32>(block, 16 + 32 * pair);
            out.put(64 * pair, q.map(|q| (q & 15) as i8));
            out.put(64 * pair + 32, q.map(|q| (q >> 4) as i8));
        }
    }
}
