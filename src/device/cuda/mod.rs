//! GPUs behind a CUDA driver, which is opened at run time: nothing of CUDA is needed to build or to start.
//!
//! `driver` and `nvrtc` are the fences of unsafe code; `source` holds the kernels' text, `kernels` compiles and names
//! them, with `cache` between two runs and `early` saying which need not begin in order; `links` carries rows from card to
//! card; `card` fills a card's memory, `exec` runs batches on it: a graph a window, one stream.
//! Does not know: sequences, the split.

pub mod cache;
pub mod card;
pub mod driver;
pub mod early;
pub mod exec;
pub mod faults;
pub mod kernels;
pub mod links;
pub mod listing;
pub mod memory;
pub mod nvrtc;
mod shares;
pub mod source;
pub mod weights;

use crate::device::CardError;
use crate::model::facts::CardId;

/// What can go wrong with a CUDA card, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver.
    #[error("libcuda.so.1 not found: no NVIDIA driver; install one, or name virtual cards with --gpus cpu:2")]
    NoDriver,
    /// A call of the driver failed.
    #[error("{call}: {code}{advice}")]
    Call {
        /// Which.
        call: &'static str,
        /// Name and meaning, in the driver's words.
        code: String,
        /// What to do, with its `; `.
        advice: &'static str,
    },
    /// The run-time compiler is missing.
    #[error(
        "NVRTC not found (searched {searched}); install the CUDA toolkit or `pip install nvidia-cuda-nvrtc-cu12`, \
         and name its libnvrtc.so.12 with --nvrtc"
    )]
    NoNvrtc {
        /// Names and folders, with what was wrong there.
        searched: String,
    },
    /// The run-time compiler serves no architecture that the card has in it.
    #[error(
        "NVRTC {place} compiles nothing for compute capability {}.{}: {what}; name another NVRTC with --nvrtc",
        capability.0, capability.1
    )]
    NoTarget {
        /// The library.
        place: String,
        /// The card's.
        capability: (i32, i32),
        /// What it says.
        what: String,
    },
    /// The driver does not take what the run-time compiler made.
    #[error(
        "the driver refuses the kernels: {code}; it is older than NVRTC: update it, or name an NVRTC of its version with \
         --nvrtc (`tandem devices` shows both)"
    )]
    Image {
        /// In the driver's words.
        code: String,
    },
    /// The run-time compiler failed.
    #[error(
        "NVRTC, {unit} for {arch}: {what}; name another NVRTC with --nvrtc, `tandem devices` shows the one in use"
    )]
    Compile {
        /// Kernel source.
        unit: &'static str,
        /// `sm_90`, `compute_90`.
        arch: String,
        /// In the compiler's words, on one line.
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
    /// The same as an error of a card.
    pub fn on(self, card: CardId) -> CardError {
        CardError::Driver { card, what: self.to_string() }
    }
}
