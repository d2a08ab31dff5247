//! Q3_K: 256 values of three bits around 4; a scale of six bits around 32 for each 16.
//!
//! Layout: 32 bytes of third bits (bit i >> 5 of byte i & 31), 64 bytes of two bits as in Q2_K, 12 scale bytes, d f16.
//! code = q - 4; value = d * scale * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::k_scales::signed_scales;
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct Q3_K;

impl Block<{ 32 + 64 + 12 + 2 }> for Q3_K {
    const TYPE: TensorType = TensorType::Q3_K;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 32 + 64 + 12 + 2], out: &mut Codes) {
        out.set_scales(f16_at(block, 108), signed_scales(run(block, 96)));
        let third = run::<32>(block, 0);
        for h in 0..2 {
            let low = run::<32>(block, 32 + 32 * h);
            for k in 0..4 {
                let q = |l: usize| (low[l] >> (2 * k) & 3) | (third[l] >> (4 * h + k) & 1) << 2;
                out.put(128 * h + 32 * k, std::array::from_fn::<i8, 32, _>(|l| q(l) as i8 - 4));
            }
        }
    }
}
