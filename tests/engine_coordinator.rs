//! The coordinator and the stage machine by hand: which commands are posted when, and what each answer means.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::sync::Arc;

use tandem::device::batch::{Batch, BatchId, BatchRow, RowWants};
use tandem::device::best::Chooser;
use tandem::engine::build::{Machines, StageSpec, machines};
use tandem::engine::coordinator::{Coordinator, CoordinatorAction, CoordinatorEvent};
use tandem::engine::error::EngineError;
use tandem::engine::options::EngineOptions;
use tandem::engine::request::{DraftSource, Finish, LogitsWanted, Request, RequestEvent, RequestId};
use tandem::engine::stage::{RunFault, RunTimes, StageAction, StageCommand, StageDeath, StageEvent};
use tandem::model::facts::{CardId, StateId};

const VOCAB: usize = 10;

fn pipeline(stage_count: usize, options: &EngineOptions) -> Machines {
    let spec = |stage| StageSpec { card: CardId::cpu(stage as u32), kv_pages: options.kv_pages() };
    machines(&(0..stage_count).map(spec).collect::<Vec<_>>(), options).unwrap()
}

/// A coordinator whose stages answer only when told; each answer's logits prefer one token.
struct Bench {
    coordinator: Coordinator,
    posted: Vec<StageCommand>,
    unanswered: Vec<Arc<Batch>>,
    heard: Vec<(RequestId, RequestEvent)>,
    others: Vec<CoordinatorAction>,
}

impl Bench {
    fn new(stage_count: usize, options: EngineOptions) -> Bench {
        let coordinator = pipeline(stage_count, &options).coordinator;
        Bench { coordinator, posted: vec![], unanswered: vec![], heard: vec![], others: vec![] }
    }

    fn step(&mut self, event: CoordinatorEvent, now_ns: u64) {
        let mut actions = Vec::new();
        self.coordinator.step(event, now_ns, &mut actions);
        for action in actions {
            match action {
                CoordinatorAction::Post(command) => {
                    if let StageCommand::Run(batch) = &command {
                        self.unanswered.push(batch.clone());
                    }
                    self.posted.push(command);
                }
                CoordinatorAction::Deliver(id, event) => self.heard.push((id, event)),
                CoordinatorAction::Recycle(_) => {}
                other => self.others.push(other),
            }
        }
    }

    fn submit(&mut self, id: u64, request: Request) {
        self.step(CoordinatorEvent::Submit(RequestId(id), Box::new(request)), 0);
    }

    /// The oldest batch comes back; its rows prefer `tokens`, in row order.
    fn answer(&mut self, tokens: &[usize]) {
        let batch = self.unanswered.remove(0);
        let mut values = Vec::new();
        for (wants, &token) in batch.wants().zip(tokens) {
            let mut logits = vec![0.0; VOCAB];
            logits[token] = 1.0;
            let at = values.len();
            values.resize(at + wants.values(VOCAB), 0.0);
            match wants {
                RowWants::Logits => values[at..].copy_from_slice(&logits),
                _ => Chooser::default().choose(&logits, &mut values[at..]),
            }
        }
        self.step(CoordinatorEvent::Done { batch: batch.id, values }, 0);
    }

    /// The rows of every batch in flight, as (state, position).
    fn in_flight(&self) -> Vec<Vec<(u32, u32)>> {
        let rows = |batch: &Arc<Batch>| batch.rows.iter().map(|r| (r.state.0, r.position)).collect();
        self.unanswered.iter().map(rows).collect()
    }

    fn finishes(&self) -> Vec<(u64, Finish)> {
        let finish = |(id, event): &(RequestId, RequestEvent)| match event {
            RequestEvent::Finished { finish, .. } => Some((id.0, finish.clone())),
            _ => None,
        };
        self.heard.iter().filter_map(finish).collect()
    }
}

fn options(sequences: usize) -> EngineOptions {
    EngineOptions { sequences, chunk_rows: 16, ..EngineOptions::new(VOCAB, 4, 200) }
}

fn request(prompt_tokens: usize, tokens_max: usize) -> Request {
    Request { prompt: vec![1; prompt_tokens], tokens_max, ..Request::default() }
}

#[test]
fn chunks_follow_each_other_before_the_first_is_back_and_cut_at_multiples() {
    let mut bench = Bench::new(2, options(1));
    bench.submit(0, request(53, 4));
    let cuts = |bench: &Bench| -> Vec<(u32, usize)> {
        bench.unanswered.iter().map(|b| (b.rows[0].position, b.rows.len())).collect()
    };
    assert_eq!(cuts(&bench), [(0, 16), (16, 16), (32, 16)]);
    bench.answer(&[]);
    assert_eq!(cuts(&bench), [(16, 16), (32, 16), (48, 5)]);
    let wanted: Vec<usize> = bench.unanswered.iter().map(|b| b.wants().count()).collect();
    assert_eq!(wanted, [0, 0, 1], "only the prompt's last row is asked for");
}

#[test]
fn decoding_sequences_spread_over_as_many_windows_as_stages() {
    for (stage_count, sequences, widths) in
        [(1, 3, vec![3]), (2, 2, vec![1, 1]), (2, 4, vec![2, 2]), (3, 2, vec![1, 1])]
    {
        let mut bench = Bench::new(stage_count, options(sequences));
        (0..sequences as u64).for_each(|id| bench.submit(id, request(1, 50)));
        // Whatever came first, after a few rounds the groups are even and stay so.
        for _ in 0..20 {
            bench.answer(&[3; 8]);
        }
        for _ in 0..4 {
            let in_flight: Vec<usize> = bench.in_flight().iter().map(Vec::len).collect();
            assert_eq!(in_flight, widths, "{sequences} sequences on {stage_count} stages");
            bench.answer(&[3; 8]);
        }
    }
}

#[test]
fn a_prompt_and_a_decoding_sequence_take_turns() {
    let mut bench = Bench::new(1, options(2));
    bench.submit(0, request(1, 50));
    bench.answer(&[3]);
    bench.submit(1, request(64, 50));
    let mut order = Vec::new();
    for _ in 0..6 {
        order.push(bench.unanswered[0].rows[0].state.0);
        bench.answer(&[3; 8]);
    }
    assert_eq!(order, [0, 1, 0, 1, 0, 1]);
}

struct Always(Vec<u32>);

impl DraftSource for Always {
    fn draft(&mut self, _: &[u32], count_max: usize, guesses: &mut Vec<u32>) {
        guesses.extend(self.0.iter().take(count_max));
    }
}

#[test]
fn rejected_guesses_are_rolled_back_before_the_next_window() {
    let mut bench = Bench::new(2, options(1));
    bench.submit(0, Request { drafts: Some(Box::new(Always(vec![5, 6, 7]))), ..request(3, 50) });
    bench.answer(&[4]);
    let tokens: Vec<u32> = bench.unanswered[0].rows.iter().map(|r| r.token).collect();
    assert_eq!(tokens, [4, 5, 6, 7]);
    bench.posted.clear();
    // 5 is right, 6 is not: two rows stay (positions 3 and 4), and 9 goes on at position 5.
    bench.answer(&[5, 9, 0, 0]);
    assert_eq!(bench.posted[0], StageCommand::Rollback { state: StateId(0), length: 5 });
    let StageCommand::Run(next) = &bench.posted[1] else { panic!("{:?}", bench.posted) };
    assert_eq!((next.rows[0].position, next.rows[0].token, next.rows.len()), (5, 9, 4));
    let heard: Vec<u32> = bench
        .heard
        .iter()
        .filter_map(|(_, e)| if let RequestEvent::Token { id, .. } = e { Some(*id) } else { None })
        .collect();
    assert_eq!(heard, [4, 5, 9]);
    // All guesses right: nothing to roll back.
    bench.posted.clear();
    bench.answer(&[5, 6, 7, 2]);
    assert!(matches!(&bench.posted[..], [StageCommand::Run(b)] if b.rows[0].position == 9));
}

#[test]
fn a_cancelled_request_is_told_at_once_and_keeps_its_state_until_its_batches_are_back() {
    let mut bench = Bench::new(2, options(1));
    bench.submit(0, request(40, 50));
    bench.submit(1, request(1, 50));
    bench.step(CoordinatorEvent::Cancel(RequestId(0)), 0);
    assert_eq!(bench.finishes(), [(0, Finish::Cancelled)]);
    let release = StageCommand::Release { state: StateId(0) };
    for _ in 0..3 {
        assert!(!bench.posted.contains(&release));
        bench.answer(&[3]);
    }
    assert_eq!(bench.posted[3], release);
    assert_eq!(bench.heard.len(), 1, "nothing follows the cancel");
    assert_eq!(bench.in_flight(), [[(0, 0)]], "the next request has the state");
    bench.step(CoordinatorEvent::Cancel(RequestId(7)), 0);
}

#[test]
fn logits_that_are_not_finite_end_the_request_and_no_other() {
    let mut bench = Bench::new(1, options(2));
    bench.submit(0, request(2, 50));
    bench.submit(1, request(2, 50));
    let batch = bench.unanswered.remove(0);
    let values = vec![f32::NAN; batch.wanted_values(VOCAB)];
    bench.step(CoordinatorEvent::Done { batch: batch.id, values }, 0);
    assert_eq!(bench.finishes(), [(0, Finish::Failed(EngineError::NotFinite { position: 1 }))]);
    bench.answer(&[3]);
    assert_eq!(bench.finishes().len(), 1);
    assert_eq!(bench.coordinator.requests(), 1);
}

#[test]
fn a_batch_that_does_not_come_back_ends_everything_at_its_deadline() {
    let limit = std::time::Duration::from_millis(10);
    let mut bench = Bench::new(2, EngineOptions { batch_limit: limit, ..options(1) });
    assert_eq!(bench.coordinator.deadline_ns(), None);
    bench.submit(0, request(2, 50));
    bench.submit(1, request(2, 50));
    assert_eq!(bench.coordinator.deadline_ns(), Some(30_000_000));
    let tick = || CoordinatorEvent::Tick { suspect: Some(CardId::cpu(1)) };
    bench.step(tick(), 29_999_999);
    assert!(bench.finishes().is_empty());
    bench.step(tick(), 30_000_000);
    let late =
        Finish::Failed(EngineError::Late { batch: BatchId(0), suspect: Some(CardId::cpu(1)), waited_ms: 30 });
    assert_eq!(bench.finishes(), [(0, late.clone()), (1, late.clone())]);
    assert_eq!(bench.others, [CoordinatorAction::Abort]);
    bench.submit(2, request(1, 1));
    assert_eq!(bench.finishes()[2], (2, late));
}

#[test]
fn an_answer_out_of_turn_or_of_another_size_ends_everything() {
    let answers = [(BatchId(1), vec![]), (BatchId(0), vec![0.0; VOCAB + 1]), (BatchId(0), vec![])];
    for (batch, values) in answers {
        let mut bench = Bench::new(1, options(1));
        bench.submit(0, request(2, 50));
        bench.step(CoordinatorEvent::Done { batch, values }, 0);
        assert!(matches!(bench.finishes()[0].1, Finish::Failed(EngineError::Internal { .. })));
        assert_eq!(bench.others, [CoordinatorAction::Abort]);
    }
}

#[test]
fn the_line_is_bounded_and_a_shutdown_lets_nothing_in() {
    let mut bench = Bench::new(1, EngineOptions { queue_max: 1, ..options(1) });
    (0..3).for_each(|id| bench.submit(id, request(2, 50)));
    assert_eq!(bench.finishes(), [(2, Finish::Failed(EngineError::QueueFull { queued: 1 }))]);
    bench.step(CoordinatorEvent::Shutdown, 0);
    bench.submit(3, request(2, 50));
    let ends: Vec<u64> = bench.finishes().iter().map(|f| f.0).collect();
    assert_eq!(ends, [2, 1, 0, 3]);
    assert!(bench.others.is_empty(), "a batch is in flight");
    bench.answer(&[3]);
    let tail = &bench.posted[bench.posted.len() - 2..];
    assert_eq!(tail, [StageCommand::Release { state: StateId(0) }, StageCommand::Stop]);
    assert_eq!(bench.others, [CoordinatorAction::Stopped]);
}

#[test]
fn whole_batches_of_logits_are_moved_and_wanted_rows_alone_are_copied() {
    let mut bench = Bench::new(1, EngineOptions { logits_rows_max: 16, ..options(2) });
    bench.submit(0, Request { logits: LogitsWanted::All, ..request(5, 0) });
    bench.answer(&[1, 2, 3, 4, 5]);
    let RequestEvent::Logits { position: 0, rows: 5, values } = &bench.heard[0].1 else { panic!() };
    let best: Vec<_> = values.chunks(VOCAB).map(|row| row.iter().position(|&l| l == 1.0)).collect();
    assert_eq!(best, [1, 2, 3, 4, 5].map(Some));
    assert_eq!(bench.finishes(), [(0, Finish::TokensMax)]);
}

#[test]
fn a_stage_asks_for_pages_input_and_place_in_this_order() {
    let options = options(2);
    let mut stages = pipeline(3, &options).stages;
    let stage = &mut stages[1];
    let row =
        |state, position| BatchRow { state: StateId(state), position, token: 0, wants: RowWants::Nothing };
    let rows = vec![row(0, 0), row(0, 1), row(1, 0)];
    let batch = Arc::new(Batch::new(BatchId(4), rows));
    assert_eq!(stage.step(StageEvent::Started, 0), StageAction::Pop);
    let run = StageEvent::Popped(StageCommand::Run(batch.clone()));
    assert_eq!(stage.step(run, 1), StageAction::Take(BatchId(4)));
    assert_eq!((stage.pages().length(StateId(0)), stage.pages().length(StateId(1))), (2, 1));
    assert_eq!(stage.step(StageEvent::Taken, 2), StageAction::Reserve(batch.clone()));
    assert_eq!(stage.step(StageEvent::Reserved, 3), StageAction::Run(batch.clone()));
    let ran = StageEvent::Ran(Ok(RunTimes { start_ns: 4, end_ns: 5, waited_ns: 0, card: None }));
    assert_eq!(stage.step(ran, 5), StageAction::HandOff(batch.clone()));
    assert_eq!(stage.step(StageEvent::HandedOff, 6), StageAction::Pop);
    let stamps = stage.take_stamps().unwrap();
    assert_eq!((stamps.popped_ns, stamps.input_ns, stamps.posted_ns), (Some(1), Some(2), Some(6)));
    // Commands without rows take effect in order.
    let rollback = StageCommand::Rollback { state: StateId(0), length: 1 };
    assert_eq!(stage.step(StageEvent::Popped(rollback), 7), StageAction::Pop);
    let release = StageCommand::Release { state: StateId(1) };
    assert_eq!(stage.step(StageEvent::Popped(release), 7), StageAction::Pop);
    assert_eq!((stage.pages().length(StateId(0)), stage.pages().length(StateId(1))), (1, 0));
    // Rows that do not continue their state end the stage.
    let stray = Arc::new(Batch::new(BatchId(5), vec![row(0, 7)]));
    let action = stage.step(StageEvent::Popped(StageCommand::Run(stray)), 8);
    let StageAction::End(Some(StageDeath { card, cause })) = action else { panic!("{action:?}") };
    assert_eq!(card, CardId::cpu(1));
    assert!(cause.contains("do not continue"), "{cause}");
}

#[test]
fn bad_rows_are_told_and_handed_on_and_a_bad_card_is_the_end() {
    let options = options(1);
    let row = BatchRow { state: StateId(0), position: 0, token: 0, wants: RowWants::Logits };
    let batch = Arc::new(Batch::new(BatchId(0), vec![row]));
    for (fault, expected) in [
        (RunFault::Rows("inf".to_owned()), StageAction::Tell(BatchId(0), "inf".to_owned())),
        (
            RunFault::Card("lost".to_owned()),
            StageAction::End(Some(StageDeath { card: CardId::cpu(0), cause: "lost".to_owned() })),
        ),
    ] {
        let stage = &mut pipeline(1, &options).stages[0];
        stage.step(StageEvent::Started, 0);
        let run = StageEvent::Popped(StageCommand::Run(batch.clone()));
        assert_eq!(stage.step(run, 0), StageAction::Reserve(batch.clone()));
        stage.step(StageEvent::Reserved, 0);
        assert_eq!(stage.step(StageEvent::Ran(Err(fault)), 0), expected);
        if matches!(expected, StageAction::Tell(..)) {
            assert_eq!(stage.step(StageEvent::Told, 0), StageAction::HandOff(batch.clone()));
        }
    }
}
