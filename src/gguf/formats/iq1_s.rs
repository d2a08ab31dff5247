//! IQ1_S: 256 values, groups of eight from a table of 2048; a scale of three bits and a shift for each 32.
//!
//! Layout: d f16, 32 index bytes, 8 words u16: four times three upper index bits, the scale, the sign of the shift on top.
//! code = 8 * grid + 1 or - 1, scale = 2 n + 1; value = d / 8 * scale * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run, u16_at};
use super::grids::IQ1 as GRID;
use super::k_scales::for_each_16;
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct IQ1_S;

impl Block<{ 2 + 32 + 16 }> for IQ1_S {
    const TYPE: TensorType = TensorType::IQ1_S;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 2 + 32 + 16], out: &mut Codes) {
        let word = |g: usize| u16_at(block, 34 + 2 * g);
        let scales = std::array::from_fn(|g| 2 * (word(g) >> 12 & 7) as i16 + 1);
        out.set_scales(f16_at(block, 0) * 0.125, for_each_16(scales));
        for (i, low) in run::<32>(block, 2).iter().enumerate() {
            let word = word(i / 4);
            let index = usize::from(*low) | usize::from(word >> (3 * (i % 4)) & 7) << 8;
            let shift = if word >> 15 == 1 { -1 } else { 1 };
            out.put(8 * i, GRID[index].map(|code| code + shift));
        }
    }
}
