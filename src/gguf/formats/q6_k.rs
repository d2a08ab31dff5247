//! Q6_K: 256 values of six bits around 32; a signed byte as scale for each 16.
//!
//! Layout: 128 bytes of nibbles, 64 bytes of upper bits, 16 scale bytes, d f16. Value 128 h + 32 k + l: nibble k >> 1 of byte 64 h + 32 (k & 1) + l, upper bits 2 k of byte 32 h + l.
//! code = q - 32; value = d * scale * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct Q6_K;

impl Block<{ 128 + 64 + 16 + 2 }> for Q6_K {
    const TYPE: TensorType = TensorType::Q6_K;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 128 + 64 + 16 + 2], out: &mut Codes) {
        out.set_scales(f16_at(block, 208), run::<16>(block, 192).map(|s| i16::from(s as i8)));
        for h in 0..2 {
            let upper = run::<32>(block, 128 + 32 * h);
            for k in 0..4 {
                let low = run::<32>(block, 64 * h + 32 * (k & 1));
                let q = |l: usize| (low[l] >> (4 * (k >> 1)) & 15) | (upper[l] >> (2 * k) & 3) << 4;
                out.put(128 * h + 32 * k, std::array::from_fn::<i8, 32, _>(|l| q(l) as i8 - 32));
            }
        }
    }
}
