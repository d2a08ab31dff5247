//! What the host sends with every batch in one copy: the fault word, turns of links, tokens, positions, states, the rows that want
//! logits, the page tables, the angles.
//!
//! States are numbered by their first row in the batch, so tables hold only pages that the batch can read.
//! Invariants: a block never exceeds `GpuSizes::block_bytes`; its parts lie on cache lines of their own; angles are
//! computed as virtual cards compute them. Does not know: kernels, steps.

use super::launch::Standing;
use crate::device::CardSlot;
use crate::device::batch::{BatchRow, PageTables};
use crate::device::cuda::CudaError;
use crate::device::cuda::driver::{Context, PinnedMemory, Span, Stream};
use crate::device::cuda::links::side::LinkWords;
use crate::device::cuda::weights::Weights;
use crate::model::facts::{PAGE_POSITIONS, StateId};
use crate::model::footprint::gpu::LINK_WORDS;
use crate::model::footprint::kept;
use crate::model::program::Program;

/// The block of the batch that runs, on the card.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// The fault word, and the turn in which rows arrive.
    pub(super) links: LinkWords,
    /// The turn in which rows leave.
    turn_out: Span,
    pub(super) tokens: Span,
    pub(super) standing: Standing,
    /// The rows that want logits, in order.
    pub(super) wanted: Span,
    /// One for each rope.
    pub(super) angles: Vec<Span>,
}

impl Places {
    /// The words of the link by which rows leave.
    pub(super) fn links_out(&self) -> LinkWords {
        LinkWords { turn: self.turn_out, ..self.links }
    }
}

/// Makes and sends blocks.
#[derive(Debug)]
pub(super) struct Block {
    pinned: PinnedMemory,
    on_card: Span,
}

impl Block {
    /// For blocks as large as their place on the card.
    pub(super) fn new(context: &Context, on_card: Span) -> Result<Block, CudaError> {
        Ok(Block { pinned: PinnedMemory::new(context, on_card.bytes())?, on_card })
    }

    /// Starts sending the block of a batch.
    pub(super) fn send(
        &mut self,
        stream: &Stream,
        (rows, turns): (&[BatchRow], [Option<CardSlot>; 2]),
        pages: &PageTables,
        program: &Program,
        weights: &Weights,
    ) -> Result<Places, CudaError> {
        let (states, locals) = states_of(rows);
        let pages_per_state =
            rows.iter().map(|r| r.position as usize / PAGE_POSITIONS + 1).max().unwrap_or(1);
        let on_card = self.on_card;
        let mut writer = Writer { room: self.pinned.bytes_mut()?, used: 0, on_card };
        let fault = writer.put_u32s(1, [0]);
        let turns = turns.map(|turn| turn.map_or([0, 0], |turn| [turn.slot.0, turn.sequence]));
        let words = writer.put_u32s(LINK_WORDS, turns.into_iter().flatten().chain([0]));
        let word = |index: u64| words.from(4 * index);
        let (links, turn_out) = (LinkWords { turn: word(0), fault, arrived: word(4) }, word(2));
        let tokens = writer.put_u32s(rows.len(), rows.iter().map(|r| r.token));
        let positions = writer.put_u32s(rows.len(), rows.iter().map(|r| r.position));
        let states_at = writer.put_u32s(rows.len(), locals);
        let wanted = rows.iter().enumerate().filter(|(_, r)| r.wants_logits).map(|(i, _)| i as u32);
        let wanted = writer.put_u32s(rows.len(), wanted);
        let table = states.iter().flat_map(|&state| {
            let own = pages.of(state).iter().map(|page| page.0);
            own.chain(std::iter::repeat(0)).take(pages_per_state)
        });
        let pages = writer.put_u32s(states.len() * pages_per_state, table);
        let angles = program.ropes.iter().map(|rope| {
            let pairs = rope.frequencies.len();
            let divisors = rope.divisors.map(|id| weights.divisors(id));
            let row = |row: &BatchRow| {
                let at = |j: usize| rope.cos_sin(j, row.position, divisors.map_or(1.0, |d| d[j]));
                let both: Vec<(f32, f32)> = (0..pairs).map(at).collect();
                let cosines: Vec<u32> = both.iter().map(|a| a.0.to_bits()).collect();
                cosines.into_iter().chain(both.into_iter().map(|a| a.1.to_bits()))
            };
            writer.put_u32s(2 * pairs * rows.len(), rows.iter().flat_map(row))
        });
        let angles = angles.collect();
        let used = writer.used;
        stream.upload(&mut self.pinned, used, on_card)?;
        let standing = Standing { positions, states: states_at, pages, pages_per_state };
        Ok(Places { links, turn_out, tokens, standing, wanted, angles })
    }
}

/// The states of a batch in the order of their first rows, and each row's number among them.
fn states_of(rows: &[BatchRow]) -> (Vec<StateId>, Vec<u32>) {
    let mut states: Vec<StateId> = Vec::new();
    let mut number = |state: StateId| {
        // Neighbours mostly share a state: the search begins at the last.
        states.iter().rposition(|&s| s == state).unwrap_or_else(|| {
            states.push(state);
            states.len() - 1
        }) as u32
    };
    let locals = rows.iter().map(|r| number(r.state)).collect();
    (states, locals)
}

/// Writes parts one behind the other.
struct Writer<'a> {
    room: &'a mut [u8],
    used: u64,
    on_card: Span,
}

impl Writer<'_> {
    /// A part with room for `count` words, of which `words` are written; its place on the card.
    fn put_u32s(&mut self, count: usize, words: impl IntoIterator<Item = u32>) -> Span {
        let bytes = 4 * count;
        let place = self.on_card.part(self.used, bytes as u64);
        let room = &mut self.room[self.used as usize..][..bytes];
        for (to, word) in room.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self.used += kept(bytes as u64);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_numbered_by_their_first_rows() {
        let row = |state: u32| BatchRow { state: StateId(state), position: 0, token: 0, wants_logits: false };
        let (states, locals) = states_of(&[row(7), row(7), row(2), row(7), row(9), row(2)]);
        assert_eq!(states, [7, 2, 9].map(StateId));
        assert_eq!(locals, [0, 0, 1, 0, 2, 1]);
    }
}
