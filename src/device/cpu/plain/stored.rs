//! The stored forms of keys and values: f32, f16 and q8_0, written and read back.
//!
//! Invariants: f16 rounds to nearest even and refuses overflow (rule 6); q8_0 has A32's codes and the f16 scale
//! amax / 127, in the 34-byte blocks of the file's Q8_0. Does not know: pages. Source: `docs/numerics.md`, Attention.

use half::f16;

use super::NotFinite;
use super::image::{A32_VALUES, quantise_block};

/// Bytes of 32 values in q8_0: an f16 scale, then the codes.
pub const Q8_0_BLOCK_BYTES: usize = 34;

/// Stores values as f16 bits.
pub fn store_f16(x: &[f32], out: &mut [u16]) -> Result<(), NotFinite> {
    assert_eq!(x.len(), out.len(), "store_f16: rows of one length");
    for (&x, out) in x.iter().zip(out) {
        let value = f16::from_f32(x);
        if !value.is_finite() {
            return Err(NotFinite);
        }
        *out = value.to_bits();
    }
    Ok(())
}

/// Reads f16 bits back.
pub fn load_f16(row: &[u16], out: &mut [f32]) {
    assert_eq!(row.len(), out.len(), "load_f16: rows of one length");
    for (&bits, out) in row.iter().zip(out) {
        *out = f16::from_bits(bits).to_f32();
    }
}

/// Stores whole blocks of 32 values as q8_0.
pub fn store_q8_0(x: &[f32], out: &mut [u8]) -> Result<(), NotFinite> {
    assert_eq!(x.len() % A32_VALUES, 0, "q8_0 has whole blocks");
    assert_eq!(x.len() / A32_VALUES * Q8_0_BLOCK_BYTES, out.len(), "store_q8_0: 34 bytes for 32 values");
    for (x, block) in x.chunks_exact(A32_VALUES).zip(out.chunks_exact_mut(Q8_0_BLOCK_BYTES)) {
        let mut codes = [0; A32_VALUES];
        let scale = f16::from_f32(quantise_block(x, &mut codes)?);
        if !scale.is_finite() {
            return Err(NotFinite);
        }
        let (head, tail) = block.split_at_mut(2);
        head.copy_from_slice(&scale.to_le_bytes());
        for (byte, code) in tail.iter_mut().zip(codes) {
            *byte = code.cast_unsigned();
        }
    }
    Ok(())
}

/// Reads q8_0 back: scale times code, rounded once.
pub fn load_q8_0(row: &[u8], out: &mut [f32]) {
    assert_eq!(row.len() / Q8_0_BLOCK_BYTES * A32_VALUES, out.len(), "load_q8_0: 34 bytes for 32 values");
    for (block, out) in row.chunks_exact(Q8_0_BLOCK_BYTES).zip(out.chunks_exact_mut(A32_VALUES)) {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        for (&byte, out) in block[2..].iter().zip(out) {
            *out = scale * f32::from(byte.cast_signed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_refuses_what_rounds_to_infinity() {
        let mut out = [0];
        assert_eq!(store_f16(&[65519.0], &mut out), Ok(()));
        assert_eq!(f16::from_bits(out[0]).to_f32(), 65504.0);
        for bad in [65520.0, -65520.0, f32::INFINITY, f32::NAN] {
            assert_eq!(store_f16(&[bad], &mut out), Err(NotFinite), "{bad}");
        }
    }

    #[test]
    fn q8_0_refuses_a_scale_that_rounds_to_infinity() {
        let (mut x, mut out) = ([0.0; 32], [0; 34]);
        x[5] = 65504.0 * 127.0;
        assert_eq!(store_q8_0(&x, &mut out), Ok(()));
        for bad in [65536.0 * 127.0, f32::NEG_INFINITY, f32::NAN] {
            x[5] = bad;
            assert_eq!(store_q8_0(&x, &mut out), Err(NotFinite), "{bad}");
        }
    }
}
