//! Q4_1: 32 values of four bits, one scale, one offset.
//!
//! Layout: d f16, m f16, 16 bytes of nibbles; byte j holds values j (low) and j + 16 (high).
//! code = nibble; value = d * code + m.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct Q4_1;

impl Block<{ 2 + 2 + 16 }> for Q4_1 {
    const TYPE: TensorType = TensorType::Q4_1;
    const IMAGE: ImageKind = ImageKind::A32;

    #[inline]
    fn codes(block: &[u8; 2 + 2 + 16], out: &mut Codes) {
        out.set_scale(f16_at(block, 0));
        (out.m[0], out.has_min) = (f16_at(block, 2), true);
        for (j, q) in run::<16>(block, 4).iter().enumerate() {
            out.code[j] = (q & 15) as i8;
            out.code[j + 16] = (q >> 4) as i8;
        }
    }
}
