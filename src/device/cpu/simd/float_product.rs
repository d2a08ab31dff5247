//! Products of float weights with float rows: F32, F16 and BF16 matrices, and dequantised rows.
//!
//! Several weight rows meet several activation rows in registers, so each value is loaded once for all of them.
//! Invariant: every output is `lanes(32)` with fma, whatever is computed beside it, in every tier.
//! Does not know: block formats (a caller dequantises), threads (a caller takes columns).
//! Source: `docs/numerics.md`, Float weights.

#![allow(unsafe_code, reason = "loads at computed places inside checked rows")]
#![allow(clippy::inline_always, reason = "kernels must end up inside the functions compiled for the tier")]
#![allow(
    clippy::needless_range_loop,
    reason = "index loops over registers unroll; iterators go through memory"
)]

use std::marker::PhantomData;
use std::ops::Range;

use half::{bf16, f16};

use super::stored::{Bf16, F16, F32, Stored};
use super::tier::Tier;
use super::vector::{Kernel, SUM_LANES, Vector, run};
use crate::device::cpu::columns::Columns;
use crate::device::cpu::plain::reduce::{SHORT_LANES, lanes_dot};
use crate::gguf::TensorType;

/// Bytes of activation rows that are read again and again while weight rows pass: a part of the second-level cache.
const BLOCK_BYTES: usize = 256 * 1024;

/// Weight rows that are dequantised before they are used.
const DEQUANTISED_ROWS: usize = 4;

/// A matrix of float weights as the file keeps it.
#[derive(Clone, Copy, Debug)]
pub struct FloatRows<'a> {
    ty: TensorType,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> FloatRows<'a> {
    /// `bytes` hold rows of `cols` values of `ty`.
    ///
    /// # Panics
    /// If `ty` is no float type or the bytes are not whole rows.
    pub fn new(ty: TensorType, cols: usize, bytes: &'a [u8]) -> FloatRows<'a> {
        assert!(ty.is_float(), "float product: {ty} is no float type");
        assert!(
            cols > 0 && bytes.len().is_multiple_of(ty.row_bytes(cols)),
            "float product: {} bytes are no rows of {cols} values",
            bytes.len()
        );
        FloatRows { ty, cols, bytes }
    }

    /// Number of rows, outputs of the product.
    pub fn rows(&self) -> usize {
        self.bytes.len() / self.row_bytes()
    }

    fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.cols)
    }

    /// Values `from ..` of a row.
    fn read(&self, row: usize, from: usize, out: &mut [f32]) {
        let row = &self.bytes[row * self.row_bytes()..][..self.row_bytes()];
        let two = |i: usize| [row[2 * i], row[2 * i + 1]];
        for (i, out) in (from..).zip(out) {
            *out = match self.ty {
                TensorType::F16 => f16::from_le_bytes(two(i)).to_f32(),
                TensorType::BF16 => bf16::from_le_bytes(two(i)).to_f32(),
                _ => f32::from_le_bytes([row[4 * i], row[4 * i + 1], row[4 * i + 2], row[4 * i + 3]]),
            };
        }
    }
}

/// Row r of `out` = the weights times row r of `x`, for the columns (weight rows) that `out` holds.
///
/// # Panics
/// If `x` does not hold a row for each row of `out`, or `out` has columns without weights.
pub fn product(tier: Tier, weights: &FloatRows<'_>, x: &[f32], out: &mut Columns<'_>) {
    assert_eq!(x.len(), out.rows() * weights.cols, "float product: a row of x for each row of the output");
    assert!(out.range().end <= weights.rows(), "float product: {} weight rows", weights.rows());
    let columns = out.range();
    tile(tier, weights, columns.clone(), columns.start, x, out);
}

/// Floats that [`product_dequantised`] needs.
pub fn dequantised_values(cols: usize) -> usize {
    DEQUANTISED_ROWS * cols
}

/// The same with weight rows that `dequantise` writes, one by one, rising; `scratch` holds at least
/// [`dequantised_values`].
///
/// # Panics
/// As [`product`]; and if the scratch is too small.
pub fn product_dequantised(
    tier: Tier,
    cols: usize,
    dequantise: &mut dyn FnMut(usize, &mut [f32]),
    x: &[f32],
    out: &mut Columns<'_>,
    scratch: &mut [f32],
) {
    assert_eq!(x.len(), out.rows() * cols, "float product: a row of x for each row of the output");
    let columns = out.range();
    let scratch = &mut scratch[..dequantised_values(cols)];
    for first in columns.clone().step_by(DEQUANTISED_ROWS) {
        let some = first..columns.end.min(first + DEQUANTISED_ROWS);
        for (row, out) in some.clone().zip(scratch.chunks_exact_mut(cols)) {
            dequantise(row, out);
        }
        // `FloatRows` reads little-endian values.
        const { assert!(cfg!(target_endian = "little"), "rows in memory have the file's byte order") };
        // SAFETY: any four bytes of a float are bytes; `scratch` stays borrowed while they are read.
        let bytes = unsafe { scratch.align_to::<u8>().1 };
        let weights = FloatRows { ty: TensorType::F32, cols, bytes };
        tile(tier, &weights, 0..some.len(), first, x, out);
    }
}

/// Weight rows `rows` into the columns from `first_column` on.
fn tile(
    tier: Tier,
    weights: &FloatRows<'_>,
    rows: Range<usize>,
    first_column: usize,
    x: &[f32],
    out: &mut Columns<'_>,
) {
    match weights.ty {
        TensorType::F16 => run(tier, Product::<F16>::new(weights, rows, first_column, x, out)),
        TensorType::BF16 => run(tier, Product::<Bf16>::new(weights, rows, first_column, x, out)),
        _ => run(tier, Product::<F32>::new(weights, rows, first_column, x, out)),
    }
}

struct Product<'a, 'out, S> {
    weights: &'a FloatRows<'a>,
    rows: Range<usize>,
    first_column: usize,
    x: &'a [f32],
    out: &'a mut Columns<'out>,
    form: PhantomData<S>,
}

impl<'a, 'out, S> Product<'a, 'out, S> {
    fn new(
        weights: &'a FloatRows<'a>,
        rows: Range<usize>,
        first_column: usize,
        x: &'a [f32],
        out: &'a mut Columns<'out>,
    ) -> Self {
        Product { weights, rows, first_column, x, out, form: PhantomData }
    }

    /// The column of a weight row.
    #[inline(always)]
    fn column(&self, row: usize) -> usize {
        self.first_column + row - self.rows.start
    }
}

impl<S: Stored> Kernel for Product<'_, '_, S> {
    type Output = ();

    fn plain(self) {
        let cols = self.weights.cols;
        let mut values = vec![0.0; cols];
        for row in self.rows.clone() {
            self.weights.read(row, 0, &mut values);
            let column = self.column(row);
            for (r, x) in self.x.chunks_exact(cols).enumerate() {
                self.out.row_mut(r, column..column + 1)[0] = lanes_dot::<SHORT_LANES>(&values, x);
            }
        }
    }

    #[inline(always)]
    fn vectors<V: Vector>(mut self, w: V::Witness) {
        let inputs = self.x.len() / self.weights.cols;
        let block = (BLOCK_BYTES / (4 * self.weights.cols)).max(8);
        for start in (0..inputs).step_by(block) {
            let some = start..inputs.min(start + block);
            let Range { start: mut row, end } = self.rows.clone();
            // 4 x 3 products have 24 sums in AVX-512's 32 registers, 2 x 1 have 8 in AVX2's 16.
            let together = if V::LANES == 16 { 4 } else { 2 };
            while row + together <= end {
                if V::LANES == 16 {
                    self.some_rows::<V, 4>(w, row, some.clone());
                } else {
                    self.some_rows::<V, 2>(w, row, some.clone());
                }
                row += together;
            }
            for row in row..end {
                self.some_rows::<V, 1>(w, row, some.clone());
            }
        }
    }
}

impl<S: Stored> Product<'_, '_, S> {
    #[inline(always)]
    fn some_rows<V: Vector, const R: usize>(&mut self, w: V::Witness, row: usize, inputs: Range<usize>) {
        let Range { start: mut input, end } = inputs;
        if V::LANES == 16 {
            while input + 3 <= end {
                self.some::<V, R, 3>(w, row, input);
                input += 3;
            }
        }
        while input < end {
            self.some::<V, R, 1>(w, row, input);
            input += 1;
        }
    }

    /// `R` weight rows with `A` inputs.
    #[inline(always)]
    fn some<V: Vector, const R: usize, const A: usize>(&mut self, w: V::Witness, row: usize, input: usize) {
        let cols = self.weights.cols;
        let whole = cols / SUM_LANES * SUM_LANES;
        let bytes =
            self.weights.bytes[row * self.weights.row_bytes()..][..R * self.weights.row_bytes()].as_ptr();
        let x = self.x[input * cols..][..A * cols].as_ptr();
        let mut sums = [[[V::splat(w, 0.0); 4]; A]; R];
        let mut k = 0;
        while k < whole {
            for part in 0..V::PARTS {
                let k = k + part * V::LANES;
                let mut weights = [V::splat(w, 0.0); R];
                for r in 0..R {
                    // SAFETY: the slice above holds R rows, and k .. k + LANES lies in each.
                    weights[r] = unsafe { S::load::<V>(w, bytes, r * cols + k) };
                }
                for a in 0..A {
                    // SAFETY: the slice above holds A inputs, and k .. k + LANES lies in each.
                    let x = unsafe { V::load_at(w, x.add(a * cols + k)) };
                    for r in 0..R {
                        sums[r][a][part] = weights[r].fma(x, sums[r][a][part]);
                    }
                }
            }
            k += SUM_LANES;
        }
        if whole < cols {
            self.rest::<V, R, A>(w, row, input, &mut sums);
        }
        let column = self.column(row);
        for a in 0..A {
            let out = self.out.row_mut(input + a, column..column + R);
            for r in 0..R {
                let [p, q, s, t] = sums[r][a];
                let folded = if V::PARTS == 2 { p.add(q) } else { p.add(s).add(q.add(t)) };
                out[r] = folded.tree();
            }
        }
    }

    /// The last, fewer than 32 elements: lanes without one keep their sums.
    #[inline(always)]
    fn rest<V: Vector, const R: usize, const A: usize>(
        &self,
        w: V::Witness,
        row: usize,
        input: usize,
        sums: &mut [[[V; 4]; A]; R],
    ) {
        let cols = self.weights.cols;
        let count = cols % SUM_LANES;
        let (mut weight, mut x) = ([0.0; SUM_LANES], [0.0; SUM_LANES]);
        for r in 0..R {
            self.weights.read(row + r, cols - count, &mut weight[..count]);
            for a in 0..A {
                x[..count].copy_from_slice(&self.x[(input + a + 1) * cols - count..][..count]);
                for part in 0..count.div_ceil(V::LANES) {
                    let start = part * V::LANES;
                    let sum = sums[r][a][part];
                    let next = V::load(w, &weight[start..]).fma(V::load(w, &x[start..]), sum);
                    sums[r][a][part] = next.first(count - start, sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::columns::ColumnsMut;
    use crate::device::cpu::simd::samples::{assert_bits, values};

    const TYPES: [TensorType; 3] = [TensorType::F32, TensorType::F16, TensorType::BF16];

    fn bytes(ty: TensorType, x: &[f32]) -> Vec<u8> {
        match ty {
            TensorType::F16 => {
                x.iter().flat_map(|&x| f16::from_f32(x.clamp(-9e3, 9e3)).to_le_bytes()).collect()
            }
            TensorType::BF16 => x.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
            _ => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    /// Compares every tier with a dot product at a time, in two parts of columns.
    fn check(ty: TensorType, cols: usize, rows: usize, inputs: usize) {
        let stored = bytes(ty, &values(cols as u32, cols * rows));
        let weights = FloatRows::new(ty, cols, &stored);
        let x = values(7, cols * inputs);
        let mut matrix = vec![0.0; rows * cols];
        for (row, out) in matrix.chunks_exact_mut(cols).enumerate() {
            weights.read(row, 0, out);
        }
        let dots = x.chunks_exact(cols).flat_map(|x| matrix.chunks_exact(cols).map(move |row| (row, x)));
        let want: Vec<f32> = dots.map(|(row, x)| lanes_dot::<SHORT_LANES>(row, x)).collect();
        for tier in Tier::available() {
            let what = format!("{ty}, {rows} rows of {cols}, {inputs} inputs by {}", tier.name());
            let mut got = vec![f32::NAN; rows * inputs];
            let out = ColumnsMut::new(&mut got, rows, 2);
            for part in 0..2 {
                product(tier, &weights, &x, &mut out.claim(part));
            }
            assert_bits(&got, &want, &what);

            let mut got = vec![f32::NAN; rows * inputs];
            let out = ColumnsMut::new(&mut got, rows, 2);
            let mut scratch = vec![f32::NAN; dequantised_values(cols)];
            for part in 0..2 {
                let dequantise = &mut |row: usize, out: &mut [f32]| weights.read(row, 0, out);
                product_dequantised(tier, cols, dequantise, &x, &mut out.claim(part), &mut scratch);
            }
            assert_bits(&got, &want, &format!("dequantised: {what}"));
        }
    }

    #[test]
    fn every_length_of_a_row_has_the_plain_bits() {
        for ty in TYPES {
            for cols in (1..100).chain([127, 128, 129, 300, 576]) {
                check(ty, cols, 5, 4);
            }
        }
    }

    #[test]
    fn every_number_of_rows_and_inputs_has_the_plain_bits() {
        for ty in TYPES {
            for rows in [1, 2, 3, 4, 6, 7, 8, 40] {
                for inputs in (1..=9).chain([40]) {
                    check(ty, 72, rows, inputs);
                }
            }
        }
    }

    #[test]
    fn inputs_beyond_a_block_have_the_plain_bits() {
        check(TensorType::F32, 10_000, 5, 19);
    }

    #[test]
    fn a_lane_without_an_element_keeps_its_sign_of_zero() {
        // All 32 chains of the first block round to -0; the rest of the row may not turn them into +0.
        let (small, cols) = (f32::from_bits(1), 33);
        let mut row = vec![small; cols];
        row[32] = -small;
        let stored = bytes(TensorType::F32, &row);
        let x: Vec<f32> = (0..cols).map(|i| if i == 32 { 0.25 } else { -0.25 }).collect();
        let want = lanes_dot::<SHORT_LANES>(&row, &x);
        assert_eq!(want.to_bits(), (-0.0f32).to_bits());
        for tier in Tier::available() {
            let mut got = [1.0];
            let out = ColumnsMut::new(&mut got, 1, 1);
            product(tier, &FloatRows::new(TensorType::F32, cols, &stored), &x, &mut out.claim(0));
            assert_bits(&got, &[want], tier.name());
        }
    }
}
