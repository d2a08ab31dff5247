//! The kernels' text, which is part of the program: units that are compiled, and the headers that they include.
//!
//! Invariants: every file of `kernels/` that a unit needs is listed under the name by which it is included; a unit of
//! formats is compiled once for each format that is used, with a text of their `chosen.cuh` that names this one alone.
//! Does not know: compilers, which kernels a unit holds.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::gguf::TensorType;
use crate::model::facts::KvFormat;

/// A translation unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// File name.
    pub name: &'static str,
    /// Text.
    pub text: &'static str,
    /// What its kernels are made for each format of, if it is so.
    pub each: Option<FormatKind>,
}

/// What has formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatKind {
    /// Weights.
    Weights,
    /// Keys and values.
    Kv,
}

/// A format that kernels are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Of weights.
    Weights(TensorType),
    /// Of keys and values.
    Kv(KvFormat),
}

impl Format {
    /// What has it.
    pub fn kind(self) -> FormatKind {
        match self {
            Format::Weights(_) => FormatKind::Weights,
            Format::Kv(_) => FormatKind::Kv,
        }
    }

    /// As the names of its kernels end.
    pub fn name(self) -> String {
        match self {
            Format::Weights(ty) => ty.name().to_ascii_lowercase(),
            Format::Kv(format) => format.name().to_owned(),
        }
    }

    /// The header that says which formats of its kind a unit is compiled for, and its text for this one.
    fn chosen(self) -> (&'static str, String) {
        match self {
            Format::Weights(ty) => (CHOSEN_WEIGHTS, chosen_weights(&[ty])),
            Format::Kv(format) => (CHOSEN_KV, chosen_kv(&[format])),
        }
    }
}

/// The header that says which formats of weights a unit is compiled for.
const CHOSEN_WEIGHTS: &str = "formats/chosen.cuh";

/// The header that says which formats of keys and values a unit is compiled for.
const CHOSEN_KV: &str = "attention/chosen.cuh";

macro_rules! text {
    ($path:literal) => {
        include_str!(concat!("../../../kernels/", $path))
    };
}

macro_rules! headers {
    ($($path:literal,)*) => {
        /// (Name as included, text) of every header.
        pub const HEADERS: &[(&str, &str)] = &[$(($path, text!($path)),)*];
    };
}

/// Products, the tables of tokens.
pub const FORMATS: Unit =
    Unit { name: "formats.cu", text: text!("formats.cu"), each: Some(FormatKind::Weights) };

/// Everything that a row passes through between products.
pub const ROWS: Unit = Unit { name: "rows.cu", text: text!("rows.cu"), each: None };

/// The choice of experts.
pub const ROUTER: Unit = Unit { name: "router.cu", text: text!("router.cu"), each: None };

/// Keys and values on their way into pages.
pub const APPEND: Unit = Unit { name: "append.cu", text: text!("append.cu"), each: Some(FormatKind::Kv) };

/// Attention of any heads.
pub const ATTENTION: Unit =
    Unit { name: "attention.cu", text: text!("attention.cu"), each: Some(FormatKind::Kv) };

/// Attention of the rows of a window.
pub const ATTENTION_WINDOW: Unit =
    Unit { name: "attention_window.cu", text: text!("attention_window.cu"), each: Some(FormatKind::Kv) };

/// Products of the many rows of a chunk.
pub const PROMPT: Unit =
    Unit { name: "prompt.cu", text: text!("prompt.cu"), each: Some(FormatKind::Weights) };

/// Rows on their way from card to card.
pub const LINKS: Unit = Unit { name: "links.cu", text: text!("links.cu"), each: None };

/// Attention of the many rows of a chunk.
pub const ATTENTION_PROMPT: Unit =
    Unit { name: "attention_prompt.cu", text: text!("attention_prompt.cu"), each: Some(FormatKind::Kv) };

/// The best tokens of rows of logits.
pub const BEST: Unit = Unit { name: "best.cu", text: text!("best.cu"), each: None };

/// What comes from the host with a batch, and goes back to it.
pub const HOST: Unit = Unit { name: "host.cu", text: text!("host.cu"), each: None };

/// Everything that is compiled.
pub const UNITS: [&Unit; 11] = [
    &FORMATS,
    &ROWS,
    &ROUTER,
    &APPEND,
    &ATTENTION,
    &ATTENTION_WINDOW,
    &PROMPT,
    &ATTENTION_PROMPT,
    &LINKS,
    &BEST,
    &HOST,
];

headers! {
    "attention/chosen.cuh",
    "attention/head.cuh",
    "attention/parts.cuh",
    "attention/tile.cuh",
    "attention/work.cuh",
    "device/copies.cuh",
    "device/functions.cuh",
    "device/hip.h",
    "device/image.cuh",
    "device/images.cuh",
    "device/mma_f16.cuh",
    "device/mma_int8.cuh",
    "device/norm.cuh",
    "device/pages.cuh",
    "device/reduce.cuh",
    "device/stored.cuh",
    "device/types.h",
    "device/vendor.h",
    "formats/chosen.cuh",
    "formats/grids.cuh",
    "formats/iq1_m.cuh",
    "formats/iq1_s.cuh",
    "formats/iq2_s.cuh",
    "formats/iq2_xs.cuh",
    "formats/iq2_xxs.cuh",
    "formats/iq3_s.cuh",
    "formats/iq3_xxs.cuh",
    "formats/iq4_nl.cuh",
    "formats/iq4_xs.cuh",
    "formats/k_scales.cuh",
    "formats/lanes.cuh",
    "formats/mxfp4.cuh",
    "formats/nvfp4.cuh",
    "formats/part.cuh",
    "formats/plain.cuh",
    "formats/q1_0.cuh",
    "formats/q2_0.cuh",
    "formats/q2_k.cuh",
    "formats/q3_k.cuh",
    "formats/q4_0.cuh",
    "formats/q4_1.cuh",
    "formats/q4_k.cuh",
    "formats/q5_0.cuh",
    "formats/q5_1.cuh",
    "formats/q5_k.cuh",
    "formats/q6_k.cuh",
    "formats/q8_0.cuh",
    "formats/tile.cuh",
    "formats/tq1_0.cuh",
    "formats/tq2_0.cuh",
}

/// The headers that `unit` includes, directly or through others, by name; with `format`, for its kernels alone.
pub fn headers(unit: &Unit, format: Option<Format>) -> Vec<(&'static str, Cow<'static, str>)> {
    let chosen = format.map(Format::chosen);
    let mut found: Vec<(&'static str, Cow<'static, str>)> = Vec::new();
    let mut wanted = includes(unit.text);
    while let Some(name) = wanted.pop() {
        let Some((name, text)) = HEADERS.iter().find(|(header, _)| *header == name) else { continue };
        if found.iter().any(|(known, _)| known == name) {
            continue;
        }
        let text = match &chosen {
            Some((header, text)) if header == name => Cow::Owned(text.clone()),
            _ => Cow::Borrowed(*text),
        };
        wanted.extend(includes(&text));
        found.push((*name, text));
    }
    found.sort_by_key(|(name, _)| *name);
    found
}

/// The names that a text includes.
fn includes(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| line.starts_with("#include"));
    lines.filter_map(|line| Some(line.split('"').nth(1)?.to_owned())).collect()
}

/// The text of [`CHOSEN_WEIGHTS`] for these formats.
fn chosen_weights(types: &[TensorType]) -> String {
    let mut text = String::from(CHOSEN_WEIGHTS_HEAD);
    let lower = |ty: &TensorType| Format::Weights(*ty).name();
    let file = |ty: &TensorType| if ty.is_float() { "plain".to_owned() } else { lower(ty) };
    let mut files: Vec<String> = types.iter().map(file).collect();
    files.sort();
    files.dedup();
    for file in files {
        let _ = writeln!(text, "#include \"formats/{file}.cuh\"");
    }
    for (name, plain) in [("PLAIN_FORMATS", true), ("BLOCK_FORMATS", false)] {
        let of_kind = types.iter().filter(|ty| ty.is_float() == plain);
        write_list(&mut text, name, of_kind.map(|ty| (lower(ty), ty.name())));
    }
    text
}

/// The text of [`CHOSEN_KV`] for these formats.
fn chosen_kv(formats: &[KvFormat]) -> String {
    let mut text = String::from(CHOSEN_KV_HEAD);
    let stored = |format: &KvFormat| match format {
        KvFormat::F32 => "StoredF32",
        KvFormat::F16 => "StoredF16",
        KvFormat::Q8_0 => "StoredQ8",
    };
    write_list(&mut text, "KV_FORMATS", formats.iter().map(|f| (Format::Kv(*f).name(), stored(f))));
    text
}

/// Appends the macro `name`, which makes the kernels of (name, struct) each.
fn write_list(text: &mut String, name: &str, formats: impl Iterator<Item = (String, &'static str)>) {
    let _ = write!(text, "\n#define {name}(KERNELS)");
    for (format, of) in formats {
        let _ = write!(text, " \\\n    KERNELS({format}, {of})");
    }
    text.push('\n');
}

const CHOSEN_WEIGHTS_HEAD: &str = "\
// chosen.cuh: the formats whose kernels a compilation makes: here all of them, for a card one that its stage uses.
//
// Invariant: PLAIN_FORMATS(KERNELS) and BLOCK_FORMATS(KERNELS) are KERNELS(name, struct) for each chosen format.
// Does not know: kernels. Written by src/device/cuda/source.rs, which a test compares.
#pragma once
";

const CHOSEN_KV_HEAD: &str = "\
// chosen.cuh: the formats of K/V whose kernels a compilation makes: here all of them, for a card the one that it keeps.
//
// Invariant: KV_FORMATS(KERNELS) is KERNELS(name, struct) for each chosen format.
// Does not know: kernels. Written by src/device/cuda/source.rs, which a test compares.
#pragma once
#include \"device/stored.cuh\"
";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::ValueEnum as _;

    use super::*;

    /// The files of a folder of `kernels/`, by name.
    fn files(folder: &str) -> Vec<String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(folder);
        let names = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let is_source = |n: &String| [".cu", ".cuh", ".h"].iter().any(|end| n.ends_with(end));
        let mut names: Vec<String> = names.filter(is_source).collect();
        names.sort();
        names
    }

    #[test]
    fn every_kernel_file_is_part_of_the_program() {
        let listed = |folder: &str| -> Vec<&str> {
            HEADERS.iter().filter_map(|(path, _)| path.strip_prefix(folder)?.strip_prefix('/')).collect()
        };
        for folder in ["attention", "device", "formats"] {
            assert_eq!(files(folder), listed(folder), "left: in kernels/{folder}, right: in HEADERS");
        }
        let found: usize = ["attention", "device", "formats"].map(|folder| files(folder).len()).iter().sum();
        assert_eq!(HEADERS.len(), found);
        let mut units = UNITS.map(|u| u.name);
        units.sort_unstable();
        assert_eq!(files(""), units);
    }

    #[test]
    fn every_include_is_a_listed_header() {
        let units = UNITS.map(|u| (u.name, u.text));
        for (path, text) in units.iter().chain(HEADERS) {
            for name in includes(text) {
                // The host build's own file is not part of a card's kernels.
                let known = HEADERS.iter().any(|(header, _)| *header == name) || name == "../emu/shim.h";
                assert!(known, "{path}: {name} is not in HEADERS");
            }
        }
    }

    /// Types that weights of products and tables may have.
    fn types() -> Vec<TensorType> {
        TensorType::ALL.iter().copied().filter(|ty| ty.is_float() || ty.is_quantised()).collect()
    }

    #[test]
    fn the_files_of_all_formats_are_the_texts_for_all_of_them() {
        let all =
            [(CHOSEN_WEIGHTS, chosen_weights(&types())), (CHOSEN_KV, chosen_kv(KvFormat::value_variants()))];
        for (name, text) in all {
            let (_, file) = HEADERS.iter().find(|(header, _)| *header == name).unwrap();
            assert!(*file == text, "kernels/{name} is to be\n{text}");
        }
    }

    #[test]
    fn a_unit_includes_the_formats_that_it_is_compiled_for_and_no_others() {
        for unit in UNITS {
            let names: Vec<&str> = headers(unit, None).iter().map(|(name, _)| *name).collect();
            let listed = |header| names.contains(&header);
            assert_eq!(listed(CHOSEN_WEIGHTS), unit.each == Some(FormatKind::Weights), "{}", unit.name);
            assert_eq!(listed(CHOSEN_KV), unit.each == Some(FormatKind::Kv), "{}", unit.name);
        }
    }

    #[test]
    fn a_format_alone_brings_its_own_headers_alone() {
        let names =
            |unit, format| -> Vec<&str> { headers(unit, format).iter().map(|(name, _)| *name).collect() };
        let all = names(&FORMATS, None);
        assert!(all.contains(&"formats/grids.cuh") && all.contains(&"device/types.h"), "{all:?}");
        let one = names(&FORMATS, Some(Format::Weights(TensorType::Q4_K)));
        let formats: Vec<&str> = one.into_iter().filter(|n| n.starts_with("formats/")).collect();
        let needed =
            ["chosen", "k_scales", "lanes", "part", "q4_k", "tile"].map(|n| format!("formats/{n}.cuh"));
        assert_eq!(formats, needed);
        let weights = types().into_iter().map(|ty| (&FORMATS, Format::Weights(ty)));
        let kv = KvFormat::value_variants().iter().map(|&format| (&ATTENTION_WINDOW, Format::Kv(format)));
        for (unit, format) in weights.chain(kv) {
            let headers = headers(unit, Some(format));
            let (_, text) = headers.iter().find(|(name, _)| *name == format.chosen().0).unwrap();
            let kernels: Vec<&str> = text.lines().filter(|l| l.starts_with("    KERNELS(")).collect();
            assert_eq!(kernels.len(), 1, "{format:?}: {kernels:?}");
            assert!(kernels[0].starts_with(&format!("    KERNELS({}, ", format.name())), "{kernels:?}");
        }
        assert!(names(&ROWS, None).iter().all(|name| name.starts_with("device/")));
    }
}
