//! The graphs of windows by what shapes them: recorded at the first use, launched at every later one.
//!
//! Invariants: at most [`GRAPHS_MAX`] are kept, those used last; what a graph holds besides its shape arrives with the
//! block. Does not know: what a graph does.

/// Everything that decides which launches a window takes, and where the parts of its block lie. All else is values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Rows.
    pub(super) rows: usize,
    /// States that they belong to.
    pub(super) states: usize,
    /// Pages of each state's table. In windows a power of two, or the whole context, so that few shapes exist.
    pub(super) pages_per_state: usize,
    /// Rows that want logits; 0 where the stage makes none.
    pub(super) wanted: usize,
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
        Shape { rows, states: 1, pages_per_state: 1, wanted: 0 }
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
        let one = Shape { rows: 2, states: 2, pages_per_state: 4, wanted: 1 };
        graphs.keep(one, ());
        for other in [
            Shape { rows: 3, ..one },
            Shape { states: 1, ..one },
            Shape { pages_per_state: 8, ..one },
            Shape { wanted: 2, ..one },
        ] {
            assert_eq!(graphs.take(&other), None);
        }
        assert_eq!(graphs.take(&one), Some(()));
    }
}
