//! Rust sources as the rules read them: comments and literals told apart from code, tests from the rest.
//!
//! Invariant: `code` and `text` have the same length and the same lines; in `code` every byte of a comment or of a
//! literal's contents is a space. Does not know: any rule.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// One file.
#[derive(Debug)]
pub struct Source {
    /// From the root of the repository, with `/`.
    pub path: String,
    /// As it is.
    pub text: String,
    /// Without comments and contents of literals.
    pub code: String,
    /// Byte ranges of items behind `#[cfg(test)]`.
    test_items: Vec<Range<usize>>,
    /// The whole file is a test.
    pub is_test: bool,
}

/// A `mod name;` line.
#[derive(Debug, PartialEq)]
pub struct ModLine {
    pub name: String,
    /// The argument of `#[path = "..."]`.
    pub path: Option<String>,
    /// Behind `#[cfg(test)]`.
    pub is_test: bool,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let code = blank(text);
        let test_items = cfg_test_items(&code);
        Source { path: path.to_owned(), text: text.to_owned(), code, test_items, is_test: false }
    }

    pub fn line_of(&self, at: usize) -> usize {
        1 + self.text[..at].matches('\n').count()
    }

    pub fn in_test(&self, at: usize) -> bool {
        self.is_test || self.test_items.iter().any(|r| r.contains(&at))
    }

    /// `path:line: what`.
    pub fn complaint(&self, at: usize, what: &str) -> String {
        format!("{}:{}: {what}", self.path, self.line_of(at))
    }

    /// Places of `word` in the code, not as part of a longer name.
    pub fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
            let before = self.code[..at].chars().next_back();
            let after = self.code[at + word.len()..].chars().next();
            let starts_name = word.starts_with(is_name);
            let ends_name = word.ends_with(is_name);
            !(starts_name && before.is_some_and(is_name) || ends_name && after.is_some_and(is_name))
        })
    }

    /// Modules that the file declares in files of their own.
    pub fn mod_lines(&self) -> Vec<ModLine> {
        let mut lines = Vec::new();
        for at in self.words("mod") {
            let rest = self.code[at + 3..].trim_start();
            let name: String = rest.chars().take_while(|&c| is_name(c)).collect();
            if name.is_empty() || !rest[name.len()..].trim_start().starts_with(';') {
                continue;
            }
            let before = self.code[..at].rfind([';', '}', '{']).map_or(0, |p| p + 1);
            let attributes = &self.text[before..at];
            let path = attributes.split_once("#[path = \"").and_then(|(_, r)| r.split_once('"'));
            lines.push(ModLine { name, path: path.map(|(p, _)| p.to_owned()), is_test: self.in_test(at) });
        }
        lines
    }

    /// How many inline modules (`mod x { ... }`) stand around a place.
    pub fn inline_depth(&self, at: usize) -> usize {
        let opened = self.words("mod").take_while(|&m| m < at).filter(|&m| {
            let rest = &self.code[m..];
            let stop = rest.find(['{', ';']).unwrap_or(rest.len());
            rest[stop..].starts_with('{') && closing(&self.code, m + stop) > at && m + stop < at
        });
        opened.count()
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// One past the brace that closes the one at `open`.
pub fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (i, c) in code[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return open + i + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

fn cfg_test_items(code: &str) -> Vec<Range<usize>> {
    let mut items = Vec::new();
    for (at, _) in code.match_indices("#[cfg(test)]") {
        let stop = code[at..].find(['{', ';']).map_or(code.len(), |p| at + p);
        let end =
            if code[stop..].starts_with('{') { closing(code, stop) } else { (stop + 1).min(code.len()) };
        items.push(at..end);
    }
    items
}

/// Replaces comments and contents of literals by spaces; lines stay.
pub fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut i = 0;
    while i < bytes.len() {
        let end = match bytes[i] {
            b'/' if bytes[i..].starts_with(b"//") => text[i..].find('\n').map_or(bytes.len(), |n| i + n),
            b'/' if bytes[i..].starts_with(b"/*") => block_comment_end(bytes, i),
            b'"' => string_end(bytes, i + 1),
            b'\'' => char_end(text, i),
            b'r' | b'b' | b'c' if i == 0 || !is_name_byte(bytes[i - 1]) => {
                raw_string_end(bytes, i).unwrap_or(i)
            }
            _ => i,
        };
        if end == i {
            i += 1;
            continue;
        }
        for byte in &mut code[i..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        i = end;
    }
    String::from_utf8(code).expect("blanks replace whole characters")
}

fn is_name_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut depth, mut i) = (0usize, start);
    while i < bytes.len() {
        if bytes[i..].starts_with(b"/*") {
            (depth, i) = (depth + 1, i + 2);
        } else if bytes[i..].starts_with(b"*/") {
            (depth, i) = (depth - 1, i + 2);
            if depth == 0 {
                return i;
            }
        } else {
            i += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], mut i: usize) -> usize {
    while i < bytes.len() && bytes[i] != b'"' {
        i += if bytes[i] == b'\\' { 2 } else { 1 };
    }
    (i + 1).min(bytes.len())
}

/// The end of a character literal, or `start` where the quote begins a lifetime.
fn char_end(text: &str, start: usize) -> usize {
    let mut chars = text[start + 1..].char_indices();
    match chars.next() {
        Some((_, '\\')) => {
            let rest = &text[start + 3..];
            rest.find('\'').map_or(start, |p| start + 3 + p + 1)
        }
        Some(_) => match chars.next() {
            Some((p, '\'')) => start + 1 + p + 1,
            _ => start,
        },
        None => start,
    }
}

/// The end of `r"..."`, `br#"..."#` and the like; `None` where a name begins.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut i = start;
    if matches!(bytes[i], b'b' | b'c') {
        i += 1;
    }
    if bytes.get(i) != Some(&b'r') {
        return None;
    }
    let hashes = bytes[i + 1..].iter().take_while(|&&b| b == b'#').count();
    i += 1 + hashes;
    if bytes.get(i) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let body = &bytes[i + 1..];
    let length = body.windows(close.len()).position(|w| w == close)?;
    Some(i + 1 + length + close.len())
}

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a folder of the repository whose names end so, sorted; none where the folder does not exist.
pub fn files(folder: &str, ends: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.expect("a folder of the repository can be listed").path();
            if path.is_dir() {
                if !path.ends_with("target") {
                    folders.push(path);
                }
            } else if ends.iter().any(|end| path.to_string_lossy().ends_with(end)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A path as the complaints print it.
pub fn shown(path: &Path) -> String {
    let inside = path.strip_prefix(root()).unwrap_or(path);
    inside.to_string_lossy().replace('\\', "/")
}

/// Where a module of `file` lies: the two places that the compiler looks at.
pub fn module_places(file: &str, file_is_root: bool, module: &ModLine) -> Vec<String> {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    if let Some(path) = &module.path {
        return vec![format!("{folder}/{path}")];
    }
    let stem = name.strip_suffix(".rs").unwrap_or(name);
    let folder = if file_is_root || stem == "mod" { folder.to_owned() } else { format!("{folder}/{stem}") };
    vec![format!("{folder}/{}.rs", module.name), format!("{folder}/{}/mod.rs", module.name)]
}

/// True for files that a build starts at.
pub fn is_crate_root(path: &str) -> bool {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    matches!(path, "src/lib.rs" | "src/main.rs") || folder == "tests" || folder == "benches"
}

/// The Rust files of a folder, with tests marked: those below `tests/`, and modules behind `#[cfg(test)]`.
pub fn sources(folder: &str) -> Vec<Source> {
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Source::new(&shown(path), &text)
    };
    let mut all: Vec<Source> = files(folder, &[".rs"]).iter().map(read).collect();
    mark_tests(&mut all);
    all
}

/// A test module's modules are tests as well, so this repeats until nothing new is found.
pub fn mark_tests(all: &mut [Source]) {
    loop {
        let mut tests: Vec<String> = Vec::new();
        for source in all.iter() {
            let lines = source.mod_lines();
            let lines = lines.iter().filter(|m| m.is_test);
            tests.extend(lines.flat_map(|m| module_places(&source.path, is_crate_root(&source.path), m)));
        }
        let new = all.iter_mut().filter(|s| !s.is_test && tests.contains(&s.path));
        if new.map(|s| s.is_test = true).count() == 0 {
            return;
        }
    }
}

#[test]
fn comments_and_literals_are_not_code() {
    let cases = [
        ("a // unsafe\nb", "a          \nb"),
        ("a /* x /* y */ \n z */ b", "a              \n      b"),
        ("f(\"un\\\"safe\") g", "f(          ) g"),
        ("f(r#\"a\"b\"#) g", "f(        ) g"),
        ("f(b\"x\", '\\'', '\"') g", "f(b   ,     ,    ) g"),
        ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
        ("bar(\"\")", "bar(  )"),
    ];
    for (text, code) in cases {
        assert_eq!(blank(text), code, "{text}");
    }
}

#[test]
fn items_and_modules_behind_cfg_test_are_tests() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { {} } }\nfn c() {}\n#[cfg(test)]\nmod other;\nmod last;";
    let source = Source::new("src/x/mod.rs", text);
    let at = |name: &str| source.in_test(text.find(name).expect("in the text"));
    assert_eq!([at("fn a"), at("fn b"), at("fn c")], [false, true, false]);
    let line = |name: &str, is_test| ModLine { name: name.into(), path: None, is_test };
    assert_eq!(source.mod_lines(), [line("other", true), line("last", false)]);
    assert_eq!(source.inline_depth(text.find("fn b").expect("in the text")), 1);
    assert_eq!(source.inline_depth(text.find("fn c").expect("in the text")), 0);

    let mut all = vec![
        source,
        Source::new("src/x/other.rs", "mod below;"),
        Source::new("src/x/other/below.rs", ""),
        Source::new("src/x/last.rs", ""),
    ];
    // A module of a test is found through its parent, which is a test as a whole.
    mark_tests(&mut all);
    let tests: Vec<bool> = all.iter().map(|s| s.is_test).collect();
    assert_eq!(tests, [false, true, true, false]);
}
