//! `tandem sim`: the engine's machines under a seeded scheduler with virtual time and faults.
//!
//! Invariants: a seed gives one schedule, on every machine; a run that says "nothing wrong" ran every seed it names.

use std::io::{BufWriter, Write};

use anyhow::{Context as _, bail};
use indicatif::ProgressBar;

use super::args::SimArgs;
use super::interrupt;
use super::streams::output;
use crate::engine::sim::{SimOptions, SimReport, run as simulate};

/// What all schedules came to.
#[derive(Debug, Default)]
struct Totals {
    answered: usize,
    failed: usize,
    tokens: usize,
    batches: u64,
}

impl Totals {
    fn add(&mut self, report: &SimReport) {
        self.answered += report.answered;
        self.failed += report.failed;
        self.tokens += report.tokens;
        self.batches += report.batches;
    }
}

/// Runs the command; fails at the first schedule in which something wrong happened.
pub(super) fn run(args: &SimArgs) -> anyhow::Result<()> {
    let Some(further) = args.schedules.checked_sub(1) else {
        bail!("--schedules 0 runs nothing; give at least 1");
    };
    let Some(last) = args.seed.checked_add(further) else {
        let (seed, schedules) = (args.seed, args.schedules);
        bail!("--seed {seed} with --schedules {schedules} passes the largest seed, {}; lower one", u64::MAX);
    };
    let options = SimOptions::default();
    let _watched = interrupt::looks();
    // On the error stream, and only where somebody watches.
    let bar = if args.schedules > 1 { ProgressBar::new(args.schedules) } else { ProgressBar::hidden() };
    let mut out = BufWriter::new(output());
    let mut totals = Totals::default();
    for seed in args.seed..=last {
        if interrupt::happened() {
            bar.abandon();
            out.flush()?;
            bail!("interrupted");
        }
        let report = simulate(seed, &options).with_context(|| format!("sim --seed {seed}"))?;
        bar.suspend(|| show(&mut out, &report, args.json))?;
        if let Some(first) = report.violations.first() {
            bar.abandon();
            out.flush()?;
            bail!("sim --seed {seed}: {first}; run this seed alone with --json to see the schedule");
        }
        totals.add(&report);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if !args.json {
        let Totals { answered, failed, tokens, batches } = totals;
        writeln!(
            out,
            "{} schedules from seed {}: {answered} requests answered, {failed} ended by faults, {tokens} tokens in \
             {batches} batches, nothing wrong",
            args.schedules, args.seed
        )?;
    }
    Ok(out.flush()?)
}

/// One line a schedule.
fn show(out: &mut dyn Write, report: &SimReport, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        return Ok(writeln!(out, "{}", serde_json::to_string(report)?)?);
    }
    let SimReport { seed, stages, requests, answered, cancelled, failed, tokens, batches, .. } = report;
    // Named as in the JSON form.
    let faults = serde_json::to_string(&report.faults)?;
    let verdict = match report.violations.len() {
        0 => String::new(),
        n => format!("; {n} violations"),
    };
    writeln!(
        out,
        "seed {seed}: {stages} stages, {requests} requests ({answered} answered, {cancelled} cancelled, {failed} \
         failed), {tokens} tokens in {batches} batches, {} steps, faults {faults}{verdict}",
        report.steps
    )?;
    Ok(())
}
