//! `docs/flags.md` is the flag table.
#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]

use std::path::Path;

fn manual() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/flags.md")
}

#[test]
fn the_manual_of_flags_is_made_from_the_flag_table() {
    let found = std::fs::read_to_string(manual()).unwrap();
    assert!(
        found == tandem::cli::flags_markdown(),
        "docs/flags.md is old; write it again with `cargo test --test flags -- --ignored`"
    );
}

#[test]
fn every_flag_says_what_it_means() {
    let manual = tandem::cli::flags_markdown();
    let rows: Vec<&str> = manual.lines().filter(|l| l.starts_with("| `-") || l.starts_with("|  |")).collect();
    // Each table has a head, a rule and its rows: no row escapes this test.
    let commands = manual.matches("\n## tandem ").count();
    let lines = manual.lines().filter(|l| l.starts_with('|')).count();
    assert_eq!(rows.len() + 2 * commands, lines);
    assert!(commands >= 9 && rows.len() > 50, "{commands} commands, {} flags", rows.len());
    for row in rows {
        // A bar inside a cell would begin another one.
        assert_eq!(row.replace("\\|", "").matches('|').count(), 5, "{row}");
        let cells: Vec<&str> = row.split(" | ").collect();
        let meaning = cells.last().unwrap().trim_end_matches('|').trim();
        assert!(cells.len() >= 4 && meaning.len() > 3, "{row}");
    }
}

#[test]
fn every_command_says_what_it_does() {
    let manual = tandem::cli::flags_markdown();
    for section in manual.split("\n## tandem ").skip(1) {
        let mut lines = section.lines().filter(|l| !l.is_empty());
        let (name, about) = (lines.next().unwrap(), lines.next().unwrap());
        assert!(about.len() > 3 && !about.starts_with('|'), "tandem {name}: {about}");
    }
}

#[test]
#[ignore = "writes a file of the repository"]
fn writes_the_manual() {
    std::fs::create_dir_all(manual().parent().unwrap()).unwrap();
    std::fs::write(manual(), tandem::cli::flags_markdown()).unwrap();
}
