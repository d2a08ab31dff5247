//! What the crate is built from: allowed licences, one registry, no crate twice unless it is listed.
//!
//! Licences are read from `cargo metadata` for the platform that runs the test, with what a build has downloaded;
//! sources and versions from `Cargo.lock`, for all platforms. `deny.toml` says the same to `cargo deny`; a test
//! compares the two.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Licences that ask for no more than that their text goes along.
const ALLOWED: [&str; 10] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that the build needs in two versions, since two dependencies disagree.
const TWICE: [&str; 7] = ["bit-set", "bit-vec", "getrandom", "r-efi", "rand", "rand_core", "syn"];

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Whether a licence expression can be met with [`ALLOWED`] alone. `None`: it cannot be read.
///
/// Grammar of SPDX expressions: OR binds weaker than AND, parentheses group, WITH joins a licence and an exception.
/// The slash of old manifests means OR.
fn is_allowed(expression: &str) -> Option<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let allowed = any_of(&mut rest)?;
    rest.is_empty().then_some(allowed)
}

fn any_of(words: &mut &[&str]) -> Option<bool> {
    let mut allowed = all_of(words)?;
    while take(words, "OR") {
        // Read first: both sides must be readable, whatever the left one says.
        allowed |= all_of(words)?;
    }
    Some(allowed)
}

fn all_of(words: &mut &[&str]) -> Option<bool> {
    let mut allowed = one(words)?;
    while take(words, "AND") {
        allowed &= one(words)?;
    }
    Some(allowed)
}

fn one(words: &mut &[&str]) -> Option<bool> {
    if take(words, "(") {
        let allowed = any_of(words)?;
        return take(words, ")").then_some(allowed);
    }
    let (&licence, after) = words.split_first()?;
    if ["OR", "AND", "WITH", ")"].contains(&licence) {
        return None;
    }
    *words = after;
    if !take(words, "WITH") {
        return Some(ALLOWED.contains(&licence));
    }
    let (&exception, after) = words.split_first()?;
    *words = after;
    Some(ALLOWED.contains(&format!("{licence} WITH {exception}").as_str()))
}

fn take(words: &mut &[&str], word: &str) -> bool {
    match words.split_first() {
        Some((first, after)) if *first == word => {
            *words = after;
            true
        }
        _ => false,
    }
}

/// Packages of a lock file: name, version, source.
fn locked(lock: &str) -> Vec<(String, String, Option<String>)> {
    let field = |package: &str, key: &str| {
        let line = package.lines().find_map(|l| l.strip_prefix(key)?.trim_start().strip_prefix("= \""));
        line.and_then(|l| l.strip_suffix('"')).map(str::to_owned)
    };
    let packages = lock.split("[[package]]").skip(1);
    packages.map(|p| (field(p, "name").unwrap(), field(p, "version").unwrap(), field(p, "source"))).collect()
}

/// Names that occur more than once.
fn repeated(packages: &[(String, String, Option<String>)]) -> Vec<&str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, _, _) in packages {
        *counts.entry(name).or_default() += 1;
    }
    counts.into_iter().filter(|&(_, count)| count > 1).map(|(name, _)| name).collect()
}

fn in_repository(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn output(program: &str, arguments: &[&str]) -> String {
    let run = Command::new(program).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let run = run.unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(run.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

#[test]
fn every_crate_has_a_licence_that_is_allowed() {
    let version = output("rustc", &["-vV"]);
    let platform = version.lines().find_map(|l| l.strip_prefix("host: ")).unwrap();
    let asked = ["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", platform];
    let metadata: Value = serde_json::from_str(&output(env!("CARGO"), &asked)).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50, "only {} packages", packages.len());
    let refused = packages.iter().filter_map(|p| match p["license"].as_str() {
        None => Some(format!("{} {}: names no licence", p["name"], p["version"])),
        Some(licence) if is_allowed(licence) == Some(true) => None,
        Some(licence) => Some(format!("{} {}: {licence} is not allowed", p["name"], p["version"])),
    });
    let refused: Vec<String> = refused.collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn every_crate_comes_from_the_registry() {
    let packages = locked(&in_repository("Cargo.lock"));
    assert!(packages.len() > 50, "only {} packages", packages.len());
    for (name, version, source) in packages {
        let own = name == "tandem" && source.is_none();
        assert!(own || source.as_deref() == Some(REGISTRY), "{name} {version} comes from {source:?}");
    }
}

#[test]
fn no_crate_is_built_twice_unless_it_is_listed() {
    let packages = locked(&in_repository("Cargo.lock"));
    assert_eq!(repeated(&packages), TWICE, "left: in Cargo.lock, right: listed here and in deny.toml");
}

#[test]
fn cargo_deny_is_told_the_same() {
    let deny = in_repository("deny.toml");
    let list = |key: &str| -> Vec<String> {
        let (_, rest) =
            deny.split_once(&format!("\n{key} = [")).unwrap_or_else(|| panic!("deny.toml has no {key}"));
        let (items, _) = rest.split_once(']').unwrap();
        items.split(',').map(|i| i.trim().trim_matches('"').to_owned()).filter(|i| !i.is_empty()).collect()
    };
    assert_eq!(list("allow"), ALLOWED);
    assert_eq!(list("skip"), TWICE);
    assert!(deny.contains("unknown-git = \"deny\"") && deny.contains("unknown-registry = \"deny\""));
}

#[test]
fn licence_expressions_are_read_as_spdx_means_them() {
    let cases = [
        ("MIT", Some(true)),
        ("GPL-3.0", Some(false)),
        ("GPL-3.0 OR MIT", Some(true)),
        ("MIT OR GPL-3.0", Some(true)),
        ("GPL-3.0/MIT", Some(true)),
        ("GPL-3.0 AND MIT", Some(false)),
        ("GPL-3.0 AND MIT OR ISC", Some(true)),
        ("GPL-3.0 AND (MIT OR ISC)", Some(false)),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", Some(true)),
        ("Apache-2.0 WITH LLVM-exception", Some(true)),
        ("Apache-2.0 WITH Other-exception", Some(false)),
        ("MIT WITH LLVM-exception", Some(false)),
        ("GPL-2.0 WITH Classpath-exception-2.0 OR Apache-2.0", Some(true)),
        ("", None),
        ("MIT OR", None),
        ("(MIT", None),
        ("MIT ISC", None),
        ("MIT OR OR ISC", None),
    ];
    for (expression, allowed) in cases {
        assert_eq!(is_allowed(expression), allowed, "{expression}");
    }
}

#[test]
fn lock_files_are_read_package_by_package() {
    let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"git+https://x\"\n\n\
                [[package]]\nname = \"b\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"a\"\nversion = \"2.0.0\"\n";
    let packages = locked(lock);
    assert_eq!(packages.len(), 3);
    assert_eq!(packages[0], ("a".into(), "1.0.0".into(), Some("git+https://x".into())));
    assert_eq!(packages[1], ("b".into(), "1.0.0".into(), None));
    assert_eq!(repeated(&packages), ["a"]);
}
