//! Q5_0: 32 values of five bits around 16, one scale.
//!
//! Layout: d f16, fifth bits u32 (bit j of value j), 16 bytes of nibbles as in Q4_0.
//! code = q - 16; value = d * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::grids::BIT_MASKS;
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct Q5_0;

impl Block<{ 2 + 4 + 16 }> for Q5_0 {
    const TYPE: TensorType = TensorType::Q5_0;
    const IMAGE: ImageKind = ImageKind::A32;

    #[inline]
    fn codes(block: &[u8; 2 + 4 + 16], out: &mut Codes) {
        out.set_scale(f16_at(block, 0));
        let fifth: [[i8; 8]; 4] = run::<4>(block, 2).map(|bits| BIT_MASKS[bits as usize]);
        for (j, q) in run::<16>(block, 6).iter().enumerate() {
            // The mask is -1 where the fifth bit is 1: q - 16 without it, q with it.
            out.code[j] = (q & 15) as i8 - (!fifth[j / 8][j % 8] & 16);
            out.code[j + 16] = (q >> 4) as i8 - (!fifth[2 + j / 8][j % 8] & 16);
        }
    }
}
