//! Q1_0: 128 signs, one scale.
//!
//! Layout: d f16, 16 bytes; bit j & 7 of byte j >> 3 belongs to value j.
//! code = 1 where the bit is 1, else -1; value = d * code. Products step by 32 values, so the scale is listed four times.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::grids::BIT_MASKS;
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct Q1_0;

impl Block<{ 2 + 16 }> for Q1_0 {
    const TYPE: TensorType = TensorType::Q1_0;
    const IMAGE: ImageKind = ImageKind::A32;

    #[inline]
    fn codes(block: &[u8; 2 + 16], out: &mut Codes) {
        out.set_steps(4, [f16_at(block, 0); 4]);
        for (i, bits) in run::<16>(block, 2).iter().enumerate() {
            out.put(8 * i, BIT_MASKS[*bits as usize].map(|mask| -2 * mask - 1));
        }
    }
}
