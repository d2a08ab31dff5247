//! Links between two CUDA cards: how a card's wait ends, what travels with the rows, what the cards allocate.
//!
//! Order, back-pressure and ends of the links themselves are in `links.rs`, which runs every kind. Without two cards, real
//! or emulated, each test says that it was skipped.
#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]

#[path = "support/card_links.rs"]
mod card_links;
mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use card_links::{End, LIMIT, LinkCard, ring, two_cards};
use support::{Quiet, Setup, in_repository, rows};
use tandem::device::batch::{Batch, BatchId, PageTables};
use tandem::device::cuda::kernels::KernelSettings;
use tandem::device::cuda::links::pattern::{self, Side, WORDS_BYTES};
use tandem::device::cuda::links::ring::{RingSize, SlotRing};
use tandem::device::cuda::links::side::{ENDED, LATE};
use tandem::device::cuda::listing;
use tandem::device::cuda::vendor::Vendor;
use tandem::device::{BesideExec, Card, CardError, CardRing, CardSlot, RowsIn, StageExec};
use tandem::engine::linking::LinkChoice;
use tandem::engine::open::{self, CardChoice, CpuThreads, CudaChoice, Model};
use tandem::engine::options::EngineOptions;
use tandem::engine::request::{LogitsWanted, Request, RequestEvent};
use tandem::model::facts::{CardFacts, CardId, CardKind, CardRates, KvFormat, LinkFacts, LinkKind, SlotId};
use tandem::model::facts::{PAGE_POSITIONS, PageId, RateSource, StageId, StageProgram, StateId};
use tandem::split::defaults::{link_rate, virtual_card};
use tandem::split::options::SplitOptions;
use tandem::transport::ring::CloseCause;
use tandem::transport::wait::{Cancel, Patience, Wait};
use tandem::transport::{self, LinkEnds, LinkSpec};

const SIZE: RingSize = RingSize { slots: 2, values: 3000 };

fn turn(sequence: u32) -> CardSlot {
    CardSlot { slot: SlotId(sequence % SIZE.slots as u32), sequence }
}

/// Both ends of a ring of each kind.
fn every_ring(check: impl Fn(&Arc<SlotRing>, End, End)) {
    let Some(cards) = two_cards() else { return };
    for kind in LinkKind::OF_CARDS {
        println!("{kind:?}");
        let end = |card| End::new(card, SIZE.values);
        check(&ring(cards, kind, SIZE), end(&cards[0]), end(&cards[1]));
    }
}

#[test]
fn a_ring_that_carries_patterns_passes_and_rows_that_others_write_to_do_not() {
    every_ring(|ring, from, to| {
        assert_eq!(pattern::check(ring, &from.side(), &to.side()).unwrap(), Ok(()));
        // It is as new: no number of the test is left in a slot.
        assert_eq!(pattern::check(ring, &from.side(), &to.side()).unwrap(), Ok(()));
        let disturbed = Side { words: to.side().rows.part(0, WORDS_BYTES), ..to.side() };
        let failed = pattern::check(ring, &from.side(), &disturbed).unwrap().unwrap_err();
        assert_eq!(failed, "1 values did not arrive as they were sent (back)");
    });
}

#[test]
fn a_cards_wait_ends_at_its_deadline_with_zeros_and_the_ring_goes_on() {
    every_ring(|ring, mut from, mut to| {
        let (limit, start) = (Duration::from_millis(30), Instant::now());
        let (rows, fault) = to.take(ring, turn(1), 1000, limit);
        assert_eq!((fault, rows), (LATE, vec![0.0; 1000]));
        assert!(start.elapsed() >= limit && ring.waited_ns() >= limit.as_nanos() as u64);
        from.post(ring, turn(1), &[1.5; 1000]);
        assert_eq!(to.take(ring, turn(1), 1000, limit), (vec![1.5; 1000], 0));
        // The rows of an earlier turn of the slot are not taken for those of a later one.
        assert_eq!(to.take(ring, turn(3), 1000, limit).1, LATE);
    });
}

#[test]
fn whoever_closes_a_link_out_of_order_ends_the_wait_of_a_card() {
    let ends = LinkEnds { from: StageId(0), to: StageId(1) };
    let spec = LinkSpec { kind: LinkKind::Peer, ends, slots: SIZE.slots, values_per_row: 1000, rows_max: 3 };
    let failed = || CloseCause::Failed("card 0 was lost".to_owned());
    for who in 0..4 {
        every_ring(|ring, _, mut to| {
            let cancel = Cancel::new();
            let wait = Wait::within(LIMIT, Patience::NONE, &cancel);
            let (mut sender, mut receiver) = transport::card::open(&spec, ring.clone()).unwrap();
            sender.slot(&wait).unwrap();
            sender.post(BatchId(0), 1000).unwrap();
            let RowsIn::Card(turn) = receiver.take(BatchId(0), &wait).unwrap() else { panic!("no turn") };
            // The card that should send the rows never does.
            let waiting = std::thread::scope(|scope| {
                let waiting = scope.spawn(|| to.take(ring, turn, 1000, LIMIT));
                match who {
                    0 => sender.close(failed()),
                    1 => receiver.close(failed()),
                    2 => sender.close(CloseCause::Cancelled),
                    _ => {
                        let dead = std::thread::spawn(move || {
                            let _sender = sender;
                            std::panic::resume_unwind(Box::new("dead"));
                        });
                        assert!(dead.join().is_err());
                    }
                }
                waiting.join().unwrap()
            });
            assert_eq!(waiting, (vec![0.0; 1000], ENDED));
        });
    }
}

#[test]
fn rows_that_were_posted_reach_a_link_that_has_ended_in_order() {
    every_ring(|ring, mut from, mut to| {
        from.post(ring, turn(1), &[2.5; 7]);
        ring.end_waits();
        assert_eq!(to.take(ring, turn(1), 7, LIMIT), (vec![2.5; 7], 0));
        assert_eq!(to.take(ring, turn(2), 7, LIMIT), (vec![0.0; 7], ENDED));
    });
}

/// Cards, as the command line would name them.
fn choice(cards: &[LinkCard; 2], link: LinkChoice) -> CardChoice {
    let listing = listing::list(Vendor::Cuda, None, None).unwrap();
    let devices: Vec<_> = listing.cards.iter().filter(|c| c.usable.is_ok()).take(cards.len()).collect();
    let facts = |index: usize| CardFacts {
        id: CardId::cuda(index as u32),
        kind: CardKind::Cuda,
        name: format!("cuda:{index}"),
        memory_bytes: 256 << 20,
        driver_bytes: 0,
        addable_bytes: u64::MAX,
        decode_bytes_per_s: 1e10,
        decode_op_us: 0.0,
        prompt_macs_per_s: 1e11,
        rates: RateSource::Typical,
    };
    let device = |number: usize| (Vendor::Cuda.card(number), &devices[number].device);
    let kind = link.between(device(0), device(1)).unwrap();
    CardChoice {
        cards: (0..cards.len()).map(facts).collect(),
        links: LinkFacts { rates: vec![vec![link_rate(kind); 2]; 2], kinds: vec![vec![kind; 2]; 2] },
        link,
        threads: CpuThreads::Shared(1),
        tier: tandem::device::cpu::simd::tier::Tier::detect(),
        cuda: Some(CudaChoice {
            devices: (0..).map(CardId::cuda).zip(devices.iter().map(|d| d.device.clone())).collect(),
            kernels: kernels(),
        }),
    }
}

fn kernels() -> KernelSettings {
    KernelSettings {
        cache: Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels")),
        ..KernelSettings::default()
    }
}

/// What a model says about a prompt of many chunks, token by token, and the kind of link it ran over.
fn answers(model: &str, choice: &CardChoice, sequences: usize) -> (Vec<Vec<u32>>, Option<LinkKind>) {
    let model = Model::open(&in_repository(&format!("models/{model}.gguf"))).unwrap();
    let facts = &model.program.facts;
    let mut options = EngineOptions::new(facts.vocab, facts.embedding_width, 128);
    (options.chunk_rows, options.sequences, options.kv) = (16, sequences, KvFormat::F32);
    options.logits_rows_max = options.batch_rows_max();
    let mut split = SplitOptions::new(options.stage_sizes());
    split.sizes.link_card_slots = options.link_slots;
    if choice.cards.len() > 1 {
        split.layer_split = Some(vec![1]);
    }
    let plan = open::plan(&model, choice, &split, &options).unwrap();
    let opened = open::open(&model, choice, plan, options, &Quiet).unwrap();
    for (stage, ledger) in opened.plan.stages.iter().zip(&opened.ledgers) {
        let mut planned: Vec<_> = stage.items.iter().map(|i| (i.kind, i.bytes)).collect();
        planned.sort();
        let booked = ledger.entries().iter().map(|(&kind, &bytes)| (kind, bytes));
        assert_eq!(booked.filter(|b| b.1 > 0).collect::<Vec<_>>(), planned, "{}", stage.name);
    }
    let kind = opened.links.first().map(|link| link.kind);
    assert_eq!(opened.plan.stages.get(1).and_then(|s| s.arrives), kind);
    let request = |seed: u32| Request {
        prompt: (0..40).map(|i| (i * i * 7 + i * 3 + seed) % 277).collect(),
        tokens_max: 6,
        logits: LogitsWanted::All,
        ..Request::default()
    };
    let handles: Vec<_> = (0..sequences as u32).map(|s| opened.engine.submit(request(s)).unwrap()).collect();
    let heard = handles.into_iter().map(|mut handle| {
        let mut heard = Vec::new();
        while let Some(event) = handle.next_event() {
            match event {
                RequestEvent::Token { id, .. } => heard.push(id),
                RequestEvent::Logits { values, .. } => heard.extend(values.iter().map(|v| v.to_bits())),
                RequestEvent::Finished { finish, .. } => println!("{finish:?}"),
                RequestEvent::Prompt { .. } => {}
            }
        }
        heard
    });
    let heard = heard.collect();
    opened.engine.shutdown().unwrap();
    (heard, kind)
}

#[test]
fn every_link_between_two_cards_gives_the_bits_of_one_virtual_card_in_planned_memory() {
    let Some(cards) = two_cards() else { return };
    for model in ["rand-llama", "rand-qwen3moe"] {
        let one = CardChoice {
            cards: vec![virtual_card(
                0,
                256 << 20,
                CardRates { decode_bytes_per_s: 1e10, prompt_macs_per_s: 1e11, source: RateSource::Typical },
            )],
            links: tandem::split::defaults::virtual_links(1),
            cuda: None,
            ..choice(cards, LinkChoice::Auto)
        };
        let (expected, _) = answers(model, &one, 2);
        for (link, kind) in [
            (LinkChoice::Auto, LinkKind::Peer),
            (LinkChoice::Peer, LinkKind::Peer),
            (LinkChoice::Mapped, LinkKind::Mapped),
            (LinkChoice::Staged, LinkKind::Staged),
        ] {
            let (heard, ran) = answers(model, &choice(cards, link), 2);
            assert_eq!(ran, Some(kind), "{link:?}");
            assert!(heard == expected, "{model}: other bits over {link:?}");
        }
    }
}

#[test]
fn rows_at_fault_name_the_card_and_layer_that_made_them_on_every_card_behind() {
    let Some(cards) = two_cards() else { return };
    let choice = choice(cards, LinkChoice::Peer);
    let model = Model::open(&in_repository("models/rand-llama.gguf")).unwrap();
    let (setup, layers) = (Setup::new(64), model.program.layers.len());
    let cuda = choice.cuda.as_ref().unwrap();
    let mut stages: Vec<_> = [1..2, 2..layers]
        .into_iter()
        .zip(&cuda.devices)
        .map(|(layers, (id, device))| {
            let facts = choice.cards.iter().find(|facts| facts.id == *id).unwrap().clone();
            let mut card = tandem::device::cuda::card::CudaCard::open(facts, device, &cuda.kernels).unwrap();
            let stage = StageProgram { program: model.program.clone(), layers };
            let exec = card.stage(&stage, &model.file, &setup.settings(), &Quiet).unwrap();
            (card, exec)
        })
        .collect();
    let width = model.program.facts.embedding_width;
    let size = RingSize { slots: 2, values: setup.rows_max * width };
    let pages = setup.context.div_ceil(PAGE_POSITIONS) as u32;
    let tables = PageTables { states: vec![(0..pages).map(PageId).collect()] };
    for kind in LinkKind::OF_CARDS {
        let ring = ring(cards, kind, size);
        stages[0].1.leave_by(ring.clone());
        stages[1].1.arrive_by(ring.clone(), CardId::cuda(0), LIMIT);
        for (sequence, value) in [(1, f32::NAN), (2, 0.5)] {
            let batch = Batch::new(BatchId(u64::from(sequence)), rows(StateId(0), 0, &[1, 2, 3]));
            let (input, mut output) = (vec![value; 3 * width], vec![0.0; 3 * model.program.facts.vocab]);
            let never = || false;
            let out = Some(turn(sequence));
            stages[0].1.start(&batch, &tables, RowsIn::Host(&input), out, &never).unwrap();
            stages[1].1.start(&batch, &tables, RowsIn::Card(turn(sequence)), None, &never).unwrap();
            let first = stages[0].1.finish(&batch, &mut [], &never);
            let second = stages[1].1.finish(&batch, &mut output, &never);
            if value.is_nan() {
                for ended in [first, second] {
                    let Err(CardError::NotFinite { card, layer, .. }) = ended else { panic!("{ended:?}") };
                    assert_eq!((card, layer), (CardId::cuda(0), 1));
                }
            } else {
                first.unwrap();
                second.unwrap();
                assert!(output.iter().all(|v| v.is_finite()), "the cards are not well");
            }
        }
    }
    assert!(stages[0].1.beside().is_some() && stages[0].0.facts().kind == CardKind::Cuda);
}
