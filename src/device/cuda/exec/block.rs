//! What the host sends with every batch in one copy: the fault word, the words of a hand-off, tokens, positions, states,
//! the rows that want something, the angles, the page tables.
//!
//! States are numbered by their first row in the batch, so tables hold only pages that the batch can read.
//! Invariants: where the parts lie follows from the batch's shape alone; a block never exceeds `GpuSizes::block_bytes`;
//! its parts lie on cache lines of their own. Does not know: kernels, steps.

use std::sync::atomic::{AtomicU32, Ordering};

use super::angles::Angles;
use super::graphs::{Shape, Wanted};
use super::launch::Standing;
use crate::device::CardSlot;
use crate::device::batch::{Batch, BatchKind, BatchRow, PageTables};
use crate::device::cuda::driver::Span;
use crate::device::cuda::links::side::LinkWords;
use crate::model::facts::{PAGE_POSITIONS, StateId};
use crate::model::footprint::gpu::SPAN_POSITIONS;
use crate::model::footprint::kept;

/// The slots of a batch's rows in the rings of its links, and the numbers that they carry there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HandOff {
    pub(super) in_slot: u32,
    pub(super) in_sequence: u32,
    pub(super) out_slot: u32,
    pub(super) out_sequence: u32,
}

impl HandOff {
    /// Of a batch whose rows arrive and leave in these turns, where they do so through slots of cards.
    pub(super) fn of(arriving: Option<CardSlot>, leaving: Option<CardSlot>) -> HandOff {
        let words = |turn: Option<CardSlot>| turn.map_or((0, 0), |turn| (turn.slot.0, turn.sequence));
        let ((in_slot, in_sequence), (out_slot, out_sequence)) = (words(arriving), words(leaving));
        HandOff { in_slot, in_sequence, out_slot, out_sequence }
    }
}

/// The block of the batch that runs, on the card.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// Its words.
    pub(super) used: usize,
    pub(super) fault: Span,
    /// The words of [`HandOff`], in order.
    hand_off: Span,
    /// 0 before and behind every post of rows.
    arrived: Span,
    /// 0 before rows arrive.
    gate: Span,
    pub(super) tokens: Span,
    pub(super) standing: Standing,
    /// Spans of attention that are launched; those behind a row's position do nothing.
    pub(super) spans: usize,
    /// The rows that want something, in order.
    pub(super) wanted: Span,
    /// One for each rope.
    pub(super) angles: Vec<Span>,
}

impl Places {
    /// The words of the link by which rows arrive.
    pub(super) fn link_in(&self) -> LinkWords {
        let Places { fault, arrived, gate, .. } = *self;
        LinkWords { turn: self.hand_off.part(0, 8), fault, arrived, gate }
    }

    /// The words of the link by which rows leave.
    pub(super) fn link_out(&self) -> LinkWords {
        LinkWords { turn: self.hand_off.part(8, 8), ..self.link_in() }
    }
}

/// Where blocks lie on the card.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) on_card: Span,
}

/// The states of a batch in the order of their first rows, and each row's number among them.
#[derive(Debug)]
pub(super) struct States {
    ids: Vec<StateId>,
    numbers: Vec<u32>,
}

impl States {
    pub(super) fn of(rows: &[BatchRow]) -> States {
        let mut ids: Vec<StateId> = Vec::new();
        let mut number = |state: StateId| {
            // Neighbours mostly share a state: the search begins at the last.
            ids.iter().rposition(|&s| s == state).unwrap_or_else(|| {
                ids.push(state);
                ids.len() - 1
            }) as u32
        };
        let numbers = rows.iter().map(|r| number(r.state)).collect();
        States { ids, numbers }
    }
}

impl Shape {
    /// Of a batch on a stage that makes logits (`heads`) or not, and whose context is `context_pages` long.
    pub(super) fn of(batch: &Batch, states: &States, heads: bool, context_pages: usize) -> Shape {
        let last = batch.rows.iter().map(|r| r.position).max().unwrap_or(0);
        let pages = last as usize / PAGE_POSITIONS + 1;
        let pages_per_state = match batch.kind() {
            BatchKind::Window => rounded_up(pages).min(context_pages).max(pages),
            BatchKind::Chunk => pages,
        };
        let wanted = if heads { Wanted::of(batch) } else { Wanted::default() };
        Shape { rows: batch.rows.len(), states: states.ids.len(), pages_per_state, wanted }
    }
}

/// Few numbers of pages, of which none is much larger than the one it stands for: powers of two up to 16, then eight
/// between one power and the next.
fn rounded_up(pages: usize) -> usize {
    let power = pages.next_power_of_two();
    if power <= 16 { power } else { pages.next_multiple_of(power / 16) }
}

impl Block {
    /// Makes the block of a batch in `room`.
    pub(super) fn fill(
        self,
        room: &[AtomicU32],
        batch: &Batch,
        (shape, states): (&Shape, &States),
        pages: &PageTables,
        hand_off: HandOff,
        angles: &mut Angles,
    ) -> Places {
        let (rows, n, on_card) = (&batch.rows, batch.rows.len(), self.on_card);
        let mut writer = Writer { room, used: 0, on_card };
        let HandOff { in_slot, in_sequence, out_slot, out_sequence } = hand_off;
        let words = [0, 0, 0, 0, in_slot, in_sequence, out_slot, out_sequence];
        let first = writer.put(words.len(), words);
        let (fault, arrived, gate) = (first.part(0, 4), first.part(4, 4), first.part(8, 4));
        let hand_off = first.from(16);
        let tokens = writer.put(n, rows.iter().map(|r| r.token));
        let positions = writer.put(n, rows.iter().map(|r| r.position));
        let states_at = writer.put(n, states.numbers.iter().copied());
        let wanted = rows.iter().enumerate().filter(|(_, r)| r.wants.is_some()).map(|(i, _)| i as u32);
        let wanted = writer.put(n, wanted);
        let angles = (0..angles.ropes()).map(|rope| {
            let (to, place) = writer.take(angles.words(rope) * n);
            for (to, row) in to.chunks_exact(angles.words(rope).max(1)).zip(rows) {
                store(to, angles.row(rope, row.position).iter().copied());
            }
            place
        });
        let angles = angles.collect();
        let pages_per_state = shape.pages_per_state;
        let table = states.ids.iter().flat_map(|&state| {
            let own = pages.of(state).iter().map(|page| page.0);
            own.chain(std::iter::repeat(0)).take(pages_per_state)
        });
        let pages = writer.put(shape.states * pages_per_state, table);
        let used = writer.used;
        let has_one_state = shape.states == 1;
        let standing = Standing { positions, states: states_at, has_one_state, pages, pages_per_state };
        let spans = (pages_per_state * PAGE_POSITIONS).div_ceil(SPAN_POSITIONS);
        Places { used, fault, hand_off, arrived, gate, tokens, standing, spans, wanted, angles }
    }
}

/// The host and a card share the words.
fn store(to: &[AtomicU32], words: impl IntoIterator<Item = u32>) {
    to.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
}

/// Writes parts one behind the other, in words.
struct Writer<'a> {
    room: &'a [AtomicU32],
    used: usize,
    on_card: Span,
}

impl<'a> Writer<'a> {
    /// A part of `count` words: here, and its place on the card.
    fn take(&mut self, count: usize) -> (&'a [AtomicU32], Span) {
        let (at, bytes) = (self.used, 4 * count as u64);
        self.used += kept(bytes) as usize / 4;
        (&self.room[at..][..count], self.on_card.part(4 * at as u64, bytes))
    }

    /// A part with room for `count` words, of which `words` are written; its place on the card.
    fn put(&mut self, count: usize, words: impl IntoIterator<Item = u32>) -> Span {
        let (to, place) = self.take(count);
        store(to, words);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::batch::{BatchId, RowWants};

    fn row(state: u32, position: u32) -> BatchRow {
        BatchRow { state: StateId(state), position, token: 0, wants: RowWants::Logits }
    }

    #[test]
    fn states_are_numbered_by_their_first_rows() {
        let states = States::of(&[7, 7, 2, 7, 9, 2].map(|state| row(state, 0)));
        assert_eq!(states.ids, [7, 2, 9].map(StateId));
        assert_eq!(states.numbers, [0, 0, 1, 0, 2, 1]);
    }

    #[test]
    fn windows_of_all_depths_have_few_shapes() {
        let shape = |position: u32, heads: bool| {
            let batch = Batch::new(BatchId(0), vec![row(3, 0), row(1, position)]);
            Shape::of(&batch, &States::of(&batch.rows), heads, 100)
        };
        for (position, pages_per_state) in
            [(0, 1), (63, 1), (64, 2), (128, 4), (1023, 16), (1024, 18), (4095, 64), (4096, 72), (6399, 100)]
        {
            let wanted = Wanted { rows: 2, best: 0, logits: true };
            let expected = Shape { rows: 2, states: 2, pages_per_state, wanted };
            assert_eq!(shape(position, true), expected, "position {position}");
            assert_eq!(shape(position, false), Shape { wanted: Wanted::default(), ..expected });
        }
    }
}
