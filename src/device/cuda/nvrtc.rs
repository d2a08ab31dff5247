//! NVRTC, NVIDIA's run-time compiler: its names, what it is told, what it can make for a card.
//!
//! Does not know: calls, sources. Source: NVRTC's manual.

use super::compiler::Target;
use super::libraries::{Names, Toolkits};

/// Names of the library.
pub const NAMES: Names = &[("libnvrtc.so.13", 13), ("libnvrtc.so.12", 12)];

/// Where toolkits put their libraries.
pub const TOOLKITS: Toolkits = Toolkits { root: "/usr/local", start: "cuda", libraries: "lib64" };

/// Where it comes from.
pub const SOURCE: &str = "install the CUDA toolkit or `pip install nvidia-cuda-nvrtc-cu12`, and name its libnvrtc.so.12 \
                          with --nvrtc";

/// Options beside the architecture: no multiply-add that the source does not name (`docs/numerics.md`, ground rule 1).
pub const OPTIONS: &[&str] = &["--fmad=false", "--std=c++17", "--device-as-default-execution-space"];

/// What names the architecture.
pub const ARCHITECTURE: &str = "--gpu-architecture=";

/// What serves a card of an architecture, the best first: its own machine code, then text for the highest architecture
/// that it has in it.
pub fn targets(compiled: &[i32], card: i32) -> Vec<Target> {
    let own = compiled.contains(&card).then_some(Target::Cubin(card));
    let text = compiled.iter().copied().filter(|arch| *arch <= card).max().map(Target::Ptx);
    own.into_iter().chain(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_gets_its_own_code_or_text_for_an_architecture_below() {
        use Target::{Cubin, Ptx};
        let compiled = [75, 80, 86, 90, 100];
        for (card, expected) in [
            (90, vec![Cubin(90), Ptx(90)]),
            (89, vec![Ptx(86)]),
            (120, vec![Ptx(100)]),
            (75, vec![Cubin(75), Ptx(75)]),
            (70, vec![]),
        ] {
            assert_eq!(targets(&compiled, card), expected, "{card}");
        }
    }
}
