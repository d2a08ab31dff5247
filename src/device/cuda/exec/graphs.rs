//! The graphs of windows by what shapes them: recorded at the first use, launched at every later one.
//!
//! Invariants: at most [`GRAPHS_MAX`] are kept, those used last; what a graph holds besides its shape arrives with the
//! block. Does not know: what a graph does.

use crate::device::batch::{Batch, RowWants};
use crate::model::facts::WINDOW_ROWS_MAX;

/// Everything that decides which launches a window takes, and where the parts of its block lie. All else is values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Rows.
    pub(super) rows: usize,
    /// States that they belong to.
    pub(super) states: usize,
    /// Pages of each state's table. In windows a power of two, or the whole context, so that few shapes exist.
    pub(super) pages_per_state: usize,
    /// What the rows want, where the stage gives it.
    pub(super) wanted: Wanted,
}

/// What the rows of a batch want of the stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Rows that want something.
    pub(super) rows: usize,
    /// Best tokens that are looked for in each of them, a power of two; 0 where nobody wants any.
    pub(super) best: usize,
    /// Whether somebody wants logits; then those of all these rows are fetched.
    pub(super) logits: bool,
}

impl Wanted {
    /// Of a batch, on the stage that heads.
    pub(super) fn of(batch: &Batch) -> Wanted {
        let mut wanted = Wanted::default();
        for wants in batch.wants() {
            wanted.rows += 1;
            match wants {
                RowWants::Best(count) => wanted.best = wanted.best.max(count.next_power_of_two()),
                RowWants::Logits => wanted.logits = true,
                RowWants::Nothing => {}
            }
        }
        assert!(wanted.best == 0 || wanted.rows <= WINDOW_ROWS_MAX, "best tokens of {} rows", wanted.rows);
        wanted
    }
}

/// The most graphs of a stage. Windows of one to eight rows at a depth need one for each count of states and of wanted
/// rows that occurs.
pub(super) const GRAPHS_MAX: usize = 32;

/// What was used last, by shape.
#[derive(Debug)]
pub(super) struct Graphs<G> {
    /// The one used last at the end.
    kept: Vec<(Shape, G)>,
}

impl<G> Graphs<G> {
    pub(super) fn new() -> Graphs<G> {
        Graphs { kept: Vec::with_capacity(GRAPHS_MAX + 1) }
    }

    /// Whether there is a graph of a shape.
    pub(super) fn has(&self, shape: &Shape) -> bool {
        self.kept.iter().any(|(kept, _)| kept == shape)
    }

    /// Takes the graph of a shape out.
    pub(super) fn take(&mut self, shape: &Shape) -> Option<G> {
        let at = self.kept.iter().rposition(|(kept, _)| kept == shape)?;
        Some(self.kept.remove(at).1)
    }

    /// Puts a graph in, as the one used last; the one that was not used for longest goes where there are too many.
    pub(super) fn keep(&mut self, shape: Shape, graph: G) {
        self.kept.push((shape, graph));
        if self.kept.len() > GRAPHS_MAX {
            self.kept.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(rows: usize) -> Shape {
        Shape { rows, states: 1, pages_per_state: 1, wanted: Wanted::default() }
    }

    #[test]
    fn the_graph_that_was_not_used_for_longest_goes_first() {
        let mut graphs = Graphs::new();
        for rows in 0..GRAPHS_MAX {
            assert_eq!(graphs.take(&shape(rows)), None);
            graphs.keep(shape(rows), rows);
        }
        let first = graphs.take(&shape(0)).unwrap_or_else(|| panic!("the first graph was dropped too early"));
        graphs.keep(shape(0), first);
        graphs.keep(shape(GRAPHS_MAX), GRAPHS_MAX);
        assert_eq!(graphs.take(&shape(1)), None, "the oldest stayed");
        assert_eq!(graphs.take(&shape(0)), Some(0));
        assert_eq!(graphs.take(&shape(GRAPHS_MAX)), Some(GRAPHS_MAX));
        assert_eq!(graphs.kept.len(), GRAPHS_MAX - 2);
    }

    #[test]
    fn graphs_of_other_shapes_are_no_substitute() {
        let mut graphs = Graphs::new();
        let wanted = Wanted { rows: 1, best: 1, logits: false };
        let one = Shape { rows: 2, states: 2, pages_per_state: 4, wanted };
        graphs.keep(one, ());
        for other in [
            Shape { rows: 3, ..one },
            Shape { states: 1, ..one },
            Shape { pages_per_state: 8, ..one },
            Shape { wanted: Wanted { rows: 2, ..wanted }, ..one },
            Shape { wanted: Wanted { best: 2, ..wanted }, ..one },
            Shape { wanted: Wanted { logits: true, ..wanted }, ..one },
        ] {
            assert_eq!(graphs.take(&other), None);
        }
        assert!(graphs.has(&one));
        assert_eq!(graphs.take(&one), Some(()));
        assert!(!graphs.has(&one));
    }
}
