//! Attention of one query head over stored keys and values: tiles, spans, merges.
//!
//! Invariants: a tile is 64 absolute positions, a span 16 tiles; keys that are not named take no part; tiles merge
//! left to right inside their span, spans left to right, and the first is taken as it is. A tile's sum of
//! exponentials has a lane for each position mod 32. Does not know: pages, formats (an accessor reads keys back).
//! Source: `docs/numerics.md`, Attention.

use super::functions::exp;
use super::reduce::{SHORT_LANES, halving_tree, lanes_dot};

/// Positions of a tile.
pub const TILE_POSITIONS: usize = 64;
/// Tiles of a span.
pub const SPAN_TILES: usize = 16;

/// Attention over some keys, before the division.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// The largest score.
    pub max: f32,
    /// Sum of exp(score - max).
    pub sum: f32,
    /// Sum of exp(score - max) * value.
    pub acc: Vec<f32>,
}

impl Partial {
    /// `acc / sum`.
    pub fn finish(&self, out: &mut [f32]) {
        assert_eq!(self.acc.len(), out.len(), "attention: an output for each value");
        for (out, &acc) in out.iter_mut().zip(&self.acc) {
            *out = acc / self.sum;
        }
    }
}

/// Joins two neighbours, the left one first.
pub fn merge(a: &Partial, b: &Partial) -> Partial {
    let max = a.max.max(b.max);
    let (fa, fb) = (exp(a.max - max), exp(b.max - max));
    let acc = a.acc.iter().zip(&b.acc).map(|(&a, &b)| b.mul_add(fb, a * fa)).collect();
    Partial { max, sum: b.sum.mul_add(fb, a.sum * fa), acc }
}

/// Appends `right` to what lies left of it; the first is taken as it is.
pub fn join(left: Option<Partial>, right: Partial) -> Partial {
    match left {
        Some(left) => merge(&left, &right),
        None => right,
    }
}

/// The keys and values that a query reads, by absolute position.
pub trait Stored {
    /// Writes the key at `position` as the cache gives it back.
    fn key(&self, position: usize, out: &mut [f32]);
    /// Writes the value at `position` as the cache gives it back.
    fn value(&self, position: usize, out: &mut [f32]);
}

/// One tile: the named positions, rising and all of one tile, at least one.
pub fn tile(
    query: &[f32],
    scale: f32,
    positions: &[usize],
    stored: &dyn Stored,
    value_width: usize,
) -> Partial {
    let mut key = vec![0.0; query.len()];
    let scores: Vec<f32> = positions
        .iter()
        .map(|&position| {
            stored.key(position, &mut key);
            lanes_dot::<SHORT_LANES>(&key, query) * scale
        })
        .collect();
    let max = scores.iter().fold(f32::NEG_INFINITY, |max, &s| max.max(s));
    let mut lanes = [0.0; SHORT_LANES];
    let mut acc = vec![0.0; value_width];
    let mut value = vec![0.0; value_width];
    for (&position, &score) in positions.iter().zip(&scores) {
        let p = exp(score - max);
        lanes[position % SHORT_LANES] += p;
        stored.value(position, &mut value);
        for (acc, &v) in acc.iter_mut().zip(&value) {
            *acc = p.mul_add(v, *acc);
        }
    }
    Partial { max, sum: halving_tree(lanes), acc }
}

/// All named positions, rising, at least one.
pub fn attend(
    query: &[f32],
    scale: f32,
    positions: &[usize],
    stored: &dyn Stored,
    value_width: usize,
) -> Partial {
    let mut total = None;
    for span in positions.chunk_by(|a, b| span_of(*a) == span_of(*b)) {
        let mut merged = None;
        for positions in span.chunk_by(|a, b| a / TILE_POSITIONS == b / TILE_POSITIONS) {
            merged = Some(join(merged, tile(query, scale, positions, stored, value_width)));
        }
        total = merged.map(|span| join(total.take(), span));
    }
    total.expect("invariant: a row reads at least its own key")
}

fn span_of(position: usize) -> usize {
    position / (TILE_POSITIONS * SPAN_TILES)
}
