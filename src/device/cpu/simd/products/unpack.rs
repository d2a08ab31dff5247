//! From a tile's packed bytes to a panel, format by format (layouts: `pack.rs`).
//!
//! Plain loops over 64 bytes at a time, written so that the compiler makes vectors of them in each tier; the two
//! operations that it cannot find by itself are a trait. Does not know: activations.

use super::panel::{Panel, Step, Super};
use crate::gguf::TensorType;

/// IQ4_NL's and IQ4_XS's values plus 128.
pub const NL4: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// Twice the E2M1 values, plus 128.
pub const E2M1: [u8; 16] = [128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116];

/// What a tier does better than a plain loop.
pub trait Wide: Copy {
    /// `table[low nibble]` and `table[high nibble]` of 64 bytes.
    fn lookup(self, table: &[u8; 16], bytes: &[u8; 64]) -> ([u8; 64], [u8; 64]);
    /// Sixteen binary16 values.
    fn halves(self, bytes: &[u8; 32]) -> [f32; 16];
}

/// Plain loops.
#[derive(Clone, Copy)]
pub struct Scalar;

impl Wide for Scalar {
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], bytes: &[u8; 64]) -> ([u8; 64], [u8; 64]) {
        (bytes.map(|b| table[usize::from(b & 15)]), bytes.map(|b| table[usize::from(b >> 4)]))
    }

    #[inline(always)]
    fn halves(self, bytes: &[u8; 32]) -> [f32; 16] {
        std::array::from_fn(|r| half::f16::from_le_bytes([bytes[2 * r], bytes[2 * r + 1]]).to_f32())
    }
}

/// The scale that an exponent byte of MXFP4 stands for: half of 2^(e - 127).
#[inline(always)]
pub fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// Unpacks one group of `ty`: the packed bytes of its blocks in `bytes`.
#[inline(always)]
pub fn group<W: Wide>(ty: TensorType, wide: W, bytes: &[u8], panel: &mut Panel) {
    use TensorType as T;
    match ty {
        T::Q4_0 | T::Q4_1 | T::Q5_0 | T::Q5_1 | T::Q8_0 | T::IQ4_NL | T::MXFP4 => {
            for (block, step) in bytes.chunks_exact(16 * ty.block_bytes()).zip(&mut panel.steps) {
                unpack_step(ty, wide, block, step);
            }
        }
        T::Q4_K | T::Q5_K => q45_k(ty, wide, bytes, &mut panel.block),
        T::Q2_K => q2_k(wide, bytes, &mut panel.block),
        T::Q3_K => q3_k(wide, bytes, &mut panel.block),
        T::Q6_K => q6_k(wide, bytes, &mut panel.block),
        T::IQ4_XS => iq4_xs(wide, bytes, &mut panel.block),
        T::TQ2_0 => tq2_0(wide, bytes, &mut panel.block),
        _ => unreachable!("{ty} stays in file order"),
    }
}

#[inline(always)]
fn unpack_step<W: Wide>(ty: TensorType, wide: W, block: &[u8], step: &mut Step) {
    use TensorType as T;
    if ty == T::MXFP4 {
        step.d = std::array::from_fn(|r| e8m0_half(block[r]));
    } else {
        step.d = wide.halves(part(block, 0));
    }
    if matches!(ty, T::Q4_1 | T::Q5_1) {
        step.e = wide.halves(part(block, 32));
    }
    let codes_at = block.len() - if ty == T::Q8_0 { 512 } else { 256 };
    let vectors = block[codes_at..].as_chunks::<64>().0;
    if ty == T::Q8_0 {
        step.codes.copy_from_slice(vectors);
        return;
    }
    let (low, high) = step.codes.split_at_mut(4);
    for ((vector, low), high) in vectors.iter().zip(low).zip(high) {
        match ty {
            T::IQ4_NL => (*low, *high) = wide.lookup(&NL4, vector),
            T::MXFP4 => (*low, *high) = wide.lookup(&E2M1, vector),
            _ => nibbles(vector, low, high),
        }
    }
    if matches!(ty, T::Q5_0 | T::Q5_1) {
        let masks = block[codes_at - 64..].as_chunks::<8>().0;
        for (codes, mask) in step.codes.iter_mut().zip(masks) {
            fifth(codes, mask);
            if ty == T::Q5_0 {
                // The code is 16 less than these five bits; stored plus 128.
                codes.iter_mut().for_each(|code| *code += 112);
            }
        }
    }
}

#[inline(always)]
fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("invariant: a block holds its fields")
}

#[inline(always)]
fn nibbles(vector: &[u8; 64], low: &mut [u8; 64], high: &mut [u8; 64]) {
    for i in 0..64 {
        low[i] = vector[i] & 15;
        high[i] = vector[i] >> 4;
    }
}

/// Adds 16 where the mask has a bit.
#[inline(always)]
fn fifth(codes: &mut [u8; 64], mask: &[u8; 8]) {
    for (eight, &bits) in codes.as_chunks_mut::<8>().0.iter_mut().zip(mask) {
        // Byte k keeps bit k of `bits`; then it becomes 16 or 0.
        let spread = (u64::from(bits) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        let ones = ((spread + 0x7F7F_7F7F_7F7F_7F7F) >> 7) & 0x0101_0101_0101_0101;
        *eight = (u64::from_le_bytes(*eight) | ones << 4).to_le_bytes();
    }
}

/// Sets the integer scale of a run and, in its pair, `paired`.
#[inline(always)]
fn set_run(block: &mut Super, run: usize, scale: [i32; 16], paired: [i32; 16]) {
    block.scales[run] = scale;
    for (pair, v) in block.pairs[run / 2].iter_mut().zip(paired) {
        pair[run % 2] = v as i16;
    }
}

/// The scale and the minimum of run `run` from the twelve bytes of Q4_K and Q5_K, for 16 rows.
#[inline(always)]
fn k_scale(s: &[[u8; 16]], run: usize, r: usize) -> (i32, i32) {
    let (sc, mn) = if run < 4 {
        (s[run][r] & 63, s[run + 4][r] & 63)
    } else {
        (s[run + 4][r] & 15 | s[run - 4][r] >> 6 << 4, s[run + 4][r] >> 4 | s[run][r] >> 6 << 4)
    };
    (i32::from(sc), i32::from(mn))
}

#[inline(always)]
fn q45_k<W: Wide>(ty: TensorType, wide: W, bytes: &[u8], block: &mut Super) {
    block.d = wide.halves(part(bytes, 0));
    block.dmin = wide.halves(part(bytes, 32));
    let s = bytes[64..256].as_chunks::<16>().0;
    for run in 0..8 {
        let scale = std::array::from_fn(|r| k_scale(s, run, r).0);
        set_run(block, run, scale, std::array::from_fn(|r| k_scale(s, run, r).1));
    }
    let codes_at = bytes.len() - 2048;
    let vectors = bytes[codes_at..].as_chunks::<64>().0;
    for (vectors, codes) in vectors.as_chunks::<8>().0.iter().zip(block.codes.as_chunks_mut::<16>().0) {
        let (low, high) = codes.split_at_mut(8);
        for ((vector, low), high) in vectors.iter().zip(low).zip(high) {
            nibbles(vector, low, high);
        }
    }
    if ty == TensorType::Q5_K {
        let masks = bytes[codes_at - 512..].as_chunks::<8>().0;
        for (codes, mask) in block.codes.iter_mut().zip(masks) {
            fifth(codes, mask);
        }
    }
}

/// Vector `v`'s place in fields of two bits a code: (vector, shift).
#[inline(always)]
fn two_bits(v: usize) -> (usize, usize) {
    (8 * (v >> 5) + (v & 7), 2 * (v >> 3 & 3))
}

#[inline(always)]
fn q2_k<W: Wide>(wide: W, bytes: &[u8], block: &mut Super) {
    let s = bytes[..256].as_chunks::<16>().0;
    for (run, s) in s.iter().enumerate() {
        set_run(block, run, s.map(|b| i32::from(b & 15)), s.map(|b| i32::from(b >> 4)));
    }
    let vectors = bytes[256..1280].as_chunks::<64>().0;
    for (v, codes) in block.codes.iter_mut().enumerate() {
        let (vector, shift) = two_bits(v);
        *codes = vectors[vector].map(|b| b >> shift & 3);
    }
    block.d = wide.halves(part(bytes, 1280));
    block.dmin = wide.halves(part(bytes, 1312));
}

#[inline(always)]
fn q3_k<W: Wide>(wide: W, bytes: &[u8], block: &mut Super) {
    let s = bytes[1536..1728].as_chunks::<16>().0;
    for run in 0..16 {
        let scale = std::array::from_fn(|r| {
            let low = if run < 8 { s[run][r] & 15 } else { s[run - 8][r] >> 4 };
            let high = s[8 + (run & 3)][r] >> (2 * (run >> 2)) & 3;
            i32::from(low | high << 4) - 32
        });
        set_run(block, run, scale, scale);
    }
    let (masks, vectors) = (bytes[..512].as_chunks::<64>().0, bytes[512..1536].as_chunks::<64>().0);
    for (v, codes) in block.codes.iter_mut().enumerate() {
        let (vector, shift) = two_bits(v);
        let (vector, mask) = (&vectors[vector], &masks[v & 7]);
        for i in 0..64 {
            // The code is the two bits, less 4 without the third bit; stored plus 32.
            codes[i] = (vector[i] >> shift & 3) + ((mask[i] >> (v >> 3) & 1) << 2) + 28;
        }
    }
    block.d = wide.halves(part(bytes, 1728));
}

#[inline(always)]
fn q6_k<W: Wide>(wide: W, bytes: &[u8], block: &mut Super) {
    let s = bytes[3072..3328].as_chunks::<16>().0;
    for (run, s) in s.iter().enumerate() {
        let scale = s.map(|b| i32::from(b as i8));
        set_run(block, run, scale, scale);
    }
    let words = bytes[..3072].as_chunks::<64>().0;
    for (v, codes) in block.codes.iter_mut().enumerate() {
        // Of the three words for a place in 32 columns, two have low bits for this half of 128 columns.
        let (eight, k) = (v >> 5, v >> 3 & 3);
        let three = &words[24 * eight + 3 * (v & 7)..][..3];
        let (low, high) = (&three[k & 1], &three[2]);
        for i in 0..64 {
            codes[i] = (low[i] >> (4 * (k >> 1)) & 15) | (high[i] >> (2 * k) & 3) << 4;
        }
    }
    block.d = wide.halves(part(bytes, 3328));
}

#[inline(always)]
fn iq4_xs<W: Wide>(wide: W, bytes: &[u8], block: &mut Super) {
    block.d = wide.halves(part(bytes, 0));
    let (upper, lower) = (bytes[32..64].as_chunks::<2>().0, bytes[64..128].as_chunks::<16>().0);
    for run in 0..8 {
        let scale = std::array::from_fn(|r| {
            let low = lower[run / 2][r] >> (4 * (run % 2)) & 15;
            let high = u16::from_le_bytes(upper[r]) >> (2 * run) & 3;
            i32::from(u16::from(low) | high << 4) - 32
        });
        set_run(block, run, scale, scale);
    }
    let vectors = bytes[128..].as_chunks::<64>().0;
    for (vectors, codes) in vectors.as_chunks::<4>().0.iter().zip(block.codes.as_chunks_mut::<8>().0) {
        let (low, high) = codes.split_at_mut(4);
        for ((vector, low), high) in vectors.iter().zip(low).zip(high) {
            (*low, *high) = wide.lookup(&NL4, vector);
        }
    }
}

#[inline(always)]
fn tq2_0<W: Wide>(wide: W, bytes: &[u8], block: &mut Super) {
    for run in 0..8 {
        set_run(block, run, [1; 16], [1; 16]);
    }
    let vectors = bytes[..1024].as_chunks::<64>().0;
    for (v, codes) in block.codes.iter_mut().enumerate() {
        let (vector, shift) = two_bits(v);
        *codes = vectors[vector].map(|b| (b >> shift & 3) + 31);
    }
    block.d = wide.halves(part(bytes, 1024));
}
