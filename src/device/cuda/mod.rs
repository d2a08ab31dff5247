//! GPUs behind a CUDA driver, which is opened at run time: nothing of CUDA is needed to build or to start.
//!
//! `driver` and `nvrtc` are the fences of unsafe code; `source` holds the kernels' text, `kernels` compiles and names
//! them, with `cache` between two runs and `early` saying which need not begin in order; `card` fills a card's memory,
//! `exec` runs batches on it: a graph a window, one stream. Does not know: sequences, links, the split.

pub mod cache;
pub mod card;
pub mod driver;
pub mod early;
pub mod exec;
pub mod kernels;
pub mod listing;
pub mod memory;
pub mod nvrtc;
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
    /// The run-time compiler failed.
    #[error(
        "NVRTC, {unit} for {arch}: {what}; name another NVRTC with --nvrtc, `tandem devices` shows the one in use"
    )]
    Compile {
        /// Kernel source.
        unit: &'static str,
        /// `sm_90`.
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
