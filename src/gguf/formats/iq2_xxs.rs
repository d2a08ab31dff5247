//! IQ2_XXS: 256 values, groups of eight from a table of 256; a scale of four bits for each 32.
//!
//! Layout: d f16, then for each 32 values four index bytes and a u32: four times seven sign bits, the scale on top.
//! code = sign * grid, scale = 2 n + 1; value = d / 8 * scale * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run, u32_at};
use super::grids::{EVEN_SIGNS, IQ2_XXS as GRID, signed};
use super::k_scales::for_each_16;
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct IQ2_XXS;

impl Block<{ 2 + 64 }> for IQ2_XXS {
    const TYPE: TensorType = TensorType::IQ2_XXS;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 2 + 64], out: &mut Codes) {
        let word = |g: usize| u32_at(block, 6 + 8 * g);
        let scales = std::array::from_fn(|g| 2 * (word(g) >> 28) as i16 + 1);
        out.set_scales(f16_at(block, 0) * 0.125, for_each_16(scales));
        for g in 0..8 {
            for (k, index) in run::<4>(block, 2 + 8 * g).iter().enumerate() {
                let signs = EVEN_SIGNS[(word(g) >> (7 * k) & 127) as usize];
                out.put(32 * g + 8 * k, signed(&GRID[*index as usize], signs));
            }
        }
    }
}
