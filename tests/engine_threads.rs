//! The engine on threads, with the hash model as its cards: every answer must equal the plain one-sequence run.
//!
//! The hash model's logits depend on every token, position and page of a state, so any mix-up changes the text.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tandem::device::batch::{Batch, PageTables};
use tandem::device::{CardError, RunStamp, StageExec};
use tandem::engine::build::StageSpec;
use tandem::engine::error::EngineError;
use tandem::engine::handle::RequestHandle;
use tandem::engine::options::{EngineOptions, Pinning};
use tandem::engine::pipeline::{Engine, EngineStage};
use tandem::engine::request::{Counters, DraftSource, Finish, LogitsWanted, Request, RequestEvent};
use tandem::engine::sample::SamplingOptions;
use tandem::engine::sim::hash_card::{HASH_ROW_VALUES, HashCard};
use tandem::engine::sim::oracle::{Answer, answer};
use tandem::engine::turn::Turn;
use tandem::model::facts::{CardId, LinkKind, PageId};

const LAYERS: usize = 6;
const VOCAB: usize = 50;

fn options(context: usize) -> EngineOptions {
    EngineOptions { logits_rows_max: 512, ..EngineOptions::new(VOCAB, HASH_ROW_VALUES, context) }
}

fn card(stage: usize, stage_count: usize, options: &EngineOptions) -> HashCard {
    let layers = stage * LAYERS / stage_count..(stage + 1) * LAYERS / stage_count;
    HashCard::new(CardId::cpu(stage as u32), layers, LAYERS, VOCAB, options.kv_pages())
}

fn start_with(
    stage_count: usize,
    options: EngineOptions,
    turn: Option<Arc<Turn>>,
    wrap: impl Fn(usize, HashCard) -> Box<dyn StageExec>,
) -> Engine {
    let stage = |stage: usize| EngineStage {
        exec: wrap(stage, card(stage, stage_count, &options)),
        spec: StageSpec { card: CardId::cpu(stage as u32), kv_pages: options.kv_pages() },
        turn: turn.clone(),
        arrives: None,
    };
    Engine::start((0..stage_count).map(stage).collect(), options.clone()).unwrap()
}

fn start(stage_count: usize, options: EngineOptions) -> Engine {
    start_with(stage_count, options, None, |_, card| Box::new(card))
}

fn tokens(count: usize, seed: u64) -> Vec<u32> {
    (0..count as u64)
        .map(|i| (((i * 7919 + seed * 104_729) * 2_654_435_761) >> 16) as u32 % VOCAB as u32)
        .collect()
}

fn request(prompt: usize, tokens_max: usize, seed: u64) -> Request {
    Request { prompt: tokens(prompt, seed), tokens_max, ..Request::default() }
}

#[derive(Debug, Default)]
struct Heard {
    tokens: Vec<u32>,
    logits: Vec<(u32, Vec<f32>)>,
    read: usize,
    finish: Option<(Finish, Counters)>,
}

fn hear(handle: &mut RequestHandle) -> Heard {
    let mut heard = Heard::default();
    while let Some(event) = handle.next_event() {
        assert!(heard.finish.is_none(), "nothing follows the end");
        match event {
            RequestEvent::Prompt { read, .. } => {
                assert!(read > heard.read, "a prompt is read forwards");
                heard.read = read;
            }
            RequestEvent::Logits { position, rows, values } => {
                assert_eq!(values.len(), rows * VOCAB);
                let rows = values.chunks(VOCAB).enumerate();
                heard.logits.extend(rows.map(|(i, l)| (position + i as u32, l.to_vec())));
            }
            RequestEvent::Token { id, .. } => heard.tokens.push(id),
            RequestEvent::Finished { finish, counters } => heard.finish = Some((finish, counters)),
        }
    }
    heard
}

fn check_answer(heard: &Heard, expected: &Answer, what: &str) {
    assert_eq!(heard.tokens, expected.tokens, "{what}");
    assert_eq!(heard.finish.as_ref().map(|f| &f.0), Some(&expected.finish), "{what}");
    for (position, logits) in &heard.logits {
        assert_eq!(logits, &expected.logits[*position as usize], "{what}: logits at {position}");
    }
}

#[test]
fn text_does_not_depend_on_stages_chunks_windows_links_or_neighbours() {
    let prompts = [1, 3, 8, 9, 64, 65, 130, 40, 17, 100];
    let requests = || prompts.iter().enumerate().map(|(i, &n)| (n, 5 + 3 * i, i as u64));
    let sampling = |seed| SamplingOptions {
        temperature: if seed % 2 == 0 { 0.0 } else { 90_000.0 },
        top_k: 20,
        repeat_penalty: 1.2,
        seed,
        ..SamplingOptions::default()
    };
    let made = |(n, most, seed)| Request { sampling: sampling(seed), ..request(n, most, seed) };
    let expected: Vec<Answer> = requests().map(|r| answer(&made(r), LAYERS, VOCAB, 160)).collect();
    for stage_count in [1, 2, 3, 5] {
        for (sequences, chunk_rows, window_rows) in
            [(1, 512, None), (3, 32, None), (10, 9, None), (4, 64, Some(3))]
        {
            let link = if stage_count == 3 { LinkKind::Staged } else { LinkKind::Local };
            let options = EngineOptions { sequences, chunk_rows, window_rows, link, ..options(160) };
            let engine = start(stage_count, options);
            let mut handles: Vec<_> = requests().map(|r| engine.submit(made(r)).unwrap()).collect();
            for (handle, expected) in handles.iter_mut().zip(&expected) {
                let what = format!("{stage_count} stages, {sequences} sequences, chunk {chunk_rows}");
                check_answer(&hear(handle), expected, &what);
            }
            engine.shutdown().unwrap();
        }
    }
}

#[test]
fn logits_of_every_row_are_the_same_bits_through_chunks_and_windows() {
    for (chunk_rows, window_rows) in [(512, None), (16, None), (512, Some(1)), (512, Some(8))] {
        let engine = start(2, EngineOptions { chunk_rows, window_rows, ..options(200) });
        let made = || Request { logits: LogitsWanted::All, ..request(77, 9, 5) };
        let heard = hear(&mut engine.submit(made()).unwrap());
        let expected = answer(&made(), LAYERS, VOCAB, 200);
        check_answer(&heard, &expected, "all logits");
        let positions: Vec<u32> = heard.logits.iter().map(|l| l.0).collect();
        assert_eq!(positions, (0..77 + 8).collect::<Vec<u32>>());
        let last = Request { logits: LogitsWanted::Last, ..request(77, 0, 5) };
        let heard = hear(&mut engine.submit(last).unwrap());
        assert_eq!(heard.logits, [(76, expected.logits[76].clone())]);
        assert_eq!((heard.read, heard.finish.unwrap().0), (77, Finish::TokensMax));
    }
}

struct Guesses {
    right: Vec<u32>,
    wrong_every: usize,
}

impl DraftSource for Guesses {
    fn draft(&mut self, tokens: &[u32], count_max: usize, guesses: &mut Vec<u32>) {
        for i in tokens.len()..(tokens.len() + count_max).min(self.right.len()) {
            let wrong = i % self.wrong_every == 0;
            guesses.push(if wrong { (self.right[i] + 1) % VOCAB as u32 } else { self.right[i] });
        }
    }
}

#[test]
fn guesses_save_passes_and_never_change_the_text() {
    for wrong_every in [1, 2, 5, 1000] {
        let expected = answer(&request(20, 60, 3), LAYERS, VOCAB, 200);
        let right = [tokens(20, 3), expected.tokens.clone()].concat();
        let engine = start(3, EngineOptions { sequences: 2, ..options(200) });
        let drafts: Option<Box<dyn DraftSource>> = Some(Box::new(Guesses { right, wrong_every }));
        let mut beside = engine.submit(request(9, 30, 8)).unwrap();
        let mut handle = engine.submit(Request { drafts, ..request(20, 60, 3) }).unwrap();
        let heard = hear(&mut handle);
        check_answer(&heard, &expected, "with guesses");
        check_answer(&hear(&mut beside), &answer(&request(9, 30, 8), LAYERS, VOCAB, 200), "beside");
        let counters = heard.finish.unwrap().1;
        assert!(counters.drafted_tokens > 0);
        assert_eq!(counters.accepted_tokens == 0, wrong_every == 1, "{counters:?}");
    }
}

#[test]
fn end_tokens_forced_tokens_and_the_context_end_where_the_plain_run_ends() {
    let free = answer(&request(10, 40, 2), LAYERS, VOCAB, 64);
    let cases = [
        Request { end_tokens: vec![free.tokens[7]], ..request(10, 40, 2) },
        Request { forced: tokens(12, 9), end_tokens: tokens(12, 9), ..request(10, 40, 2) },
        request(10, 400, 2),
        request(64, 5, 2),
        request(63, 5, 2),
        request(10, 0, 2),
    ];
    let engine = start(2, options(64));
    let mut finishes = Vec::new();
    for case in cases {
        let expected = answer(&case, LAYERS, VOCAB, 64);
        let heard = hear(&mut engine.submit(case).unwrap());
        check_answer(&heard, &expected, "an end");
        finishes.push(expected.finish);
    }
    assert!(matches!(finishes[0], Finish::EndToken(_)));
    assert_eq!(finishes[2..5], [Finish::ContextFull, Finish::ContextFull, Finish::ContextFull]);
}

#[test]
fn what_cannot_be_carried_out_is_refused_at_once() {
    let engine = start(1, EngineOptions { logits_rows_max: 8, queue_max: 1, ..options(64) });
    let refusals = [
        (request(0, 1, 0), EngineError::EmptyPrompt),
        (request(65, 1, 0), EngineError::PromptTooLong { end: 65, context: 64 }),
        (
            Request { first_position: 60, ..request(5, 1, 0) },
            EngineError::PromptTooLong { end: 65, context: 64 },
        ),
        (
            Request { prompt: vec![50], ..Request::default() },
            EngineError::TokenOutOfRange { token: 50, vocab: 50 },
        ),
        (
            Request { logits: LogitsWanted::All, ..request(9, 1, 0) },
            EngineError::TooManyLogits { rows: 9, rows_max: 8 },
        ),
    ];
    for (request, expected) in refusals {
        assert_eq!(engine.submit(request).unwrap_err(), expected);
    }
    let held: Vec<_> = (0..2).map(|i| engine.submit(request(5, 50, i)).unwrap()).collect();
    // A third one is refused unless the first has ended meanwhile.
    if let Err(error) = engine.submit(request(5, 50, 3)) {
        assert_eq!(error, EngineError::QueueFull { queued: 1 });
    }
    drop(held);
}

/// Lets the card run only when told, and can fail it.
struct Gate {
    card: HashCard,
    orders: Receiver<Order>,
}

enum Order {
    Run,
    Fail(CardError),
    Panic,
}

impl StageExec for Gate {
    fn run(
        &mut self,
        batch: &Batch,
        pages: &PageTables,
        input: &[f32],
        output: &mut [f32],
    ) -> Result<RunStamp, CardError> {
        match self.orders.recv() {
            Ok(Order::Fail(error)) => Err(error),
            Ok(Order::Panic) => panic!("the card caught fire"),
            Ok(Order::Run) | Err(_) => self.card.run(batch, pages, input, output),
        }
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), CardError> {
        self.card.copy_page(from, to)
    }
}

/// Two stages, of which the `gated` one waits for orders.
fn gated(gated: usize, options: EngineOptions) -> (Engine, Sender<Order>) {
    let (sender, orders) = channel();
    let orders = std::sync::Mutex::new(Some(orders));
    let engine = start_with(2, options, None, |stage, card| match stage == gated {
        true => Box::new(Gate { card, orders: orders.lock().unwrap().take().unwrap() }),
        false => Box::new(card),
    });
    (engine, sender)
}

#[test]
fn a_dead_stage_ends_all_requests_with_its_cause_and_refuses_new_ones() {
    let failure = CardError::Unsupported { card: CardId::cpu(1), what: "the fan stopped".to_owned() };
    for stage in [0, 1] {
        for (order, cause) in [
            (Order::Fail(failure.clone()), "cpu:1: the fan stopped"),
            (Order::Panic, "panic: the card caught fire"),
        ] {
            let (engine, orders) = gated(stage, EngineOptions { sequences: 2, ..options(64) });
            let mut handles: Vec<_> = (0..3).map(|i| engine.submit(request(5, 50, i)).unwrap()).collect();
            for _ in 0..4 {
                orders.send(Order::Run).unwrap();
            }
            orders.send(order).unwrap();
            let died = EngineError::StageDied { card: CardId::cpu(stage as u32), cause: cause.to_owned() };
            for handle in &mut handles {
                assert_eq!(hear(handle).finish.unwrap().0, Finish::Failed(died.clone()));
            }
            let mut late = engine.submit(request(5, 5, 9)).unwrap();
            assert_eq!(hear(&mut late).finish.unwrap().0, Finish::Failed(died.clone()));
            engine.shutdown().unwrap();
        }
    }
}

#[test]
fn rows_that_are_not_finite_end_their_request_alone() {
    let (engine, orders) = gated(0, EngineOptions { sequences: 1, ..options(64) });
    let mut bad = engine.submit(request(5, 50, 1)).unwrap();
    let mut good = engine.submit(request(5, 10, 2)).unwrap();
    orders.send(Order::Fail(CardError::NotFinite { card: CardId::cpu(0), op: "norm", layer: 2 })).unwrap();
    drop(orders);
    let Finish::Failed(EngineError::Rows { cause }) = hear(&mut bad).finish.unwrap().0 else { panic!() };
    assert!(cause.contains("not finite in norm of layer 2"), "{cause}");
    check_answer(
        &hear(&mut good),
        &answer(&request(5, 10, 2), LAYERS, VOCAB, 64),
        "after a failed neighbour",
    );
}

#[test]
fn a_hanging_card_ends_requests_at_the_deadline() {
    let (engine, orders) = gated(1, EngineOptions { batch_limit: Duration::from_millis(30), ..options(64) });
    let mut handle = engine.submit(request(5, 50, 1)).unwrap();
    let finish = hear(&mut handle).finish.unwrap().0;
    assert!(
        matches!(finish, Finish::Failed(EngineError::Late { waited_ms: 90.., suspect: Some(card), .. }) if card == CardId::cpu(1)),
        "{finish:?}"
    );
    drop(orders);
    engine.shutdown().unwrap();
}

#[test]
fn a_cancelled_request_ends_at_once_and_its_state_is_used_again() {
    let (engine, orders) = gated(1, options(64));
    let mut cancelled = engine.submit(request(5, 50, 1)).unwrap();
    let mut next = engine.submit(request(30, 20, 2)).unwrap();
    cancelled.cancel();
    let heard = hear(&mut cancelled);
    assert_eq!((heard.tokens.len(), heard.finish.unwrap().0), (0, Finish::Cancelled));
    drop(orders);
    check_answer(&hear(&mut next), &answer(&request(30, 20, 2), LAYERS, VOCAB, 64), "after a cancel");
    // Dropped handles cancel as well: this one would run into the context otherwise.
    drop(engine.submit(request(5, 5000, 1)).unwrap());
    engine.shutdown().unwrap();
}

#[test]
fn a_slow_consumer_holds_its_own_request_back_only() {
    let engine = start(2, EngineOptions { sequences: 2, ..options(600) });
    let mut slow = engine.submit(request(5, 500, 1)).unwrap();
    let mut fast = engine.submit(request(5, 500, 2)).unwrap();
    check_answer(
        &hear(&mut fast),
        &answer(&request(5, 500, 2), LAYERS, VOCAB, 600),
        "beside a slow consumer",
    );
    check_answer(&hear(&mut slow), &answer(&request(5, 500, 1), LAYERS, VOCAB, 600), "a slow consumer");
}

#[test]
fn a_shutdown_ends_what_runs_and_what_waits() {
    let engine = start(3, options(600));
    let mut handles: Vec<_> = (0..4).map(|i| engine.submit(request(50, 500, i)).unwrap()).collect();
    engine.shutdown().unwrap();
    for handle in &mut handles {
        let finish = hear(handle).finish.unwrap().0;
        assert!(
            matches!(finish, Finish::Failed(EngineError::ShuttingDown) | Finish::TokensMax),
            "{finish:?}"
        );
    }
}

#[test]
fn stages_that_share_a_turn_or_are_pinned_give_the_same_text() {
    let turn = Some(Arc::new(Turn::new()));
    let options = EngineOptions { sequences: 3, pinning: Pinning::Pinned, chunk_rows: 16, ..options(160) };
    let engine = start_with(4, options, turn, |_, card| Box::new(card));
    let mut handles: Vec<_> = (0..6).map(|i| engine.submit(request(70, 40, i)).unwrap()).collect();
    for (seed, handle) in handles.iter_mut().enumerate() {
        let expected = answer(&request(70, 40, seed as u64), LAYERS, VOCAB, 160);
        check_answer(&hear(handle), &expected, "one turn");
    }
    let stats = engine.stats();
    assert_eq!(stats.len(), 4);
    for stage in &stats {
        let t = stage.times;
        assert_eq!((t.batches, t.rows), (stats[0].times.batches, stats[0].times.rows));
        assert!(
            t.busy_ns > 0 && t.busy_ns + t.waiting_in_ns + t.waiting_out_ns + t.waiting_turn_ns <= t.span_ns
        );
        let bytes =
            if stage.card == CardId::cpu(3) { None } else { Some((t.rows * HASH_ROW_VALUES as u64) * 4) };
        assert!(bytes.is_none_or(|b| b == t.handed_bytes));
    }
    engine.take_stats();
    assert!(engine.stats().iter().all(|s| s.times.batches == 0));
}

#[test]
fn a_first_position_moves_the_cuts_and_the_context() {
    let engine = start(2, EngineOptions { chunk_rows: 16, ..options(96) });
    let made = Request { first_position: 70, ..request(20, 50, 1) };
    let mut handle = engine.submit(made).unwrap();
    let (mut reads, mut positions) = (Vec::new(), Vec::new());
    while let Some(event) = handle.next_event() {
        match event {
            RequestEvent::Prompt { read, .. } => reads.push(read),
            RequestEvent::Token { position, .. } => positions.push(position),
            _ => {}
        }
    }
    assert_eq!((reads, positions), (vec![10, 20], (90..96).collect::<Vec<u32>>()));
}

#[test]
fn many_small_engines_answer_whatever_their_sizes_and_whoever_leaves() {
    let prompts: Vec<usize> = (0..6).map(|i| 1 + 13 * i % 40).collect();
    let expected: Vec<Answer> =
        (0..6).map(|i| answer(&request(prompts[i], 15, i as u64), LAYERS, VOCAB, 64)).collect();
    for round in 0..60 {
        let options = EngineOptions {
            sequences: 1 + round % 4,
            chunk_rows: [4, 16, 64][round % 3],
            link_slots: 1 + round % 2,
            link: LinkKind::OF_HOST[round / 2 % 2],
            ..options(64)
        };
        let engine = start(1 + round % 6, options);
        let submit = |i: usize| engine.submit(request(prompts[i], 15, i as u64)).unwrap();
        let mut handles: Vec<_> = (0..6).map(submit).collect();
        // One leaves at once, one is cancelled and stays to hear of it.
        drop(handles.remove(round % 6));
        handles[round % 5].cancel();
        for handle in &mut handles {
            let (index, heard) = (handle.id().0 as usize, hear(handle));
            match heard.finish.as_ref().unwrap().0 {
                Finish::Cancelled => {
                    assert!(expected[index].tokens.starts_with(&heard.tokens), "round {round}")
                }
                _ => check_answer(&heard, &expected[index], &format!("round {round}")),
            }
        }
        engine.shutdown().unwrap();
    }
}
