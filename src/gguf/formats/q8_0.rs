//! Q8_0: 32 values of eight bits, one scale.
//!
//! Layout: d f16, 32 signed bytes.
//! code = the byte; value = d * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct Q8_0;

impl Block<{ 2 + 32 }> for Q8_0 {
    const TYPE: TensorType = TensorType::Q8_0;
    const IMAGE: ImageKind = ImageKind::A32;

    #[inline]
    fn codes(block: &[u8; 2 + 32], out: &mut Codes) {
        out.set_scale(f16_at(block, 0));
        out.put(0, run::<32>(block, 2).map(|q| q as i8));
    }
}
