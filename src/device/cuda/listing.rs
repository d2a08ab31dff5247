//! The GPUs of this computer, and for each the reason why it cannot be used.
//!
//! Invariants: cards are numbered by their PCI addresses, as nvidia-smi numbers them; a missing driver is an answer,
//! not an error. Does not know: plans, budgets.

use std::path::Path;

use super::CudaError;
use super::compiler::Compiler;
use super::driver::{Context, Device, Driver};
use super::faults::{FaultKind, ForcedFault};
use super::kernels::Machine;
use super::vendor::{Architecture, Vendor};

/// The least compute capability: 8-bit dot products, and the compilers of two CUDA majors serve it.
pub const CAPABILITY_MIN: (i32, i32) = (7, 5);

/// Share of a memory's rate that reading weights reaches, measured with plain reads of large matrices.
const READ_SHARE: f64 = 0.6;

/// What an op of a decode row takes beside its bytes, microseconds, where it was not measured: that of an H200.
pub const DECODE_OP_US: f64 = 1.3;

/// Taken for the memory's rate where the driver does not say.
const UNKNOWN_BYTES_PER_S: f64 = 300e9;

/// 8-bit multiply-adds of a multiprocessor in a clock that plain kernels reach.
const MACS_PER_CLOCK: f64 = 128.0;

/// Taken for the rate of products where the driver does not say.
const UNKNOWN_MACS_PER_S: f64 = 5e12;

/// One card.
#[derive(Clone, Debug)]
pub struct Listed {
    /// What the driver says.
    pub device: Device,
    /// Bytes that are free, or why it cannot be used.
    pub usable: Result<u64, String>,
}

/// All cards of a vendor.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The driver.
    pub driver: Driver,
    /// The compiler's version and place, or why there is none.
    pub compiler: Result<((i32, i32), String), CudaError>,
    /// In the order of their numbers.
    pub cards: Vec<Listed>,
}

/// Looks at every card of the vendor; `compiler` is the compiler's library where it was named. Cards and compiler fail as
/// `fault` says.
pub fn list(
    vendor: Vendor,
    compiler: Option<&Path>,
    fault: Option<ForcedFault>,
) -> Result<Listing, CudaError> {
    let driver = Driver::open(vendor, fault)?;
    let devices = driver.devices()?;
    let missing = || CudaError::NoCompiler { vendor, searched: "nowhere: a forced fault".to_owned() };
    let compiler = match fault {
        Some(ForcedFault { kind: FaultKind::NoNvrtc, card: None }) => Err(missing()),
        _ => Compiler::open(vendor, compiler, driver.version()),
    };
    let compiler = compiler.map(|c| (c.version(), c.place().to_owned()));
    let usable = |device: &Device| -> Result<u64, String> {
        let machine = Machine::of(device).map_err(|e| e.to_string())?;
        if let Some(refusal) = refusal(machine.architecture) {
            return Err(refusal);
        }
        if device.is_to_fail(FaultKind::NoNvrtc) {
            return Err(missing().to_string());
        }
        if let Err(error) = &compiler {
            return Err(error.to_string());
        }
        let context = Context::open(device).map_err(|e| e.to_string())?;
        context.free_bytes().map_err(|e| e.to_string())
    };
    let cards = devices.into_iter().map(|device| Listed { usable: usable(&device), device }).collect();
    Ok(Listing { driver, compiler, cards })
}

/// Why no kernel runs on such a card; `None` where they do.
fn refusal(architecture: Architecture) -> Option<String> {
    match architecture {
        Architecture::Capability(major, minor) => ((major, minor) < CAPABILITY_MIN).then(|| {
            let least = CAPABILITY_MIN;
            format!(
                "compute capability {major}.{minor} is below {}.{}; use virtual cards, or a newer card",
                least.0, least.1
            )
        }),
        Architecture::Gfx(gfx) => gfx.refusal(),
    }
}

impl Listed {
    /// Rate at which a decode row reads weights, by the memory's clock and width.
    pub fn decode_bytes_per_s(&self) -> f64 {
        let rate = READ_SHARE * self.device.memory_bytes_per_s;
        // A driver that does not know its clock says something small.
        if rate > 1e9 { rate } else { UNKNOWN_BYTES_PER_S }
    }

    /// Rate of prompt products, by multiprocessors and their clock.
    pub fn prompt_macs_per_s(&self) -> f64 {
        let rate = MACS_PER_CLOCK * f64::from(self.device.multiprocessors) * self.device.clock_hz;
        if rate > 1e10 { rate } else { UNKNOWN_MACS_PER_S }
    }
}
