//! IQ2_XS: 256 values, groups of eight from a table of 512; a scale of four bits for each 16.
//!
//! Layout: d f16, 32 words u16 (nine index bits, seven sign bits), 8 bytes of scale nibbles.
//! code = sign * grid, scale = 2 n + 1; value = d / 8 * scale * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run, u16_at};
use super::grids::{EVEN_SIGNS, IQ2_XS as GRID, signed};
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct IQ2_XS;

impl Block<{ 2 + 64 + 8 }> for IQ2_XS {
    const TYPE: TensorType = TensorType::IQ2_XS;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 2 + 64 + 8], out: &mut Codes) {
        let nibbles = run::<8>(block, 66);
        let scales = std::array::from_fn(|t| 2 * i16::from(nibbles[t >> 1] >> (4 * (t & 1)) & 15) + 1);
        out.set_scales(f16_at(block, 0) * 0.125, scales);
        for k in 0..32 {
            let word = u16_at(block, 2 + 2 * k);
            out.put(8 * k, signed(&GRID[(word & 511) as usize], EVEN_SIGNS[(word >> 9) as usize]));
        }
    }
}
