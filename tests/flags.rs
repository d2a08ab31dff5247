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
    for line in tandem::cli::flags_markdown().lines().filter(|l| l.starts_with("| `--")) {
        let meaning = line.rsplit(" | ").next().unwrap().trim_end_matches(" |").trim();
        assert!(meaning.len() > 3, "{line}");
    }
}

#[test]
#[ignore = "writes a file of the repository"]
fn writes_the_manual() {
    std::fs::create_dir_all(manual().parent().unwrap()).unwrap();
    std::fs::write(manual(), tandem::cli::flags_markdown()).unwrap();
}
