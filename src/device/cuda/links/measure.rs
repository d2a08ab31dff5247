//! What cards and the links between them reach: copies, and rows that go from card to card and back.
//!
//! A round trip is timed by one card's own stamps, so no two clocks are compared; half of it is a hand-off. All its work
//! is queued before it begins, as it is in a window's graph.
//! Invariant: memory is taken for the measurement alone. Does not know: plans, files.

use std::time::{Duration, Instant};

use super::super::CudaError;
use super::super::driver::graph::Graph;
use super::super::driver::{Context, Event, PinnedMemory, Span, Stream};
use super::super::memory::{Arena, Memory};
use super::pattern::{self, Side, WORDS_BYTES};
use super::ring::{RingSize, SlotRing};
use super::side::{LinkKernels, LinkWords};
use crate::device::ledger::Ledger;
use crate::device::{CardError, CardSlot, threads};
use crate::model::facts::{CardId, LinkKind, LinkRate, SlotId};
use crate::model::footprint::{ItemKind, kept};

/// Values of a row, of a window as wide as models get, and of a chunk of usual rows.
const ROW_VALUES: usize = 2048;
const WINDOW_VALUES: usize = 8 * 10_240;
const CHUNK_VALUES: usize = 512 * ROW_VALUES;

/// Round trips of a trial, the most.
const ROUNDS_MAX: u32 = 50;

/// The best of so many trials counts, which is the least disturbed.
const TRIALS: usize = 5;

/// Round trips of a trial: a chunk's take long enough to need few.
fn rounds(values: usize) -> u32 {
    if values > WINDOW_VALUES { ROUNDS_MAX / 10 } else { ROUNDS_MAX }
}

/// Bytes of a copy.
const COPY_BYTES: u64 = 256 << 20;

/// The longest that a card waits for another one.
const LIMIT: Duration = Duration::from_secs(5);

/// A card to be measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Which.
    pub card: CardId,
    /// Its device.
    pub context: Context,
    /// Of that device.
    pub kernels: LinkKernels,
}

/// What a link reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkReach {
    /// Of hand-offs of a row and of a chunk.
    pub rate: LinkRate,
    /// A hand-off of a window of 8 rows of 10,240 values.
    pub window_us: f64,
}

impl Measured {
    fn arena(&self, bytes: u64) -> Result<Arena, CardError> {
        let bytes = kept(bytes);
        let mut ledger = Ledger::new(self.card, bytes);
        let mut memory = Memory { card: self.card, context: &self.context, ledger: &mut ledger };
        memory.arena(ItemKind::LinkSlots, bytes)
    }

    fn failed(&self, error: CudaError) -> CardError {
        error.on(self.card)
    }

    /// Bytes a second that the card reads and writes while it copies inside its memory.
    pub fn copy_bytes_per_s(&self) -> Result<f64, CardError> {
        let mut arena = self.arena(2 * COPY_BYTES)?;
        let (from, to) = (arena.cut(COPY_BYTES as usize), arena.cut(COPY_BYTES as usize));
        let copy = |stream: &Stream| stream.copy_to(from, &self.context, to);
        let seconds = self.timed(copy).map_err(|e| self.failed(e))?;
        Ok(2.0 * COPY_BYTES as f64 / seconds)
    }

    /// Bytes a second from pinned memory to the card.
    pub fn upload_bytes_per_s(&self) -> Result<f64, CardError> {
        let bytes = COPY_BYTES / 4;
        let mut arena = self.arena(bytes)?;
        let to = arena.cut(bytes as usize);
        let pinned = PinnedMemory::new(&self.context, bytes).map_err(|e| self.failed(e))?;
        let pinned = std::cell::RefCell::new(pinned);
        let upload = |stream: &Stream| stream.upload(&mut pinned.borrow_mut(), bytes, to);
        let seconds = self.timed(upload).map_err(|e| self.failed(e))?;
        Ok(bytes as f64 / seconds)
    }

    /// Seconds of the best of a few runs, by the card's stamps.
    fn timed(&self, run: impl Fn(&Stream) -> Result<(), CudaError>) -> Result<f64, CudaError> {
        let stream = Stream::new(&self.context)?;
        let (mut begun, mut ended) = (Event::timed(&self.context)?, Event::timed(&self.context)?);
        let mut best = f64::MAX;
        for _ in 0..TRIALS {
            begun.record(&stream)?;
            run(&stream)?;
            ended.record(&stream)?;
            stream.wait()?;
            best = best.min(ended.ns_since(&begun).map_or(f64::MAX, |ns| ns as f64 / 1e9));
        }
        Ok(best)
    }
}

/// One card's half of a round trip.
struct Half<'a> {
    card: &'a Measured,
    stream: Stream,
    _arena: Arena,
    rows: Span,
    words: Span,
    turns: Span,
}

impl<'a> Half<'a> {
    fn new(card: &'a Measured, values: usize) -> Result<Half<'a>, CardError> {
        let turns_bytes = kept(8 * u64::from(ROUNDS_MAX));
        let mut arena = card.arena(kept(4 * values as u64) + WORDS_BYTES + turns_bytes)?;
        let rows = arena.cut(4 * values);
        let (words, turns) = (arena.cut(WORDS_BYTES as usize), arena.cut(turns_bytes as usize));
        let stream = Stream::new(&card.context).map_err(|e| card.failed(e))?;
        Ok(Half { card, stream, _arena: arena, rows, words, turns })
    }

    fn side(&self) -> Side<'_> {
        Side {
            card: self.card.card,
            stream: &self.stream,
            kernels: &self.card.kernels,
            rows: self.rows,
            words: self.words,
        }
    }

    /// Sends the turns of all rounds from `first` on, and words without a fault.
    fn send_turns(&self, first: u32, slots: usize) -> Result<(), CudaError> {
        self.stream.bind()?;
        let mut pinned = PinnedMemory::new(&self.card.context, self.turns.bytes())?;
        let turns = (0..ROUNDS_MAX).flat_map(|round| {
            let turn = turn(first, round, slots);
            [turn.slot.0, turn.sequence]
        });
        let room = pinned.values_mut::<u32>(0, 2 * ROUNDS_MAX as usize)?;
        room.iter_mut().zip(turns).for_each(|(to, word)| *to = word);
        self.stream.upload(&mut pinned, self.turns.bytes(), self.turns)?;
        self.stream.zero(self.words)?;
        self.stream.wait()
    }

    fn words(&self, round: u32) -> LinkWords {
        LinkWords { turn: self.turns.part(8 * u64::from(round), 8), ..self.side().places() }
    }

    fn post(&self, ring: &SlotRing, values: usize, first: u32, round: u32) -> Result<(), CudaError> {
        let known = (self.words(round), turn(first, round, ring.size().slots));
        self.card.kernels.post_known(&self.stream, ring, self.rows, values, known)
    }

    fn wait(&self, ring: &SlotRing, values: usize, round: u32) -> Result<(), CudaError> {
        self.card.kernels.wait(&self.stream, ring, self.rows, values, (self.words(round), LIMIT))
    }

    /// Whether no wait has failed.
    fn is_well(&self) -> Result<bool, CudaError> {
        let mut fault = [0u32];
        self.stream.download(self.side().places().fault, &mut fault)?;
        Ok(fault == [0])
    }
}

fn turn(first: u32, round: u32, slots: usize) -> CardSlot {
    CardSlot { slot: SlotId(round % slots as u32), sequence: first + round }
}

/// Slots of a ring under measurement.
const SLOTS: usize = 2;

/// What one card does for all rounds: of a window's rows recorded before it begins, of a chunk's queued as it comes.
enum Work<F> {
    Recorded(Graph),
    AsItComes(F),
}

impl<F: Fn() -> Result<(), CudaError>> Work<F> {
    fn new(stream: &Stream, values: usize, rounds: F) -> Result<Work<F>, CudaError> {
        stream.bind()?;
        match values > WINDOW_VALUES {
            true => Ok(Work::AsItComes(rounds)),
            false => stream.record(rounds).map(Work::Recorded),
        }
    }

    fn queue(self) -> Result<(), CudaError> {
        match self {
            Work::Recorded(mut graph) => graph.launch(&mut []),
            Work::AsItComes(rounds) => rounds(),
        }
    }
}

/// A ring in each direction.
struct RoundTrip<'a> {
    there: SlotRing,
    back: SlotRing,
    near: Half<'a>,
    far: Half<'a>,
    next: u32,
}

/// What a link of this kind reaches from one card to another; `Ok(Err(..))`: why it carries nothing.
pub fn link(from: &Measured, to: &Measured, kind: LinkKind) -> Result<Result<LinkReach, String>, CardError> {
    if matches!(kind, LinkKind::Local | LinkKind::Staged) {
        return staged(from, to).map(Ok);
    }
    if kind == LinkKind::Peer {
        let reached = from.context.reach(&to.context).and_then(|()| to.context.reach(&from.context));
        if let Err(error) = reached {
            return Ok(Err(error.to_string()));
        }
    }
    let size = RingSize { slots: SLOTS, values: CHUNK_VALUES };
    let (near, far) = (Half::new(from, CHUNK_VALUES)?, Half::new(to, CHUNK_VALUES)?);
    let ring = |half: &Half<'_>| match kind {
        LinkKind::Peer => {
            let memory = half.card.arena(size.bytes())?;
            SlotRing::peer(&half.stream, memory, size).map_err(|e| half.card.failed(e))
        }
        _ => SlotRing::mapped(&half.card.context, size).map_err(|e| half.card.failed(e)),
    };
    let (there, back) = (ring(&far)?, ring(&near)?);
    if let Err(what) = pattern::check(&there, &near.side(), &far.side())? {
        return Ok(Err(what));
    }
    let mut trip = RoundTrip { there, back, near, far, next: 1 };
    let mut all_us = [0.0; 3];
    for (us, values) in all_us.iter_mut().zip([ROW_VALUES, WINDOW_VALUES, CHUNK_VALUES]) {
        match trip.hand_off_us(values).map_err(|e| from.failed(e))? {
            Ok(measured) => *us = measured,
            Err(what) => return Ok(Err(what)),
        }
    }
    let [row_us, window_us, chunk_us] = all_us;
    Ok(Ok(reach_of(row_us, window_us, chunk_us)))
}

/// The rate between a row and a chunk; the rest of a row's time is the latency.
fn reach_of(row_us: f64, window_us: f64, chunk_us: f64) -> LinkReach {
    let bytes = 4.0 * (CHUNK_VALUES - ROW_VALUES) as f64;
    let bytes_per_s = bytes / ((chunk_us - row_us).max(0.01) / 1e6);
    let latency_us = (row_us - 4e6 * ROW_VALUES as f64 / bytes_per_s).max(0.01);
    LinkReach { rate: LinkRate { latency_us, bytes_per_s }, window_us }
}

impl RoundTrip<'_> {
    /// Half a round trip of so many values, by the near card's stamps, in the best of a few trials.
    fn hand_off_us(&mut self, values: usize) -> Result<Result<f64, String>, CudaError> {
        let mut best = f64::MAX;
        for _ in 0..TRIALS {
            let first = self.next;
            self.next += ROUNDS_MAX;
            self.near.send_turns(first, SLOTS)?;
            self.far.send_turns(first, SLOTS)?;
            match self.trial(values, first)? {
                Some(ns) => best = best.min(ns as f64 / 1e3 / f64::from(2 * rounds(values))),
                None => return Ok(Err(format!("{values} values did not come back in time"))),
            }
        }
        Ok(Ok(best))
    }

    fn trial(&self, values: usize, first: u32) -> Result<Option<u64>, CudaError> {
        let (near, far, there, back) = (&self.near, &self.far, &self.there, &self.back);
        std::thread::scope(|scope| {
            // The far card's work is queued by a thread of its own: on a card that runs it at once, queueing waits.
            let echo = threads::start(scope, move || -> Result<bool, CudaError> {
                let work = Work::new(&far.stream, values, || {
                    (0..rounds(values)).try_for_each(|round| {
                        far.wait(there, values, round)?;
                        far.post(back, values, first, round)
                    })
                })?;
                work.queue()?;
                far.stream.wait()?;
                far.is_well()
            })?;
            let turn = || -> Result<Option<u64>, CudaError> {
                let (mut begun, mut ended) =
                    (Event::timed(&near.card.context)?, Event::timed(&near.card.context)?);
                let work = Work::new(&near.stream, values, || {
                    (0..rounds(values)).try_for_each(|round| {
                        near.post(there, values, first, round)?;
                        near.wait(back, values, round)
                    })
                })?;
                begun.record(&near.stream)?;
                work.queue()?;
                ended.record(&near.stream)?;
                near.stream.wait()?;
                Ok(if near.is_well()? { ended.ns_since(&begun) } else { None })
            };
            let ns = turn();
            let is_well = echo.join().unwrap_or(Ok(false))?;
            Ok(ns?.filter(|_| is_well))
        })
    }
}

/// Through pinned memory of the host, as a stage does it: one copy out, one between, one in.
fn staged(from: &Measured, to: &Measured) -> Result<LinkReach, CardError> {
    let (near, far) = (Half::new(from, CHUNK_VALUES)?, Half::new(to, CHUNK_VALUES)?);
    let pinned = |card: &Measured| {
        PinnedMemory::new(&card.context, 4 * CHUNK_VALUES as u64).map_err(|e| card.failed(e))
    };
    let (mut out, mut arriving) = (pinned(from)?, pinned(to)?);
    let mut us = |values: usize| -> Result<f64, CudaError> {
        let mut best = f64::MAX;
        for _ in 0..4 * TRIALS {
            let started = Instant::now();
            near.stream.bind()?;
            near.stream.fetch(near.rows.part(0, 4 * values as u64), &mut out, 0)?;
            near.stream.wait()?;
            let rows = out.values_mut::<f32>(0, values)?;
            arriving.values_mut::<f32>(0, values)?.copy_from_slice(rows);
            far.stream.bind()?;
            far.stream.upload(&mut arriving, 4 * values as u64, far.rows)?;
            far.stream.wait()?;
            best = best.min(started.elapsed().as_secs_f64() * 1e6);
        }
        Ok(best)
    };
    let all = us(ROW_VALUES).and_then(|row| Ok(reach_of(row, us(WINDOW_VALUES)?, us(CHUNK_VALUES)?)));
    all.map_err(|e| from.failed(e))
}
