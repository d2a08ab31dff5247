//! The rope angles of positions, computed once a position and kept by pages of positions.
//!
//! Invariants: an angle is `RopeDecl::cos_sin`, as virtual cards compute it; what is kept is bounded by the context.
//! Does not know: batches, where angles go.

use std::sync::Arc;

use crate::model::facts::PAGE_POSITIONS;
use crate::model::program::{Program, RopeDecl, WeightId};

/// Angles of all ropes of a stage.
#[derive(Debug)]
pub(super) struct Angles {
    program: Arc<Program>,
    ropes: Vec<OfRope>,
}

#[derive(Debug)]
struct OfRope {
    /// One for each pair, where the rope has divisors.
    divisors: Option<Vec<f32>>,
    /// For each position of a page: cosines of all pairs, then sines, as bits.
    pages: Vec<Option<Box<[u32]>>>,
}

impl Angles {
    /// `divisors` gives those of a rope that has some.
    pub(super) fn new(program: Arc<Program>, divisors: impl Fn(WeightId) -> Vec<f32>) -> Angles {
        let of = |rope: &RopeDecl| OfRope { divisors: rope.divisors.map(&divisors), pages: Vec::new() };
        let ropes = program.ropes.iter().map(of).collect();
        Angles { program, ropes }
    }

    /// How many ropes there are.
    pub(super) fn ropes(&self) -> usize {
        self.ropes.len()
    }

    /// Words of a row's angles.
    pub(super) fn words(&self, rope: usize) -> usize {
        2 * self.program.ropes[rope].frequencies.len()
    }

    /// The angles of a position.
    pub(super) fn row(&mut self, rope: usize, position: u32) -> &[u32] {
        let words = self.words(rope);
        let (page, slot) = (position as usize / PAGE_POSITIONS, position as usize % PAGE_POSITIONS);
        &self.page(rope, page)[slot * words..][..words]
    }

    /// Computes what `row` will ask for.
    pub(super) fn prepare(&mut self, position: u32) {
        for rope in 0..self.ropes.len() {
            self.page(rope, position as usize / PAGE_POSITIONS);
        }
    }

    fn page(&mut self, rope: usize, page: usize) -> &[u32] {
        let (decl, of) = (&self.program.ropes[rope], &mut self.ropes[rope]);
        if of.pages.len() <= page {
            of.pages.resize_with(page + 1, || None);
        }
        of.pages[page].get_or_insert_with(|| {
            let first = (page * PAGE_POSITIONS) as u32;
            let pairs = decl.frequencies.len();
            let mut words = Vec::with_capacity(2 * pairs * PAGE_POSITIONS);
            for position in first..first + PAGE_POSITIONS as u32 {
                let at = |j: usize| decl.cos_sin(j, position, of.divisors.as_ref().map_or(1.0, |d| d[j]));
                let both: Vec<(f32, f32)> = (0..pairs).map(at).collect();
                words.extend(both.iter().map(|angle| angle.0.to_bits()));
                words.extend(both.iter().map(|angle| angle.1.to_bits()));
            }
            words.into_boxed_slice()
        })
    }
}
