//! Block formats: one file a format, from the bytes of a block to integer codes and scales.
//!
//! Invariants: a layout has as many bytes as [`TensorType`] says, or it does not compile; decoding never fails and
//! never leaves a table, whatever the bytes; all integers are those that `docs/numerics.md` sums.
//! Does not know: activations, products, devices. Source: gguf section 7.

mod fields;
mod grids;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod k_scales;
mod mxfp4;
mod nvfp4;
mod plain;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
pub mod random;
#[cfg(test)]
mod tests;
mod tq1_0;
mod tq2_0;

use super::tensor_type::TensorType;

/// The activation image that a format's products read (`docs/numerics.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// One scale for each 32 activations.
    A32,
    /// One scale for each 256 activations.
    A256,
}

/// A block format.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Which type.
    pub ty: TensorType,
    /// Which activations its products read.
    pub image: ImageKind,
    /// The values of one block, each operation rounded to f32 in the order of the format's formula.
    pub dequantize: fn(&[u8], &mut [f32]),
    /// The integers and scales of one block; sets every field of the codes.
    pub codes: fn(&[u8], &mut Codes),
}

/// One block as integers and float scales.
///
/// A32: value = d\[step\] * code (+ m\[step\]). A256: value = d\[0\] * scale * code (- m\[0\] * min).
#[derive(Clone, Debug)]
pub struct Codes {
    /// The first `block_values` are set.
    pub code: [i8; 256],
    /// Float scales of the block: 1; Q1_0 and NVFP4 4, Q2_0 2. Each belongs to `block_values / steps` values.
    pub steps: usize,
    /// A step's float scale. A256 formats: `d[0]`, any power of two that the codes leave out multiplied in (exact).
    pub d: [f32; 4],
    /// Q4_1 and Q5_1: `m[0]` is added; Q2_K, Q4_K and Q5_K: `m[0]` is dmin; else 0.
    pub m: [f32; 4],
    /// Integer scale of each 16 values (A256 formats); 1 where the format has none.
    pub scale: [i16; 16],
    /// Integer minimum of each 16 values (Q2_K, Q4_K, Q5_K); else 0.
    pub min: [i16; 16],
    /// True where `m` takes part.
    pub has_min: bool,
}

impl Default for Codes {
    fn default() -> Codes {
        let (scale, min) = ([1; 16], [0; 16]);
        Codes { code: [0; 256], steps: 1, d: [0.0; 4], m: [0.0; 4], scale, min, has_min: false }
    }
}

impl Codes {
    /// All fields but the codes: one scale for the whole block.
    #[inline(always)]
    fn set_scale(&mut self, d: f32) {
        self.set_steps(1, [d, 0.0, 0.0, 0.0]);
    }

    /// All fields but the codes: several scales.
    #[inline(always)]
    fn set_steps(&mut self, steps: usize, d: [f32; 4]) {
        (self.steps, self.d, self.m) = (steps, d, [0.0; 4]);
        (self.scale, self.min, self.has_min) = ([1; 16], [0; 16], false);
    }

    /// All fields but the codes: a scale and an integer scale for each 16 values.
    #[inline(always)]
    fn set_scales(&mut self, d: f32, scale: [i16; 16]) {
        self.set_scale(d);
        self.scale = scale;
    }

    /// `N` codes from place `at`.
    #[inline(always)]
    fn put<const N: usize>(&mut self, at: usize, codes: [i8; N]) {
        self.code[at..at + N].copy_from_slice(&codes);
    }
}

/// A format's own part: its layout of `BYTES` bytes.
trait Block<const BYTES: usize> {
    const TYPE: TensorType;
    const IMAGE: ImageKind;
    /// Sets every field of `out`.
    fn codes(block: &[u8; BYTES], out: &mut Codes);
}

const fn format_of<const BYTES: usize, B: Block<BYTES>>() -> Format {
    assert!(BYTES == B::TYPE.block_bytes(), "a format's layout has the bytes of its type");
    Format { ty: B::TYPE, image: B::IMAGE, dequantize: dequantize::<BYTES, B>, codes: codes::<BYTES, B> }
}

macro_rules! formats {
    ($($file:ident $ty:ident;)*) => {
        /// Every block format.
        pub static FORMATS: &[Format] = &[$(format_of::<{ TensorType::$ty.block_bytes() }, $file::$ty>(),)*];

        /// The format of a block type; `None` for float and integer types.
        pub fn format(ty: TensorType) -> Option<&'static Format> {
            match ty {
                $(TensorType::$ty => {
                    Some(const { &format_of::<{ TensorType::$ty.block_bytes() }, $file::$ty>() })
                })*
                _ => None,
            }
        }
    };
}

formats! {
    q4_0 Q4_0; q4_1 Q4_1; q5_0 Q5_0; q5_1 Q5_1; q8_0 Q8_0; iq4_nl IQ4_NL; mxfp4 MXFP4; nvfp4 NVFP4; q1_0 Q1_0;
    q2_0 Q2_0; q2_k Q2_K; q3_k Q3_K; q4_k Q4_K; q5_k Q5_K; q6_k Q6_K; iq4_xs IQ4_XS; iq2_xxs IQ2_XXS;
    iq2_xs IQ2_XS; iq2_s IQ2_S; iq3_xxs IQ3_XXS; iq3_s IQ3_S; iq1_s IQ1_S; iq1_m IQ1_M; tq1_0 TQ1_0; tq2_0 TQ2_0;
}

/// The values of a row of any float or block type. `bytes` is the whole row.
///
/// Panics on integer types, which no weight has, and where the two lengths do not belong together.
pub fn dequantize_row(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), ty.row_bytes(out.len()), "{ty}: a row of {} values", out.len());
    match (ty, format(ty)) {
        (TensorType::F32, _) => plain::f32_values(bytes, out),
        (TensorType::F16, _) => plain::f16_values(bytes, out),
        (TensorType::BF16, _) => plain::bf16_values(bytes, out),
        (_, Some(format)) => {
            assert_eq!(out.len() % ty.block_values(), 0, "{ty}: a row is whole blocks");
            let blocks = bytes.chunks_exact(ty.block_bytes());
            for (block, values) in blocks.zip(out.chunks_exact_mut(ty.block_values())) {
                (format.dequantize)(block, values);
            }
        }
        (_, None) => panic!("{ty}: not a type of weights"),
    }
}

fn codes<const BYTES: usize, B: Block<BYTES>>(bytes: &[u8], out: &mut Codes) {
    B::codes(bytes.try_into().expect("invariant: callers cut rows into whole blocks"), out);
}

fn dequantize<const BYTES: usize, B: Block<BYTES>>(bytes: &[u8], out: &mut [f32]) {
    assert_eq!(out.len(), B::TYPE.block_values(), "{}: values of one block", B::TYPE);
    let mut c = Codes::default();
    codes::<BYTES, B>(bytes, &mut c);
    match B::IMAGE {
        ImageKind::A32 => {
            let step_values = out.len() / c.steps;
            for (step, (y, code)) in out.chunks_mut(step_values).zip(c.code.chunks(step_values)).enumerate() {
                scaled(y, code, c.d[step]);
                if c.has_min {
                    y.iter_mut().for_each(|y| *y += c.m[step]);
                }
            }
        }
        ImageKind::A256 => {
            for (part, (y, code)) in out.chunks_mut(16).zip(c.code.chunks(16)).enumerate() {
                scaled(y, code, c.d[0] * f32::from(c.scale[part]));
                if c.has_min {
                    let offset = c.m[0] * f32::from(c.min[part]);
                    y.iter_mut().for_each(|y| *y -= offset);
                }
            }
        }
    }
}

#[inline(always)]
fn scaled(out: &mut [f32], codes: &[i8], d: f32) {
    for (y, code) in out.iter_mut().zip(codes) {
        *y = d * f32::from(*code);
    }
}
