//! `tandem bench --profile`: a window and a prompt chunk of each card, taken apart into kinds of launches.
//!
//! Invariant: what a figure includes stands in the output. Does not know: how launches are timed.

use std::io::Write;

use serde_json::{Value, json};

use super::args::BenchArgs;
use super::devices::gpu_rates;
use super::load::Prepared;
use super::streams::output;
use crate::device::cuda::exec::profile::{BatchProfile, LaunchKind};
use crate::engine::open::CardChoice;
use crate::engine::profile::{ProfileOrder, StageProfile};
use crate::split::plan::{Plan, StagePlan};

/// What the times are.
const TIMES: &str = "times: all launches of a kind, of all layers in their order, queued again as one graph, by the card's \
                     clock; launches of a whole batch overlap otherwise than those of one kind, so the sum differs from \
                     the whole";

/// What the columns of bytes are.
const BYTES: &str = "MB read: what a kind has to read, weights and K/V, in 10^6 bytes; TB/s read: these bytes over its \
                     time; of copy rate: that beside what a copy inside the card's memory reads and writes";

/// What has no times: to queue these launches again would count batches that nobody sent, or wait for another card.
const LEFT_OUT: &str = "left out: take_block and give_results, which pass a batch between host and card, post_rows and \
                        await_rows of links, and the host's own time (`bench --timing` shows whole batches and what is between \
                        them, `devices --measure` the hand-offs of links)";

/// Runs the command; `tokens`: the positions in front of the prompt, the prompt, and the first behind it.
pub(super) fn run(args: &BenchArgs, prepared: &Prepared, tokens: Vec<u32>) -> anyhow::Result<()> {
    let plan = prepared.plan()?;
    let order = ProfileOrder { tokens, sequences: args.sequences };
    let stages = prepared.profile(&plan, &order)?;
    let rates = copy_rates(&plan, &prepared.choice);
    let mut out = output();
    if args.json {
        let stage = |(stage, rate): (&StageProfile, &Option<f64>)| {
            json!({
                "card": stage.card,
                "layers": stage.layers,
                "copy_bytes_per_s": rate,
                "window": batch_json(&stage.window, *rate),
                "chunk": stage.chunk.as_ref().map(|chunk| batch_json(chunk, *rate)),
            })
        };
        let report = json!({
            "model": prepared.model.file.path().display().to_string(),
            "kv": prepared.options.kv.name(),
            "plan": plan,
            "times": TIMES,
            "bytes": BYTES,
            "left_out": LEFT_OUT,
            "profile": stages.iter().zip(&rates).map(stage).collect::<Vec<_>>(),
        });
        writeln!(out, "{report}")?;
        return Ok(());
    }
    writeln!(out, "{}", plan.to_string().trim_end())?;
    for (stage, rate) in stages.iter().zip(&rates) {
        for (name, batch) in [("window", Some(&stage.window)), ("chunk", stage.chunk.as_ref())] {
            let Some(batch) = batch else { continue };
            let layers = format!("layers {} to {}", stage.layers.start, stage.layers.end.saturating_sub(1));
            let rows = if batch.rows == 1 { "1 row".to_owned() } else { format!("{} rows", batch.rows) };
            let (us, at) = (batch.whole_ns / 1e3, batch.position);
            writeln!(out, "\n{}, {layers}: {name} of {rows} up to position {at}, {us:.1} us", stage.card)?;
            write_batch(&mut out, batch, *rate)?;
        }
    }
    let measure = if rates.iter().any(Option::is_none) {
        " (`-`: not measured; `tandem devices --measure` does so)"
    } else {
        ""
    };
    writeln!(out, "\n{TIMES}\n{BYTES}{measure}")?;
    writeln!(out, "{LEFT_OUT}")?;
    Ok(())
}

/// What `devices --measure` found of each stage's card.
fn copy_rates(plan: &Plan, choice: &CardChoice) -> Vec<Option<f64>> {
    let rate = |stage: &StagePlan| {
        let mut devices = choice.cuda.iter().flat_map(|cuda| &cuda.devices);
        let (_, device) = devices.find(|(card, _)| *card == stage.card)?;
        let number = stage.name.rsplit(':').next()?.parse().ok()?;
        gpu_rates(device.vendor()).copy_bytes_per_s(number, &device.name)
    };
    plan.stages.iter().map(rate).collect()
}

/// Bytes a second of what has to be read.
fn bytes_per_s(kind: &LaunchKind) -> Option<f64> {
    (kind.read_bytes > 0 && kind.ns > 0.0).then(|| kind.read_bytes as f64 / kind.ns * 1e9)
}

fn sum_ns(batch: &BatchProfile) -> f64 {
    batch.kinds.iter().map(|kind| kind.ns).sum()
}

fn batch_json(batch: &BatchProfile, rate: Option<f64>) -> Value {
    let sum_ns = sum_ns(batch);
    let kind = |kind: &LaunchKind| {
        json!({
            "kind": kind.kind,
            "tensors": kind.tensors,
            "kernel": kind.kernel,
            "launches": kind.launches,
            "us": kind.ns / 1e3,
            "share": kind.ns / sum_ns.max(1.0),
            "read_bytes": kind.read_bytes,
            "bytes_per_s": bytes_per_s(kind),
            "copy_share": bytes_per_s(kind).zip(rate).map(|(own, copy)| own / copy),
        })
    };
    json!({
        "rows": batch.rows,
        "position": batch.position,
        "whole_us": batch.whole_ns / 1e3,
        "sum_us": sum_ns / 1e3,
        "kinds": batch.kinds.iter().map(kind).collect::<Vec<_>>(),
    })
}

fn write_batch(out: &mut dyn Write, batch: &BatchProfile, rate: Option<f64>) -> std::io::Result<()> {
    let sum_ns = sum_ns(batch);
    writeln!(
        out,
        "{:<16} {:<30} {:<24} {:>8} {:>9} {:>9} {:>6} {:>9} {:>9} {:>12}",
        "kind",
        "tensors",
        "kernel",
        "launches",
        "us each",
        "us all",
        "share",
        "MB read",
        "TB/s read",
        "of copy rate"
    )?;
    let absent = || "-".to_owned();
    for kind in &batch.kinds {
        let speed = bytes_per_s(kind);
        let of_copy = speed.zip(rate).map(|(own, copy)| format!("{:.0} %", 100.0 * own / copy));
        let tensors = if kind.tensors.is_empty() { "-" } else { &kind.tensors };
        writeln!(
            out,
            "{:<16} {:<30} {:<24} {:>8} {:>9.2} {:>9.1} {:>4.0} % {:>9.1} {:>9} {:>12}",
            kind.kind,
            tensors,
            kind.kernel,
            kind.launches,
            kind.ns / 1e3 / kind.launches as f64,
            kind.ns / 1e3,
            100.0 * kind.ns / sum_ns.max(1.0),
            kind.read_bytes as f64 / 1e6,
            speed.map_or_else(absent, |speed| format!("{:.2}", speed / 1e12)),
            of_copy.unwrap_or_else(absent),
        )?;
    }
    let launches: usize = batch.kinds.iter().map(|kind| kind.launches).sum();
    let read_bytes: u64 = batch.kinds.iter().map(|kind| kind.read_bytes).sum();
    let (sum_us, mb) = (sum_ns / 1e3, read_bytes as f64 / 1e6);
    writeln!(out, "{:<72} {launches:>8} {:>9} {sum_us:>9.1} {:>6} {mb:>9.1}", "sum", "", "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::exec::profile::COUNTING;

    #[test]
    fn launches_without_a_time_are_named() {
        assert!(COUNTING.iter().all(|kernel| LEFT_OUT.contains(kernel)), "{LEFT_OUT}");
    }

    #[test]
    fn columns_of_bytes_are_explained() {
        let batch = BatchProfile { rows: 1, position: 0, whole_ns: 1.0, kinds: Vec::new() };
        let mut text = Vec::new();
        write_batch(&mut text, &batch, None).unwrap();
        let text = String::from_utf8(text).unwrap();
        let head = text.lines().next().unwrap();
        for column in ["MB read", "TB/s read", "of copy rate"] {
            assert!(head.contains(column) && BYTES.contains(&format!("{column}: ")), "{column}: {head}");
        }
    }
}
