//! IQ4_NL: 32 values of a table of 16, one scale.
//!
//! Layout: d f16, 16 bytes of nibbles; byte j holds values j (low) and j + 16 (high).
//! code = table\[nibble\]; value = d * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::grids::IQ4;
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct IQ4_NL;

impl Block<{ 2 + 16 }> for IQ4_NL {
    const TYPE: TensorType = TensorType::IQ4_NL;
    const IMAGE: ImageKind = ImageKind::A32;

    #[inline]
    fn codes(block: &[u8; 2 + 16], out: &mut Codes) {
        out.set_scale(f16_at(block, 0));
        for (j, q) in run::<16>(block, 2).iter().enumerate() {
            out.code[j] = IQ4[(q & 15) as usize];
            out.code[j + 16] = IQ4[(q >> 4) as usize];
        }
    }
}
