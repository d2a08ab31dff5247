//! TQ1_0: 256 values -1, 0, 1, five base-3 digits a byte, one scale.
//!
//! Layout: 32 bytes (five digits each), 16 bytes (five), 4 bytes (four), d f16. Digit n of the bytes makes one run of values.
//! code = digit - 1; value = d * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::{f16_at, run};
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct TQ1_0;

impl Block<{ 32 + 16 + 4 + 2 }> for TQ1_0 {
    const TYPE: TensorType = TensorType::TQ1_0;
    const IMAGE: ImageKind = ImageKind::A256;

    #[inline]
    fn codes(block: &[u8; 32 + 16 + 4 + 2], out: &mut Codes) {
        out.set_scale(f16_at(block, 52));
        for (n, power) in [1, 3, 9, 27, 81].into_iter().enumerate() {
            out.put(32 * n, run::<32>(block, 0).map(|byte| digit(byte, power)));
            out.put(160 + 16 * n, run::<16>(block, 32).map(|byte| digit(byte, power)));
        }
        for (n, power) in [1, 3, 9, 27].into_iter().enumerate() {
            out.put(240 + 4 * n, run::<4>(block, 48).map(|byte| digit(byte, power)));
        }
    }
}

/// Digit n of a byte, minus 1, for power = 3^n: the byte is a fraction of 256, and multiplying shifts digits out of it.
#[inline(always)]
fn digit(byte: u8, power: u8) -> i8 {
    ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as i8 - 1
}
