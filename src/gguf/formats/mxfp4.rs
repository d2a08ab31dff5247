//! MXFP4: 32 values of E2M1, one power of two as scale.
//!
//! Layout: exponent byte e, 16 bytes of nibbles; byte j holds values j (low) and j + 16 (high).
//! code = twice the E2M1 value; value = 2^(e - 128) * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::run;
use super::grids::E2M1_DOUBLED;
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct MXFP4;

impl Block<{ 1 + 16 }> for MXFP4 {
    const TYPE: TensorType = TensorType::MXFP4;
    const IMAGE: ImageKind = ImageKind::A32;

    #[inline]
    fn codes(block: &[u8; 1 + 16], out: &mut Codes) {
        out.set_scale(half_e8m0(block[0]));
        for (j, q) in run::<16>(block, 1).iter().enumerate() {
            out.code[j] = E2M1_DOUBLED[(q & 15) as usize];
            out.code[j + 16] = E2M1_DOUBLED[(q >> 4) as usize];
        }
    }
}

/// 2^(e - 128): half the E8M0 value, since the codes are doubled. 255 is a number like any other here.
#[inline]
fn half_e8m0(e: u8) -> f32 {
    // The two smallest are subnormal in f32.
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}
