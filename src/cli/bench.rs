//! `tandem bench`: prompt and decode speed, measured on the running engine.
//!
//! One repetition reads a prompt of `--pp` tokens behind `--depth` others and decodes `--tg` given tokens behind it. Times of
//! cards are those of the last repetition: up to the last batch of a prompt that each card ran, and from there on.
//! With several sequences the prompt's rate is that up to the end of the last prompt, decode's that behind it.
//! Invariant: model loading and the first repetition are never timed.

use std::io::Write as _;

use anyhow::{Context as _, bail};
use serde_json::json;

use super::args::BenchArgs;
use super::load::{Prepared, Wanted};
use super::streams::output;
use super::{input, interrupt, profile, progress, timing};
use crate::device::cpu::machine;
use crate::device::cuda::faults::FaultKind;
use crate::engine::handle::RequestHandle;
use crate::engine::open::{LinkRun, Opened};
use crate::engine::request::{Finish, Request, RequestEvent};
use crate::split::options::CONTEXT_MAX;
use crate::split::plan::StagePlan;

/// The bar over repetitions, of which the first is not measured.
const MEASURING: &str = "measuring {bar:20} {pos}/{len} runs {elapsed} {msg}";

/// Letters of a word that is no token id, in the error that names it.
const WORD_SHOWN: usize = 40;

/// One repetition's rates.
#[derive(Clone, Debug)]
struct Rates {
    prompt_tok_s: f64,
    decode_tok_s: f64,
    last_argmax: Option<u32>,
}

/// Runs the command.
pub(super) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let counts = [("--pp", args.pp), ("--reps", args.reps), ("--sequences", args.sequences)];
    if let Some((flag, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
        bail!("{flag} 0 measures nothing; give at least 1");
    }
    // The token behind the last pass has a position too.
    let positions = args.depth.checked_add(args.pp).and_then(|n| n.checked_add(args.tg)?.checked_add(1));
    let Some(positions) = positions.filter(|n| *n <= CONTEXT_MAX) else {
        bail!("--depth, --pp and --tg need more positions than any context holds, {CONTEXT_MAX}; lower one");
    };
    if let Some(FaultKind::PeerTest | FaultKind::LinkStop) = args.split.force_fault.map(|fault| fault.kind)
        && args.profile
    {
        bail!(
            "--force-fault: --profile runs each card alone, without the links that could have it; leave one out"
        );
    }
    let mut split = args.split.clone();
    split.ctx = Some(split.ctx.unwrap_or(positions));
    if split.ctx.is_some_and(|ctx| ctx < positions) {
        bail!("--depth, --pp and --tg need {positions} positions; raise --ctx or leave it out");
    }
    let wanted = Wanted { sequences: args.sequences, ..Wanted::default() };
    let prepared = Prepared::with(&split, wanted)?;
    let vocab = prepared.model.program.facts.vocab;
    // Of the token behind the last pass, and of that behind a prompt alone, nobody asks which it is.
    let mut tokens = tokens(args, positions - 1, vocab)?;
    tokens.push(tokens[0]);
    if args.profile {
        profile::run(args, &prepared, tokens[..=args.depth + args.pp].to_vec())?;
        return prepared.fault_was_met();
    }
    let plan = prepared.plan()?;
    if !args.json {
        writeln!(output(), "{}", plan.to_string().trim_end())?;
    }
    let opened = prepared.open(plan)?;
    let _watched = interrupt::looks();
    let bar = progress::bar(MEASURING, args.reps as u64 + 1);
    let mut runs = Vec::new();
    for rep in 0..=args.reps {
        bar.set_position(rep as u64);
        if let Some(last) = runs.last() {
            let Rates { prompt_tok_s, decode_tok_s, .. } = last;
            bar.set_message(format!("last: prompt {prompt_tok_s:.1} tok/s, decode {decode_tok_s:.1} tok/s"));
        }
        opened.engine.take_stats();
        let rates = repetition(args, &tokens, &opened)?;
        if rep > 0 {
            runs.push(rates);
        }
        if interrupt::happened() {
            bail!("interrupted");
        }
    }
    bar.finish_and_clear();
    report(args, &prepared, &opened, &runs)?;
    prepared.end(opened.engine)
}

/// Ids from the file, or pseudo-random ones: the same on every machine.
fn tokens(args: &BenchArgs, needed: usize, vocab: usize) -> anyhow::Result<Vec<u32>> {
    let Some(path) = &args.tokens_file else {
        let hash = |i: u64| {
            i.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        };
        return Ok((1..=needed as u64).map(|i| ((hash(i) >> 32) % vocab as u64) as u32).collect());
    };
    let bytes = input::read_file("--tokens-file", path)?;
    let text = String::from_utf8_lossy(&bytes);
    let words = text.split(|c: char| c.is_whitespace() || ",[]".contains(c)).filter(|w| !w.is_empty());
    let id = |word: &str| {
        let what = || {
            let shown: String = word.chars().take(WORD_SHOWN).collect();
            format!("--tokens-file {}: `{shown}` is no token id; write whole numbers", path.display())
        };
        word.parse().ok().with_context(what)
    };
    let ids = words.map(id).collect::<anyhow::Result<Vec<u32>>>()?;
    if ids.len() < needed {
        bail!(
            "--tokens-file {} holds {} ids, --depth, --pp and --tg need {needed}; lower one, or give more",
            path.display(),
            ids.len()
        );
    }
    Ok(ids[..needed].to_vec())
}

/// All sequences read the same prompt and decode the same tokens; the rates are of all together.
fn repetition(args: &BenchArgs, tokens: &[u32], opened: &Opened) -> anyhow::Result<Rates> {
    let prompt_end = args.depth + args.pp;
    let (mut handles, mut watched) = (Vec::new(), Vec::new());
    for _ in 0..args.sequences {
        // The first forced token costs no pass: it follows from the prompt's. The last one makes tg passes.
        let forced = tokens[prompt_end..].to_vec();
        let request = Request {
            prompt: tokens[args.depth..prompt_end].to_vec(),
            first_position: args.depth as u32,
            tokens_max: args.tg + 1,
            forced,
            ..Request::default()
        };
        let handle = opened.engine.submit(request)?;
        watched.push(interrupt::cancels(handle.canceller()));
        handles.push(handle);
    }
    // Each request has a reader of its own: one that nobody reads is held back, and would decode alone later.
    let readers = std::thread::scope(|scope| {
        let start = |handle| std::thread::Builder::new().spawn_scoped(scope, move || read(handle));
        let readers: std::io::Result<Vec<_>> = handles.into_iter().map(start).collect();
        // Where one cannot start, its request and those behind it are dropped, which cancels them.
        readers.map(|readers| readers.into_iter().map(|r| r.join()).collect::<Vec<_>>())
    });
    let readers = readers.context("cannot start a reader for each sequence; lower --sequences")?;
    let mut heard = Vec::new();
    for reader in readers {
        heard.push(reader.map_err(|_| anyhow::anyhow!("a reader of events ended early"))??);
    }
    Ok(rates(args.pp, &heard))
}

/// What a request told, by the engine's clock.
#[derive(Clone, Debug, Default)]
struct Heard {
    /// When its first batch began.
    begun_ns: u64,
    /// When each token was known; the first with the end of the prompt.
    tokens_ns: Vec<u64>,
    last_argmax: Option<u32>,
}

/// The prompts of all requests from the first batch to the end of the last prompt, and the tokens behind that end: what
/// was decoded while another prompt was read counts as neither.
fn rates(pp: usize, heard: &[Heard]) -> Rates {
    let begun_ns = heard.iter().map(|h| h.begun_ns).min().unwrap_or(0);
    let read_ns = heard.iter().filter_map(|h| h.tokens_ns.first().copied()).max().unwrap_or(0);
    let behind = heard.iter().flat_map(|h| &h.tokens_ns).copied().filter(|at_ns| *at_ns > read_ns);
    let (count, end_ns) = (behind.clone().count(), behind.max().unwrap_or(read_ns));
    let rate = |tokens: usize, ns: u64| if ns > 0 { tokens as f64 * 1e9 / ns as f64 } else { 0.0 };
    Rates {
        prompt_tok_s: rate(pp * heard.len(), read_ns.saturating_sub(begun_ns)),
        decode_tok_s: rate(count, end_ns - read_ns),
        last_argmax: heard.iter().rev().find_map(|h| h.last_argmax),
    }
}

/// Reads a request to its end.
fn read(mut handle: RequestHandle) -> anyhow::Result<Heard> {
    let mut heard = Heard::default();
    while let Some(event) = handle.next_event() {
        match event {
            RequestEvent::Token { sampled, at_ns, .. } => {
                heard.last_argmax = Some(sampled);
                heard.tokens_ns.push(at_ns);
            }
            RequestEvent::Finished { finish: Finish::Failed(error), .. } => return Err(error.into()),
            RequestEvent::Finished { finish: Finish::Cancelled, .. } => bail!("interrupted"),
            RequestEvent::Finished { counters, .. } => {
                let read_ns = heard.tokens_ns.first().copied().unwrap_or(0);
                heard.begun_ns = read_ns.saturating_sub(counters.prompt_ns);
                return Ok(heard);
            }
            RequestEvent::Prompt { .. } | RequestEvent::Logits { .. } => {}
        }
    }
    bail!("a request ended without saying why")
}

/// The links that ran, in words, each with why it is no faster.
pub(super) fn links_in_words(opened: &Opened) -> Option<String> {
    let links = opened.links.iter().zip(opened.plan.stages.windows(2));
    let link = |(link, stages): (&LinkRun, &[StagePlan])| {
        let why = link.why.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        format!("{} to {}: {}{why}", stages[0].name, stages[1].name, link.kind.name())
    };
    let words: Vec<String> = links.map(link).collect();
    (!words.is_empty()).then(|| format!("rows {}", words.join(", ")))
}

/// The middle one, or the mean of the two in the middle; 0 for none.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut v: Vec<f64> = values.collect();
    v.sort_by(f64::total_cmp);
    match v.len() {
        0 => 0.0,
        n if n % 2 == 1 => v[n / 2],
        n => (v[n / 2 - 1] + v[n / 2]) / 2.0,
    }
}

fn report(args: &BenchArgs, prepared: &Prepared, opened: &Opened, runs: &[Rates]) -> anyhow::Result<()> {
    let mib = |bytes: Option<u64>| bytes.map(|b| b as f64 / f64::from(1 << 20));
    let (prompt_stats, decode_stats) = opened.engine.stats_of_phases();
    let value = json!({
        "model": prepared.model.file.path().display().to_string(),
        "prompt_tok_s": median(runs.iter().map(|r| r.prompt_tok_s)),
        "decode_tok_s": median(runs.iter().map(|r| r.decode_tok_s)),
        "prompt_runs": runs.iter().map(|r| r.prompt_tok_s).collect::<Vec<_>>(),
        "decode_runs": runs.iter().map(|r| r.decode_tok_s).collect::<Vec<_>>(),
        "pp": args.pp,
        "tg": args.tg,
        "depth": args.depth,
        "sequences": args.sequences,
        "peak_rss_mib": mib(machine::peak_rss_bytes()),
        "last_argmax": runs.last().and_then(|r| r.last_argmax),
        "kv": prepared.options.kv.name(),
        "machine": { "cpu": machine::cpu_name(), "cpus": machine::allowed_cpus(), "tier": prepared.choice.tier.name() },
        "plan": opened.plan,
        "prompt_stages": timing::reports(&prompt_stats, opened),
        "stages": timing::reports(&decode_stats, opened),
    });
    let mut out = output();
    if args.json {
        writeln!(out, "{value}")?;
        return Ok(());
    }
    let spread = |runs: Vec<f64>| {
        let (low, high) =
            (runs.iter().copied().fold(f64::MAX, f64::min), runs.iter().copied().fold(0.0, f64::max));
        let median = median(runs.iter().copied());
        match runs.len() {
            1 => format!("{median:.1} tok/s"),
            n => format!("{median:.1} tok/s (median of {n}, {low:.1} to {high:.1})"),
        }
    };
    writeln!(out, "prompt {}: {}", args.pp, spread(runs.iter().map(|r| r.prompt_tok_s).collect()))?;
    if args.tg > 0 {
        writeln!(out, "decode {}: {}", args.tg, spread(runs.iter().map(|r| r.decode_tok_s).collect()))?;
    }
    for (phase, stats) in [("prompt", &prompt_stats), ("decode", &decode_stats)] {
        if phase == "decode" && args.tg == 0 {
            continue;
        }
        if args.timing {
            for line in timing::lines(stats, &opened.plan.stages) {
                writeln!(out, "{phase}: {line}")?;
            }
        } else {
            writeln!(out, "{phase}: {}", timing::busy(stats, &opened.plan.stages))?;
        }
    }
    if args.timing {
        writeln!(out, "{}", timing::MEANS)?;
    }
    if let Some(links) = links_in_words(opened) {
        writeln!(out, "{links}")?;
    }
    if let Some(peak) = mib(machine::peak_rss_bytes()) {
        writeln!(out, "peak memory {peak:.0} MiB")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_counts_behind_the_last_prompt_alone() {
        // The second prompt is read behind the first request's end.
        let one = |begun_ns, tokens_ns: &[u64]| Heard {
            begun_ns,
            tokens_ns: tokens_ns.to_vec(),
            last_argmax: None,
        };
        let apart = [one(0, &[1_000, 1_100, 1_200]), one(1_200, &[2_000, 2_500, 3_000])];
        let rates_of = |heard: &[Heard]| (rates(10, heard).prompt_tok_s, rates(10, heard).decode_tok_s);
        assert_eq!(rates_of(&apart), (20.0 * 1e9 / 2_000.0, 2.0 * 1e9 / 1_000.0));
        let together = [one(0, &[500, 1_200, 2_000]), one(0, &[1_000, 1_200, 2_000])];
        assert_eq!(rates_of(&together), (20.0 * 1e9 / 1_000.0, 4.0 * 1e9 / 1_000.0));
        assert_eq!(rates_of(&[one(0, &[1_000])]), (10.0 * 1e9 / 1_000.0, 0.0));
    }
}
