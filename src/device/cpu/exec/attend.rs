//! The attention step: blocks of rows of one state and K/V heads, shared among the team.
//!
//! Invariant: a row's bits depend on its query and its state's pages alone. Does not know: products.

use super::{CpuExec, Run};
use crate::device::cpu::columns::ColumnsMut;
use crate::device::cpu::kv_store::{KvStore, Side};
use crate::device::cpu::simd::attention::{HeadPages, Queries, attend, scratch_values};
use crate::model::facts::{KvFormat, PageId};
use crate::model::program::View;

/// Rows of a part where there are many: enough to pay for a page's keys, few enough to share.
const BLOCK_ROWS: usize = 32;

/// One head's pages of one state.
struct StateHead<'a> {
    store: &'a KvStore,
    pages: &'a [PageId],
    state: usize,
    head: usize,
}

impl HeadPages for StateHead<'_> {
    fn format(&self) -> KvFormat {
        self.store.format()
    }

    fn keys(&self, page: usize) -> &[u8] {
        self.store.rows(self.pages[page], self.state, self.head, Side::Keys)
    }

    fn values(&self, page: usize) -> &[u8] {
        self.store.rows(self.pages[page], self.state, self.head, Side::Values)
    }
}

impl CpuExec {
    pub(super) fn attend_step(
        &mut self,
        (q, out): (View, View),
        (state, heads): (usize, usize),
        scale: f32,
        run: &Run<'_>,
    ) {
        let n = run.rows.len();
        let starts = blocks(run);
        let group = q.count / heads;
        let edges: Vec<usize> = (0..=heads).map(|h| h * group * out.width).collect();
        let (q_stride, out_width) = (self.program.rows[q.row.0].width, self.program.rows[out.row.0].width);
        let positions: Vec<u32> = run.rows.iter().map(|r| r.position).collect();
        let mut buffer = std::mem::take(&mut self.buffers.rows[out.row.0]);
        {
            let this = &*self;
            let queries = &this.buffers.rows[q.row.0][..n * q_stride];
            let columns = ColumnsMut::banded_at(&mut buffer[..n * out_width], out_width, &starts, &edges);
            let scratch = scratch_values(BLOCK_ROWS, group, q.width, out.width);
            this.team_run((starts.len() - 1) * heads, &|part| {
                let (block, head) = (part / heads, part % heads);
                let rows = starts[block]..starts[block + 1];
                let pages = run.pages.of(run.rows[rows.start].state);
                let queries = Queries {
                    values: &queries[rows.start * q_stride..],
                    stride: q_stride,
                    positions: &positions[rows],
                    kv_head: head,
                    group,
                    key_width: q.width,
                    value_width: out.width,
                    scale,
                };
                let pages = StateHead { store: &this.store, pages, state, head };
                let mut columns = columns.claim_in(block, head);
                this.buffers.scratch.with(scratch, |scratch| {
                    attend(this.tier, &queries, &pages, 0, &mut columns, scratch);
                });
            });
        }
        self.buffers.rows[out.row.0] = buffer;
    }
}

/// Where blocks begin, and the end: rows of one state, at most [`BLOCK_ROWS`].
fn blocks(run: &Run<'_>) -> Vec<usize> {
    let mut starts = vec![0];
    for r in 1..run.rows.len() {
        let start = *starts.last().expect("invariant: the first block begins at 0");
        if run.rows[r].state != run.rows[r - 1].state || r - start == BLOCK_ROWS {
            starts.push(r);
        }
    }
    starts.push(run.rows.len());
    starts
}
