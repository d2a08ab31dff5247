//! Whose a card is, and what that changes outside the fences: names of libraries, advice, architectures.
//!
//! Invariant: whatever differs between vendors beyond these words is inside `driver/` and `compiler.rs`.
//! Does not know: devices, calls.

use super::driver::own;
use super::nvrtc;
use crate::device::hip::gfx::Gfx;
use crate::device::hip::{driver, hiprtc};
use crate::model::facts::{CardId, CardKind};

/// Who made a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA: CUDA's driver and NVRTC.
    Cuda,
    /// AMD: HIP's run-time library and hiprtc.
    Hip,
}

impl Vendor {
    /// Both.
    pub const ALL: [Vendor; 2] = [Vendor::Cuda, Vendor::Hip];

    /// The one that is this vendor's.
    pub fn one_of<T>(self, cuda: T, hip: T) -> T {
        match self {
            Vendor::Cuda => cuda,
            Vendor::Hip => hip,
        }
    }

    /// What stands before a card's number in its name.
    pub fn prefix(self) -> &'static str {
        self.card_kind().prefix()
    }

    /// Its cards, for people.
    pub fn cards(self) -> &'static str {
        self.one_of("CUDA cards", "AMD cards")
    }

    /// What its cards are.
    pub fn card_kind(self) -> CardKind {
        self.one_of(CardKind::Cuda, CardKind::Hip)
    }

    /// Its card of this number.
    pub fn card(self, number: usize) -> CardId {
        CardId { kind: self.card_kind(), number: number as u32 }
    }

    /// What `--gpus` takes for a card of this number.
    pub fn flag(self, number: usize) -> String {
        self.one_of(format!("{number}"), format!("hip:{number}"))
    }

    /// Its tool that shows cards, and the variable that hides them.
    pub fn looks(self) -> &'static str {
        self.one_of("nvidia-smi and CUDA_VISIBLE_DEVICES", "rocm-smi and HIP_VISIBLE_DEVICES")
    }

    /// Names and paths of the driver's library, the best first.
    pub fn driver_places(self) -> Vec<String> {
        match self {
            Vendor::Cuda => own::NAMES.map(str::to_owned).to_vec(),
            Vendor::Hip => {
                hiprtc::TOOLKITS.places(driver::NAMES).into_iter().map(|(place, _)| place).collect()
            }
        }
    }

    /// Names and paths of the run-time compiler with their major versions, the best first.
    pub fn compiler_places(self) -> Vec<(String, i32)> {
        match self {
            Vendor::Cuda => nvrtc::TOOLKITS.places(nvrtc::NAMES),
            Vendor::Hip => hiprtc::TOOLKITS.places(hiprtc::NAMES),
        }
    }

    /// What to do where there is no driver.
    pub fn no_driver(self) -> &'static str {
        self.one_of(
            "no NVIDIA driver; install one, or name virtual cards with --gpus cpu:2",
            "no HIP run-time library of ROCm 6 or 7; install one, or name virtual cards with --gpus cpu:2",
        )
    }

    /// The run-time compiler.
    pub fn compiler(self) -> &'static str {
        self.one_of("NVRTC", "hiprtc")
    }

    /// The flag that names the run-time compiler.
    pub fn compiler_flag(self) -> &'static str {
        self.one_of("--nvrtc", "--hiprtc")
    }

    /// Where a run-time compiler comes from.
    pub fn compiler_source(self) -> &'static str {
        self.one_of(nvrtc::SOURCE, hiprtc::SOURCE)
    }
}

/// The instructions that a card has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// NVIDIA's compute capability: major, minor.
    Capability(i32, i32),
    /// AMD's name.
    Gfx(Gfx),
}

impl std::fmt::Display for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Architecture::Capability(major, minor) => write!(f, "compute capability {major}.{minor}"),
            Architecture::Gfx(gfx) => gfx.fmt(f),
        }
    }
}
