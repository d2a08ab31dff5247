//! A seed's pipeline: sizes, requests, faults and when they strike.
//!
//! Invariant: a function of the seed and the options alone. Does not know: the machines.

use super::SimOptions;
use super::fault::Fault;
use super::oracle::{Answer, answer};
use super::rng::Rng;
use crate::engine::options::EngineOptions;
use crate::engine::request::{DraftSource, LogitsWanted, Request};
use crate::engine::sample::SamplingOptions;
use crate::engine::sim::hash_card::HASH_ROW_VALUES;

/// Tokens of the hash model's vocabulary.
pub(super) const VOCAB: usize = 24;

/// One request and what must come of it.
pub(super) struct Planned {
    pub request: Option<Request>,
    pub answer: Answer,
    pub submit_ns: u64,
    pub cancel_ns: Option<u64>,
}

/// When a fault strikes: at the n-th batch of a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strike {
    pub stage: usize,
    pub batch: u64,
}

/// Everything that a schedule starts from.
pub(super) struct Scenario {
    pub options: EngineOptions,
    pub stage_count: usize,
    pub layers: usize,
    pub faults: Vec<Fault>,
    pub strike: Strike,
    pub shutdown_ns: Option<u64>,
    pub planned: Vec<Planned>,
}

impl Scenario {
    pub fn new(rng: &mut Rng, asked: &SimOptions) -> Scenario {
        let stage_count = rng.within(1, asked.stages_max.max(1) as u64) as usize;
        let faults = asked.faults.clone().unwrap_or_else(|| some_faults(rng));
        let layers = stage_count + rng.within(0, 2) as usize;
        let request_count = rng.within(1, asked.requests_max.max(1) as u64) as usize;
        let context = rng.within(8, 150) as usize;
        let full = faults.contains(&Fault::Full);
        let options = EngineOptions {
            chunk_rows: *rng.pick(&[3, 8, 9, 16, 31, 64, 512]),
            window_rows: rng.one_in(5).then(|| rng.within(1, 8) as usize),
            sequences: rng.within(1, 6) as usize,
            queue_max: if full { rng.within(1, 3) as usize } else { request_count },
            link_slots: if full { 1 } else { rng.within(1, 3) as usize },
            logits_rows_max: 512,
            batch_limit: std::time::Duration::from_secs(1),
            ..EngineOptions::new(VOCAB, HASH_ROW_VALUES, context)
        };
        let spread_ns = rng.within(0, 3_000_000);
        let planned = (0..request_count).map(|_| {
            let request = some_request(rng, context);
            let answer = answer(&request, layers, VOCAB, context);
            let request = with_drafts(rng, request, &answer);
            let submit_ns = rng.within(0, spread_ns);
            let cancels = faults.contains(&Fault::Cancelled) && !rng.one_in(3);
            let cancel_ns = cancels.then(|| submit_ns + rng.within(0, 2_000_000));
            Planned { request: Some(request), answer, submit_ns, cancel_ns }
        });
        let planned: Vec<Planned> = planned.collect();
        Scenario {
            strike: Strike {
                stage: rng.within(0, stage_count as u64 - 1) as usize,
                batch: rng.within(0, *rng.clone().pick(&[2, 12, 60])),
            },
            shutdown_ns: faults.contains(&Fault::EarlyShutdown).then(|| rng.within(0, 4_000_000)),
            options,
            stage_count,
            layers,
            faults,
            planned,
        }
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}

/// None for one schedule in five, else up to three.
fn some_faults(rng: &mut Rng) -> Vec<Fault> {
    let count = rng.within(0, 4).min(3);
    let mut faults: Vec<Fault> = (0..count).map(|_| *rng.pick(&Fault::REAL)).collect();
    faults.dedup();
    faults
}

fn some_request(rng: &mut Rng, context: usize) -> Request {
    let prompt_max = *rng.pick(&[4, 20, 90]);
    let prompt_tokens = rng.within(1, prompt_max.min(context as u64));
    let token = |rng: &mut Rng| rng.within(0, VOCAB as u64 - 1) as u32;
    let sampling = SamplingOptions {
        // Logits of the hash model lie below 2^20.
        temperature: if rng.one_in(2) { 0.0 } else { 200_000.0 },
        top_k: rng.within(0, 8) as usize,
        repeat_penalty: if rng.one_in(3) { 1.1 } else { 1.0 },
        seed: rng.next(),
        ..SamplingOptions::default()
    };
    let forced_tokens = if rng.one_in(6) { rng.within(1, 12) } else { 0 };
    Request {
        prompt: (0..prompt_tokens).map(|_| token(rng)).collect(),
        tokens_max: rng.within(0, 40) as usize,
        sampling,
        end_tokens: if rng.one_in(3) { vec![token(rng)] } else { Vec::new() },
        logits: *rng.pick(&[LogitsWanted::None, LogitsWanted::None, LogitsWanted::Last, LogitsWanted::All]),
        forced: (0..forced_tokens).map(|_| token(rng)).collect(),
        ..Request::default()
    }
}

fn with_drafts(rng: &mut Rng, request: Request, answer: &Answer) -> Request {
    if !rng.one_in(3) {
        return request;
    }
    let right = [request.prompt.as_slice(), &answer.tokens].concat();
    let drafts = SeededDrafts { right, wrong_one_in: *rng.pick(&[1, 2, 4, 100]), rng: rng.clone() };
    Request { drafts: Some(Box::new(drafts)), ..request }
}

/// Knows the answer, and is wrong now and then.
struct SeededDrafts {
    right: Vec<u32>,
    wrong_one_in: u64,
    rng: Rng,
}

impl DraftSource for SeededDrafts {
    fn draft(&mut self, tokens: &[u32], count_max: usize, guesses: &mut Vec<u32>) {
        let count = self.rng.within(0, count_max as u64) as usize;
        for index in tokens.len()..tokens.len() + count {
            let right = self.right.get(index).copied().unwrap_or(0);
            let wrong = self.rng.one_in(self.wrong_one_in);
            guesses.push(if wrong { (right + 1) % VOCAB as u32 } else { right });
        }
    }
}
