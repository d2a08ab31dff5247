//! Whether a ring carries rows: changing patterns of several sizes, through every slot, both ways.
//!
//! One way the sending card posts and the receiving card takes, as rows will travel; the other way the receiving card
//! posts into its slots and the sending card takes them from there, so that both directions of the way between the cards
//! have been crossed. Invariants: a ring that failed is never used; one that passed is as new.
//! Does not know: stages.

use std::time::Duration;

use super::super::CudaError;
use super::super::driver::{PinnedMemory, Span, Stream};
use super::ring::SlotRing;
use super::side::{LinkKernels, LinkWords};
use crate::device::{CardError, CardRing as _, CardSlot};
use crate::model::facts::{CardId, LinkKind, SlotId};

/// Longer than any card needs for a slot.
const LIMIT: Duration = Duration::from_secs(2);

/// Patterns of each size.
const PATTERNS: u32 = 3;

/// Sequence numbers of the check, far from those of the first rows.
const SEQUENCES_FROM: u32 = 0x8000_0000;

/// Words that a side needs, each on a line of its own.
const LINE: u64 = 64;
/// Bytes of the words of a side.
pub const WORDS_BYTES: u64 = 4 * LINE;

/// A card in a check: memory that nobody uses meanwhile.
#[derive(Debug)]
pub struct Side<'a> {
    /// Which, for messages.
    pub card: CardId,
    /// Of the card.
    pub stream: &'a Stream,
    /// Of the card.
    pub kernels: &'a LinkKernels,
    /// Room for the values of a slot.
    pub rows: Span,
    /// [`WORDS_BYTES`].
    pub words: Span,
}

impl Side<'_> {
    /// The words in their places.
    pub fn places(&self) -> LinkWords {
        let line = |i: u64| self.words.part(i * LINE, LINE);
        LinkWords { turn: line(0), fault: line(1), arrived: line(2), gate: line(3) }
    }

    /// Sends words of a turn with no fault.
    pub fn send_words(&self, pinned: &mut PinnedMemory, turn: CardSlot) -> Result<(), CudaError> {
        let room = pinned.bytes_mut()?;
        room[..WORDS_BYTES as usize].fill(0);
        room[..4].copy_from_slice(&turn.slot.0.to_le_bytes());
        room[4..8].copy_from_slice(&turn.sequence.to_le_bytes());
        self.stream.upload(pinned, WORDS_BYTES, self.words)
    }
}

/// `Ok(Err(..))`: the cards work, but rows did not arrive as they were sent; in words.
pub fn check(ring: &SlotRing, from: &Side<'_>, to: &Side<'_>) -> Result<Result<(), String>, CardError> {
    let is_spoilt = ring.kind() == LinkKind::Peer
        && [from, to].iter().any(|side| side.stream.context().faults().spoil_peers());
    let most = ring.size().values;
    let mut sizes = vec![1, most.min(1000), most];
    sizes.dedup();
    let mut sequence = SEQUENCES_FROM;
    for values in sizes {
        for pattern in 0..PATTERNS {
            for slot in 0..ring.size().slots as u32 {
                for (sender, receiver, way) in [(from, to, "there"), (to, from, "back")] {
                    sequence += 1;
                    let turn = CardSlot { slot: SlotId(slot), sequence };
                    send(ring, sender, values, turn, (pattern, is_spoilt)).map_err(|e| e.on(sender.card))?;
                    let arrived = arrives(ring, receiver, values, turn, pattern);
                    let arrived = arrived.map_err(|e| e.on(receiver.card))?;
                    sender
                        .stream
                        .bind()
                        .and_then(|()| sender.stream.wait())
                        .map_err(|e| e.on(sender.card))?;
                    if !arrived {
                        return Ok(Err(format!("{values} values did not arrive as they were sent ({way})")));
                    }
                }
            }
        }
    }
    ring.clear(to.stream).map_err(|e| e.on(to.card))?;
    Ok(Ok(()))
}

/// Bits of a pattern: no two values, turns or patterns share them.
fn bits(turn: CardSlot, pattern: u32, at: usize) -> u32 {
    let seed = turn.sequence.wrapping_mul(0x9E37_79B9) ^ pattern.wrapping_mul(0x85EB_CA6B);
    (seed ^ at as u32).wrapping_mul(0xC2B2_AE35).rotate_left(13 * (pattern + 1))
}

/// Queues sending a pattern, with a wrong bit where it is to be spoilt.
fn send(
    ring: &SlotRing,
    side: &Side<'_>,
    values: usize,
    turn: CardSlot,
    (pattern, is_spoilt): (u32, bool),
) -> Result<(), CudaError> {
    side.stream.bind()?;
    let mut rows = PinnedMemory::new(side.stream.context(), 4 * values as u64)?;
    let mut words = PinnedMemory::new(side.stream.context(), WORDS_BYTES)?;
    let places = rows.values_mut::<u32>(0, values)?;
    places.iter_mut().enumerate().for_each(|(at, place)| *place = bits(turn, pattern, at));
    places[values - 1] ^= u32::from(is_spoilt);
    side.stream.upload(&mut rows, 4 * values as u64, side.rows)?;
    side.send_words(&mut words, turn)?;
    side.kernels.post_known(side.stream, ring, side.rows, values, (side.places(), turn))
}

/// Whether a pattern arrives as it was sent.
fn arrives(
    ring: &SlotRing,
    side: &Side<'_>,
    values: usize,
    turn: CardSlot,
    pattern: u32,
) -> Result<bool, CudaError> {
    side.stream.bind()?;
    let mut words = PinnedMemory::new(side.stream.context(), WORDS_BYTES)?;
    side.stream.zero(side.rows.part(0, 4 * values as u64))?;
    side.send_words(&mut words, turn)?;
    side.kernels.wait(side.stream, ring, side.rows, values, (side.places(), LIMIT))?;
    let (mut got, mut fault) = (vec![0u32; values], [0u32]);
    side.stream.download(side.rows, &mut got)?;
    side.stream.download(side.places().fault, &mut fault)?;
    Ok(fault == [0] && got.iter().enumerate().all(|(at, &found)| found == bits(turn, pattern, at)))
}
