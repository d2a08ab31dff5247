//! Where libraries are looked for: by the system's own search, then in the folders that toolkits install to.
//!
//! Invariant: of each name, the newest folder comes first. Does not know: what is in a library.

use std::error::Error as _;
use std::path::{Path, PathBuf};

/// The library's file names with their major versions, the best first.
pub type Names = &'static [(&'static str, i32)];

/// Folders of toolkits: `/usr/local/cuda*/lib64`.
#[derive(Clone, Copy, Debug)]
pub struct Toolkits {
    /// Where they lie.
    pub root: &'static str,
    /// How their names begin.
    pub start: &'static str,
    /// Where their libraries are.
    pub libraries: &'static str,
}

impl Toolkits {
    /// What is tried for libraries of these names.
    pub fn places(self, names: Names) -> Vec<(String, i32)> {
        let Toolkits { root, start, libraries } = self;
        let folders = folders(Path::new(root), start);
        let of_name = |&(name, major): &(&str, i32)| {
            let paths = folders.iter().map(|folder| folder.join(libraries).join(name)).filter(|p| p.exists());
            let paths: Vec<String> = paths.map(|p| p.display().to_string()).collect();
            let none = paths.is_empty().then(|| format!("{root}/{start}*/{libraries}/{name}"));
            let places = std::iter::once(name.to_owned()).chain(paths).chain(none);
            places.map(|place| (place, major)).collect::<Vec<_>>()
        };
        names.iter().flat_map(of_name).collect()
    }
}

/// Why a library did not open, in the loader's words; nothing more where there is none of that name.
pub fn unopened(place: &str, error: &libloading::Error) -> String {
    let told = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    why_unopened(place, &told)
}

fn why_unopened(place: &str, told: &str) -> String {
    let own = told.strip_prefix(place).and_then(|rest| rest.strip_prefix(": "));
    // Another library that this one needs may be missing too: then its name stands in front.
    if own.is_some_and(|what| what.ends_with("No such file or directory")) {
        return "not found".to_owned();
    }
    format!("cannot be opened: {}", own.unwrap_or(told).trim())
}

/// The folders of `root` whose names begin so, the newest first by name.
fn folders(root: &Path, start: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> =
        entries.filter(|e| e.file_name().to_string_lossy().starts_with(start)).map(|e| e.path()).collect();
    folders.sort();
    folders.reverse();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolkits_are_searched_from_the_newest() {
        let root = std::env::temp_dir().join(format!("tandem-toolkits-{}", std::process::id()));
        for name in ["cuda", "cuda-12.4", "cuda-12.8", "other"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        let found: Vec<_> =
            folders(&root, "cuda").iter().map(|p| p.strip_prefix(&root).unwrap().to_owned()).collect();
        assert_eq!(found, ["cuda-12.8", "cuda-12.4", "cuda"].map(PathBuf::from));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_library_that_is_there_is_not_called_missing() {
        let missing = "cannot open shared object file: No such file or directory";
        for (told, expected) in [
            (format!("libx.so: {missing}"), "not found".to_owned()),
            (format!("liby.so.1: {missing}"), format!("cannot be opened: liby.so.1: {missing}")),
            ("libx.so: file too short".to_owned(), "cannot be opened: file too short".to_owned()),
        ] {
            assert_eq!(why_unopened("libx.so", &told), expected);
        }
    }

    #[test]
    fn a_name_is_searched_for_by_the_system_first_and_its_folder_is_told() {
        let toolkits = Toolkits { root: "/nowhere", start: "rocm", libraries: "lib" };
        let expected = ["libx.so.7", "/nowhere/rocm*/lib/libx.so.7"].map(|place| (place.to_owned(), 7));
        assert_eq!(toolkits.places(&[("libx.so.7", 7)]), expected);
    }
}
