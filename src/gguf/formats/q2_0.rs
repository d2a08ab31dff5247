//! Q2_0: 64 values of two bits around 1, one scale.
//!
//! Layout: d f16, 16 bytes; bits 2 (j & 3) of byte j >> 2 belong to value j.
//! code = q - 1; value = d * code. Products step by 32 values, so the scale is listed twice.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct Q2_0;

impl Block<{ 2 + 16 }> for Q2_0 {
    const TYPE: TensorType = TensorType::Q2_0;
    const IMAGE: ImageKind = ImageKind::A32;

    #[inline]
    fn codes(block: &[u8; 2 + 16], out: &mut Codes) {
        let d = f16_at(block, 0);
        out.set_steps(2, [d, d, 0.0, 0.0]);
        for (i, q) in run::<16>(block, 2).iter().enumerate() {
            out.put(4 * i, [q & 3, q >> 2 & 3, q >> 4 & 3, q >> 6].map(|q| q as i8 - 1));
        }
    }
}
