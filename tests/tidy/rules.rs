//! The rules over Rust sources: each takes sources and gives complaints, one line each.
//!
//! Invariant: a complaint says where, what, and what to do. Each rule is tested on small inputs that break it, so no
//! rule can fall silent. Does not know: which files there are (`tests/tidy.rs` hands them in).

use super::source::{Source, closing, is_crate_root, module_places};

/// What each folder of `src/` may import besides itself. `cli` may import everything.
pub const ARROWS: [(&str, &[&str]); 8] = [
    ("gguf", &[]),
    ("text", &["gguf"]),
    ("model", &["gguf"]),
    ("split", &["model"]),
    ("device", &["model", "gguf"]),
    ("transport", &["device", "model"]),
    ("cache", &["device", "split", "model"]),
    ("engine", &["cache", "transport", "device", "split", "model", "gguf"]),
];

/// Where unsafe code may stand: files, or folders with a slash at the end.
pub const UNSAFE_FENCES: [&str; 10] = [
    "src/gguf/lost_pages.rs",
    "src/gguf/map.rs",
    "src/device/cpu/columns.rs",
    "src/device/cpu/memory.rs",
    "src/device/cpu/simd/",
    "src/device/cpu/team.rs",
    "src/device/cuda/driver.rs",
    "src/device/cuda/driver/",
    "src/device/cuda/compiler.rs",
    "src/device/hip/driver.rs",
];

/// Variables of the platform that the command line may read; the program has none of its own.
pub const PLATFORM_VARIABLES: [&str; 5] =
    ["HOME", "XDG_CACHE_HOME", "RUST_LOG", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"];

/// Files made of tables, which may be longer than others.
pub const TABLES: [&str; 0] = [];

/// The most lines of a file without its tables.
pub const LINES_MAX: usize = 900;

/// The folder of `src/` that a file lies in; `None` for `lib.rs` and `main.rs`.
fn folder(path: &str) -> Option<&str> {
    path.strip_prefix("src/")?.split_once('/').map(|(folder, _)| folder)
}

fn name_at(code: &str) -> &str {
    let end = code.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(code.len());
    &code[..end]
}

/// The names that follow `crate::`: one, or those of a group.
fn imported(code: &str) -> Vec<&str> {
    let Some(group) = code.strip_prefix('{') else { return vec![name_at(code)] };
    let (mut names, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (i, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                names.push(name_at(group[start..i].trim_start()));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                names.push(name_at(group[start..i].trim_start()));
                start = i + 1;
            }
            _ => {}
        }
    }
    names.retain(|n| !n.is_empty());
    names
}

/// Imports point along [`ARROWS`] only, whether by `use`, by a whole path or by climbing with `super`.
pub fn import_arrows(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let Some(from) = folder(&source.path) else { continue };
        if from == "cli" {
            continue;
        }
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == from) else {
            let what =
                format!("the folder {from} has no arrows; add it to ARROWS and to docs/architecture.md");
            found.push(source.complaint(0, &what));
            continue;
        };
        for at in source.words("crate::") {
            for to in imported(source.code[at + "crate::".len()..].trim_start()) {
                if to != from && !allowed.contains(&to) {
                    let what = format!("{from} may not import {to}; it may import {allowed:?}");
                    found.push(source.complaint(at, &what));
                }
            }
        }
        for at in source.words("tandem::") {
            found.push(source.complaint(at, "a path through the crate's own name; write `crate::`"));
        }
        found.extend(climbs(source));
    }
    found
}

/// Chains of `super::` that leave the folder, past which the arrows would not be seen.
fn climbs(source: &Source) -> Vec<String> {
    let segments = source.path.trim_start_matches("src/").trim_end_matches(".rs").split('/');
    let depth = segments.filter(|&s| s != "mod").count();
    let mut found = Vec::new();
    for at in source.words("super::") {
        if source.code[..at].ends_with("super::") {
            continue;
        }
        let chain = source.code[at..].split("super::").skip(1).take_while(|s| s.is_empty()).count() + 1;
        if chain >= depth + source.inline_depth(at) {
            found.push(source.complaint(at, "`super` climbs out of the folder; write `crate::`"));
        }
    }
    found
}

/// Every file opens with what it is, in `//!` lines: two or more, or one where it is a test or the whole of a program.
pub fn module_heads(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let needed = if source.is_test || source.path == "src/main.rs" { 1 } else { 2 };
        let head = source.text.lines().take_while(|l| l.starts_with("//!"));
        let lines = head.filter(|l| l.len() > "//! ".len()).count();
        if lines < needed {
            let what = format!(
                "a head of {lines} lines, {needed} are needed: what it is, what holds, what it ignores"
            );
            found.push(source.complaint(0, &what));
        }
    }
    found
}

/// `unsafe` stands inside [`UNSAFE_FENCES`] only, and in a file that says why it allows it.
pub fn unsafe_fences(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let inside = UNSAFE_FENCES.iter().any(|fence| match fence.strip_suffix('/') {
            Some(_) => source.path.starts_with(fence),
            None => source.path == *fence,
        });
        let opens = source.words("unsafe_code").next();
        match (inside, source.words("unsafe").next().or(opens)) {
            (false, Some(at)) => {
                found.push(source.complaint(at, "unsafe code outside the fences of tests/tidy/rules.rs"))
            }
            _ => continue,
        }
    }
    found
}

/// Every unsafe block and `unsafe impl` has its `// SAFETY:` above, every `unsafe fn` a `# Safety` list or, where a
/// trait has the list, the comment in its body.
pub fn safety_comments(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let lines: Vec<&str> = source.text.lines().collect();
        for at in source.words("unsafe") {
            let line = source.line_of(at) - 1;
            let after = source.code[at + "unsafe".len()..].trim_start();
            // The name of a calling convention is a literal, which is no code.
            let after = after.strip_prefix("extern ").map_or(after, str::trim_start);
            let function = after.strip_prefix("fn").filter(|rest| rest.starts_with(' '));
            let is_type = after.starts_with("fn") && function.is_none();
            let good = match function {
                Some(rest) => {
                    does_nothing_unsafe(rest)
                        || comment_above(&lines, line, "# Safety")
                        || body_comment(&lines, line)
                }
                None => is_type || comment_above(&lines, line, "SAFETY:"),
            };
            if !good {
                found.push(source.complaint(
                    at,
                    "unsafe without its reason; write which fact, who guarantees it, until when",
                ));
            }
        }
    }
    found
}

/// A body without an unsafe block: it only takes the shape that a trait gave it.
fn does_nothing_unsafe(rest: &str) -> bool {
    let open = rest.find(['{', ';']).filter(|&open| rest[open..].starts_with('{'));
    open.is_some_and(|open| !rest[open..closing(rest, open)].contains("unsafe"))
}

/// A comment with `word` on the line, or in the run of comments above the statement that the line belongs to.
fn comment_above(lines: &[&str], line: usize, word: &str) -> bool {
    if lines[line].split_once("//").is_some_and(|(_, comment)| comment.contains(word)) {
        return true;
    }
    let mut above = lines[..line].iter().rev().map(|l| l.trim());
    let mut in_comment = false;
    loop {
        let Some(text) = above.next() else { return false };
        if text.starts_with("//") {
            in_comment = true;
            if text.contains(word) {
                return true;
            }
        } else if in_comment || (!text.starts_with('#') && text.ends_with([';', '{', '}', ','])) {
            return false;
        }
    }
}

/// A `SAFETY:` comment inside the function's first lines.
fn body_comment(lines: &[&str], line: usize) -> bool {
    const FIRST_LINES: usize = 12;
    let body = lines[line..].iter().take(FIRST_LINES);
    body.skip(1).take_while(|l| !l.contains("unsafe fn")).any(|l| l.trim().starts_with("// SAFETY:"))
}

/// The program has no environment variables of its own; the command line reads those of the platform.
pub fn environment(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|s| !s.is_test) {
        for name in
            ["env::var", "env::var_os", "env::vars", "env::vars_os", "env::set_var", "env::remove_var"]
        {
            for at in source.words(name).filter(|&at| !source.in_test(at)) {
                let argument = source.text[at + name.len()..].trim_start_matches("(\"");
                let known = PLATFORM_VARIABLES.iter().any(|v| argument.starts_with(&format!("{v}\")")));
                let reads = matches!(name, "env::var" | "env::var_os");
                if !(reads && known && folder(&source.path) == Some("cli")) {
                    found.push(
                        source.complaint(at, "an environment variable; add a flag to the table of src/cli"),
                    );
                }
            }
        }
    }
    found
}

/// Only the command line prints.
pub fn printing(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|s| folder(&s.path) != Some("cli")) {
        for name in ["print!", "println!", "eprint!", "eprintln!"] {
            for at in source.words(name).filter(|&at| !source.in_test(at)) {
                found.push(
                    source.complaint(
                        at,
                        "printing outside src/cli; return it, count it or log it with tracing",
                    ),
                );
            }
        }
    }
    found
}

/// Nothing unfinished stays: no `dbg!`, `todo!`, `unimplemented!` in code, no marks in comments.
pub fn leftovers(sources: &[Source]) -> Vec<String> {
    // Written in halves, so that this file passes its own rule.
    let marks = [concat!("FIX", "ME"), concat!("XX", "X"), concat!("TO", "DO"), concat!("HA", "CK")];
    let mut found = Vec::new();
    for source in sources {
        for name in ["dbg!", "todo!", "unimplemented!"] {
            found.extend(
                source.words(name).map(|at| source.complaint(at, "left over; finish it or remove it")),
            );
        }
        for mark in marks {
            let whole = |&(at, _): &(usize, &str)| {
                let before = source.text[..at].chars().next_back();
                let after = source.text[at + mark.len()..].chars().next();
                ![before, after].iter().any(|c| c.is_some_and(|c| c.is_alphanumeric() || c == '_'))
            };
            let hits = source.text.match_indices(mark).filter(whole);
            found.extend(hits.map(|(at, _)| source.complaint(at, "left over; finish it or open an issue")));
        }
    }
    found
}

/// Threads are started by calls that give the system's refusal as a value, not as a panic.
pub fn panicking_threads(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for name in ["thread::spawn(", "scope.spawn(", "enable_steady_tick("] {
            let of_name = source.words(name).filter(|&at| !source.in_test(at));
            found.extend(of_name.map(|at| {
                source.complaint(
                    at,
                    "it panics where the system refuses a thread; use device/threads.rs or a Builder",
                )
            }));
        }
    }
    found
}

/// `unwrap` is for tests: elsewhere an error is a value, and a proven fact an `expect("invariant: ...")`.
pub fn unwraps(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for at in source.words(".unwrap()").filter(|&at| !source.in_test(at)) {
            found.push(
                source.complaint(at, "unwrap outside tests; return the error, or expect with the invariant"),
            );
        }
    }
    found
}

/// No file is longer than [`LINES_MAX`], but for [`TABLES`].
pub fn lengths(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|s| !TABLES.contains(&s.path.as_str())) {
        let lines = source.text.lines().count();
        if lines > LINES_MAX {
            found.push(source.complaint(0, &format!("{lines} lines; look for the second concept")));
        }
    }
    found
}

/// Every exception to a lint gives its reason.
pub fn exceptions(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for name in ["allow(", "expect("] {
            for at in source.words(name) {
                let before = source.code[..at].trim_end();
                if !(before.ends_with("#[") || before.ends_with("#![")) {
                    continue;
                }
                let attribute = source.code[at..].split(']').next().unwrap_or_default();
                if source.words("reason").all(|r| r < at || r > at + attribute.len()) {
                    found.push(source.complaint(at, "an exception to a lint without `reason = \"...\"`"));
                }
            }
        }
    }
    found
}

/// Every file is reached by `mod` lines from a root of a build.
pub fn unused_files(sources: &[Source]) -> Vec<String> {
    let mut reached: Vec<&str> =
        sources.iter().map(|s| s.path.as_str()).filter(|p| is_crate_root(p)).collect();
    let mut next = 0;
    while next < reached.len() {
        let path = reached[next];
        next += 1;
        let source = sources.iter().find(|s| s.path == path).expect("reached files are among the sources");
        for module in source.mod_lines() {
            let places = module_places(path, is_crate_root(path), &module);
            for file in sources.iter().map(|s| s.path.as_str()).filter(|p| places.iter().any(|q| q == p)) {
                if !reached.contains(&file) {
                    reached.push(file);
                }
            }
        }
    }
    let unused = sources.iter().filter(|s| !reached.contains(&s.path.as_str()));
    unused.map(|s| s.complaint(0, "no `mod` line leads here; add one or delete the file")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rule = fn(&[Source]) -> Vec<String>;

    /// Each text, as a file at the path, breaks the rule in exactly as many places.
    fn check(rule: Rule, cases: &[(&str, &str, usize)]) {
        for (path, text, count) in cases {
            let found = rule(&[Source::new(path, text)]);
            assert_eq!(found.len(), *count, "{path}: {text}: {found:?}");
        }
    }

    #[test]
    fn the_arrow_rule_sees_uses_groups_paths_and_climbs() {
        check(
            import_arrows,
            &[
                ("src/split/plan.rs", "use crate::model::facts::CardId;", 0),
                ("src/split/plan.rs", "use crate::device::Card;", 1),
                ("src/split/plan.rs", "pub(crate) use crate::device::Card;", 1),
                ("src/split/plan.rs", "use crate::{model::{a, b}, device::{c}, split::d, text};", 2),
                ("src/split/plan.rs", "use crate::{\n    engine::a,\n};", 1),
                ("src/split/plan.rs", "fn f() -> crate::engine::Engine { crate :: x() }", 1),
                ("src/split/plan.rs", "// crate::engine\nlet s = \"crate::engine\";", 0),
                ("src/split/plan.rs", "use super::super::engine::a;", 1),
                ("src/split/plan.rs", "use super::budget;", 0),
                ("src/split/mod.rs", "use super::engine;", 1),
                ("src/split/plan.rs", "mod tests { use super::super::budget; }", 0),
                ("src/split/plan.rs", "mod tests { use super::super::super::engine; }", 1),
                ("src/split/plan.rs", "use tandem::engine::Engine;", 1),
                ("src/cache/kv/pages.rs", "use crate::engine::a; use crate::device::b;", 1),
                ("src/engine/stage.rs", "use crate::cli::a;", 1),
                ("src/engine/stage.rs", "use crate::text::Vocab;", 1),
                ("src/cli/plan.rs", "use crate::{engine, gguf};", 0),
                ("src/new/mod.rs", "", 1),
                ("src/lib.rs", "pub use crate::engine::Engine;", 0),
            ],
        );
    }

    #[test]
    fn the_head_rule_counts_lines_with_words() {
        check(
            module_heads,
            &[
                ("src/a/b.rs", "//! What.\n//!\n//! Invariant: x.\nuse y;", 0),
                ("src/a/b.rs", "//! What.\n//!\nuse y;", 1),
                ("src/a/b.rs", "use y;\n//! What.\n//! More.", 1),
                ("src/main.rs", "//! What.\nfn main() {}", 0),
                ("src/main.rs", "fn main() {}", 1),
            ],
        );
        let mut test = Source::new("src/a/tests.rs", "//! What is tested.");
        test.is_test = true;
        assert!(module_heads(&[test]).is_empty());
    }

    #[test]
    fn the_fence_rule_sees_unsafe_outside_the_fences() {
        check(
            unsafe_fences,
            &[
                ("src/device/cpu/simd/a/b.rs", "unsafe { x() }", 0),
                ("src/gguf/map.rs", "unsafe { x() }", 0),
                ("src/gguf/file.rs", "unsafe { x() }", 1),
                ("src/gguf/file.rs", "#![allow(unsafe_code, reason = \"x\")]", 1),
                ("src/gguf/map.rs.d/a.rs", "unsafe { x() }", 1),
                ("src/gguf/file.rs", "// unsafe\nfn is_unsafe() { \"unsafe\" }", 0),
            ],
        );
    }

    #[test]
    fn the_safety_rule_wants_the_comment_of_the_very_statement() {
        check(
            safety_comments,
            &[
                ("a.rs", "// SAFETY: x.\nunsafe { y() }", 0),
                ("a.rs", "// SAFETY: x,\n// and z.\nlet a =\n    unsafe { y() };", 0),
                ("a.rs", "unsafe { y() }", 1),
                ("a.rs", "// SAFETY: x.\nunsafe { y() };\nunsafe { z() };", 1),
                ("a.rs", "// SAFETY: x.\nlet b = 1;\nunsafe { z() };", 1),
                (
                    "a.rs",
                    "match t {\n    // SAFETY: x.\n    A => unsafe { y() },\n    B => unsafe { z() },\n}",
                    1,
                ),
                ("a.rs", "// Fast.\nunsafe { y() }", 1),
                ("a.rs", "let s = \"// SAFETY: \";\nunsafe { y() }", 1),
                ("a.rs", "// SAFETY: x.\nunsafe impl Send for A {}", 0),
                ("a.rs", "unsafe impl Send for A {}", 1),
                ("a.rs", "/// Reads.\n///\n/// # Safety\n/// - x\n#[inline]\nunsafe fn f();", 0),
                ("a.rs", "/// Reads.\n#[inline]\nunsafe fn f();", 1),
                ("a.rs", "unsafe fn f() {\n    // SAFETY: the caller's.\n    unsafe { g() }\n}", 0),
                ("a.rs", "unsafe fn f();\nunsafe fn g() {\n    // SAFETY: x.\n    unsafe { h() }\n}", 1),
                ("a.rs", "impl A for B { unsafe fn f(self) -> u8 { 1 } }", 0),
                ("a.rs", "type F = unsafe fn(u32);", 0),
                ("a.rs", "type F = unsafe extern \"C\" fn(u32);", 0),
                ("a.rs", "unsafe extern \"C\" fn f(a: u32);", 1),
                ("a.rs", "unsafe extern \"C\" {\n    fn f(a: u32);\n}", 1),
            ],
        );
    }

    #[test]
    fn the_environment_rule_knows_the_platform_only_in_the_command_line() {
        check(
            environment,
            &[
                ("src/engine/a.rs", "std::env::var(\"X\")", 1),
                ("src/engine/a.rs", "std::env::var(\"HOME\")", 1),
                ("src/cli/a.rs", "std::env::var_os(\"HOME\")", 0),
                ("src/cli/a.rs", "std::env::var(\"TANDEM_FAST\")", 1),
                ("src/cli/a.rs", "std::env::var(name)", 1),
                ("src/cli/a.rs", "std::env::vars()", 1),
                ("src/cli/a.rs", "env!(\"CARGO_PKG_VERSION\")", 0),
                ("src/engine/a.rs", "#[cfg(test)]\nmod tests { fn f() { std::env::var(\"X\") } }", 0),
            ],
        );
    }

    #[test]
    fn the_printing_rule_leaves_tests_and_the_command_line_alone() {
        check(
            printing,
            &[
                ("src/engine/a.rs", "println!(\"x\"); eprint!(\"y\");", 2),
                ("src/engine/a.rs", "#[cfg(test)]\nmod tests { fn f() { println!(\"x\") } }", 0),
                ("src/engine/a.rs", "writeln!(f, \"println!\")", 0),
                ("src/cli/a.rs", "println!(\"x\")", 0),
            ],
        );
    }

    #[test]
    fn the_leftover_rule_sees_macros_and_marks() {
        let mark = concat!("// FIX", "ME later");
        check(
            leftovers,
            &[
                ("src/a/b.rs", "dbg!(x); todo!(); unimplemented!()", 3),
                ("src/a/b.rs", mark, 1),
                ("src/a/b.rs", "// dbg! is not code here", 0),
                ("src/a/b.rs", concat!("const A: &str = \"XX", "XX\";"), 0),
            ],
        );
    }

    #[test]
    fn the_thread_rule_knows_the_calls_that_panic() {
        check(
            panicking_threads,
            &[
                ("src/a/b.rs", "std::thread::spawn(x); scope.spawn(y); bar.enable_steady_tick(z);", 3),
                ("src/a/b.rs", "thread::Builder::new().spawn(x); builder.spawn_scoped(scope, y)", 0),
                ("src/a/b.rs", "#[cfg(test)]\nmod tests { fn f() { scope.spawn(x) } }", 0),
            ],
        );
    }

    #[test]
    fn the_unwrap_rule_leaves_tests_alone() {
        check(
            unwraps,
            &[
                ("src/a/b.rs", "x.unwrap()", 1),
                ("src/a/b.rs", "x\n    .unwrap()\n    .y()", 1),
                ("src/a/b.rs", "x.unwrap_or(1); // .unwrap()", 0),
                ("src/a/b.rs", "#[cfg(test)]\nmod tests { fn f() { x.unwrap() } }\nfn g() { y.unwrap() }", 1),
            ],
        );
    }

    #[test]
    fn the_length_rule_counts_lines() {
        let text = |lines: usize| "x\n".repeat(lines);
        check(lengths, &[("src/a/b.rs", &text(LINES_MAX), 0), ("src/a/b.rs", &text(LINES_MAX + 1), 1)]);
    }

    #[test]
    fn the_exception_rule_wants_reasons() {
        check(
            exceptions,
            &[
                ("src/a/b.rs", "#[allow(clippy::x)]\nfn reason() {}", 1),
                ("src/a/b.rs", "#![expect(\n    clippy::x,\n    reason = \"[y]\"\n)]", 0),
                ("src/a/b.rs", "x.expect(\"invariant: y\")", 0),
            ],
        );
    }

    #[test]
    fn the_unused_file_rule_follows_mod_lines() {
        let file = Source::new;
        let sources = [
            file("src/lib.rs", "mod a; // mod c;"),
            file("src/a/mod.rs", "mod b;"),
            file("src/a/b.rs", "#[cfg(test)]\nmod tests;"),
            file("src/a/b/tests.rs", ""),
            file("src/a/tests.rs", ""),
            file("src/c.rs", ""),
            file("tests/d.rs", "#[path = \"d/e.rs\"]\nmod e; mod f;"),
            file("tests/d/e.rs", ""),
            file("tests/f/mod.rs", ""),
        ];
        let found = unused_files(&sources);
        assert!(
            found.len() == 2 && found[0].starts_with("src/a/tests.rs") && found[1].starts_with("src/c.rs"),
            "{found:?}"
        );
    }
}
