//! The kernels' text, which is part of the program: units that are compiled, and the headers that they include.
//!
//! Invariant: every file of `kernels/` that a unit needs is listed under the name by which it is included.
//! Does not know: compilers, which kernels a unit holds.

/// A translation unit.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// File name.
    pub name: &'static str,
    /// Text.
    pub text: &'static str,
}

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
pub const FORMATS: Unit = Unit { name: "formats.cu", text: text!("formats.cu") };

/// Everything that a row passes through between products.
pub const ROWS: Unit = Unit { name: "rows.cu", text: text!("rows.cu") };

/// Keys, values, attention.
pub const ATTENTION: Unit = Unit { name: "attention.cu", text: text!("attention.cu") };

/// Attention of the many rows of a chunk.
pub const ATTENTION_PROMPT: Unit = Unit { name: "attention_prompt.cu", text: text!("attention_prompt.cu") };

/// All units.
pub const UNITS: [&Unit; 4] = [&FORMATS, &ROWS, &ATTENTION, &ATTENTION_PROMPT];

headers! {
    "device/functions.cuh",
    "device/image.cuh",
    "device/mma_f16.cuh",
    "device/pages.cuh",
    "device/reduce.cuh",
    "device/stored.cuh",
    "device/types.h",
    "device/vendor.h",
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
    "formats/tq1_0.cuh",
    "formats/tq2_0.cuh",
}

/// Options beside the architecture: no multiply-add that the source does not name (`docs/numerics.md`, ground rule 1).
pub const OPTIONS: &[&str] = &["--fmad=false", "--std=c++17"];

#[cfg(test)]
mod tests {
    use std::path::Path;

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
        for folder in ["device", "formats"] {
            assert_eq!(files(folder), listed(folder), "left: in kernels/{folder}, right: in HEADERS");
        }
        assert_eq!(HEADERS.len(), files("device").len() + files("formats").len());
        let mut units = UNITS.map(|u| u.name);
        units.sort_unstable();
        assert_eq!(files(""), units);
    }

    #[test]
    fn every_include_is_a_listed_header() {
        let units = UNITS.map(|u| (u.name, u.text));
        for (path, text) in units.iter().chain(HEADERS) {
            for line in text.lines().filter(|l| l.starts_with("#include")) {
                let name = line.split('"').nth(1).unwrap_or_else(|| panic!("{path}: {line}"));
                // The host build's own file is not part of a card's kernels.
                let known = HEADERS.iter().any(|(header, _)| *header == name) || name == "../emu/shim.h";
                assert!(known, "{path}: {name} is not in HEADERS");
            }
        }
    }
}
