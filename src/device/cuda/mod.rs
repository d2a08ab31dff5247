//! GPUs behind a driver that is opened at run time: nothing of CUDA or HIP is needed to build or to start.
//!
//! The folder has the backend of both vendors and what is NVIDIA's; `device/hip/` has what is AMD's, `vendor` the words
//! that differ. `driver` and `compiler` are the fences of unsafe code; `source` holds the kernels' text, `kernels` compiles
//! and names them, with `cache` between two runs and `claim` between runs at once; `links` carries rows from card to card; `card` fills a card's memory,
//! `exec` runs batches on it: a graph a window, one stream.
//! Does not know: sequences, the split.

pub mod cache;
pub mod card;
pub mod claim;
pub mod compiler;
pub mod driver;
pub mod exec;
pub mod faults;
pub mod kernels;
pub mod libraries;
pub mod links;
pub mod listing;
pub mod memory;
pub(in crate::device) mod nvrtc;
mod shares;
pub mod source;
pub mod vendor;
pub mod weights;

use crate::device::CardError;
use crate::device::threads::Refused;
use crate::model::facts::CardId;

use driver::api::{Status, status};
use vendor::{Architecture, Vendor};

/// What can go wrong with a GPU, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver.
    #[error("{} (searched {searched})", .vendor.no_driver())]
    NoDriver {
        /// Whose.
        vendor: Vendor,
        /// Names and folders, with what was wrong there.
        searched: String,
    },
    /// A call of the driver failed.
    #[error("{call}: {code}{advice}")]
    Call {
        /// Which.
        call: &'static str,
        /// Name and meaning, in the driver's words.
        code: String,
        /// The same as a number; `None` where the driver called it a success.
        status: Option<Status>,
        /// What to do, with its `; `.
        advice: &'static str,
    },
    /// Work that needs two threads has one.
    #[error(transparent)]
    Thread(#[from] Refused),
    /// The run-time compiler is missing.
    #[error("no {} that can be used (searched {searched}); {}", .vendor.compiler(), .vendor.compiler_source())]
    NoCompiler {
        /// Whose.
        vendor: Vendor,
        /// Names and folders, with what was wrong there.
        searched: String,
    },
    /// The run-time compiler serves no architecture that the card has in it.
    #[error(
        "{} {place} compiles nothing for {architecture}: {what}; name another one with {}",
        .vendor.compiler(), .vendor.compiler_flag()
    )]
    NoTarget {
        /// Whose.
        vendor: Vendor,
        /// The library.
        place: String,
        /// The card's.
        architecture: Architecture,
        /// What it says.
        what: String,
    },
    /// The driver does not take what the run-time compiler made.
    #[error(
        "the driver refuses the kernels: {code}; it is older than {0}: update it, or name {0} of its version with {1} \
         (`tandem devices` shows both)",
        .vendor.compiler(), .vendor.compiler_flag()
    )]
    Image {
        /// Whose.
        vendor: Vendor,
        /// In the driver's words.
        code: String,
    },
    /// The run-time compiler failed.
    #[error(
        "{}, {unit} for {arch}: {what}; name another one with {}, `tandem devices` shows the one in use",
        .vendor.compiler(), .vendor.compiler_flag()
    )]
    Compile {
        /// Whose.
        vendor: Vendor,
        /// Kernel source.
        unit: &'static str,
        /// `sm_90`, `compute_90`, `gfx1100`.
        arch: String,
        /// In the compiler's words, on one line.
        what: String,
    },
    /// The driver does not name the card's architecture.
    #[error("the driver does not say what architecture the card has: {what}; update it")]
    NoArchitecture {
        /// What it says.
        what: String,
    },
    /// A kernel that a module lacks.
    #[error("the compiled kernels have no {name}; delete the folder {folder} and start again")]
    NoKernel {
        /// Its name.
        name: String,
        /// Of the cache.
        folder: String,
    },
}

impl CudaError {
    /// Whether the computer just has no such cards.
    pub fn is_absence(&self) -> bool {
        matches!(self, CudaError::NoDriver { .. } | CudaError::Call { status: Some(status::NO_DEVICE), .. })
    }

    /// The same as an error of a card.
    pub fn on(self, card: CardId) -> CardError {
        CardError::Driver { card, what: self.to_string() }
    }
}
