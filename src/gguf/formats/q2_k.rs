//! Q2_K: 256 values of two bits; a scale and a minimum of four bits for each 16.
//!
//! Layout: 16 scale bytes (low nibble scale, high minimum), 64 bytes, d f16, dmin f16; bits 2 k of byte 32 h + l belong to value 128 h + 32 k + l.
//! code = q; value = d * scale * code - dmin * min.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct Q2_K;

impl Block<{ 16 + 64 + 2 + 2 }> for Q2_K {
    const TYPE: TensorType = TensorType::Q2_K;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 16 + 64 + 2 + 2], out: &mut Codes) {
        let scales = run::<16>(block, 0);
        out.set_scales(f16_at(block, 80), scales.map(|s| i16::from(s & 15)));
        (out.m[0], out.has_min) = (f16_at(block, 82), true);
        out.min = scales.map(|s| i16::from(s >> 4));
        for h in 0..2 {
            for k in 0..4 {
                out.put(128 * h + 32 * k, run::<32>(block, 16 + 32 * h).map(|q| (q >> (2 * k) & 3) as i8));
            }
        }
    }
}
