//! IQ4_XS: 256 values of a table of 16; a scale of six bits around 32 for each 32.
//!
//! Layout: d f16, upper scale bits u16 (2 s), 4 bytes of scale nibbles, 128 bytes; byte 16 s + j holds values 32 s + j (low) and 32 s + 16 + j (high).
//! code = table\[nibble\]; value = d * scale * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run, u16_at};
use super::grids::IQ4;
use super::k_scales::for_each_16;
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct IQ4_XS;

impl Block<{ 2 + 2 + 4 + 128 }> for IQ4_XS {
    const TYPE: TensorType = TensorType::IQ4_XS;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 2 + 2 + 4 + 128], out: &mut Codes) {
        let (upper, low) = (u16_at(block, 2), run::<4>(block, 4));
        let scale =
            |s: usize| i16::from(low[s >> 1] >> (4 * (s & 1)) & 15) | ((upper >> (2 * s) & 3) << 4) as i16;
        out.set_scales(f16_at(block, 0), for_each_16(std::array::from_fn(|s| scale(s) - 32)));
        for s in 0..8 {
            let q = run::<16>(block, 8 + 16 * s);
            out.put(32 * s, q.map(|q| IQ4[(q & 15) as usize]));
            out.put(32 * s + 16, q.map(|q| IQ4[(q >> 4) as usize]));
        }
    }
}
