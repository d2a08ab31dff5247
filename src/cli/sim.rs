//! `tandem sim`: the engine's machines under a seeded scheduler with virtual time and faults.
//!
//! Invariant: a seed gives one schedule, on every machine.

use std::io::Write as _;

use anyhow::bail;
use indicatif::ProgressBar;

use super::args::SimArgs;
use super::interrupt;
use crate::engine::sim::{SimOptions, run as simulate};

/// Runs the command; fails at the first schedule in which something wrong happened.
pub(super) fn run(args: &SimArgs) -> anyhow::Result<()> {
    let options = SimOptions::default();
    let bar = if args.schedules > 1 { ProgressBar::new(args.schedules) } else { ProgressBar::hidden() };
    let (mut tokens, mut batches, mut answered, mut failed) = (0, 0, 0, 0);
    for seed in args.seed..args.seed.saturating_add(args.schedules) {
        let report = simulate(seed, &options)?;
        if args.json {
            writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
        }
        if let Some(first) = report.violations.first() {
            bar.abandon();
            bail!("sim --seed {seed}: {first}; run this seed alone with --json to see the schedule");
        }
        tokens += report.tokens;
        batches += report.batches;
        answered += report.answered;
        failed += report.failed;
        bar.inc(1);
        if interrupt::happened() {
            bail!("interrupted");
        }
    }
    bar.finish_and_clear();
    if !args.json {
        writeln!(
            std::io::stdout(),
            "{} schedules from seed {}: {answered} requests answered, {failed} ended by faults, {tokens} tokens in \
             {batches} batches, nothing wrong",
            args.schedules,
            args.seed
        )?;
    }
    Ok(())
}
