//! One conformance suite for every kind of link, spinning and parking.
//!
//! Waits that should succeed have a long deadline, and no test may take as long: a lost wake-up fails.
//! The last test is a measurement: `cargo test --release --test links -- --ignored --nocapture`.

#![allow(
    clippy::unwrap_used,
    reason = "a test; clippy exempts its functions, not the functions that they share"
)]

#[path = "support/card_links.rs"]
mod card_links;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use card_links::LinkCard;
use tandem::device::batch::BatchId;
use tandem::model::facts::{CardKind, KvFormat, LinkKind, StageId};
use tandem::model::footprint::gpu::GpuSizes;
use tandem::model::footprint::{ByKind, Footprint, ItemKind, LayerFootprint, StageSizes};
use tandem::transport::ring::{CloseCause, RingFault};
use tandem::transport::wait::{Cancel, Patience, Wait};
use tandem::transport::{self, LinkEnds, LinkError, LinkPair, LinkReceiver, LinkSender, LinkSpec};

const ENDS: LinkEnds = LinkEnds { from: StageId(0), to: StageId(1) };
const SLOTS: usize = 3;
const WIDTH: usize = 5;
const ROWS_MAX: usize = 7;
const REPLAYS: u64 = 10_000;
/// A wait that should succeed and takes this long has missed its wake-up.
const LIMIT: Duration = Duration::from_secs(20);

/// What a test runs under.
#[derive(Clone, Copy)]
struct Case {
    kind: LinkKind,
    patience: Patience,
    /// For kinds whose slots only cards reach.
    cards: Option<&'static [LinkCard; 2]>,
}

impl Case {
    fn spec(self) -> LinkSpec {
        LinkSpec { kind: self.kind, ends: ENDS, slots: SLOTS, values_per_row: WIDTH, rows_max: ROWS_MAX }
    }

    fn open(self) -> LinkPair {
        self.try_open(&self.spec()).unwrap()
    }

    fn try_open(self, spec: &LinkSpec) -> Result<LinkPair, LinkError> {
        match self.cards {
            None => transport::open(spec),
            Some(cards) => card_links::open(cards, spec, |batch| rows_of(batch).len()),
        }
    }

    /// Fewer on emulated cards, whose kernels run thread by thread.
    fn replays(self) -> u64 {
        if self.cards.is_some_and(|cards| cards[0].is_emulated) { REPLAYS / 20 } else { REPLAYS }
    }

    /// Long enough to be a failure.
    fn wait(self, cancel: &Cancel) -> Wait<'_> {
        Wait::within(LIMIT, self.patience, cancel)
    }

    /// Looks, and does not wait.
    fn look(self, cancel: &Cancel) -> Wait<'_> {
        Wait { deadline: Instant::now(), patience: self.patience, cancel }
    }
}

/// Every kind of host memory and, where there are two CUDA cards, of cards.
fn every_kind(check: impl Fn(Case)) {
    let host = LinkKind::OF_HOST.map(|kind| (kind, None));
    let between_cards =
        card_links::two_cards().map(|cards| LinkKind::OF_CARDS.map(|kind| (kind, Some(cards))));
    for (kind, cards) in host.into_iter().chain(between_cards.into_iter().flatten()) {
        for patience in [Patience::NONE, Patience::new(Patience::SPIN_US_MAX)] {
            println!("{kind:?}, {patience:?}");
            let start = Instant::now();
            check(Case { kind, patience, cards });
            assert!(start.elapsed() < LIMIT, "a wake-up was lost");
        }
    }
}

/// Rows of a batch: their number and all bits follow from its number; NaN, infinities and denormals occur.
fn rows_of(batch: BatchId) -> Vec<f32> {
    let rows = 1 + (batch.0.wrapping_mul(5) % ROWS_MAX as u64) as usize;
    let bits =
        |i: u64| (batch.0.wrapping_mul(0x1_0001).wrapping_add(i)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    (0..(rows * WIDTH) as u64).map(|i| f32::from_bits(bits(i) as u32)).collect()
}

fn send(sender: &mut dyn LinkSender, batch: BatchId, wait: &Wait<'_>) -> Result<(), LinkError> {
    let rows = rows_of(batch);
    let slot = sender.slot(wait)?.host();
    assert_eq!(slot.len(), ROWS_MAX * WIDTH, "a slot holds the largest batch");
    // What an earlier batch left behind these rows must not reach the consumer.
    slot.fill(f32::NAN);
    slot[..rows.len()].copy_from_slice(&rows);
    sender.post(batch, rows.len())
}

fn receive(receiver: &mut dyn LinkReceiver, batch: BatchId, wait: &Wait<'_>) -> Result<(), LinkError> {
    let bits = |rows: &[f32]| rows.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let expected = bits(&rows_of(batch));
    assert_eq!(bits(receiver.take(batch, wait)?.host()), expected, "rows of {batch:?}");
    assert_eq!(bits(receiver.rows().host()), expected, "rows of {batch:?}, asked for again");
    receiver.release()?;
    assert!(receiver.rows().host().is_empty(), "released rows are out of reach");
    Ok(())
}

fn fill(sender: &mut dyn LinkSender, wait: &Wait<'_>) {
    (0..SLOTS as u64).for_each(|b| send(sender, BatchId(b), wait).unwrap());
}

fn closed(cause: CloseCause) -> LinkError {
    LinkError::Closed { ends: ENDS, cause }
}

#[test]
fn ten_thousand_batches_of_changing_size_arrive_in_order_and_bit_for_bit() {
    every_kind(|case| {
        let (cancel, (mut sender, mut receiver)) = (Cancel::new(), case.open());
        thread::scope(|scope| {
            scope.spawn(|| {
                (0..case.replays()).for_each(|b| send(&mut *sender, BatchId(b), &case.wait(&cancel)).unwrap())
            });
            (0..case.replays())
                .for_each(|b| receive(&mut *receiver, BatchId(b), &case.wait(&cancel)).unwrap());
        });
    });
}

#[test]
fn numbers_may_leave_gaps_as_long_as_both_sides_agree() {
    every_kind(|case| {
        let (cancel, (mut sender, mut receiver)) = (Cancel::new(), case.open());
        for batch in [3, 4, 90, u64::MAX].map(BatchId) {
            send(&mut *sender, batch, &case.wait(&cancel)).unwrap();
            receive(&mut *receiver, batch, &case.wait(&cancel)).unwrap();
        }
    });
}

#[test]
fn a_full_ring_holds_the_producer_back_until_a_release() {
    every_kind(|case| {
        let (cancel, (mut sender, mut receiver)) = (Cancel::new(), case.open());
        fill(&mut *sender, &case.look(&cancel));
        let released = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                sender.slot(&case.wait(&cancel)).unwrap();
                assert!(released.load(Ordering::SeqCst), "the producer got a slot of a full ring");
            });
            // Reading alone frees nothing.
            receiver.take(BatchId(0), &case.wait(&cancel)).unwrap();
            released.store(true, Ordering::SeqCst);
            receiver.release().unwrap();
        });
        for b in 1..SLOTS as u64 {
            receive(&mut *receiver, BatchId(b), &case.look(&cancel)).unwrap();
        }
    });
}

#[test]
fn slots_are_all_usable_and_exactly_as_many_as_planned() {
    every_kind(|case| {
        let (cancel, (mut sender, mut receiver)) = (Cancel::new(), case.open());
        for lap in 0..4 {
            let batches = (lap * SLOTS..(lap + 1) * SLOTS).map(|b| BatchId(b as u64));
            for batch in batches.clone() {
                send(&mut *sender, batch, &case.look(&cancel)).unwrap();
            }
            let full = sender.slot(&case.look(&cancel)).unwrap_err();
            assert_eq!(full, LinkError::Deadline { ends: ENDS, stage: ENDS.to, awaited: "free slot" });
            for batch in batches {
                receive(&mut *receiver, batch, &case.look(&cancel)).unwrap();
            }
            let empty = receiver.take(BatchId(0), &case.look(&cancel)).unwrap_err();
            assert_eq!(empty, LinkError::Deadline { ends: ENDS, stage: ENDS.from, awaited: "rows" });
        }
    });
}

#[test]
fn a_late_producer_is_waited_for() {
    every_kind(|case| {
        let (cancel, (mut sender, mut receiver), gate) = (Cancel::new(), case.open(), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                for b in 0..200 {
                    gate.wait();
                    send(&mut *sender, BatchId(b), &case.wait(&cancel)).unwrap();
                }
            });
            for b in 0..200 {
                let early = receiver.take(BatchId(b), &case.look(&cancel)).unwrap_err();
                assert!(matches!(early, LinkError::Deadline { .. }), "{early}");
                gate.wait();
                receive(&mut *receiver, BatchId(b), &case.wait(&cancel)).unwrap();
            }
        });
    });
}

#[test]
fn a_late_consumer_is_waited_for() {
    every_kind(|case| {
        let (cancel, (mut sender, mut receiver), gate) = (Cancel::new(), case.open(), Barrier::new(2));
        fill(&mut *sender, &case.look(&cancel));
        thread::scope(|scope| {
            scope.spawn(|| {
                for b in 0..200 {
                    gate.wait();
                    receive(&mut *receiver, BatchId(b), &case.wait(&cancel)).unwrap();
                }
            });
            for b in 0..200 {
                let early = sender.slot(&case.look(&cancel)).unwrap_err();
                assert!(matches!(early, LinkError::Deadline { .. }), "{early}");
                gate.wait();
                send(&mut *sender, BatchId(b + SLOTS as u64), &case.wait(&cancel)).unwrap();
            }
        });
    });
}

#[test]
fn a_deadline_passes_on_either_side_and_the_link_goes_on() {
    every_kind(|case| {
        let (cancel, (mut sender, mut receiver)) = (Cancel::new(), case.open());
        let short = || Wait::within(Duration::from_millis(2), case.patience, &cancel);
        let start = Instant::now();
        let late = receiver.take(BatchId(0), &short()).unwrap_err();
        assert_eq!(late, LinkError::Deadline { ends: ENDS, stage: ENDS.from, awaited: "rows" });
        assert!(start.elapsed() >= Duration::from_millis(2));
        fill(&mut *sender, &case.look(&cancel));
        let late = sender.slot(&short()).unwrap_err();
        assert_eq!(late, LinkError::Deadline { ends: ENDS, stage: ENDS.to, awaited: "free slot" });
        assert!(start.elapsed() >= Duration::from_millis(4));
        receive(&mut *receiver, BatchId(0), &case.look(&cancel)).unwrap();
        send(&mut *sender, BatchId(SLOTS as u64), &case.look(&cancel)).unwrap();
    });
}

#[test]
fn the_producer_cancels_a_waiting_consumer() {
    every_kind(|case| {
        let (cancel, (mut sender, mut receiver), gate) = (Cancel::new(), case.open(), Barrier::new(2));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                gate.wait();
                receiver.take(BatchId(0), &case.wait(&cancel)).map(drop)
            });
            gate.wait();
            cancel.raise();
            assert_eq!(waiting.join().unwrap(), Err(LinkError::Cancelled { ends: ENDS }));
        });
        // Rows that come after the flag are not delivered under it.
        send(&mut *sender, BatchId(0), &case.look(&Cancel::new())).unwrap();
        let refused = receiver.take(BatchId(0), &case.wait(&cancel)).map(drop);
        assert_eq!(refused, Err(LinkError::Cancelled { ends: ENDS }));
    });
}

#[test]
fn the_consumer_cancels_a_waiting_producer() {
    every_kind(|case| {
        let (cancel, (mut sender, _receiver), gate) = (Cancel::new(), case.open(), Barrier::new(2));
        fill(&mut *sender, &case.look(&cancel));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                gate.wait();
                sender.slot(&case.wait(&cancel)).map(drop)
            });
            gate.wait();
            cancel.raise();
            assert_eq!(waiting.join().unwrap(), Err(LinkError::Cancelled { ends: ENDS }));
        });
    });
}

#[test]
fn a_closed_link_wakes_either_side_with_the_cause() {
    let causes = [CloseCause::Cancelled, CloseCause::Failed("card 1 was lost".into()), CloseCause::Ended];
    every_kind(|case| {
        for cause in &causes {
            let (cancel, (mut sender, mut receiver), gate) = (Cancel::new(), case.open(), Barrier::new(2));
            thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    gate.wait();
                    receiver.take(BatchId(0), &case.wait(&cancel)).map(drop)
                });
                gate.wait();
                sender.close(cause.clone());
                assert_eq!(waiting.join().unwrap(), Err(closed(cause.clone())));
            });
            let (mut sender, mut receiver) = case.open();
            fill(&mut *sender, &case.look(&cancel));
            thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    gate.wait();
                    sender.slot(&case.wait(&cancel)).map(drop)
                });
                gate.wait();
                receiver.close(cause.clone());
                receiver.close(CloseCause::Failed("a later cause".into()));
                assert_eq!(waiting.join().unwrap(), Err(closed(cause.clone())));
            });
            assert_eq!(sender.slot(&case.wait(&cancel)).map(drop), Err(closed(cause.clone())));
        }
    });
}

#[test]
fn rows_posted_before_an_orderly_end_arrive_and_those_before_a_failure_do_not() {
    every_kind(|case| {
        let (cancel, (mut sender, mut receiver)) = (Cancel::new(), case.open());
        fill(&mut *sender, &case.look(&cancel));
        drop(sender);
        for b in 0..SLOTS as u64 {
            receive(&mut *receiver, BatchId(b), &case.wait(&cancel)).unwrap();
        }
        let end = receiver.take(BatchId(SLOTS as u64), &case.wait(&cancel)).map(drop);
        assert_eq!(end, Err(closed(CloseCause::Ended)));

        let (mut sender, mut receiver) = case.open();
        fill(&mut *sender, &case.look(&cancel));
        let failed = CloseCause::Failed("card 0 was lost".into());
        sender.close(failed.clone());
        assert_eq!(receiver.take(BatchId(0), &case.wait(&cancel)).map(drop), Err(closed(failed)));
    });
}

#[test]
fn a_dropped_consumer_wakes_the_producer_even_while_it_holds_rows() {
    every_kind(|case| {
        let (cancel, (mut sender, mut receiver), gate) = (Cancel::new(), case.open(), Barrier::new(2));
        fill(&mut *sender, &case.look(&cancel));
        receiver.take(BatchId(0), &case.look(&cancel)).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                gate.wait();
                sender.slot(&case.wait(&cancel)).map(drop)
            });
            gate.wait();
            drop(receiver);
            assert_eq!(waiting.join().unwrap(), Err(closed(CloseCause::Ended)));
        });
    });
}

#[test]
fn a_consumer_dropped_while_rows_are_written_refuses_the_post() {
    every_kind(|case| {
        let (cancel, (mut sender, receiver)) = (Cancel::new(), case.open());
        sender.slot(&case.look(&cancel)).unwrap();
        drop(receiver);
        assert_eq!(sender.post(BatchId(0), WIDTH), Err(closed(CloseCause::Ended)));
    });
}

#[test]
fn a_stage_that_panics_is_named_to_the_other_side() {
    every_kind(|case| {
        let (cancel, (sender, mut receiver)) = (Cancel::new(), case.open());
        let dead = thread::spawn(move || {
            let _sender = sender;
            // Unwinds without the message that a panic would print.
            std::panic::resume_unwind(Box::new("dead"));
        });
        let told = receiver.take(BatchId(0), &case.wait(&cancel)).map(drop);
        assert_eq!(told, Err(closed(CloseCause::Failed("stage 0 panicked".into()))));
        assert!(dead.join().is_err());
    });
}

#[test]
fn rows_of_another_batch_are_refused_and_end_the_link() {
    every_kind(|case| {
        for (posted, expected) in [(4, 5), (5, 4)].map(|(p, e)| (BatchId(p), BatchId(e))) {
            let (cancel, (mut sender, mut receiver)) = (Cancel::new(), case.open());
            send(&mut *sender, posted, &case.look(&cancel)).unwrap();
            let fault = RingFault::WrongBatch { expected, got: posted };
            let refused = receiver.take(expected, &case.wait(&cancel)).map(drop);
            assert_eq!(refused, Err(LinkError::Fault { ends: ENDS, fault: fault.clone() }));
            let told = closed(CloseCause::Failed(fault.to_string()));
            assert_eq!(sender.slot(&case.wait(&cancel)).map(drop), Err(told.clone()));
            assert_eq!(receiver.take(posted, &case.wait(&cancel)).map(drop), Err(told));
        }
    });
}

#[test]
fn a_batch_that_repeats_is_refused_and_ends_the_link() {
    every_kind(|case| {
        for got in [BatchId(7), BatchId(6)] {
            let (cancel, (mut sender, mut receiver)) = (Cancel::new(), case.open());
            send(&mut *sender, BatchId(7), &case.look(&cancel)).unwrap();
            let fault = RingFault::NotRising { last: BatchId(7), got };
            let refused = send(&mut *sender, got, &case.look(&cancel));
            assert_eq!(refused, Err(LinkError::Fault { ends: ENDS, fault: fault.clone() }));
            let told = receiver.take(BatchId(7), &case.wait(&cancel)).map(drop);
            assert_eq!(told, Err(closed(CloseCause::Failed(fault.to_string()))));
        }
    });
}

#[test]
fn steps_out_of_turn_are_refused_and_change_nothing() {
    every_kind(|case| {
        let (cancel, (mut sender, mut receiver)) = (Cancel::new(), case.open());
        let out_of_turn = |step| Err(LinkError::OutOfTurn { ends: ENDS, step });
        assert_eq!(sender.post(BatchId(0), WIDTH), out_of_turn("post"));
        assert_eq!(receiver.release(), out_of_turn("release"));

        let rows = rows_of(BatchId(0));
        sender.slot(&case.look(&cancel)).unwrap().host()[..rows.len()].copy_from_slice(&rows);
        for values in [0, 1, WIDTH + 1, (ROWS_MAX + 1) * WIDTH] {
            let not_rows =
                LinkError::NotRows { ends: ENDS, values, values_per_row: WIDTH, rows_max: ROWS_MAX };
            assert_eq!(sender.post(BatchId(0), values), Err(not_rows));
        }
        let again = sender.slot(&case.look(&cancel)).unwrap().host();
        assert_eq!(again[0].to_bits(), rows[0].to_bits(), "the same slot is lent again");
        sender.post(BatchId(0), rows.len()).unwrap();

        receiver.take(BatchId(0), &case.look(&cancel)).unwrap();
        assert_eq!(receiver.take(BatchId(1), &case.look(&cancel)).map(drop), out_of_turn("take"));
        receiver.release().unwrap();
        send(&mut *sender, BatchId(1), &case.look(&cancel)).unwrap();
        receive(&mut *receiver, BatchId(1), &case.look(&cancel)).unwrap();
    });
}

#[test]
fn a_link_that_could_carry_nothing_is_refused() {
    every_kind(|case| {
        let spec = case.spec();
        let empty = [
            LinkSpec { slots: 0, ..spec },
            LinkSpec { values_per_row: 0, ..spec },
            LinkSpec { rows_max: 0, ..spec },
        ];
        for spec in empty {
            assert!(matches!(case.try_open(&spec), Err(LinkError::Empty { .. })), "{spec:?}");
        }
    });
}

#[test]
fn a_local_link_is_the_plans_item_and_a_staged_one_has_a_slot_more_on_either_card() {
    let layer = LayerFootprint {
        dense_bytes: ByKind::default(),
        expert_bytes: ByKind::default(),
        vector_bytes: 0,
        read_bytes_per_row: ByKind::default(),
        macs_per_row: 0,
        ops: 16,
        paged: Vec::new(),
        fixed_values: 0,
    };
    let footprint = Footprint {
        layers: vec![layer; 3],
        embedding_bytes: 0,
        head_bytes: ByKind::default(),
        tied_bytes: 0,
        tail_vector_bytes: 0,
        head_macs: 0,
        residual_width: WIDTH,
        vocab: 0,
        row_bytes: 0,
        gpu: GpuSizes::default(),
        rope_vector_bytes: 0,
        float_products: false,
    };
    let sizes = StageSizes {
        kv: KvFormat::F32,
        context: 64,
        sequences: 1,
        batch_rows_max: ROWS_MAX,
        logits_rows_max: 1,
        link_slots: SLOTS,
        link_side_slots: 0,
        link_card_slots: 0,
    };
    let items = footprint.stage_items(CardKind::Cpu, 1..2, &sizes);
    let planned = items.iter().find(|i| i.kind == ItemKind::LinkSlots).unwrap().bytes;
    let spec = |kind| Case { kind, patience: Patience::NONE, cards: None }.spec();
    let (local, staged) = (spec(LinkKind::Local), spec(LinkKind::Staged));
    assert_eq!((local.sender_bytes(), local.receiver_bytes(), local.bytes()), (0, planned, planned));
    let slot_bytes = local.slot_bytes();
    assert_eq!((staged.sender_bytes(), staged.receiver_bytes()), (slot_bytes, planned + slot_bytes));
    // The plan knows them: a stage in the middle has both sides.
    let copied = StageSizes { link_side_slots: LinkKind::Staged.side_slots(), ..sizes };
    let items = footprint.stage_items(CardKind::Cpu, 1..2, &copied);
    let middle = items.iter().find(|i| i.kind == ItemKind::LinkSlots).unwrap().bytes;
    assert_eq!(middle, staged.bytes());
    assert_eq!(staged.bytes(), planned + 2 * slot_bytes);
}

#[test]
fn an_error_is_one_line_that_names_the_link_and_what_to_do() {
    let cause = CloseCause::Failed("card 1 was lost".into());
    let text = "link 0->1 is closed: card 1 was lost; end the requests under way and open the stages anew";
    assert_eq!(closed(cause).to_string(), text);
    let late = LinkError::Deadline { ends: ENDS, stage: ENDS.to, awaited: "free slot" };
    let text = "link 0->1: no free slot before the deadline; stage 1 is stuck or slow, end its requests";
    assert_eq!(late.to_string(), text);
}

#[test]
#[ignore = "a measurement"]
fn the_time_of_a_hand_off_between_two_pinned_threads() {
    const ROW: usize = 576;
    const ROUNDS: u64 = 20_000;
    // Asked for once: a pinned thread, and those it starts, see one CPU only.
    let cpus = core_affinity::get_core_ids().unwrap();
    assert!(cpus.len() > 1, "two CPUs are needed");
    every_kind(|case| {
        // Between cards `tandem devices --measure` measures, without a thread between.
        if case.cards.is_some() {
            return;
        }
        let spec = LinkSpec { values_per_row: ROW, rows_max: 8, ..case.spec() };
        let (mut there, mut there_in) = case.try_open(&spec).unwrap();
        let (mut back, mut back_in) = case.try_open(&spec).unwrap();
        let (cancel, row) = (Cancel::new(), vec![1.0f32; ROW]);
        let mut round_ns: Vec<u64> = thread::scope(|scope| {
            scope.spawn(|| {
                assert!(core_affinity::set_for_current(cpus[1]));
                for batch in (0..ROUNDS).map(BatchId) {
                    let rows = there_in.take(batch, &case.wait(&cancel)).unwrap().host();
                    back.slot(&case.wait(&cancel)).unwrap().host()[..ROW].copy_from_slice(rows);
                    there_in.release().unwrap();
                    back.post(batch, ROW).unwrap();
                }
            });
            assert!(core_affinity::set_for_current(cpus[0]));
            let round = |batch| {
                let start = Instant::now();
                there.slot(&case.wait(&cancel)).unwrap().host()[..ROW].copy_from_slice(&row);
                there.post(batch, ROW).unwrap();
                assert_eq!(back_in.take(batch, &case.wait(&cancel)).unwrap().host(), row);
                back_in.release().unwrap();
                start.elapsed().as_nanos() as u64
            };
            (0..ROUNDS).map(BatchId).map(round).collect()
        });
        round_ns.sort_unstable();
        let hand_off_us = |share: f64| round_ns[(share * (ROUNDS - 1) as f64) as usize] as f64 / 2000.0;
        println!("{} B: {:.2} us median", 4 * ROW, hand_off_us(0.5));
        println!(
            "  10 %: {:.2} us, 90 %: {:.2} us, 99 %: {:.2} us",
            hand_off_us(0.1),
            hand_off_us(0.9),
            hand_off_us(0.99)
        );
    });
}
