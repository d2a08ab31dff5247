//! The rules over everything that is not Rust: the manifest, documents, scripts.
//!
//! Invariant: as in `rules.rs`, every rule is tested on small inputs that break it.

use super::source::{Source, files, root, shown};

/// A file of the repository as text.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The documents that people read: those at the root, and those of docs, tools and bench.
pub fn documents() -> Vec<(String, String)> {
    let mut paths = files("docs", &[".md"]);
    paths.extend(files("tools", &[".md"]));
    paths.extend(files("bench", &[".md"]));
    paths.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)));
    paths.iter().map(|p| (shown(p), read(&shown(p)))).collect()
}

/// Everything that is written by hand.
pub fn texts() -> Vec<(String, String)> {
    let mut all = documents();
    for folder in ["src", "tests", "benches", "tools", "scripts", "fuzz", ".ci", "bench"] {
        let paths = files(folder, &[".rs", ".py", ".sh", ".toml", "/run"]);
        all.extend(paths.iter().map(|p| (shown(p), read(&shown(p)))));
    }
    all
}

/// Lines of a manifest's dependency tables: (line number, name, line).
fn dependencies(manifest: &str) -> Vec<(usize, &str, &str)> {
    let (mut found, mut inside) = (Vec::new(), false);
    for (index, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.trim_end_matches(']').ends_with("dependencies");
        } else if let Some((name, _)) = line.split_once('=').filter(|_| inside && !line.starts_with('#')) {
            found.push((index + 1, name.trim(), line));
        }
    }
    found
}

/// Each dependency's line ends with a comment that says what it is for.
pub fn dependency_reasons(manifest: &str) -> Vec<String> {
    let reason = |line: &str| line.rsplit_once('#').is_some_and(|(_, r)| r.split_whitespace().count() >= 2);
    let without = dependencies(manifest).into_iter().filter(|(_, _, line)| !reason(line));
    without
        .map(|(n, name, _)| format!("Cargo.toml:{n}: {name} has no reason; add a comment to its line"))
        .collect()
}

/// Each dependency is named in the code.
pub fn unused_dependencies(manifest: &str, sources: &[Source]) -> Vec<String> {
    let used = |name: &str| {
        let crate_name = name.replace('-', "_");
        sources.iter().any(|s| s.words(&crate_name).next().is_some())
    };
    let unused = dependencies(manifest).into_iter().filter(|(_, name, _)| !used(name));
    unused.map(|(n, name, _)| format!("Cargo.toml:{n}: nothing uses {name}; remove it")).collect()
}

/// Relative links of a document that lead nowhere.
pub fn dead_links(path: &str, text: &str) -> Vec<String> {
    let folder = root().join(path);
    let folder = folder.parent().expect("a document lies in a folder");
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            let foreign = file.is_empty() || file.contains("://");
            if !foreign && !folder.join(file).exists() {
                found.push(format!("{path}:{}: the link to {file} leads nowhere", index + 1));
            }
        }
    }
    found
}

/// Lines that name a folder which only one machine has.
pub fn machine_paths(path: &str, text: &str) -> Vec<String> {
    // Written in halves, so that this file passes its own rule.
    let places = [
        concat!("/wo", "rk/"),
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/Us", "ers/"),
        concat!("../sha", "red"),
    ];
    let named = |line: &str| {
        places.iter().any(|place| {
            line.match_indices(place)
                .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    };
    let lines = text.lines().enumerate().filter(|(_, line)| named(line));
    lines.map(|(n, _)| format!("{path}:{}: a path of one machine", n + 1)).collect()
}

#[test]
fn the_reason_rule_wants_a_comment_on_the_line() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\na = \"1\" # does this\nb = \"1\"\n# about c\nc = { x = 1 } #\n\
                    [dev-dependencies]\nd = \"1\"\n[profile.dev]\ne = 1\n";
    let found = dependency_reasons(manifest);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found[0].starts_with("Cargo.toml:5: b ") && found[2].starts_with("Cargo.toml:9: d "),
        "{found:?}"
    );
}

#[test]
fn the_unused_dependency_rule_reads_code_not_comments() {
    let manifest = "[dependencies]\na-b = \"1\" # x y\nc = \"1\" # x y\nd = \"1\" # x y\n";
    let sources = [Source::new("src/a/b.rs", "use a_b::x; // c\nfn f() { d::g() }")];
    let found = unused_dependencies(manifest, &sources);
    assert!(found.len() == 1 && found[0].contains("uses c;"), "{found:?}");
}

#[test]
fn the_link_rule_looks_for_the_file() {
    let text = "[a](Cargo.toml) [b](https://example.org/x) [c](#part)\n[d](missing.md#part)";
    assert_eq!(dead_links("README.md", text), ["README.md:2: the link to missing.md leads nowhere"]);
    assert!(dead_links("docs/x.md", "[a](../Cargo.toml)").is_empty());
}

#[test]
fn the_machine_path_rule_sees_absolute_folders() {
    let text = concat!("cd /wo", "rk/a\nnet", "work/a and framewo", "rk/b\n/dev/null\nls ../sha", "red/x");
    let lines = machine_paths("a.sh", text);
    assert_eq!(lines, ["a.sh:1: a path of one machine", "a.sh:4: a path of one machine"]);
}
