//! TQ2_0: 256 values of two bits around 1, one scale.
//!
//! Layout: 64 bytes, d f16; bits 2 k of byte 32 h + l belong to value 128 h + 32 k + l.
//! code = q - 1; value = d * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct TQ2_0;

impl Block<{ 64 + 2 }> for TQ2_0 {
    const TYPE: TensorType = TensorType::TQ2_0;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 64 + 2], out: &mut Codes) {
        out.set_scale(f16_at(block, 64));
        for h in 0..2 {
            for k in 0..4 {
                out.put(128 * h + 32 * k, run::<32>(block, 32 * h).map(|q| (q >> (2 * k) & 3) as i8 - 1));
            }
        }
    }
}
