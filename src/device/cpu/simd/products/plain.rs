//! Products of a panel with one activation row, in plain loops: the twin of every other tier.
//!
//! Invariant: the order of groups and steps of `docs/numerics.md`. Does not know: layouts of packed bytes.

use super::panel::{Extra, Form, Pairs, Panel, ScaleCols, Step, Stored, Super};
use super::{Place, Sums};
use crate::device::cpu::image::{RECORD_BYTES, START_8_AT, START_128_AT, SUM_AT};

fn f32_at(row: &[u8], at: usize, index: usize) -> f32 {
    f32::from_bits(i32_at(row, at, index) as u32)
}

fn i32_at(row: &[u8], at: usize, index: usize) -> i32 {
    i32::from_le_bytes(row[at..].as_chunks::<4>().0[index])
}

fn i16_at(row: &[u8], at: usize, index: usize) -> i32 {
    i32::from(i16::from_le_bytes(row[at..].as_chunks::<2>().0[index]))
}

/// Sum of codes times activation codes over some quads, for row `r` of the tile.
fn dot(codes: &[[u8; 64]], q: &[u8], r: usize) -> i32 {
    let quad = |(codes, q): (&[u8; 64], &[u8; 4])| -> i32 {
        (0..4).map(|j| i32::from(codes[4 * r + j]) * i32::from(q[j] as i8)).sum()
    };
    codes.iter().zip(q.as_chunks::<4>().0).map(quad).sum()
}

/// Adds a group's values to the sums of the tile's rows.
fn steps(steps: &[Step], extra: Extra, stored: Stored, row: &[u8], at: Place, sums: &mut Sums) {
    for (r, sum) in sums.iter_mut().enumerate() {
        let mut g = 0.0f32;
        for (b, step) in steps.iter().enumerate() {
            let q = &row[at.codes + 32 * b..][..32];
            let record = at.scales + RECORD_BYTES * b;
            let a = f32_at(row, record, 0);
            if extra == Extra::SecondHalf {
                let first = dot(&step.codes[..4], q, r) + i32_at(row, at.sums16, 2 * b);
                let second = dot(&step.codes[4..], &q[16..], r) + i32_at(row, at.sums16, 2 * b + 1);
                g = (step.d[r] * a).mul_add(first as f32, g);
                g = (step.e[r] * a).mul_add(second as f32, g);
                continue;
            }
            let start = match stored {
                Stored::Plain => 0,
                Stored::Plus8 => i32_at(row, record + START_8_AT, 0),
                Stored::Plus128 => i32_at(row, record + START_128_AT, 0),
            };
            g = (step.d[r] * a).mul_add((dot(&step.codes, q, r) + start) as f32, g);
            if extra == Extra::Offset {
                g = (step.e[r] * a).mul_add(f32_at(row, record + SUM_AT, 0), g);
            }
        }
        *sum += g;
    }
}

/// Adds a group's values to the sums of the tile's rows.
fn block(block: &Super, cols: ScaleCols, pairs: Pairs, row: &[u8], at: Place, sums: &mut Sums) {
    let (runs, sums_at) = match cols {
        ScaleCols::C16 => (16, at.sums16),
        ScaleCols::C32 => (8, at.sums32),
    };
    let quads = 64 / runs;
    let a = f32_at(row, at.scales, 0);
    for (r, sum) in sums.iter_mut().enumerate() {
        let (mut total, mut paired) = (0i32, 0i32);
        for run in 0..runs {
            let q = &row[at.codes + 4 * quads * run..][..4 * quads];
            let part = dot(&block.codes[quads * run..][..quads], q, r);
            total = total.wrapping_add(block.scales[run][r].wrapping_mul(part));
            let factor = i32::from(block.pairs[run / 2][r][run % 2]);
            paired = paired.wrapping_add(factor.wrapping_mul(i16_at(row, sums_at, run)));
        }
        let da = block.d[r] * a;
        *sum += match pairs {
            Pairs::Minima => da.mul_add(total as f32, -((block.dmin[r] * a) * paired as f32)),
            Pairs::Scales { shift } => da * total.wrapping_sub(paired << shift) as f32,
        };
    }
}

/// Adds the values of a panel of `cols` columns to the sums of all rows.
pub fn add(form: Form, panel: &Panel, cols: usize, rows: &[&[u8]], at: Place, sums: &mut [Sums]) {
    for (row, sums) in rows.iter().zip(sums) {
        match form {
            Form::Steps { extra, stored } => steps(&panel.steps[..cols / 32], extra, stored, row, at, sums),
            Form::Super { scale_cols, pairs } => block(&panel.block, scale_cols, pairs, row, at, sums),
        }
    }
}
