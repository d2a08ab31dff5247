//! Products of packed weight matrices with activation images.
//!
//! [`product`] computes some tiles of a matrix for some activation rows; threads take different columns. Few rows
//! read the packed bytes once and unpack in registers; many rows unpack a group of a tile at a time to a panel that
//! stays in the first-level cache. Order: the groups of `docs/numerics.md`, so a value's bits depend on its weight
//! row and its activation row alone: not on the tier, the rows beside it, threads or the cut into tiles.
//! Does not know: threads, ops. Twin of every tier: `plain.rs`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod direct;
#[cfg(target_arch = "x86_64")]
mod direct_super;
mod file_order;
mod panel;
mod plain;
pub(in crate::device::cpu) mod quantise;
#[cfg(test)]
mod tests;
mod unpack;

use std::ops::Range;

use super::tier::Tier;
use crate::device::cpu::columns::Columns;
use crate::device::cpu::image::{ImageShape, Images, RECORD_BYTES};
use crate::device::cpu::pack::{GROUP_COLS, Layout, Matrix, TILE_ROWS};
use crate::gguf::TensorType;
use crate::gguf::formats::ImageKind;

use panel::{Form, Panel};

/// Activation rows of a product. Its result for the i-th of them is row i of the output.
#[derive(Clone, Debug)]
pub enum Rows<'a> {
    /// Neighbours.
    Range(Range<usize>),
    /// Any.
    Picked(&'a [u32]),
}

impl Rows<'_> {
    /// How many.
    pub fn count(&self) -> usize {
        match self {
            Rows::Range(range) => range.len(),
            Rows::Picked(rows) => rows.len(),
        }
    }

    fn image_row(&self, i: usize) -> usize {
        match self {
            Rows::Range(range) => range.start + i,
            Rows::Picked(rows) => rows[i] as usize,
        }
    }
}

/// What follows the sum of a row: times the companion scale, then plus the bias.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finish<'a> {
    /// The matrix's companion scale.
    pub scale: Option<f32>,
    /// A value for each output row of the whole matrix.
    pub bias: Option<&'a [f32]>,
}

/// Where a group's parts begin in an image row.
#[derive(Clone, Copy, Debug)]
struct Place {
    codes: usize,
    scales: usize,
    sums32: usize,
    sums16: usize,
}

impl Place {
    fn of(shape: ImageShape, group: usize) -> Place {
        let (scales, sums32) = match shape.kind() {
            ImageKind::A32 => (8 * RECORD_BYTES, 32),
            ImageKind::A256 => (4, 16),
        };
        Place {
            codes: GROUP_COLS * group,
            scales: shape.scales_at() + scales * group,
            sums32: shape.sums32_at() + sums32 * group,
            sums16: shape.sums16_at() + 2 * sums32 * group,
        }
    }
}

/// Sums of the 16 rows of a tile with one activation row.
type Sums = [f32; TILE_ROWS];

/// Activation rows that a tile serves before its bytes are read again: their sums take 8 KiB of the first-level cache.
const PASS_ROWS: usize = 128;

/// The same of a window.
const WINDOW_ROWS: usize = 8;

/// Computes the columns of `out`, which are output rows of `matrix`, for the activation rows `rows` of `images`.
///
/// # Panics
/// If the shapes do not belong together, or `out` does not begin and end at tiles (or at the matrix's end).
pub fn product(
    tier: Tier,
    matrix: &Matrix<'_>,
    images: &Images<'_>,
    rows: &Rows<'_>,
    finish: Finish<'_>,
    out: &mut Columns<'_>,
) {
    let (columns, count, shape) = (out.range(), rows.count(), images.shape());
    let form = Form::of(matrix.ty()).unwrap_or_else(|| panic!("product: {} is not quantised", matrix.ty()));
    assert_eq!(shape.cols(), matrix.cols(), "product: columns of the matrix and of the images");
    assert_eq!(shape.kind(), form.image(), "product: the image of {}", matrix.ty());
    assert!(count <= out.rows(), "product: {count} rows of results, room for {}", out.rows());
    assert!(
        columns.start % TILE_ROWS == 0
            && columns.end <= matrix.rows()
            && (columns.end % TILE_ROWS == 0 || columns.end == matrix.rows()),
        "product: columns {columns:?} are no tiles of {} output rows",
        matrix.rows()
    );
    if let Some(bias) = finish.bias {
        assert_eq!(bias.len(), matrix.rows(), "product: bias values");
    }
    // A small window must not pay for clearing the room of a large pass.
    if count <= WINDOW_ROWS {
        passes::<WINDOW_ROWS>(tier, form, matrix, images, rows, finish, out);
    } else {
        passes::<PASS_ROWS>(tier, form, matrix, images, rows, finish, out);
    }
}

/// The product, `N` activation rows at a time.
fn passes<const N: usize>(
    tier: Tier,
    form: Form,
    matrix: &Matrix<'_>,
    images: &Images<'_>,
    rows: &Rows<'_>,
    finish: Finish<'_>,
    out: &mut Columns<'_>,
) {
    let (mut panel, mut sums) = (None, [[0.0; TILE_ROWS]; N]);
    let mut image_rows: [&[u8]; N] = [&[]; N];
    let columns = out.range();
    for first in (0..rows.count()).step_by(N) {
        let pass = N.min(rows.count() - first);
        for (i, row) in image_rows[..pass].iter_mut().enumerate() {
            *row = images.row(rows.image_row(first + i));
        }
        for start in columns.clone().step_by(TILE_ROWS) {
            let tile =
                Tile { ty: matrix.ty(), form, shape: images.shape(), bytes: matrix.tile(start / TILE_ROWS) };
            let range = start..(start + TILE_ROWS).min(columns.end);
            let sums = &mut sums[..pass];
            sums.fill([0.0; TILE_ROWS]);
            tile.add(tier, &mut panel, &image_rows[..pass], sums);
            for (i, sums) in sums.iter().enumerate() {
                finish_row(finish, sums, range.start, out.row_mut(first + i, range.clone()));
            }
        }
    }
}

/// Writes a tile's sums of one row, scaled and with their biases, which begin at `first`.
#[inline(always)]
fn finish_row(finish: Finish<'_>, sums: &Sums, first: usize, values: &mut [f32]) {
    for (i, (value, &sum)) in values.iter_mut().zip(sums).enumerate() {
        let scaled = finish.scale.map_or(sum, |scale| sum * scale);
        *value = finish.bias.map_or(scaled, |bias| scaled + bias[first + i]);
    }
}

#[cfg(target_arch = "x86_64")]
/// Cuts rows and their sums into blocks of at most `most` rows and nearly equal size: 13 are 7 and 6.
fn even_blocks<'r, 'i, 's>(
    rows: &'r [&'i [u8]],
    sums: &'s mut [Sums],
    most: usize,
) -> impl Iterator<Item = (&'r [&'i [u8]], &'s mut [Sums])> {
    let blocks = rows.len().div_ceil(most);
    let mut rest = sums;
    (0..blocks).map(move |i| {
        let (start, end) = (i * rows.len() / blocks, (i + 1) * rows.len() / blocks);
        let (here, behind) = std::mem::take(&mut rest).split_at_mut(end - start);
        rest = behind;
        (&rows[start..end], here)
    })
}

/// The packed bytes of a tile and what they are.
#[derive(Clone, Copy)]
struct Tile<'a> {
    ty: TensorType,
    form: Form,
    shape: ImageShape,
    bytes: &'a [u8],
}

impl Tile<'_> {
    /// Adds the products with all rows to the sums.
    #[inline(always)]
    fn add(&self, tier: Tier, panel: &mut Option<Panel>, rows: &[&[u8]], sums: &mut [Sums]) {
        #[cfg(target_arch = "x86_64")]
        if let Tier::Avx512(witness) = tier
            && Layout::of(self.ty) == Layout::Lanes16
            && direct::pays(self.form, rows.len())
        {
            return direct::tile(witness, self, rows, sums);
        }
        self.by_panels(tier, panel.get_or_insert_with(Panel::new), rows, sums);
    }

    /// Adds group after group.
    fn by_panels(&self, tier: Tier, panel: &mut Panel, rows: &[&[u8]], sums: &mut [Sums]) {
        for group in 0..self.shape.cols().div_ceil(GROUP_COLS) {
            let cols = GROUP_COLS.min(self.shape.cols() - group * GROUP_COLS);
            let at = Place::of(self.shape, group);
            match Layout::of(self.ty) {
                Layout::Lanes16 => {
                    let bytes = self.group_bytes(group, cols);
                    match tier {
                        #[cfg(target_arch = "x86_64")]
                        Tier::Avx512(witness) => direct::unpack(witness, self.ty, bytes, panel),
                        #[cfg(target_arch = "x86_64")]
                        Tier::Avx2(witness) => avx2::unpack(witness, self.ty, bytes, panel),
                        _ => unpack::group(self.ty, unpack::Scalar, bytes, panel),
                    }
                }
                Layout::FileOrder => {
                    let (first, bytes) = (self.ty.row_bytes(GROUP_COLS) * group, self.ty.row_bytes(cols));
                    let row_bytes = self.ty.row_bytes(self.shape.cols());
                    file_order::group(self.ty, self.form, self.bytes, row_bytes, first, bytes, panel);
                }
            }
            match tier {
                #[cfg(target_arch = "x86_64")]
                Tier::Avx512(witness) => avx512::add(witness, self.form, panel, cols, rows, at, sums),
                #[cfg(target_arch = "x86_64")]
                Tier::Avx2(witness) => avx2::add(witness, self.form, panel, cols, rows, at, sums),
                _ => plain::add(self.form, panel, cols, rows, at, sums),
            }
        }
    }

    /// The packed bytes of a group of `cols` columns.
    fn group_bytes(&self, group: usize, cols: usize) -> &[u8] {
        &self.bytes[TILE_ROWS * self.ty.row_bytes(GROUP_COLS) * group..]
            [..TILE_ROWS * self.ty.row_bytes(cols)]
    }
}
