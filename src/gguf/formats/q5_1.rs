//! Q5_1: 32 values of five bits, one scale, one offset.
//!
//! Layout: d f16, m f16, fifth bits u32 (bit j of value j), 16 bytes of nibbles as in Q4_0.
//! code = q; value = d * code + m.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::grids::BIT_MASKS;
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct Q5_1;

impl Block<{ 2 + 2 + 4 + 16 }> for Q5_1 {
    const TYPE: TensorType = TensorType::Q5_1;
    const IMAGE: ImageKind = ImageKind::A32;

    #[inline]
    fn codes(block: &[u8; 2 + 2 + 4 + 16], out: &mut Codes) {
        out.set_scale(f16_at(block, 0));
        (out.m[0], out.has_min) = (f16_at(block, 2), true);
        let fifth: [[i8; 8]; 4] = run::<4>(block, 4).map(|bits| BIT_MASKS[bits as usize]);
        for (j, q) in run::<16>(block, 8).iter().enumerate() {
            out.code[j] = (q & 15) as i8 | (fifth[j / 8][j % 8] & 16);
            out.code[j + 16] = (q >> 4) as i8 | (fifth[2 + j / 8][j % 8] & 16);
        }
    }
}
