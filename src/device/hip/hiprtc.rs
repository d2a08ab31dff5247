//! hiprtc, AMD's run-time compiler: its names and what it is told.
//!
//! Invariant: the options are those of `tools/hip_check.py`, which a test compares, without what hiprtc sets itself (the
//! language, device code alone, its optimisation) and what it has no use for (warnings).
//! Does not know: calls. Source: the manual of HIP RTC.

use crate::device::cuda::libraries::{Names, Toolkits};

/// Names of the library, the newest first.
pub const NAMES: Names = &[("libhiprtc.so.7", 7), ("libhiprtc.so.6", 6)];

/// Where ROCm's packages put their libraries.
pub const TOOLKITS: Toolkits = Toolkits { root: "/opt", start: "rocm", libraries: "lib" };

/// Where it comes from.
pub const SOURCE: &str =
    "install ROCm's hiprtc (its package hip-runtime-amd), or name a libhiprtc.so with --hiprtc";

/// Options beside the architecture: no multiply-add that the source does not name, divisions and roots rounded
/// correctly (`docs/numerics.md`, ground rules 1 and 2). Denormals are kept by default.
pub const OPTIONS: &[&str] =
    &["-O3", "-std=c++17", "-ffp-contract=off", "-fhip-fp32-correctly-rounded-divide-sqrt"];

/// What names the architecture.
pub const ARCHITECTURE: &str = "--offload-arch=";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_those_that_the_kernels_are_checked_with() {
        let text = include_str!("../../../tools/hip_check.py");
        let (_, list) = text.split_once("\nOPTIONS = [").unwrap();
        let (list, _) = list.split_once(']').unwrap();
        let checked: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
        let own = ["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc"];
        let warnings = ["-Wall", "-Werror", "-ferror-limit=3", "-Wno-pass-failed"];
        let told: Vec<&str> =
            checked.into_iter().filter(|o| !own.contains(o) && !warnings.contains(o)).collect();
        assert_eq!(told, OPTIONS);
        assert!(text.contains(ARCHITECTURE));
    }
}
