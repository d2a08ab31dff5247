//! What HIP's run-time library does in its own way: devices in place of contexts, launches, architectures by name.
//!
//! No card has run this yet (`docs/cards.md`); a stub of the library has (`kernels/emu/hip/`).
//! Invariants: numbers and layouts are those of hip_runtime_api.h, which ROCm 6 and 7 share. Only one place of one
//! structure is read, at its documented offset, from a buffer larger than any version of it.
//! Does not know: what is launched, which architectures are served.

#![allow(unsafe_code, reason = "calls of a foreign library that is opened at run time")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use crate::device::cuda::driver::api::{Address, Handle, Status, constant_text, symbol, table};
use crate::device::cuda::driver::{Attributes, Launch};
use crate::device::cuda::libraries::Names;

table! {
    /// HIP's own functions.
    HipCalls {
        device_bind(device: c_int) "hipSetDevice";
        device_properties(properties: *mut u8, device: c_int) "hipGetDevicePropertiesR0600";
        peer_enable(peer: c_int, flags: c_uint) "hipDeviceEnablePeerAccess";
        peer_copy(to: Address, to_device: c_int, from: Address, from_device: c_int, bytes: usize, stream: Handle)
            "hipMemcpyPeerAsync";
        launch(
            function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
            block_z: c_uint, shared_bytes: c_uint, stream: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void
        ) "hipModuleLaunchKernel";
    }
}

/// A status as text.
type Text = unsafe extern "C" fn(Status) -> *const c_char;

/// HIP's own functions, with those that give no status.
#[derive(Debug)]
pub struct HipOwn {
    pub calls: HipCalls,
    status_name: Text,
    status_meaning: Text,
}

/// Names of the library, the newest first. Version 5 has another structure of properties, and is not opened.
pub const NAMES: Names = &[("libamdhip64.so.7", 7), ("libamdhip64.so.6", 6)];

/// hipDeviceAttribute_t.
pub const ATTRIBUTES: Attributes = Attributes {
    clock_khz: 5,
    memory_bus_bits: 59,
    memory_clock_khz: 60,
    multiprocessors: 63,
    pci_bus: 67,
    pci_device: 68,
    pci_domain: 69,
    shared_bytes_max: 74,
};

/// A flag of pinned memory: cards and host see each other's writes while work runs.
pub const HOST_COHERENT: c_uint = 0x4000_0000;

/// Where hipDeviceProp_tR0600 has the architecture's name, and how long it may be.
const ARCHITECTURE_AT: usize = 1160;
const ARCHITECTURE_BYTES: usize = 256;
/// More than the 1,472 bytes that the structure has.
const PROPERTIES_BYTES: usize = 8192;

impl HipOwn {
    /// `Err` names the function that is missing.
    pub fn of(library: &Library) -> Result<HipOwn, String> {
        let calls = HipCalls::of(library)?;
        // SAFETY: both types are the functions' declarations in hip_runtime_api.h.
        let (status_name, status_meaning): (Text, Text) =
            unsafe { (symbol(library, "hipGetErrorName")?, symbol(library, "hipGetErrorString")?) };
        Ok(HipOwn { calls, status_name, status_meaning })
    }

    /// The name of a device's architecture with its features, `gfx906:sramecc+:xnack-`, or what the call gave.
    pub fn architecture(&self, device: c_int) -> Result<String, Status> {
        let mut properties = vec![0u8; PROPERTIES_BYTES];
        // SAFETY: the buffer is larger than the structure, of which any bytes are one.
        let status = unsafe { (self.calls.device_properties)(properties.as_mut_ptr(), device) };
        if status != 0 {
            return Err(status);
        }
        let text = &properties[ARCHITECTURE_AT..ARCHITECTURE_AT + ARCHITECTURE_BYTES];
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    /// Queues a kernel. Kernels of one stream never overlap here, so one that waits by itself begins in order.
    ///
    /// # Safety
    ///
    /// The function and the stream live; `places` are the addresses of as many values, each of as many bytes, as the
    /// function has parameters.
    pub unsafe fn launch(&self, function: Handle, launch: &Launch, places: *mut *mut c_void) -> Status {
        let ([x, y, z], none) = (launch.grid, std::ptr::null_mut());
        // SAFETY: the caller's.
        unsafe {
            let Launch { block, shared_bytes, stream, .. } = *launch;
            (self.calls.launch)(function, x, y, z, block, 1, 1, shared_bytes, stream, places, none)
        }
    }

    /// The name of a status and what it means.
    pub fn text(&self, status: Status) -> (String, String) {
        // SAFETY: both calls give constant texts.
        unsafe { (constant_text((self.status_name)(status)), constant_text((self.status_meaning)(status))) }
    }
}
