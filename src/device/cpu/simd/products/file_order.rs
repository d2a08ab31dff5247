//! From rows in file order to a panel: each row's blocks become codes once and then serve all activation rows.
//!
//! For formats with tables, whose decoding does not vectorise over rows. All codes are stored plus 128.
//! Does not know: layouts of blocks (`gguf::formats`), activations.

use super::panel::{Extra, Form, Panel, Step, Super};
use crate::device::cpu::pack::GROUP_COLS;
use crate::gguf::TensorType;
use crate::gguf::formats::{Codes, format};

/// Unpacks the blocks of one group from up to 16 rows of `row_bytes` bytes; they begin `at` bytes into each row and
/// are `bytes` bytes long.
pub fn group(
    ty: TensorType,
    form: Form,
    rows: &[u8],
    row_bytes: usize,
    at: usize,
    bytes: usize,
    panel: &mut Panel,
) {
    let format = format(ty).expect("invariant: a type with a form is a block format");
    let mut codes = Codes::default();
    for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
        for (b, block) in row[at..at + bytes].chunks_exact(ty.block_bytes()).enumerate() {
            (format.codes)(block, &mut codes);
            match form {
                Form::Steps { extra, .. } => {
                    let steps = ty.block_values() / 32;
                    write_steps(extra, &codes, &mut panel.steps[b * steps..][..steps], r);
                }
                Form::Super { .. } => write_super(&codes, &mut panel.block, r),
            }
        }
    }
}

fn write_codes<'a>(codes: &[i8], vectors: impl Iterator<Item = &'a mut [u8; 64]>, r: usize) {
    for (quad, vector) in codes.as_chunks::<4>().0.iter().zip(vectors) {
        vector[4 * r..4 * r + 4].copy_from_slice(&quad.map(|code| code as u8 ^ 0x80));
    }
}

fn write_steps(extra: Extra, codes: &Codes, steps: &mut [Step], r: usize) {
    let step_values = 32 * steps.len() / codes.steps;
    for (s, step) in steps.iter_mut().enumerate() {
        write_codes(&codes.code[32 * s..][..32], step.codes.iter_mut(), r);
        step.d[r] = codes.d[32 * s / step_values];
        step.e[r] = match extra {
            Extra::Nothing => 0.0,
            Extra::Offset => codes.m[32 * s / step_values],
            Extra::SecondHalf => codes.d[(32 * s + 16) / step_values],
        };
    }
}

fn write_super(codes: &Codes, block: &mut Super, r: usize) {
    write_codes(&codes.code[..GROUP_COLS], block.codes.iter_mut(), r);
    for (run, &scale) in codes.scale.iter().enumerate() {
        block.scales[run][r] = i32::from(scale);
        block.pairs[run / 2][r][run % 2] = scale;
    }
    block.d[r] = codes.d[0];
}
