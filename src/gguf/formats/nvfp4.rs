//! NVFP4: 64 values of E2M1, one E4M3 scale for each 16.
//!
//! Layout: 4 scale bytes, 4 times 8 bytes of nibbles; byte j of sub-block s holds values 16 s + j (low) and 16 s + 8 + j (high).
//! code = twice the E2M1 value; value = t(scale byte) * code.
//! Source: gguf section 7.

use super::super::tensor_type::TensorType;
use super::fields::run;
use super::grids::E2M1_DOUBLED;
use super::{Block, Codes, ImageKind};

/// The layout.
#[allow(non_camel_case_types, reason = "the format's own name")]
pub(super) struct NVFP4;

impl Block<{ 4 + 32 }> for NVFP4 {
    const TYPE: TensorType = TensorType::NVFP4;
    const IMAGE: ImageKind = ImageKind::A32;

    #[inline]
    fn codes(block: &[u8; 4 + 32], out: &mut Codes) {
        out.set_steps(4, run::<4>(block, 0).map(|x| HALF_E4M3[x as usize]));
        for (i, q) in run::<32>(block, 4).iter().enumerate() {
            let at = 16 * (i / 8) + i % 8;
            out.code[at] = E2M1_DOUBLED[(q & 15) as usize];
            out.code[at + 8] = E2M1_DOUBLED[(q >> 4) as usize];
        }
    }
}

/// Half the unsigned E4M3 value of each byte, since the codes are doubled; bit 7 does not count, except that only
/// 0x7f of the two not-a-numbers is 0.
static HALF_E4M3: [f32; 256] = {
    let mut out = [0.0; 256];
    let mut x = 0;
    while x < 256u32 {
        let (exponent, mantissa) = (x >> 3 & 15, x & 7);
        out[x as usize] = match (exponent, x) {
            (_, 0x7f) => 0.0,
            (0, _) => mantissa as f32 / 1024.0,
            _ => f32::from_bits((exponent + 127 - 8) << 23 | mantissa << 20),
        };
        x += 1;
    }
    out
};
