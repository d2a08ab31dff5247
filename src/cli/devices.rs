//! `tandem devices`: the cards of this computer, and their measured rates for the planner.
//!
//! Invariant: the file of rates is replaced whole or not at all; one that cannot be read is as good as none.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::args::DevicesArgs;
use crate::device::batch::BatchId;
use crate::device::cpu::simd::tier::Tier;
use crate::device::cpu::{machine, measure};
use crate::model::facts::StageId;
use crate::split::budget::format_bytes;
use crate::transport::wait::{Cancel, Patience, Wait};
use crate::transport::{LinkEnds, LinkKind, LinkSpec};

/// Of the file of rates; other versions are ignored.
const VERSION: u32 = 1;

/// Hand-offs of the link measurement.
const HAND_OFFS: u64 = 20_000;

/// What `--measure` found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Rates {
    version: u32,
    cpu: String,
    tier: String,
    copy_bytes_per_s: f64,
    /// Of one virtual card's thread.
    pub(super) decode_bytes_per_s: f64,
    /// Of one virtual card's thread.
    pub(super) prompt_macs_per_s: f64,
    /// Of a local link between two threads, for a row of 2,304 bytes.
    pub(super) link_latency_us: f64,
}

fn rates_path() -> Option<PathBuf> {
    std::env::home_dir().map(|home| home.join(".cache").join("tandem").join("devices.json"))
}

/// Rates measured earlier on this processor.
pub(super) fn measured_rates() -> Option<Rates> {
    let path = rates_path()?;
    let text = fs::read_to_string(&path).ok()?;
    match serde_json::from_str::<Rates>(&text) {
        Ok(rates) if rates.version == VERSION && rates.cpu == machine::cpu_name() => Some(rates),
        Ok(_) => None,
        Err(error) => {
            tracing::warn!("{}: {error}; run `tandem devices --measure` again", path.display());
            None
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &DevicesArgs) -> anyhow::Result<()> {
    let rates = if args.measure { Some(measure_and_keep()?) } else { measured_rates() };
    let (cpu, cpus, memory) = (machine::cpu_name(), machine::allowed_cpus(), machine::available_bytes());
    let tiers: Vec<&str> = Tier::available().iter().map(|t| t.name()).collect();
    let mut out = std::io::stdout().lock();
    if args.json {
        let report = serde_json::json!({
            "cpu": { "name": cpu, "cpus": cpus, "available_bytes": memory, "tiers": tiers, "usable": true },
            "cuda": { "usable": false, "reason": "this version has no CUDA backend" },
            "rates": rates,
        });
        writeln!(out, "{report}")?;
        return Ok(());
    }
    writeln!(out, "cpu:N  virtual cards: {cpu}, {cpus} CPUs, {} available", format_bytes(memory))?;
    writeln!(out, "       instructions: {} (best last)", tiers.join(", "))?;
    match rates {
        Some(r) => writeln!(
            out,
            "       measured: copy {:.1} GB/s, decode {:.1} GB/s, prompt {:.0} G multiply-adds/s, hand-off {:.1} us",
            r.copy_bytes_per_s / 1e9,
            r.decode_bytes_per_s / 1e9,
            r.prompt_macs_per_s / 1e9,
            r.link_latency_us
        )?,
        None => {
            writeln!(out, "       not measured: `tandem devices --measure` gives the planner real rates")?
        }
    }
    writeln!(out, "cuda   not usable: this version has no CUDA backend")?;
    writeln!(out, "hip    not usable: this version has no HIP backend")?;
    Ok(())
}

fn measure_and_keep() -> anyhow::Result<Rates> {
    let tier = Tier::detect();
    let say = |what: &str| writeln!(std::io::stderr(), "measuring {what}");
    say("memory copy")?;
    let copy_bytes_per_s = measure::copy_bytes_per_s();
    say("decode")?;
    let decode_bytes_per_s = measure::decode_bytes_per_s(tier);
    say("prompt")?;
    let prompt_macs_per_s = measure::prompt_macs_per_s(tier);
    say("hand-off")?;
    let rates = Rates {
        version: VERSION,
        cpu: machine::cpu_name(),
        tier: tier.name().to_owned(),
        copy_bytes_per_s,
        decode_bytes_per_s,
        prompt_macs_per_s,
        link_latency_us: link_latency_us()?,
    };
    if let Some(path) = rates_path() {
        let folder = path.parent().context("the file of rates has no folder")?;
        fs::create_dir_all(folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
        let part = path.with_extension("part");
        fs::write(&part, serde_json::to_string_pretty(&rates)?)
            .and_then(|()| fs::rename(&part, &path))
            .with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(rates)
}

/// Half a round trip between two threads.
fn link_latency_us() -> anyhow::Result<f64> {
    let spec = |from, to| LinkSpec {
        kind: LinkKind::Local,
        ends: LinkEnds { from: StageId(from), to: StageId(to) },
        slots: 2,
        values_per_row: 576,
        rows_max: 1,
    };
    let (mut there, mut there_end) = crate::transport::open(&spec(0, 1))?;
    let (mut back, mut back_end) = crate::transport::open(&spec(1, 0))?;
    let (cancel, limit) = (Cancel::new(), Duration::from_secs(30));
    let patience = Patience::for_threads(2, machine::allowed_cpus());
    let echo = {
        let cancel = cancel.clone();
        move || -> Result<(), crate::transport::LinkError> {
            for i in 0..HAND_OFFS {
                let wait = Wait::within(limit, patience, &cancel);
                let values = there_end.take(BatchId(i), &wait)?.to_vec();
                there_end.release()?;
                back.slot(&wait)?[..values.len()].copy_from_slice(&values);
                back.post(BatchId(i), values.len())?;
            }
            Ok(())
        }
    };
    let echo = std::thread::spawn(echo);
    let start = Instant::now();
    for i in 0..HAND_OFFS {
        let wait = Wait::within(limit, patience, &cancel);
        there.slot(&wait)?.fill(i as f32);
        there.post(BatchId(i), 576)?;
        back_end.take(BatchId(i), &wait)?;
        back_end.release()?;
    }
    let us = start.elapsed().as_secs_f64() * 1e6 / (2 * HAND_OFFS) as f64;
    echo.join().map_err(|_| anyhow::anyhow!("the echoing thread ended early"))??;
    Ok(us)
}
