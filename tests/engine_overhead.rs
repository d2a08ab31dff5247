//! What the engine itself costs a token: stages that compute nothing, one request after the other.
//!
//! Run by hand, on an idle machine: `cargo test --release --test engine_overhead -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::time::Instant;

use tandem::device::batch::{Batch, PageTables};
use tandem::device::{CardError, RunStamp, StageExec};
use tandem::engine::build::StageSpec;
use tandem::engine::options::EngineOptions;
use tandem::engine::pipeline::{Engine, EngineStage};
use tandem::engine::request::{Request, RequestEvent};
use tandem::engine::sample::{Sampler, SamplingOptions};
use tandem::model::facts::{CardId, PageId};

/// Hands on whatever the buffers hold.
struct Idle;

impl StageExec for Idle {
    fn run(&mut self, _: &Batch, _: &PageTables, _: &[f32], _: &mut [f32]) -> Result<RunStamp, CardError> {
        Ok(RunStamp::default())
    }

    fn copy_page(&mut self, _: PageId, _: PageId) -> Result<(), CardError> {
        Ok(())
    }
}

fn tokens_per_second(stage_count: usize, sequences: usize, vocab: usize, tokens: usize) -> f64 {
    let options = EngineOptions { sequences, ..EngineOptions::new(vocab, 1024, tokens + 8) };
    let stage = |stage| EngineStage {
        exec: Box::new(Idle),
        spec: StageSpec { card: CardId::cpu(stage), kv_pages: options.kv_pages() },
        turn: None,
        arrives: None,
    };
    let engine = Engine::start((0..stage_count as u32).map(stage).collect(), options.clone()).unwrap();
    let start = Instant::now();
    let request = || Request { prompt: vec![1], tokens_max: tokens, ..Request::default() };
    let handles: Vec<_> = (0..sequences).map(|_| engine.submit(request()).unwrap()).collect();
    let readers: Vec<_> = handles
        .into_iter()
        .map(|mut handle| {
            std::thread::spawn(move || {
                let mut count = 0;
                while let Some(event) = handle.next_event() {
                    count += usize::from(matches!(event, RequestEvent::Token { .. }));
                }
                count
            })
        })
        .collect();
    let made: usize = readers.into_iter().map(|r| r.join().unwrap()).sum();
    assert_eq!(made, sequences * tokens);
    made as f64 / start.elapsed().as_secs_f64()
}

#[test]
#[ignore = "a measurement, for an idle machine"]
fn a_token_costs_microseconds() {
    for vocab in [1_000, 50_000, 150_000] {
        for (stages, sequences) in [(1, 1), (2, 1), (2, 2), (4, 4)] {
            let runs: Vec<f64> = (0..5).map(|_| tokens_per_second(stages, sequences, vocab, 3_000)).collect();
            let best = runs.iter().copied().fold(0.0, f64::max);
            let worst = runs.iter().copied().fold(f64::INFINITY, f64::min);
            println!(
                "vocab {vocab}: {stages} stages, {sequences} sequences: {worst:.0} to {best:.0} tokens/s"
            );
        }
    }
}

#[test]
#[ignore = "a measurement, for an idle machine"]
fn a_choice_among_150_000_tokens_costs_microseconds_behind_top_k() {
    let plain = SamplingOptions { temperature: 0.8, ..SamplingOptions::default() };
    let cases = [
        ("greedy", SamplingOptions::default()),
        ("greedy, repeat penalty", SamplingOptions { repeat_penalty: 1.1, ..SamplingOptions::default() }),
        ("top-k 40", SamplingOptions { top_k: 40, ..plain.clone() }),
        ("top-k 40, top-p 0.95", SamplingOptions { top_k: 40, top_p: 0.95, ..plain.clone() }),
        ("top-p 0.95", SamplingOptions { top_p: 0.95, ..plain.clone() }),
        ("min-p 0.05", SamplingOptions { min_p: 0.05, ..plain.clone() }),
        ("temperature alone", plain),
    ];
    // Sums of uniform numbers: near a normal distribution, as logits are.
    let noise = |i: u32| (0..4).map(|j| tandem::engine::random::uniform(j, i)).sum::<f64>();
    let mut logits: Vec<f32> = (0..150_000).map(|i| (6.0 * noise(i)) as f32).collect();
    let mut sampler = Sampler::default();
    for (name, options) in cases {
        let start = Instant::now();
        for position in 0..100 {
            sampler.sample(&options, &[1, 2, 3], position, &mut logits).unwrap();
        }
        println!("{name}: {:.0} us", start.elapsed().as_secs_f64() * 1e4);
    }
}
