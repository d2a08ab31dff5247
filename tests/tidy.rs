//! The project's rules as tests: what `CONTRIBUTING.md` asks of every change is checked here, file by file.
//!
//! `tests/tidy/source.rs` reads Rust sources, `rules.rs` has the rules over them, `papers.rs` those over everything
//! else. A complaint is one line: where, what, what to do.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]

#[path = "tidy/papers.rs"]
mod papers;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/source.rs"]
mod source;

use source::{Source, sources};

/// Fails with all complaints.
fn clean(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

/// The crate's own files.
fn src() -> Vec<Source> {
    let all = sources("src");
    assert!(all.len() > 50, "only {} files below src/: the rules would see nothing", all.len());
    all
}

/// The crate, its tests and its benches.
fn everything() -> Vec<Source> {
    let mut all = src();
    all.extend(sources("tests"));
    all.extend(sources("benches"));
    source::mark_tests(&mut all);
    all
}

#[test]
fn imports_point_along_the_arrows_only() {
    clean(rules::import_arrows(&src()));
}

#[test]
fn every_file_opens_with_what_it_is() {
    clean(rules::module_heads(&src()));
}

#[test]
fn unsafe_code_stays_inside_its_fences() {
    clean(rules::unsafe_fences(&src()));
}

#[test]
fn unsafe_code_says_why_it_is_sound() {
    clean(rules::safety_comments(&everything()));
}

#[test]
fn every_fence_that_is_listed_exists() {
    let all = src();
    let missing =
        rules::UNSAFE_FENCES.iter().filter(|fence| !all.iter().any(|s| s.path.starts_with(**fence)));
    clean(
        missing
            .map(|fence| format!("{fence}: no such file or folder; remove it from UNSAFE_FENCES"))
            .collect(),
    );
}

#[test]
fn the_program_reads_no_environment_variables_of_its_own() {
    clean(rules::environment(&src()));
}

#[test]
fn only_the_command_line_prints() {
    clean(rules::printing(&src()));
}

#[test]
fn nothing_unfinished_is_left_in_the_code() {
    clean(rules::leftovers(&everything()));
}

#[test]
fn a_thread_that_the_system_refuses_is_no_panic() {
    clean(rules::panicking_threads(&src()));
}

#[test]
fn nothing_is_unwrapped_outside_tests() {
    clean(rules::unwraps(&src()));
}

#[test]
fn no_file_is_longer_than_its_idea() {
    clean(rules::lengths(&src()));
}

#[test]
fn every_exception_to_a_lint_has_its_reason() {
    clean(rules::exceptions(&everything()));
}

#[test]
fn every_rust_file_is_part_of_a_build() {
    clean(rules::unused_files(&everything()));
}

#[test]
fn every_dependency_is_listed_with_its_reason() {
    clean(papers::dependency_reasons(&papers::read("Cargo.toml")));
}

#[test]
fn every_dependency_is_used() {
    clean(papers::unused_dependencies(&papers::read("Cargo.toml"), &everything()));
}

#[test]
fn every_link_between_documents_leads_to_a_file() {
    let documents = papers::documents();
    assert!(documents.len() > 5, "only {} documents: the rule would see nothing", documents.len());
    clean(documents.iter().flat_map(|(path, text)| papers::dead_links(path, text)).collect());
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    clean(papers::texts().iter().flat_map(|(path, text)| papers::machine_paths(path, text)).collect());
}
