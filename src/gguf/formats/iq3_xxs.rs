//! IQ3_XXS: 256 values, groups of four from a table of 256; a scale of four bits for each 32.
//!
//! Layout: d f16, 64 index bytes, 8 words u32: four times seven sign bits for eight values each, the scale on top.
//! code = sign * grid, scale = 2 n + 1; value = d / 4 * scale * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run, u32_at};
use super::grids::{EVEN_SIGNS, IQ3_XXS as GRID, pair, signed};
use super::k_scales::for_each_16;
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct IQ3_XXS;

impl Block<{ 2 + 64 + 32 }> for IQ3_XXS {
    const TYPE: TensorType = TensorType::IQ3_XXS;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 2 + 64 + 32], out: &mut Codes) {
        let word = |g: usize| u32_at(block, 66 + 4 * g);
        let scales = std::array::from_fn(|g| 2 * (word(g) >> 28) as i16 + 1);
        out.set_scales(f16_at(block, 0) * 0.25, for_each_16(scales));
        for (i, [a, b]) in run::<64>(block, 2).as_chunks::<2>().0.iter().enumerate() {
            let signs = EVEN_SIGNS[(word(i / 4) >> (7 * (i % 4)) & 127) as usize];
            out.put(8 * i, signed(&pair(&GRID[*a as usize], &GRID[*b as usize]), signs));
        }
    }
}
