//! The driver's library as tables of functions: CUDA's, or HIP's, which mirrors it call by call.
//!
//! What both have with the same arguments stands in `calls!` once, with the two names; what differs is a table of each
//! vendor (`cuda/driver/own.rs`, `hip/driver.rs`) behind [`Own`], and nothing outside `cuda/driver.rs` and its folder calls
//! either.
//! Invariants: a library is opened once and never closed, for it runs threads of its own; a call that fails knows its name
//! and status. Does not know: handles' lifetimes, devices. Source: cuda.h of CUDA 12; hip_runtime_api.h of ROCm 6 and 7.

#![allow(unsafe_code, reason = "calls of a foreign library that is opened at run time")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use super::own::CudaOwn;
use crate::device::cuda::vendor::Vendor;
use crate::device::cuda::{CudaError, libraries};
use crate::device::hip::driver::HipOwn;

/// What a call gives: both vendors number what went wrong alike, as far as this program looks.
pub type Status = c_int;

/// A stream, an event, a module, a function, a graph, a context.
pub type Handle = *mut c_void;

/// Of a card's memory, in the address space that all cards and the host share.
pub type Address = u64;

/// The numbers that this program gives a meaning.
pub mod status {
    use super::Status;

    pub const SUCCESS: Status = 0;
    pub const OUT_OF_MEMORY: Status = 2;
    pub const NO_DEVICE: Status = 100;
    pub const INVALID_IMAGE: Status = 200;
    pub const NO_BINARY_FOR_GPU: Status = 209;
    pub const INVALID_PTX: Status = 218;
    pub const JIT_COMPILER_NOT_FOUND: Status = 221;
    pub const UNSUPPORTED_PTX_VERSION: Status = 222;
    pub const NOT_FOUND: Status = 500;
    pub const NOT_READY: Status = 600;
    pub const ILLEGAL_ADDRESS: Status = 700;
    pub const PEER_ACCESS_ALREADY_ENABLED: Status = 704;
    pub const UNKNOWN: Status = 999;
}

/// What a driver says of code that it cannot load.
const REFUSES_IMAGE: [Status; 5] = [
    status::INVALID_IMAGE,
    status::NO_BINARY_FOR_GPU,
    status::INVALID_PTX,
    status::JIT_COMPILER_NOT_FOUND,
    status::UNSUPPORTED_PTX_VERSION,
];

/// A call that did not succeed.
#[derive(Clone, Copy, Debug)]
pub struct Failed {
    api: &'static Api,
    call: &'static str,
    /// What it gave.
    pub status: Status,
}

impl From<Failed> for CudaError {
    fn from(failed: Failed) -> CudaError {
        let Failed { api, call, status } = failed;
        let (name, meaning) = api.own.text(status);
        let vendor = api.vendor();
        let advice = advice(vendor, call, status);
        let code = if meaning.is_empty() || meaning == name { name } else { format!("{name} ({meaning})") };
        let code = if code.is_empty() { format!("error {status}") } else { code };
        if REFUSES_IMAGE.contains(&status) {
            return CudaError::Image { vendor, code };
        }
        CudaError::Call { call, code, status: Some(status), advice }
    }
}

/// What to do about a call that failed.
fn advice(vendor: Vendor, call: &str, status: Status) -> &'static str {
    match status {
        // Pinned memory is the computer's.
        status::OUT_OF_MEMORY if call.contains("Host") => {
            "; this is memory of the computer, not of the card: end other programs, lower --chunk, or raise the limit of \
             locked memory (ulimit -l)"
        }
        status::OUT_OF_MEMORY => {
            "; free memory on the card, lower --ctx, --sequences, --chunk or --card-memory, or raise --vram-reserve"
        }
        status::NO_DEVICE => vendor.one_of(
            "; check nvidia-smi and CUDA_VISIBLE_DEVICES",
            "; check rocm-smi, HIP_VISIBLE_DEVICES and who may open /dev/kfd",
        ),
        _ => vendor.one_of(
            "; check nvidia-smi and the system's log, and start again",
            "; check rocm-smi and the system's log, and start again",
        ),
    }
}

/// A function of a library, as the type that the caller declares.
///
/// # Safety
///
/// `F` is the type of a function pointer, the one that the function has in the library's header.
pub unsafe fn symbol<F: Copy>(library: &Library, name: &'static str) -> Result<F, String> {
    // SAFETY: the caller's; the libraries of drivers are never closed.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|f| *f).map_err(|_| format!("it has no {name}"))
}

/// Makes a table of functions by their names, with a method for each that tells a failure from success.
macro_rules! table {
    ($(#[$doc:meta])* $Table:ident { $($name:ident($($argument:ident: $type:ty),*) $symbol:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $Table {
            $(pub $name: unsafe extern "C" fn($($type),*) -> Status,)*
        }

        impl $Table {
            /// `Err` names the function that is missing.
            pub fn of(library: &Library) -> Result<$Table, String> {
                // SAFETY: each type is the function's declaration in the vendor's header.
                Ok(unsafe { $Table { $($name: $crate::device::cuda::driver::api::symbol(library, $symbol)?,)* } })
            }
        }
    };
}
pub(crate) use table;

macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) $cuda:literal $hip:literal;)*) => {
        /// What both libraries have, with the same arguments.
        #[derive(Debug)]
        struct Calls {
            $($name: unsafe extern "C" fn($($type),*) -> Status,)*
        }

        impl Calls {
            /// `Err` names the function that is missing.
            fn of(library: &Library, vendor: Vendor) -> Result<Calls, String> {
                // SAFETY: each type is the function's declaration in the headers of both vendors, where an address of a
                // card is a pointer in the one and an integer of its size in the other.
                Ok(unsafe { Calls { $($name: symbol(library, vendor.one_of($cuda, $hip))?,)* } })
            }
        }

        impl Api {
            $(
                /// The call of this name.
                ///
                /// # Safety
                ///
                /// What the vendor's manual asks of the arguments.
                pub unsafe fn $name(&'static self, $($argument: $type),*) -> Result<(), Failed> {
                    // SAFETY: the caller's.
                    let status = unsafe { (self.calls.$name)($($argument),*) };
                    self.checked(self.vendor().one_of($cuda, $hip), status)
                }
            )*
        }
    };
}

calls! {
    start(flags: c_uint) "cuInit" "hipInit";
    version(version: *mut c_int) "cuDriverGetVersion" "hipRuntimeGetVersion";
    device_count(count: *mut c_int) "cuDeviceGetCount" "hipGetDeviceCount";
    device(device: *mut c_int, ordinal: c_int) "cuDeviceGet" "hipDeviceGet";
    device_name(name: *mut c_char, bytes: c_int, device: c_int) "cuDeviceGetName" "hipDeviceGetName";
    device_memory(bytes: *mut usize, device: c_int) "cuDeviceTotalMem_v2" "hipDeviceTotalMem";
    device_attribute(value: *mut c_int, which: c_int, device: c_int) "cuDeviceGetAttribute" "hipDeviceGetAttribute";
    device_reaches(can: *mut c_int, device: c_int, peer: c_int) "cuDeviceCanAccessPeer" "hipDeviceCanAccessPeer";

    memory_info(free: *mut usize, total: *mut usize) "cuMemGetInfo_v2" "hipMemGetInfo";
    memory_take(address: *mut Address, bytes: usize) "cuMemAlloc_v2" "hipMalloc";
    memory_free(address: Address) "cuMemFree_v2" "hipFree";
    host_take(address: *mut *mut c_void, bytes: usize, flags: c_uint) "cuMemHostAlloc" "hipHostMalloc";
    host_free(address: *mut c_void) "cuMemFreeHost" "hipHostFree";
    host_on_device(device: *mut Address, address: *mut c_void, flags: c_uint)
        "cuMemHostGetDevicePointer_v2" "hipHostGetDevicePointer";
    copy_to_card(to: Address, from: *const c_void, bytes: usize, stream: Handle)
        "cuMemcpyHtoDAsync_v2" "hipMemcpyHtoDAsync";
    copy_to_host(to: *mut c_void, from: Address, bytes: usize, stream: Handle)
        "cuMemcpyDtoHAsync_v2" "hipMemcpyDtoHAsync";
    fill(to: Address, byte: u8, bytes: usize, stream: Handle) "cuMemsetD8Async" "hipMemsetD8Async";

    stream_make(stream: *mut Handle, flags: c_uint) "cuStreamCreate" "hipStreamCreateWithFlags";
    stream_destroy(stream: Handle) "cuStreamDestroy_v2" "hipStreamDestroy";
    stream_wait(stream: Handle) "cuStreamSynchronize" "hipStreamSynchronize";
    stream_wait_event(stream: Handle, event: Handle, flags: c_uint) "cuStreamWaitEvent" "hipStreamWaitEvent";

    event_make(event: *mut Handle, flags: c_uint) "cuEventCreate" "hipEventCreateWithFlags";
    event_destroy(event: Handle) "cuEventDestroy_v2" "hipEventDestroy";
    event_record(event: Handle, stream: Handle) "cuEventRecord" "hipEventRecord";
    event_wait(event: Handle) "cuEventSynchronize" "hipEventSynchronize";
    event_query(event: Handle) "cuEventQuery" "hipEventQuery";
    event_ms(ms: *mut f32, from: Handle, to: Handle) "cuEventElapsedTime" "hipEventElapsedTime";

    module_load(module: *mut Handle, image: *const c_void) "cuModuleLoadData" "hipModuleLoadData";
    module_unload(module: Handle) "cuModuleUnload" "hipModuleUnload";
    module_function(function: *mut Handle, module: Handle, name: *const c_char)
        "cuModuleGetFunction" "hipModuleGetFunction";
    function_occupancy(blocks: *mut c_int, function: Handle, threads: c_int, shared_bytes: usize)
        "cuOccupancyMaxActiveBlocksPerMultiprocessor" "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor";

    capture_begin(stream: Handle, mode: c_int) "cuStreamBeginCapture_v2" "hipStreamBeginCapture";
    capture_end(stream: Handle, graph: *mut Handle) "cuStreamEndCapture" "hipStreamEndCapture";
    graph_instantiate(exec: *mut Handle, graph: Handle, flags: u64)
        "cuGraphInstantiateWithFlags" "hipGraphInstantiateWithFlags";
    graph_launch(exec: Handle, stream: Handle) "cuGraphLaunch" "hipGraphLaunch";
    graph_exec_destroy(exec: Handle) "cuGraphExecDestroy" "hipGraphExecDestroy";
    graph_destroy(graph: Handle) "cuGraphDestroy" "hipGraphDestroy";
}

/// Flags that both libraries number alike.
pub mod flags {
    use std::ffi::{c_int, c_uint};

    pub const HOST_PORTABLE: c_uint = 1;
    pub const HOST_MAPPED: c_uint = 2;
    pub const STREAM_NON_BLOCKING: c_uint = 1;
    pub const EVENT_UNTIMED: c_uint = 2;
    pub const EVENT_TIMED: c_uint = 0;
    pub const CAPTURE_THREAD_LOCAL: c_int = 1;
}

/// What each vendor has in its own way.
#[derive(Debug)]
pub enum Own {
    /// NVIDIA.
    Cuda(CudaOwn),
    /// AMD.
    Hip(HipOwn),
}

impl Own {
    /// The name of a status and what it means, in the driver's words.
    fn text(&self, status: Status) -> (String, String) {
        match self {
            Own::Cuda(own) => own.text(status),
            Own::Hip(own) => own.text(status),
        }
    }
}

/// A text that a library gave and keeps; nothing for none.
///
/// # Safety
///
/// `text` is null, or ends with a zero and lives as long as its library.
pub unsafe fn constant_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A driver's library.
#[derive(Debug)]
pub struct Api {
    calls: Calls,
    /// What is the vendor's alone.
    pub own: Own,
    /// Name or path of the library.
    pub place: String,
}

impl Api {
    /// The vendor's library, opened when it is first asked for.
    pub fn of(vendor: Vendor) -> Result<&'static Api, CudaError> {
        static CUDA: OnceLock<Result<Api, CudaError>> = OnceLock::new();
        static HIP: OnceLock<Result<Api, CudaError>> = OnceLock::new();
        vendor.one_of(&CUDA, &HIP).get_or_init(|| Api::open(vendor)).as_ref().map_err(Clone::clone)
    }

    fn open(vendor: Vendor) -> Result<Api, CudaError> {
        let mut failures = Vec::new();
        for place in vendor.driver_places() {
            match Api::at(vendor, &place) {
                Ok(api) => return Ok(api),
                Err(what) => failures.push(format!("{place}: {what}")),
            }
        }
        Err(CudaError::NoDriver { vendor, searched: failures.join(", ") })
    }

    fn at(vendor: Vendor, place: &str) -> Result<Api, String> {
        // SAFETY: opening a library runs its start-up code: it is the system's own driver.
        let library = unsafe { Library::new(place) }.map_err(|error| libraries::unopened(place, &error))?;
        let calls = Calls::of(&library, vendor)?;
        let own = match vendor {
            Vendor::Cuda => Own::Cuda(CudaOwn::of(&library)?),
            Vendor::Hip => Own::Hip(HipOwn::of(&library)?),
        };
        // It runs threads of its own, which must not lose their code.
        std::mem::forget(library);
        Ok(Api { calls, own, place: place.to_owned() })
    }

    /// Whose it is.
    pub fn vendor(&self) -> Vendor {
        match self.own {
            Own::Cuda(_) => Vendor::Cuda,
            Own::Hip(_) => Vendor::Hip,
        }
    }

    /// The result of a call; a name's `_v2` says nothing to people.
    pub fn checked(&'static self, call: &'static str, status: Status) -> Result<(), Failed> {
        let call = call.trim_end_matches("_v2");
        if status == status::SUCCESS { Ok(()) } else { Err(Failed { api: self, call, status }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_computer_is_not_asked_of_the_card() {
        for (call, word, other) in [
            ("cuMemAlloc", "--vram-reserve", "computer"),
            ("hipMalloc", "--vram-reserve", "computer"),
            ("cuMemHostAlloc", "computer", "--vram-reserve"),
            ("hipHostMalloc", "computer", "--vram-reserve"),
        ] {
            let advice = advice(Vendor::Cuda, call, status::OUT_OF_MEMORY);
            assert!(advice.contains(word) && !advice.contains(other), "{call}{advice}");
        }
    }
}
