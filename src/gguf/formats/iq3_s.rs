//! IQ3_S: 256 values, groups of four from a table of 512; a scale of four bits for each 32.
//!
//! Layout: d f16, 64 index bytes, 8 bytes of ninth index bits (bit k of byte g for index 8 g + k), 32 sign bytes, 4 bytes of scale nibbles.
//! code = sign * grid, scale = 2 n + 1; value = d * scale * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::grids::{IQ3_S as GRID, pair, signed};
use super::k_scales::for_each_16;
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct IQ3_S;

impl Block<{ 2 + 64 + 8 + 32 + 4 }> for IQ3_S {
    const TYPE: TensorType = TensorType::IQ3_S;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 2 + 64 + 8 + 32 + 4], out: &mut Codes) {
        let nibbles = run::<4>(block, 106);
        let scales = std::array::from_fn(|g| 2 * i16::from(nibbles[g >> 1] >> (4 * (g & 1)) & 15) + 1);
        out.set_scales(f16_at(block, 0), for_each_16(scales));
        let (low, ninth, signs) = (run::<64>(block, 2), run::<8>(block, 66), run::<32>(block, 74));
        let group = |i: usize| &GRID[usize::from(low[i]) | usize::from(ninth[i >> 3] >> (i & 7) & 1) << 8];
        for (i, signs) in signs.iter().enumerate() {
            out.put(8 * i, signed(&pair(group(2 * i), group(2 * i + 1)), *signs));
        }
    }
}
