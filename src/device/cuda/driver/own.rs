//! What CUDA's driver does in its own way: contexts, launches that begin early, more shared memory, statuses as text.
//!
//! Invariant: numbers and layouts are those of cuda.h. Does not know: what is launched.

#![allow(unsafe_code, reason = "calls of a foreign library that is opened at run time")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use super::api::{Address, Handle, Status, constant_text, table};
use super::{Attributes, Launch, Start};

table! {
    /// CUDA's own functions.
    CudaOwn {
        context_retain(context: *mut Handle, device: c_int) "cuDevicePrimaryCtxRetain";
        context_release(device: c_int) "cuDevicePrimaryCtxRelease_v2";
        context_bind(context: Handle) "cuCtxSetCurrent";
        peer_enable(peer: Handle, flags: c_uint) "cuCtxEnablePeerAccess";
        peer_copy(to: Address, to_context: Handle, from: Address, from_context: Handle, bytes: usize, stream: Handle)
            "cuMemcpyPeerAsync";
        function_set(function: Handle, which: c_int, value: c_int) "cuFuncSetAttribute";
        launch(config: *const LaunchConfig, function: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void)
            "cuLaunchKernelEx";
        status_name(status: Status, text: *mut *const c_char) "cuGetErrorName";
        status_meaning(status: Status, text: *mut *const c_char) "cuGetErrorString";
    }
}

/// Names of the library.
pub const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// CUdevice_attribute.
pub const ATTRIBUTES: Attributes = Attributes {
    clock_khz: 13,
    multiprocessors: 16,
    pci_bus: 33,
    pci_device: 34,
    memory_clock_khz: 36,
    memory_bus_bits: 37,
    pci_domain: 50,
    shared_bytes_max: 97,
};

/// CUdevice_attribute: compute capability, major and minor.
pub const CAPABILITY: [c_int; 2] = [75, 76];

/// CUfunction_attribute: the most dynamic shared memory of a launch.
const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;

/// CUlaunchAttributeID: a kernel may begin while the one before runs.
const EARLY: c_int = 6;

/// CUlaunchConfig.
#[repr(C)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Handle,
    attributes: *const LaunchAttribute,
    attribute_count: c_uint,
}

/// CUlaunchAttribute; its value is a union of 64 bytes, of which a switch is the first four.
#[repr(C)]
struct LaunchAttribute {
    id: c_int,
    padding: [u8; 4],
    value: [c_int; 16],
}

const _: () = assert!(size_of::<LaunchConfig>() == 56 && size_of::<LaunchAttribute>() == 72);

impl CudaOwn {
    /// Queues a kernel.
    ///
    /// # Safety
    ///
    /// The function and the stream live; `places` are the addresses of as many values, each of as many bytes, as the
    /// function has parameters.
    pub unsafe fn launch(&self, function: Handle, launch: &Launch, places: *mut *mut c_void) -> Status {
        let mut value = [0; 16];
        value[0] = 1;
        let early = LaunchAttribute { id: EARLY, padding: [0; 4], value };
        let config = LaunchConfig {
            grid: launch.grid,
            block: [launch.block, 1, 1],
            shared_bytes: launch.shared_bytes,
            stream: launch.stream,
            attributes: &early,
            attribute_count: c_uint::from(launch.start == Start::Early),
        };
        // SAFETY: the caller's; configuration and attribute outlive the call.
        unsafe { (self.launch)(&config, function, places, std::ptr::null_mut()) }
    }

    /// Lets launches of a function have so much dynamic shared memory.
    ///
    /// # Safety
    ///
    /// The function lives.
    pub unsafe fn allow_shared(&self, function: Handle, bytes: c_int) -> Status {
        // SAFETY: the caller's.
        unsafe { (self.function_set)(function, MAX_DYNAMIC_SHARED_BYTES, bytes) }
    }

    /// The name of a status and what it means.
    pub fn text(&self, status: Status) -> (String, String) {
        let text = |of: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut text = std::ptr::null();
            // SAFETY: the target outlives the call, which gives a constant text, or nothing for an unknown status.
            unsafe {
                of(status, &mut text);
                constant_text(text)
            }
        };
        (text(self.status_name), text(self.status_meaning))
    }
}
