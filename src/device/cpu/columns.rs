//! An output matrix that several threads fill, each a range of its columns.
//!
//! A matrix is cut into bands of rows (one, or one an expert) and each band into parts of neighbouring columns at
//! multiples of a tile. A part is claimed once and then belongs to whoever claimed it.
//! Invariants: no two [`Columns`] of a matrix overlap; a claimed place lies inside the matrix.
//! Does not know: products, threads. This module is a fence: it makes row slices from a shared pointer.
#![allow(unsafe_code, reason = "threads write disjoint columns of one matrix")]

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::pack::{TILE_ROWS, tile_count};

const CLAIM_WORDS: usize = 32;

/// Parts over all bands up to which a matrix is cut without an allocation; more are possible.
pub const PARTS_MAX: usize = 64 * CLAIM_WORDS;

/// One bit a part: claimed. Without parts beyond [`PARTS_MAX`] the list is empty.
#[derive(Debug)]
struct Claims {
    first: [AtomicU64; CLAIM_WORDS],
    more: Vec<AtomicU64>,
}

impl Claims {
    fn of(parts: usize) -> Claims {
        let words = parts.div_ceil(64).saturating_sub(CLAIM_WORDS);
        Claims {
            first: std::array::from_fn(|_| AtomicU64::new(0)),
            more: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        self.first.get(at).unwrap_or_else(|| &self.more[at - CLAIM_WORDS])
    }
}

/// Where the parts of a band begin.
#[derive(Clone, Copy, Debug)]
enum Cut<'a> {
    /// At multiples of a tile, evenly.
    Tiles,
    /// At these columns; one more than there are parts.
    Edges(&'a [usize]),
}

/// A matrix of rows x width values whose parts are claimed by threads.
#[derive(Debug)]
pub struct ColumnsMut<'a> {
    data: *mut f32,
    rows: usize,
    /// Values from a row to the next.
    stride: usize,
    width: usize,
    cut: Cut<'a>,
    /// First row of every band and the end of the last; `None` is one band.
    bands: Option<&'a [usize]>,
    parts: usize,
    claimed: Claims,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is only used by `Columns`, which cover disjoint places: each (band, part) is claimed once by an
// atomic operation. The borrow in `borrow` keeps every other access away for the lifetime `'a`.
unsafe impl Sync for ColumnsMut<'_> {}
// SAFETY: as above; nothing in it belongs to one thread.
unsafe impl Send for ColumnsMut<'_> {}

impl<'a> ColumnsMut<'a> {
    /// Cuts the columns of `data` (whole rows of `width` values) into `parts` parts.
    ///
    /// # Panics
    /// If `data` is not whole rows, or there are no parts.
    pub fn new(data: &'a mut [f32], width: usize, parts: usize) -> ColumnsMut<'a> {
        ColumnsMut::cut(data, width, None, parts, Cut::Tiles)
    }

    /// Matrices side by side in rows of `stride` values: the i-th has the columns `spans[i].0` cut into `spans[i].1`
    /// parts at multiples of a tile from its own first column.
    ///
    /// # Panics
    /// If `data` is not whole rows, or spans overlap, fall or end behind the row.
    pub fn side_by_side(
        data: &'a mut [f32],
        stride: usize,
        spans: &[(Range<usize>, usize)],
    ) -> Vec<ColumnsMut<'a>> {
        let mut free = 0;
        let whole = ColumnsMut::cut(data, stride, None, 1, Cut::Tiles);
        let one = |(span, parts): &(Range<usize>, usize)| {
            assert!(
                free <= span.start && span.start <= span.end && span.end <= stride && *parts > 0,
                "columns: span {span:?} of rows of {stride} values, free from {free}, in {parts} parts"
            );
            free = span.end;
            ColumnsMut {
                // SAFETY: the span starts inside the first row or at its end; without rows nothing is ever written.
                data: unsafe { whole.data.add(span.start.min(whole.rows * stride)) },
                width: span.len(),
                parts: *parts,
                claimed: Claims::of(*parts),
                ..whole
            }
        };
        spans.iter().map(one).collect()
    }

    /// Bands of rows (as [`ColumnsMut::banded`]) cut at the columns `edges`.
    ///
    /// # Panics
    /// As [`ColumnsMut::banded`]; and if `edges` fall or end behind the row.
    pub fn banded_at(
        data: &'a mut [f32],
        width: usize,
        starts: &'a [usize],
        edges: &'a [usize],
    ) -> ColumnsMut<'a> {
        assert!(edges.is_sorted() && edges.last().is_some_and(|&e| e <= width), "columns: edges {edges:?}");
        ColumnsMut::cut(data, width, Some(starts), edges.len() - 1, Cut::Edges(edges))
    }

    /// The same for every band of rows: band `b` is rows `starts[b]..starts[b + 1]`.
    ///
    /// # Panics
    /// As [`ColumnsMut::new`]; and if `starts` falls or ends behind the last row.
    pub fn banded(data: &'a mut [f32], width: usize, starts: &'a [usize], parts: usize) -> ColumnsMut<'a> {
        ColumnsMut::cut(data, width, Some(starts), parts, Cut::Tiles)
    }

    fn cut(
        data: &'a mut [f32],
        width: usize,
        bands: Option<&'a [usize]>,
        parts: usize,
        cut: Cut<'a>,
    ) -> ColumnsMut<'a> {
        assert_eq!(data.len() % width, 0, "columns: {} values are no rows of {width}", data.len());
        let rows = data.len() / width;
        if let Some(starts) = bands {
            let end = starts.last().copied().unwrap_or(0);
            assert!(starts.is_sorted() && end <= rows, "columns: bands end at {end} of {rows} rows");
        }
        let band_count = bands.map_or(1, |starts| starts.len().saturating_sub(1));
        assert!(parts > 0, "columns: {band_count} bands of no parts");
        let claimed = Claims::of(band_count * parts);
        let data = data.as_mut_ptr();
        ColumnsMut { data, rows, stride: width, width, cut, bands, parts, claimed, borrow: PhantomData }
    }

    /// Number of parts of a band.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// The columns of part `part`; empty where there are more parts than tiles.
    pub fn part_columns(&self, part: usize) -> Range<usize> {
        if let Cut::Edges(edges) = self.cut {
            return edges[part]..edges[part + 1];
        }
        let tiles = tile_count(self.width);
        let edge = |part: usize| (part * tiles / self.parts * TILE_ROWS).min(self.width);
        edge(part)..edge(part + 1)
    }

    /// Takes part `part` of the only (or first) band.
    ///
    /// # Panics
    /// If the part was claimed before or does not exist.
    pub fn claim(&self, part: usize) -> Columns<'_> {
        self.claim_in(0, part)
    }

    /// Takes part `part` of band `band`; rows of the result count from the band's first.
    ///
    /// # Panics
    /// If the part was claimed before or does not exist.
    pub fn claim_in(&self, band: usize, part: usize) -> Columns<'_> {
        let rows = match self.bands {
            None => (band == 0).then_some(0..self.rows),
            Some(starts) => starts.get(band..band + 2).map(|edges| edges[0]..edges[1]),
        };
        let rows = rows.filter(|_| part < self.parts);
        let rows = rows.unwrap_or_else(|| panic!("columns: there is no part {part} of band {band}"));
        let bit = band * self.parts + part;
        let before = self.claimed.word(bit / 64).fetch_or(1 << (bit % 64), Ordering::AcqRel);
        assert_eq!(before >> (bit % 64) & 1, 0, "columns: part {part} of band {band} was claimed before");
        Columns {
            // SAFETY: the band starts inside the matrix or at its end (checked in `cut`), which `'a` borrows.
            data: unsafe { self.data.add(rows.start * self.stride) },
            rows: rows.len(),
            stride: self.stride,
            columns: self.part_columns(part),
            borrow: PhantomData,
        }
    }
}

/// A range of columns of some rows, which its owner may write.
#[derive(Debug)]
pub struct Columns<'a> {
    data: *mut f32,
    rows: usize,
    stride: usize,
    columns: Range<usize>,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: it has its place to itself, like a `&mut [f32]`.
unsafe impl Send for Columns<'_> {}

impl Columns<'_> {
    /// Which columns of the matrix these are.
    pub fn range(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// Rows in this part.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The values of columns `columns` (numbers of the whole matrix) in row `row`.
    ///
    /// # Panics
    /// If the row or a column is not in this part.
    #[inline]
    pub fn row_mut(&mut self, row: usize, columns: Range<usize>) -> &mut [f32] {
        assert!(
            row < self.rows
                && self.columns.start <= columns.start
                && columns.start <= columns.end
                && columns.end <= self.columns.end,
            "columns: row {row}, columns {columns:?} are outside {} rows of {:?}",
            self.rows,
            self.columns
        );
        // SAFETY: the place lies in this part (asserted), the part in the matrix (`claim_in`), no other part overlaps
        // it (claimed once), and the matrix is borrowed for `'a`, which outlives `self`.
        unsafe {
            std::slice::from_raw_parts_mut(self.data.add(row * self.stride + columns.start), columns.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_all_bands_cover_every_value_once() {
        for (width, parts, starts) in [(1, 1, vec![0, 2]), (40, 2, vec![0, 1, 1, 4]), (100, 9, vec![0, 3, 5])]
        {
            let rows = starts[starts.len() - 1];
            let mut data = vec![0.0; rows * width];
            let matrix = ColumnsMut::banded(&mut data, width, &starts, parts);
            std::thread::scope(|scope| {
                for band in 0..starts.len() - 1 {
                    for part in 0..parts {
                        let mut columns = matrix.claim_in(band, part);
                        scope.spawn(move || {
                            for row in 0..columns.rows() {
                                let range = columns.range();
                                columns.row_mut(row, range).iter_mut().for_each(|v| *v += 1.0);
                            }
                        });
                    }
                }
            });
            assert!(data.iter().all(|&v| v == 1.0), "{width} columns in {parts} parts");
        }
    }

    #[test]
    fn parts_beyond_the_first_words_are_claimed_once_too() {
        let (bands, parts) = (PARTS_MAX / 8 + 3, 8);
        let (starts, mut data): (Vec<usize>, _) = ((0..=bands).collect(), vec![0f32; bands * 16 * parts]);
        {
            let columns = ColumnsMut::banded(&mut data, 16 * parts, &starts, parts);
            for (band, part) in (0..bands).flat_map(|b| (0..parts).map(move |p| (b, p))) {
                let mut claimed = columns.claim_in(band, part);
                let range = claimed.range();
                claimed.row_mut(0, range).fill((band * parts + part) as f32);
            }
            let again = std::panic::AssertUnwindSafe(|| _ = columns.claim_in(bands - 1, parts - 1));
            assert!(std::panic::catch_unwind(again).is_err());
        }
        let expected = (0..bands * parts).flat_map(|i| [i as f32; 16]);
        assert!(data.iter().copied().eq(expected));
    }

    #[test]
    #[should_panic(expected = "claimed before")]
    fn a_part_is_claimed_once() {
        let mut data = vec![0.0; 64];
        let matrix = ColumnsMut::new(&mut data, 64, 2);
        let _first = matrix.claim(1);
        let _second = matrix.claim(1);
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_part_gives_no_column_of_its_neighbour() {
        let mut data = vec![0.0; 64];
        let matrix = ColumnsMut::new(&mut data, 64, 2);
        matrix.claim(0).row_mut(0, 16..48);
    }
}
