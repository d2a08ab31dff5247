//! IQ2_S: 256 values, groups of eight from a table of 1024; a scale of four bits for each 16.
//!
//! Layout: d f16, 32 index bytes, 32 sign bytes, 8 bytes of upper index bits (2 (k & 3) of byte k >> 2), 8 bytes of scale nibbles.
//! code = sign * grid, scale = 2 n + 1; value = d / 8 * scale * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::grids::{IQ2_S as GRID, signed};
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct IQ2_S;

impl Block<{ 2 + 32 + 32 + 8 + 8 }> for IQ2_S {
    const TYPE: TensorType = TensorType::IQ2_S;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 2 + 32 + 32 + 8 + 8], out: &mut Codes) {
        let nibbles = run::<8>(block, 74);
        let scales = std::array::from_fn(|t| 2 * i16::from(nibbles[t >> 1] >> (4 * (t & 1)) & 15) + 1);
        out.set_scales(f16_at(block, 0) * 0.125, scales);
        let (low, signs, upper) = (run::<32>(block, 2), run::<32>(block, 34), run::<8>(block, 66));
        for k in 0..32 {
            let index = usize::from(low[k]) | usize::from(upper[k >> 2] >> (2 * (k & 3)) & 3) << 8;
            out.put(8 * k, signed(&GRID[index], signs[k]));
        }
    }
}
