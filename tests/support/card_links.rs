//! Links between two CUDA cards as links of host memory: what a sender writes goes to one card and on from there, and
//! what a receiver reads comes from the other card.
#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tandem::device::batch::BatchId;
use tandem::device::cuda::driver::{Context, PinnedMemory, Span, Stream};
use tandem::device::cuda::kernels::{KernelSettings, Kernels, Machine, Place};
use tandem::device::cuda::links::pattern::{Side, WORDS_BYTES};
use tandem::device::cuda::links::ring::{RingSize, SlotRing};
use tandem::device::cuda::links::side::LinkKernels;
use tandem::device::cuda::listing;
use tandem::device::cuda::memory::{Arena, Memory};
use tandem::device::cuda::source::LINKS;
use tandem::device::cuda::vendor::Vendor;
use tandem::device::ledger::Ledger;
use tandem::device::{CardError, CardSlot, LoadProgress, RowsIn, RowsOut};
use tandem::model::facts::{CardId, LinkKind};
use tandem::model::footprint::ItemKind;
use tandem::transport::ring::CloseCause;
use tandem::transport::wait::Wait;
use tandem::transport::{self, LinkError, LinkPair, LinkReceiver, LinkSender, LinkSpec};

/// Longer than any wait that a test lets succeed.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Loading that nobody watches.
struct Unwatched;

impl LoadProgress for Unwatched {
    fn compiled(&self, _: CardId, _: usize, _: usize) -> Result<(), CardError> {
        Ok(())
    }

    fn waits(&self, _: CardId) -> Result<(), CardError> {
        Ok(())
    }

    fn arrived(&self, _: u64) -> Result<(), CardError> {
        Ok(())
    }
}

/// A card with the kernels of links.
pub struct LinkCard {
    pub context: Context,
    pub stream: Stream,
    pub kernels: LinkKernels,
    pub is_emulated: bool,
}

impl LinkCard {
    /// Memory of the card, whatever for.
    pub fn arena(&self, bytes: u64) -> Arena {
        let mut ledger = Ledger::new(CardId::cuda(0), bytes);
        let mut memory = Memory { card: CardId::cuda(0), context: &self.context, ledger: &mut ledger };
        memory.arena(ItemKind::LinkSlots, bytes).unwrap()
    }
}

/// The first two usable cards, of which the first reaches the second one's memory.
pub fn two_cards() -> Option<&'static [LinkCard; 2]> {
    static CARDS: OnceLock<Result<[LinkCard; 2], String>> = OnceLock::new();
    let cards = CARDS.get_or_init(|| {
        let listing = listing::list(Vendor::Cuda, None, None).map_err(|e| e.to_string())?;
        let usable: Vec<_> = listing.cards.iter().filter(|c| c.usable.is_ok()).take(2).collect();
        let [first, second] = usable.as_slice() else {
            return Err(format!("{} usable CUDA cards", usable.len()));
        };
        let settings = KernelSettings {
            cache: Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels")),
            ..KernelSettings::default()
        };
        let cards = [first, second].map(|listed| {
            let device = &listed.device;
            let context = Context::open(device).unwrap();
            let machine = Machine::of(device).unwrap();
            let place = Place { card: CardId::cuda(0), context: &context, machine, progress: &Unwatched };
            let kernels = Kernels::load(place, &settings, &[&LINKS], &BTreeSet::new()).unwrap();
            LinkCard {
                stream: Stream::new(&context).unwrap(),
                kernels: LinkKernels::new(&kernels).unwrap(),
                is_emulated: device.name.contains("virtual card"),
                context,
            }
        });
        cards[0].context.reach(&cards[1].context).map_err(|e| e.to_string())?;
        Ok(cards)
    });
    if let Err(reason) = cards {
        eprintln!("SKIPPED links between cards: {reason}");
    }
    cards.as_ref().ok()
}

/// A ring from the first card to the second.
pub fn ring(cards: &[LinkCard; 2], kind: LinkKind, size: RingSize) -> Arc<SlotRing> {
    let to = &cards[1];
    Arc::new(match kind {
        LinkKind::Peer => SlotRing::peer(&to.stream, to.arena(size.bytes()), size).unwrap(),
        _ => SlotRing::mapped(&to.context, size).unwrap(),
    })
}

/// A card's memory for one end of a link.
pub struct End {
    card: &'static LinkCard,
    stream: Stream,
    _arenas: [Arena; 2],
    rows: Span,
    words: Span,
    pinned: PinnedMemory,
    pinned_words: PinnedMemory,
    own: Vec<f32>,
    values: usize,
}

impl End {
    pub fn new(card: &'static LinkCard, values: usize) -> End {
        let bytes = 4 * values as u64;
        let mut arenas = [card.arena(bytes.next_multiple_of(64)), card.arena(WORDS_BYTES)];
        let rows = arenas[0].cut(values * 4);
        let words = arenas[1].cut(WORDS_BYTES as usize);
        End {
            card,
            stream: Stream::new(&card.context).unwrap(),
            _arenas: arenas,
            rows,
            words,
            pinned: PinnedMemory::new(&card.context, bytes).unwrap(),
            pinned_words: PinnedMemory::new(&card.context, WORDS_BYTES).unwrap(),
            own: vec![0.0; values],
            values: 0,
        }
    }

    pub fn side(&self) -> Side<'_> {
        Side {
            card: CardId::cuda(0),
            stream: &self.stream,
            kernels: &self.card.kernels,
            rows: self.rows,
            words: self.words,
        }
    }

    fn send_words(&mut self, turn: CardSlot) {
        let (stream, kernels) = (self.stream.clone(), self.card.kernels.clone());
        stream.bind().unwrap();
        let side = Side {
            card: CardId::cuda(0),
            stream: &stream,
            kernels: &kernels,
            rows: self.rows,
            words: self.words,
        };
        side.send_words(&mut self.pinned_words, turn).unwrap();
    }

    /// Fills the slot of a turn with `rows` by the card, and waits until it has.
    pub fn post(&mut self, ring: &SlotRing, turn: CardSlot, rows: &[f32]) {
        self.send_words(turn);
        let room = self.pinned.bytes_mut().unwrap();
        room.chunks_exact_mut(4).zip(rows).for_each(|(to, v)| to.copy_from_slice(&v.to_le_bytes()));
        self.stream.upload(&mut self.pinned, 4 * rows.len() as u64, self.rows).unwrap();
        let known = (self.side().places(), turn);
        self.card.kernels.post_known(&self.stream, ring, self.rows, rows.len(), known).unwrap();
        self.stream.wait().unwrap();
    }

    /// Waits on the card for the rows of a turn; the fault word comes along.
    pub fn take(
        &mut self,
        ring: &SlotRing,
        turn: CardSlot,
        values: usize,
        limit: Duration,
    ) -> (Vec<f32>, u32) {
        self.send_words(turn);
        let places = self.side().places();
        self.card.kernels.wait(&self.stream, ring, self.rows, values, (places, limit)).unwrap();
        let (mut rows, mut fault) = (vec![0.0f32; values], [0u32]);
        self.stream.download(self.rows, &mut rows).unwrap();
        self.stream.download(places.fault, &mut fault).unwrap();
        (rows, fault[0])
    }
}

struct Sender {
    link: Box<dyn LinkSender>,
    ring: Arc<SlotRing>,
    end: End,
    turn: Option<CardSlot>,
}

struct Receiver {
    link: Box<dyn LinkReceiver>,
    ring: Arc<SlotRing>,
    end: End,
    /// Values of each batch: the rows of a slot do not say how many they are.
    values_of: fn(BatchId) -> usize,
}

/// A link between the two cards with the face of a link of host memory. Each second batch is posted on the card only after
/// its receiver was told of it, so that the other card waits.
pub fn open(
    cards: &'static [LinkCard; 2],
    spec: &LinkSpec,
    values_of: fn(BatchId) -> usize,
) -> Result<LinkPair, LinkError> {
    let size = RingSize { slots: spec.slots.max(1), values: spec.slot_values().max(1) };
    let ring = ring(cards, spec.kind, size);
    let (sender, receiver) = transport::card::open(spec, ring.clone())?;
    let end = |card| End::new(card, size.values);
    let sender = Sender { link: sender, ring: ring.clone(), end: end(&cards[0]), turn: None };
    let receiver = Receiver { link: receiver, ring, end: end(&cards[1]), values_of };
    Ok((Box::new(sender), Box::new(receiver)))
}

impl LinkSender for Sender {
    fn slot(&mut self, wait: &Wait<'_>) -> Result<RowsOut<'_>, LinkError> {
        match self.link.slot(wait)? {
            RowsOut::Card(turn) => self.turn = Some(turn),
            RowsOut::Host(_) => panic!("a link of cards lends no host memory"),
        }
        Ok(RowsOut::Host(&mut self.end.own))
    }

    fn post(&mut self, tag: BatchId, values: usize) -> Result<(), LinkError> {
        let Some(turn) = self.turn else { return self.link.post(tag, values) };
        let rows = self.end.own.get(..values).unwrap_or_default().to_vec();
        let is_late = tag.0.is_multiple_of(2);
        if !is_late && values > 0 {
            self.end.post(&self.ring, turn, &rows);
        }
        self.link.post(tag, values)?;
        self.turn = None;
        if is_late {
            self.end.post(&self.ring, turn, &rows);
        }
        Ok(())
    }

    fn close(&mut self, cause: CloseCause) {
        self.link.close(cause);
    }
}

impl LinkReceiver for Receiver {
    fn take(&mut self, expected: BatchId, wait: &Wait<'_>) -> Result<RowsIn<'_>, LinkError> {
        let RowsIn::Card(turn) = self.link.take(expected, wait)? else {
            panic!("a link of cards gives turns")
        };
        let (rows, fault) = self.end.take(&self.ring, turn, (self.values_of)(expected), LIMIT);
        assert_eq!(fault, 0, "the wait on the card ended otherwise");
        self.end.values = rows.len();
        self.end.own[..rows.len()].copy_from_slice(&rows);
        Ok(RowsIn::Host(&self.end.own[..rows.len()]))
    }

    fn rows(&self) -> RowsIn<'_> {
        match self.link.rows() {
            RowsIn::Card(_) => RowsIn::Host(&self.end.own[..self.end.values]),
            none => none,
        }
    }

    fn release(&mut self) -> Result<(), LinkError> {
        self.link.release()
    }

    fn close(&mut self, cause: CloseCause) {
        self.link.close(cause);
    }
}
