//! Ten thousand seeded schedules of the engine's machines: nothing wrong is ever delivered, every request ends, every
//! page returns. A failure prints the seed; `tandem sim --seed N` runs it alone.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use tandem::engine::sim::fault::Fault;
use tandem::engine::sim::{SimOptions, SimReport, run};

fn report(seed: u64, options: &SimOptions) -> SimReport {
    run(seed, options).unwrap_or_else(|error| panic!("sim --seed {seed}: {error}"))
}

fn check(seed: u64, options: &SimOptions) -> SimReport {
    let report = report(seed, options);
    assert!(report.violations.is_empty(), "sim --seed {seed}: {report:#?}");
    report
}

/// A start that is another one in every run, printed so that a failure can be repeated.
fn fresh_base() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let base = now.as_nanos() as u64 >> 8 << 16;
    println!("fresh schedules start at seed {base}");
    base
}

#[test]
fn ten_thousand_schedules_with_faults_deliver_nothing_wrong_and_end() {
    let options = SimOptions::default();
    let base = fresh_base();
    let seeds = (0..7_000).chain(base..base + 3_000);
    let mut ends: BTreeMap<String, [usize; 4]> = BTreeMap::new();
    for seed in seeds {
        let report = check(seed, &options);
        for fault in &report.faults {
            let sum = ends.entry(format!("{fault:?}")).or_default();
            sum[0] += 1;
            sum[1] += report.answered;
            sum[2] += report.cancelled;
            sum[3] += report.failed;
        }
    }
    println!("fault: schedules, requests answered, cancelled, failed\n{ends:#?}");
    // Every fault occurs, and those that end requests do.
    for fault in Fault::REAL {
        let [schedules, answered, cancelled, failed] = ends[&format!("{fault:?}")];
        assert!(schedules > 500 && answered > 0, "{fault:?} is not exercised");
        match fault {
            Fault::Late | Fault::SlowCard | Fault::SlowLink => {}
            Fault::Cancelled => assert!(cancelled > 500),
            _ => assert!(failed > 200, "{fault:?} never ends a request"),
        }
    }
}

#[test]
fn without_faults_every_request_is_answered() {
    let options = SimOptions { faults: Some(Vec::new()), ..SimOptions::default() };
    for seed in 0..1_000 {
        let report = check(seed, &options);
        assert_eq!(report.answered, report.requests, "sim --seed {seed}");
    }
}

#[test]
fn slowness_alone_changes_no_answer() {
    for faults in [vec![Fault::Late], vec![Fault::SlowCard], vec![Fault::SlowLink, Fault::Late]] {
        let options = SimOptions { faults: Some(faults), ..SimOptions::default() };
        for seed in 0..300 {
            let report = check(seed, &options);
            assert_eq!(report.answered, report.requests, "sim --seed {seed}");
        }
    }
}

#[test]
fn a_seed_gives_one_schedule_and_another_seed_another() {
    let options = SimOptions::default();
    for seed in 0..50 {
        assert_eq!(report(seed, &options), report(seed, &options));
        assert_ne!(report(seed, &options).trace, report(seed + 1, &options).trace);
    }
}

#[test]
fn the_checkers_find_every_planted_mistake() {
    let words = |fault| match fault {
        Fault::Corrupt => ["token", "logits"],
        Fault::LeakedState => ["pages did not return", "do not continue"],
        Fault::SpeaksAfterEnd => ["after its end", "after its end"],
        Fault::SharedSlot => ["passes from Nobody to Producer", "passes from Nobody to Producer"],
        Fault::Hang => ["has not ended", "nothing is due"],
        other => panic!("{other:?} is not planted"),
    };
    for fault in Fault::PLANTED {
        let options = SimOptions { faults: Some(vec![fault]), ..SimOptions::default() };
        let mut found = 0;
        for seed in 0..200 {
            let report = report(seed, &options);
            found +=
                usize::from(report.violations.iter().any(|v| words(fault).iter().any(|w| v.contains(w))));
        }
        // A mistake that strikes behind the last batch, or where one stage has no link, never happens.
        let least = if fault == Fault::SpeaksAfterEnd { 200 } else { 70 };
        assert!(found >= least, "{fault:?} was found in {found} of 200 schedules");
        println!("{fault:?} was found in {found} of 200 schedules");
    }
}

#[test]
fn a_dead_card_fails_what_runs_and_nothing_hears_anything_else() {
    // The listeners accept no other failure than that of the card struck: see `Fault::explains`.
    let options = SimOptions { faults: Some(vec![Fault::DeadCard]), ..SimOptions::default() };
    for seed in 0..200 {
        let report = check(seed, &options);
        assert_eq!(report.answered + report.failed, report.requests, "sim --seed {seed}");
    }
}

#[test]
fn engine_and_simulation_get_their_machines_from_one_place() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine");
    let mut folders = vec![root];
    let mut makers = Vec::new();
    let mut users = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let makes = ["Coordinator::new(", "StageMachine::new(", "Ring::new("];
            makes.iter().filter(|m| code.contains(*m)).for_each(|_| makers.push(name.clone()));
            if code.contains("machines(&specs") {
                users.push(name);
            }
        }
    }
    users.sort();
    assert_eq!(makers, ["build.rs"; 3]);
    assert_eq!(users, ["pipeline.rs", "world.rs"]);
}
