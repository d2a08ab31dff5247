//! Packed weights: sixteen output rows side by side, in exactly as many bytes as the file has for them.
//!
//! A *tile* is 16 rows. For each block of columns it holds the block's fields one after the other, each field's
//! elements in the order element, row: `f16 d[16]`, then for instance `u32 qs[4][16]`. A vector register then holds
//! one field of 16 rows, and one broadcast activation meets 16 rows at once. Some fields change their form, not
//! their size: the fifth bits of Q5_0, Q5_1 and Q5_K become masks (one bit for each byte of a 64-byte vector),
//! Q8_0's codes are stored with their sign bit inverted, Q6_K's words lie in the order of use, so that memory is read
//! in rising order. Missing rows of the last tile are zero bytes of the file.
//! Invariant: packing loses nothing; [`file_row`] gives the file's bytes back. Types without a row of fields here
//! stay in file order. Does not know: kernels, threads, where weights come from. Source: `docs/numerics.md`.

use std::ops::Range;

use crate::gguf::TensorType;
use crate::gguf::formats::{dequantize_row, format};
use crate::model::footprint;

/// Output rows of a tile.
pub const TILE_ROWS: usize = footprint::TILE_ROWS;

/// Columns of a group: what the contract of products adds up before it touches a row's sum.
pub const GROUP_COLS: usize = 256;

/// How the rows of a matrix lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Tiles of 16 rows, the rows in the lanes of vectors.
    Lanes16,
    /// As in the file, row after row.
    FileOrder,
}

impl Layout {
    /// The layout of a type's matrices.
    pub fn of(ty: TensorType) -> Layout {
        if fields(ty).is_some() { Layout::Lanes16 } else { Layout::FileOrder }
    }
}

/// A field of a block, in the order of the file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field {
    /// `count` elements of `bytes` bytes each.
    Elements {
        /// Bytes of an element.
        bytes: usize,
        /// How many.
        count: usize,
    },
    /// Q6_K's 128 bytes of low bits and 64 of high bits, in words of the order in which they are used together.
    Sixes,
    /// 32 signed codes, stored with the sign bit inverted.
    Codes,
    /// 32 bits; bit `4 v + j` is value `j` of quad `v`.
    FifthBits,
    /// 32 bytes; bit `s` of byte `4 v + j` is value `j` of quad `8 s + v`.
    FifthPlanes,
}

impl Field {
    fn bytes(self) -> usize {
        match self {
            Field::Elements { bytes, count } => bytes * count,
            Field::FifthBits => 4,
            Field::Sixes => 192,
            Field::Codes | Field::FifthPlanes => 32,
        }
    }
}

const fn each(bytes: usize, count: usize) -> Field {
    Field::Elements { bytes, count }
}

const HALF: Field = each(2, 1);

/// The fields of a type's block, or `None` for types that stay in file order.
fn fields(ty: TensorType) -> Option<&'static [Field]> {
    Some(match ty {
        TensorType::Q4_0 | TensorType::IQ4_NL => const { &[HALF, each(4, 4)] },
        TensorType::Q4_1 => const { &[HALF, HALF, each(4, 4)] },
        TensorType::Q5_0 => const { &[HALF, Field::FifthBits, each(4, 4)] },
        TensorType::Q5_1 => const { &[HALF, HALF, Field::FifthBits, each(4, 4)] },
        TensorType::Q8_0 => const { &[HALF, Field::Codes] },
        TensorType::MXFP4 => const { &[each(1, 1), each(4, 4)] },
        TensorType::Q2_K => const { &[each(1, 16), each(4, 16), HALF, HALF] },
        TensorType::Q3_K => const { &[each(4, 8), each(4, 16), each(1, 12), HALF] },
        TensorType::Q4_K => const { &[HALF, HALF, each(1, 12), each(4, 32)] },
        TensorType::Q5_K => const { &[HALF, HALF, each(1, 12), Field::FifthPlanes, each(4, 32)] },
        TensorType::Q6_K => const { &[Field::Sixes, each(1, 16), HALF] },
        TensorType::IQ4_XS => const { &[HALF, HALF, each(1, 4), each(4, 32)] },
        TensorType::TQ2_0 => const { &[each(4, 16), HALF] },
        _ => return None,
    })
}

/// Number of tiles that hold `rows` rows.
pub fn tile_count(rows: usize) -> usize {
    rows.div_ceil(TILE_ROWS)
}

/// Bytes of a packed matrix of `rows` x `cols`.
pub fn packed_bytes(ty: TensorType, rows: usize, cols: usize) -> usize {
    match Layout::of(ty) {
        Layout::Lanes16 => tile_count(rows) * TILE_ROWS * ty.row_bytes(cols),
        Layout::FileOrder => rows * ty.row_bytes(cols),
    }
}

/// Where tile `tile` of a matrix lies in its packed bytes; the last one may be shorter in file order.
pub fn tile_bytes(ty: TensorType, rows: usize, cols: usize, tile: usize) -> Range<usize> {
    let step = TILE_ROWS * ty.row_bytes(cols);
    tile * step..((tile + 1) * step).min(packed_bytes(ty, rows, cols))
}

/// Packs the file's bytes of one tile: up to 16 whole rows of `cols` values in `src`, to the tile's place in `dst`
/// (see [`tile_bytes`]).
///
/// # Panics
/// If `src` is not one to 16 whole rows, or `dst` has not the tile's size.
pub fn pack_tile(ty: TensorType, cols: usize, src: &[u8], dst: &mut [u8]) {
    let row_bytes = ty.row_bytes(cols);
    assert_eq!(src.len() % row_bytes, 0, "pack: {} bytes are no whole rows of {row_bytes}", src.len());
    let Some(fields) = fields(ty) else {
        dst.copy_from_slice(src);
        return;
    };
    let rows = src.len() / row_bytes;
    assert!((1..=TILE_ROWS).contains(&rows), "pack: {rows} rows are no tile");
    assert_eq!(dst.len(), TILE_ROWS * row_bytes, "pack: the size of a tile");
    let block_bytes = ty.block_bytes();
    let mut block = [0u8; TILE_ROWS * BLOCK_BYTES_MAX];
    let block = &mut block[..TILE_ROWS * block_bytes];
    for (b, to) in dst.chunks_exact_mut(TILE_ROWS * block_bytes).enumerate() {
        for (r, from) in src.chunks_exact(row_bytes).enumerate() {
            block[r * block_bytes..][..block_bytes].copy_from_slice(&from[b * block_bytes..][..block_bytes]);
        }
        let (mut at, mut put) = (0, to);
        for &field in fields {
            let (here, rest) = put.split_at_mut(TILE_ROWS * field.bytes());
            pack_field(field, block, block_bytes, at, here);
            (at, put) = (at + field.bytes(), rest);
        }
    }
}

/// The largest block of a packed type (Q6_K).
const BLOCK_BYTES_MAX: usize = 210;

/// One field of 16 blocks that lie behind each other in `block`, `at` bytes into each.
fn pack_field(field: Field, block: &[u8], block_bytes: usize, at: usize, to: &mut [u8]) {
    let row = |r: usize| &block[r * block_bytes + at..][..field.bytes()];
    match field {
        Field::Elements { bytes: 4, .. } => {
            for r in 0..TILE_ROWS {
                for (e, word) in row(r).as_chunks::<4>().0.iter().enumerate() {
                    to[(e * TILE_ROWS + r) * 4..][..4].copy_from_slice(word);
                }
            }
        }
        Field::Elements { bytes, .. } => {
            for r in 0..TILE_ROWS {
                for (e, element) in row(r).chunks_exact(bytes).enumerate() {
                    to[(e * TILE_ROWS + r) * bytes..][..bytes].copy_from_slice(element);
                }
            }
        }
        Field::Sixes => {
            for r in 0..TILE_ROWS {
                let words = row(r).as_chunks::<4>().0;
                for e in 0..words.len() {
                    to[(e * TILE_ROWS + r) * 4..][..4].copy_from_slice(&words[six_word(e)]);
                }
            }
        }
        Field::Codes => {
            for r in 0..TILE_ROWS {
                for (e, word) in row(r).as_chunks::<4>().0.iter().enumerate() {
                    to[(e * TILE_ROWS + r) * 4..][..4].copy_from_slice(&word.map(|code| code ^ 0x80));
                }
            }
        }
        Field::FifthBits => {
            let mut masks = [0u64; 8];
            for r in 0..TILE_ROWS {
                let bits = word(row(r), 0);
                for (v, mask) in masks.iter_mut().enumerate() {
                    *mask |= u64::from(bits >> (4 * v) & 15) << (4 * r);
                }
            }
            write_masks(&masks, to);
        }
        Field::FifthPlanes => {
            let mut masks = [0u64; 64];
            for r in 0..TILE_ROWS {
                for v in 0..8 {
                    let four = word(row(r), v);
                    for s in 0..8 {
                        // Bits 0, 8, 16 and 24 of the word meet in its upper byte.
                        let nibble = (four >> s & 0x0101_0101).wrapping_mul(0x0102_0408) >> 24 & 15;
                        masks[8 * s + v] |= u64::from(nibble) << (4 * r);
                    }
                }
            }
            write_masks(&masks, to);
        }
    }
}

/// Which word of the file is word `e` of [`Field::Sixes`]: first those of low bits that share, in two bits each, a word
/// of high bits, then that word.
fn six_word(e: usize) -> usize {
    let (eight, word, part) = (e / 24, e / 3 % 8, e % 3);
    match part {
        2 => 32 + 8 * eight + word,
        _ => 16 * eight + 8 * part + word,
    }
}

fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(bytes.as_chunks::<4>().0[index])
}

fn write_masks(masks: &[u64], to: &mut [u8]) {
    for (mask, put) in masks.iter().zip(to.chunks_exact_mut(8)) {
        put.copy_from_slice(&mask.to_le_bytes());
    }
}

/// The file's bytes of row `row` of a packed matrix with `cols` columns.
///
/// # Panics
/// If `packed` does not hold that row, or `out` is not one row of the file.
pub fn file_row(ty: TensorType, cols: usize, packed: &[u8], row: usize, out: &mut [u8]) {
    assert_eq!(out.len(), ty.row_bytes(cols), "unpack: the size of a row");
    for (b, block) in out.chunks_exact_mut(ty.block_bytes()).enumerate() {
        file_block(ty, cols, packed, row, b, block);
    }
}

/// The values of row `row` of a packed matrix with `cols` columns, as the format's formula rounds them (an embedding
/// that shares its matrix with the head is looked up so).
///
/// # Panics
/// If `packed` does not hold that row, or `out` has not `cols` values.
pub fn unpack_row(ty: TensorType, cols: usize, packed: &[u8], row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), cols, "unpack: the values of a row");
    let (Some(format), Layout::Lanes16) = (format(ty), Layout::of(ty)) else {
        let row_bytes = ty.row_bytes(cols);
        return dequantize_row(ty, &packed[row * row_bytes..][..row_bytes], out);
    };
    let mut block = [0; BLOCK_BYTES_MAX];
    let block = &mut block[..ty.block_bytes()];
    for (b, values) in out.chunks_exact_mut(ty.block_values()).enumerate() {
        file_block(ty, cols, packed, row, b, block);
        (format.dequantize)(block, values);
    }
}

/// The file's bytes of block `index` of row `row`.
fn file_block(ty: TensorType, cols: usize, packed: &[u8], row: usize, index: usize, out: &mut [u8]) {
    let (row_bytes, block_bytes) = (ty.row_bytes(cols), ty.block_bytes());
    let Some(fields) = fields(ty) else {
        out.copy_from_slice(&packed[row * row_bytes + index * block_bytes..][..block_bytes]);
        return;
    };
    let (tile, r) = (row / TILE_ROWS, row % TILE_ROWS);
    let mut from = &packed[TILE_ROWS * (tile * row_bytes + index * block_bytes)..][..TILE_ROWS * block_bytes];
    let mut to = out;
    for &field in fields {
        let (here, from_rest) = from.split_at(TILE_ROWS * field.bytes());
        let (put, to_rest) = to.split_at_mut(field.bytes());
        unpack_field(field, here, r, put);
        (from, to) = (from_rest, to_rest);
    }
}

/// Row `r`'s part of a packed field.
fn unpack_field(field: Field, from: &[u8], r: usize, to: &mut [u8]) {
    let elements = |bytes: usize, to: &mut [u8]| {
        for (e, put) in to.chunks_exact_mut(bytes).enumerate() {
            put.copy_from_slice(&from[(e * TILE_ROWS + r) * bytes..][..bytes]);
        }
    };
    let nibble = |mask: usize| from[8 * mask + r / 2] >> (4 * (r % 2)) & 15;
    match field {
        Field::Elements { bytes, .. } => elements(bytes, to),
        Field::Sixes => {
            for e in 0..48 {
                to[4 * six_word(e)..][..4].copy_from_slice(&from[(e * TILE_ROWS + r) * 4..][..4]);
            }
        }
        Field::Codes => {
            elements(4, to);
            to.iter_mut().for_each(|code| *code ^= 0x80);
        }
        Field::FifthBits => {
            for (byte, put) in to.iter_mut().enumerate() {
                *put = nibble(2 * byte) | nibble(2 * byte + 1) << 4;
            }
        }
        Field::FifthPlanes => {
            for (l, put) in to.iter_mut().enumerate() {
                *put = (0..8).fold(0, |byte, s| byte | (nibble(8 * s + l / 4) >> (l % 4) & 1) << s);
            }
        }
    }
}

/// A packed matrix: `rows` output rows of `cols` input values.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    ty: TensorType,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// A view of packed bytes.
    ///
    /// # Panics
    /// If `bytes` has not the size of [`packed_bytes`], or a row is not whole blocks.
    pub fn new(ty: TensorType, rows: usize, cols: usize, bytes: &'a [u8]) -> Matrix<'a> {
        assert_eq!(cols % ty.block_values(), 0, "matrix: {cols} columns are no whole blocks of {ty}");
        assert_eq!(bytes.len(), packed_bytes(ty, rows, cols), "matrix: bytes of {rows} x {cols} {ty}");
        Matrix { ty, rows, cols, bytes }
    }

    /// Its type.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Output rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input values.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The packed bytes of one tile.
    pub fn tile(&self, tile: usize) -> &'a [u8] {
        &self.bytes[tile_bytes(self.ty, self.rows, self.cols, tile)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_knows_which_types_have_tiles() {
        for &ty in TensorType::ALL {
            let tiled = Layout::of(ty) == Layout::Lanes16;
            assert_eq!(footprint::TILED.contains(&ty), tiled, "{ty}");
        }
    }

    fn noise(len: usize, mut seed: u64) -> Vec<u8> {
        let mut next = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn check(ty: TensorType, rows: usize, cols: usize) {
        let row_bytes = ty.row_bytes(cols);
        let file = noise(rows * row_bytes, 7 + rows as u64);
        let mut packed = vec![0xEE; packed_bytes(ty, rows, cols)];
        for tile in 0..tile_count(rows) {
            let last = (rows * row_bytes).min((tile + 1) * TILE_ROWS * row_bytes);
            let src = &file[tile * TILE_ROWS * row_bytes..last];
            pack_tile(ty, cols, src, &mut packed[tile_bytes(ty, rows, cols, tile)]);
        }
        let mut back = vec![0; row_bytes];
        for r in 0..rows {
            file_row(ty, cols, &packed, r, &mut back);
            let row = &file[r * row_bytes..][..row_bytes];
            assert_eq!(back, row, "{ty}: row {r} of {rows} x {cols}");
            let (mut values, mut want) = (vec![0.0; cols], vec![0.0; cols]);
            unpack_row(ty, cols, &packed, r, &mut values);
            dequantize_row(ty, row, &mut want);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&values), bits(&want), "{ty}: values of row {r} of {rows} x {cols}");
        }
    }

    #[test]
    fn packed_rows_give_the_bytes_and_values_of_the_file_back() {
        for &ty in TensorType::ALL.iter().filter(|ty| ty.is_quantised()) {
            let unit = ty.block_values();
            for (rows, blocks) in [(1, 1), (15, 3), (16, 2), (17, 1), (33, 5)] {
                check(ty, rows, blocks * unit);
            }
        }
    }

    #[test]
    fn fields_of_packed_types_cover_their_blocks_and_tiles_cost_no_extra_bytes() {
        let packed: Vec<_> =
            TensorType::ALL.iter().filter(|&&ty| Layout::of(ty) == Layout::Lanes16).collect();
        assert!(packed.contains(&&TensorType::Q4_0) && packed.contains(&&TensorType::Q6_K));
        for &ty in packed {
            let bytes: usize = fields(ty).unwrap().iter().map(|field| field.bytes()).sum();
            assert_eq!(bytes, ty.block_bytes(), "{ty}");
            assert!(bytes <= BLOCK_BYTES_MAX);
            assert_eq!(packed_bytes(ty, 32, 1024), 32 * ty.row_bytes(1024));
        }
    }
}
