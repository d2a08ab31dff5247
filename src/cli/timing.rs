//! Where the time of each card went, in words and as JSON.
//!
//! Invariant: shares are of the span from a card's first batch to its last hand-off, and add up to it.

use serde_json::{Value, json};

use crate::engine::open::Opened;
use crate::engine::pipeline::StageStats;
use crate::engine::timeline::StageTimes;
use crate::model::facts::StageId;
use crate::split::plan::StagePlan;

/// What the lines of cards say, for a line under them.
pub(super) const MEANS: &str = "shares are of the time from a card's first batch to its last hand-off; between two batches: \
                                from a card's end of one to its beginning of the next, by its own clock";

/// `--timing`: a line a card.
pub(super) fn lines(stats: &[StageStats], stages: &[StagePlan]) -> Vec<String> {
    stats.iter().zip(stages).map(|(s, p)| line(&p.name, &s.times)).collect()
}

/// How busy each card was, in a few words.
pub(super) fn busy(stats: &[StageStats], stages: &[StagePlan]) -> String {
    let one = |(s, p): (&StageStats, &StagePlan)| {
        format!("{} {:.0} %", p.name, 100.0 * s.times.share(s.times.busy_ns))
    };
    let all: Vec<String> = stats.iter().zip(stages).map(one).collect();
    format!("busy {}", all.join(", "))
}

fn line(name: &str, t: &StageTimes) -> String {
    let mut parts = vec![("busy", t.busy_ns), ("waiting for input", t.waiting_in_ns)];
    parts.extend([("for output", t.waiting_out_ns), ("for its turn", t.waiting_turn_ns)]);
    parts.push(("copies", t.copies_ns));
    let shares = parts.iter().map(|(what, ns)| format!("{what} {:.1} %", 100.0 * t.share(*ns)));
    let shares: Vec<String> = shares.collect();
    let each = duration(t.busy_ns.checked_div(t.batches).unwrap_or(0));
    let between = t.between_batches_ns().map(|ns| format!(", {} between two batches", duration(ns)));
    format!("{name}: {}; {each} a batch{}", shares.join(", "), between.unwrap_or_default())
}

/// Microseconds, or milliseconds from ten of them on.
fn duration(ns: u64) -> String {
    let us = ns as f64 / 1e3;
    if us < 1e4 { format!("{us:.0} us") } else { format!("{:.1} ms", us / 1e3) }
}

/// Where each stage's time went, for `--json`.
pub(super) fn reports(stats: &[StageStats], opened: &Opened) -> Vec<Value> {
    let one = |(s, p): (&StageStats, &StagePlan)| {
        let t = &s.times;
        json!({
            "card": p.name,
            "first_layer": p.layers.start,
            "layers": p.layers.len(),
            "busy_share": t.share(t.busy_ns),
            "waiting_in_share": t.share(t.waiting_in_ns),
            "waiting_out_share": t.share(t.waiting_out_ns),
            "waiting_turn_share": t.share(t.waiting_turn_ns),
            "copies_share": t.share(t.copies_ns),
            "between_batches_ns": t.between_batches_ns(),
            "hand_offs": t.batches,
            "bytes_per_hand_off": t.bytes_per_hand_off(),
            "arrives": p.arrives,
            "arrives_why": why(opened, p.stage),
        })
    };
    stats.iter().zip(&opened.plan.stages).map(one).collect()
}

/// Why rows reach a stage by no faster kind of link.
fn why(opened: &Opened, stage: StageId) -> Option<&str> {
    opened.links.iter().find(|link| link.to == stage)?.why.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_every_share_and_what_lies_between_batches_where_a_card_has_a_clock() {
        let times = StageTimes {
            batches: 4,
            busy_ns: 800_000,
            waiting_in_ns: 100_000,
            waiting_out_ns: 50_000,
            copies_ns: 50_000,
            span_ns: 1_000_000,
            ..StageTimes::default()
        };
        let shares =
            "busy 80.0 %, waiting for input 10.0 %, for output 5.0 %, for its turn 0.0 %, copies 5.0 %";
        assert_eq!(line("cpu:0", &times), format!("cpu:0: {shares}; 200 us a batch"));
        let clocked = StageTimes { between_ns: 60_000, betweens: 3, ..times };
        assert_eq!(
            line("cuda:1", &clocked),
            format!("cuda:1: {shares}; 200 us a batch, 20 us between two batches")
        );
    }

    #[test]
    fn long_times_are_milliseconds() {
        for (ns, expected) in
            [(0, "0 us"), (9_999_000, "9999 us"), (10_000_000, "10.0 ms"), (57_360_000, "57.4 ms")]
        {
            assert_eq!(duration(ns), expected);
        }
    }
}
