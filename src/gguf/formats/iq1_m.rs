//! IQ1_M: 256 values, groups of eight from a table of 2048 with a shift each; a scale of three bits for each 16.
//!
//! Layout: 32 index bytes, 16 bytes of nibbles (three upper index bits, the sign of the shift), 4 words u16: four times three scale bits, the top nibbles together are d.
//! code = 8 * grid + 1 or - 1, scale = 2 n + 1; value = d / 8 * scale * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use half::f16;

use super::fields::{run, u16_at};
use super::grids::IQ1 as GRID;
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct IQ1_M;

impl Block<{ 32 + 16 + 8 }> for IQ1_M {
    const TYPE: TensorType = TensorType::IQ1_M;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 32 + 16 + 8], out: &mut Codes) {
        let words: [u16; 4] = std::array::from_fn(|i| u16_at(block, 48 + 2 * i));
        let d_bits = words[0] >> 12 | words[1] >> 12 << 4 | words[2] >> 12 << 8 | words[3] >> 12 << 12;
        let scales = std::array::from_fn(|t| 2 * (words[t >> 2] >> (3 * (t & 3)) & 7) as i16 + 1);
        out.set_scales(f16::from_bits(d_bits).to_f32() * 0.125, scales);
        let (low, upper) = (run::<32>(block, 0), run::<16>(block, 32));
        for k in 0..32 {
            let nibble = upper[k >> 1] >> (4 * (k & 1)) & 15;
            let index = usize::from(low[k]) | usize::from(nibble & 7) << 8;
            let shift = if nibble & 8 == 8 { -1 } else { 1 };
            out.put(8 * k, GRID[index].map(|code| code + shift));
        }
    }
}
