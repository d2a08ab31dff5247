//! The CUDA driver behind safe types: devices, contexts, memory of cards, pinned memory, streams, events, kernels.
//!
//! The library is opened at run time; [`Driver::open`] looks for it first, since a call without it would panic.
//! Invariants: each call's status is checked and its error names the call; handles are freed with their context bound;
//! memory that the card reads or writes by itself is not touched by the host until its event has passed; a launch has
//! the arguments of the kernel's signature. A span's address never leaves this file.
//! Does not know: kernels by name, models, plans.

#![allow(unsafe_code, reason = "calls of a foreign library; every handle is made and freed in this file")]

use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys;

use super::CudaError;

/// The most arguments of a kernel.
const ARGUMENTS_MAX: usize = 20;

/// A result of the driver with the call's name.
fn checked(call: &'static str, status: sys::CUresult) -> Result<(), CudaError> {
    let Err(error) = status.result() else { return Ok(()) };
    let text = |text: Result<&CStr, _>| text.map(|t| t.to_string_lossy().into_owned()).unwrap_or_default();
    let (name, meaning) = (text(error.error_name()), text(error.error_string()));
    let advice = match status {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            "; free memory on the card, lower --ctx, --sequences or --chunk, or raise --vram-reserve"
        }
        sys::CUresult::CUDA_ERROR_NO_DEVICE => "; check nvidia-smi and CUDA_VISIBLE_DEVICES",
        sys::CUresult::CUDA_ERROR_INVALID_IMAGE | sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
            "; the driver is older than NVRTC: update it, or name an NVRTC of its version with --nvrtc"
        }
        _ => "; check nvidia-smi and the system's log, and start again",
    };
    let code = if meaning.is_empty() || meaning == name { name } else { format!("{name} ({meaning})") };
    let code = if code.is_empty() { format!("error {}", status as u32) } else { code };
    Err(CudaError::Call { call, code, advice })
}

/// A driver that is there and has started.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: i32,
}

/// One GPU as the driver lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    ordinal: i32,
    /// As its maker calls it.
    pub name: String,
    /// Domain, bus and device on PCI.
    pub pci: (i32, i32, i32),
    /// Compute capability.
    pub capability: (i32, i32),
    /// All of its memory.
    pub memory_bytes: u64,
    /// Bytes a second that its memory could give, by clock and width; 0 where the driver does not say.
    pub memory_bytes_per_s: f64,
    /// Multiprocessors.
    pub multiprocessors: i32,
    /// Their clock.
    pub clock_hz: f64,
}

impl Driver {
    /// Opens and starts the driver.
    pub fn open() -> Result<Driver, CudaError> {
        // SAFETY: only opens and closes the candidate libraries.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        let mut version = 0;
        // SAFETY: the library is there; `version` outlives the call.
        unsafe {
            checked("cuInit", sys::cuInit(0))?;
            checked("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
        }
        Ok(Driver { version })
    }

    /// CUDA version that the driver serves: (12, 8).
    pub fn version(&self) -> (i32, i32) {
        (self.version / 1000, self.version % 1000 / 10)
    }

    /// All devices in the order of their PCI addresses, as nvidia-smi numbers them.
    pub fn devices(&self) -> Result<Vec<Device>, CudaError> {
        let mut count = 0;
        // SAFETY: the driver has started; `count` outlives the call.
        unsafe { checked("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))? };
        let mut devices = (0..count).map(device).collect::<Result<Vec<Device>, _>>()?;
        devices.sort_by_key(|d| (d.pci, d.ordinal));
        Ok(devices)
    }
}

fn device(ordinal: i32) -> Result<Device, CudaError> {
    use sys::CUdevice_attribute as A;
    let (mut handle, mut name, mut bytes) = (0, [0; 256], 0usize);
    // SAFETY: the driver has started and counted this ordinal; all targets outlive their calls, and the name's length
    // is that of the buffer.
    unsafe {
        checked("cuDeviceGet", sys::cuDeviceGet(&mut handle, ordinal))?;
        checked("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, handle))?;
        checked("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut bytes, handle))?;
    }
    let attribute = |which: A| {
        let mut value = 0;
        // SAFETY: `handle` is a device; `value` outlives the call.
        let status = unsafe { sys::cuDeviceGetAttribute(&mut value, which, handle) };
        checked("cuDeviceGetAttribute", status).map(|()| value)
    };
    let name: Vec<u8> = name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    let memory_khz = f64::from(attribute(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?);
    let bus_bits = f64::from(attribute(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?);
    Ok(Device {
        ordinal,
        name: String::from_utf8_lossy(&name).into_owned(),
        pci: (
            attribute(A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        ),
        capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        memory_bytes: bytes as u64,
        // Two transfers a clock.
        memory_bytes_per_s: 2.0 * 1e3 * memory_khz * bus_bits / 8.0,
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        clock_hz: 1e3 * f64::from(attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?),
    })
}

/// A device's primary context, kept until the last handle that uses it is freed.
#[derive(Debug)]
struct ContextInner {
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: a context may be bound by any thread, and its calls are thread safe.
unsafe impl Send for ContextInner {}
// SAFETY: as above.
unsafe impl Sync for ContextInner {}

impl Drop for ContextInner {
    fn drop(&mut self) {
        // SAFETY: retained once by `Context::open`. A driver that ends with the process refuses, which changes nothing.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// A device in use.
#[derive(Clone, Debug)]
pub struct Context(Arc<ContextInner>);

impl Context {
    /// Takes the device into use.
    pub fn open(device: &Device) -> Result<Context, CudaError> {
        let (mut handle, mut raw) = (0, std::ptr::null_mut());
        // SAFETY: the driver has started, for there is a `Device`; both targets outlive their calls.
        unsafe {
            checked("cuDeviceGet", sys::cuDeviceGet(&mut handle, device.ordinal))?;
            checked("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut raw, handle))?;
        }
        let context = Context(Arc::new(ContextInner { device: handle, raw }));
        context.bind()?;
        Ok(context)
    }

    /// Makes the calls of this thread go to this device.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as `self` lives.
        checked("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.0.raw) })
    }

    /// Bytes of shared memory that a block can have.
    pub fn shared_bytes_max(&self) -> Result<usize, CudaError> {
        let which = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let mut value = 0;
        // SAFETY: the context's device; the target outlives the call.
        let status = unsafe { sys::cuDeviceGetAttribute(&mut value, which, self.0.device) };
        checked("cuDeviceGetAttribute", status).map(|()| value as usize)
    }

    /// Bytes that are free now.
    pub fn free_bytes(&self) -> Result<u64, CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is bound; both targets outlive the call.
        checked("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(free as u64)
    }
}

/// Memory of a card.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Context,
    address: sys::CUdeviceptr,
    bytes: u64,
}

/// Part of a card's memory. It is a name, not a loan: using one whose memory was freed is an error of the card, and
/// never touches the host's memory.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    address: sys::CUdeviceptr,
    bytes: u64,
}

impl DeviceMemory {
    /// Takes `bytes` bytes; nothing for none.
    pub fn new(context: &Context, bytes: u64) -> Result<DeviceMemory, CudaError> {
        context.bind()?;
        let mut address = 0;
        if bytes > 0 {
            // SAFETY: the context is bound; the target outlives the call.
            checked("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) })?;
        }
        Ok(DeviceMemory { context: context.clone(), address, bytes })
    }

    /// All of it.
    pub fn span(&self) -> Span {
        Span { address: self.address, bytes: self.bytes }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.bytes > 0 && self.context.bind().is_ok() {
            // SAFETY: allocated by `new` in this context and freed once. Freeing waits for work that uses it; a card
            // that has failed refuses, and has lost the memory anyway.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

impl Span {
    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// `bytes` bytes from `at` on.
    pub fn part(&self, at: u64, bytes: u64) -> Span {
        let end = at.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "a part of {bytes} B at {at} of a span of {} B",
            self.bytes
        );
        Span { address: self.address + at, bytes }
    }

    /// All behind `at`.
    pub fn from(&self, at: u64) -> Span {
        self.part(at, self.bytes.saturating_sub(at))
    }
}

#[derive(Debug)]
struct StreamInner {
    context: Context,
    raw: sys::CUstream,
}

// SAFETY: a stream may be used by any thread, one call at a time or several: the driver locks.
unsafe impl Send for StreamInner {}
// SAFETY: as above.
unsafe impl Sync for StreamInner {}

impl Drop for StreamInner {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made by `Stream::new` and destroyed once, after the last handle that uses it.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// A queue of work on a card.
#[derive(Clone, Debug)]
pub struct Stream(Arc<StreamInner>);

impl Stream {
    /// A queue that waits for no other.
    pub fn new(context: &Context) -> Result<Stream, CudaError> {
        context.bind()?;
        let (mut raw, flags) = (std::ptr::null_mut(), sys::CUstream_flags::CU_STREAM_NON_BLOCKING);
        // SAFETY: the context is bound; the target outlives the call.
        checked("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut raw, flags as u32) })?;
        Ok(Stream(Arc::new(StreamInner { context: context.clone(), raw })))
    }

    /// Makes the calls of this thread go to this stream's device. Launches and copies need it once a thread.
    pub fn bind(&self) -> Result<(), CudaError> {
        self.0.context.bind()
    }

    /// Waits until everything queued has run.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives as long as `self`.
        checked("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0.raw) })
    }

    /// Queues a copy of the first `bytes` bytes of pinned memory to the card.
    pub fn upload(&self, from: &mut PinnedMemory, bytes: u64, to: Span) -> Result<(), CudaError> {
        assert!(
            bytes <= from.bytes as u64 && bytes <= to.bytes,
            "{bytes} B from {} B to {} B",
            from.bytes,
            to.bytes
        );
        if bytes == 0 {
            return Ok(());
        }
        let source: *const c_void = from.address.as_ptr();
        // SAFETY: both ranges were checked; the pinned bytes are neither written nor freed before the event below has
        // passed (`PinnedMemory::bytes_mut`, its `Drop`).
        let status = unsafe { sys::cuMemcpyHtoDAsync_v2(to.address, source, bytes as usize, self.0.raw) };
        checked("cuMemcpyHtoDAsync", status)?;
        from.sent.record(self)?;
        from.in_flight = true;
        Ok(())
    }

    /// Copies from the card, after everything queued has run.
    pub fn download<T: Plain>(&self, from: Span, to: &mut [T]) -> Result<(), CudaError> {
        let bytes = std::mem::size_of_val(to);
        assert!(bytes as u64 <= from.bytes, "{bytes} B of a span of {} B", from.bytes);
        if bytes == 0 {
            return self.wait();
        }
        let target: *mut c_void = to.as_mut_ptr().cast();
        // SAFETY: both ranges were checked; any bits are a `T`; `to` is borrowed until the copy has ended, for this
        // waits whether or not the copy could be queued.
        let status = unsafe { sys::cuMemcpyDtoHAsync_v2(target, from.address, bytes, self.0.raw) };
        let waited = self.wait();
        checked("cuMemcpyDtoHAsync", status).and(waited)
    }

    /// Queues a kernel.
    pub fn launch(
        &self,
        kernel: &Kernel,
        grid: [usize; 3],
        block: usize,
        arguments: &[Argument],
    ) -> Result<(), CudaError> {
        let same = arguments.iter().map(Argument::kind).eq(kernel.signature.iter().copied());
        assert!(same, "{}: arguments {arguments:?} for {:?}", kernel.name, kernel.signature);
        let mut values = [0u64; ARGUMENTS_MAX];
        let mut places = [std::ptr::null_mut::<c_void>(); ARGUMENTS_MAX];
        let slots = values.iter_mut().zip(&mut places).zip(arguments);
        for ((value, place), argument) in slots {
            *value = argument.bits();
            *place = std::ptr::from_mut(value).cast();
        }
        let [x, y, z] = grid.map(|g| u32::try_from(g).expect("invariant: grids are counted by batches"));
        let (threads, no_options) = (block as u32, std::ptr::null_mut());
        // SAFETY: kernel and stream live; the driver reads as many values, each of as many bytes, as the kernel has
        // parameters, which is the signature that the arguments were compared with, and copies them before it
        // returns. Spans name memory of a card, so a kernel writes no memory of the host.
        let status = unsafe {
            let (raw, places) = (self.0.raw, places.as_mut_ptr());
            let shared = kernel.shared_bytes;
            sys::cuLaunchKernel(kernel.raw, x, y, z, threads, 1, 1, shared, raw, places, no_options)
        };
        checked("cuLaunchKernel", status)
    }
}

/// Values of which any bits are one.
pub trait Plain: Copy + private::Sealed {}
impl Plain for f32 {}
impl Plain for u32 {}
impl Plain for u8 {}

mod private {
    /// Types outside this file are not plain.
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for u32 {}
    impl Sealed for u8 {}
}

/// A place in a stream that can be waited for.
#[derive(Debug)]
pub struct Event {
    context: Context,
    raw: sys::CUevent,
}

// SAFETY: an event may be used by any thread; the driver locks.
unsafe impl Send for Event {}

impl Event {
    /// An event that has passed.
    pub fn new(context: &Context) -> Result<Event, CudaError> {
        context.bind()?;
        let (mut raw, flags) = (std::ptr::null_mut(), sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        // SAFETY: the context is bound; the target outlives the call.
        checked("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, flags as u32) })?;
        Ok(Event { context: context.clone(), raw })
    }

    /// Passes when everything that is queued now has run.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: event and stream live.
        checked("cuEventRecord", unsafe { sys::cuEventRecord(self.raw, stream.0.raw) })
    }

    /// Waits until it has passed.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives.
        checked("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made by `new` and destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}

/// Memory of the host that cards read without a copy between.
#[derive(Debug)]
pub struct PinnedMemory {
    address: NonNull<c_void>,
    bytes: usize,
    /// Passes when the card has read what was sent last.
    sent: Event,
    in_flight: bool,
}

// SAFETY: the memory is owned like a box's and reached through `&mut self` only.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    /// `bytes` zeroed bytes, at least one.
    pub fn new(context: &Context, bytes: u64) -> Result<PinnedMemory, CudaError> {
        context.bind()?;
        let sent = Event::new(context)?;
        let (mut address, bytes) = (std::ptr::null_mut(), (bytes as usize).max(1));
        // SAFETY: the context is bound; the target outlives the call.
        checked("cuMemHostAlloc", unsafe {
            sys::cuMemHostAlloc(&mut address, bytes, sys::CU_MEMHOSTALLOC_PORTABLE)
        })?;
        let address = NonNull::new(address).ok_or(CudaError::Call {
            call: "cuMemHostAlloc",
            code: "no memory".to_owned(),
            advice: "; close other programs",
        })?;
        // SAFETY: the call gave `bytes` bytes, which nobody else knows.
        unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        Ok(PinnedMemory { address, bytes, sent, in_flight: false })
    }

    /// The bytes, once the card has read what was sent from them.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], CudaError> {
        if self.in_flight {
            self.sent.wait()?;
            self.in_flight = false;
        }
        // SAFETY: allocated and zeroed by `new`, freed by `Drop`; no copy is under way.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.address.cast::<u8>().as_ptr(), self.bytes) })
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // A card that does not end its copy has failed, and reads no more.
        let _ = self.in_flight.then(|| self.sent.wait());
        if self.sent.context.bind().is_ok() {
            // SAFETY: allocated by `new` and freed once; no copy is under way.
            let _ = unsafe { sys::cuMemFreeHost(self.address.as_ptr()) };
        }
    }
}

#[derive(Debug)]
struct ModuleInner {
    context: Context,
    raw: sys::CUmodule,
}

// SAFETY: a module may be used by any thread; the driver locks.
unsafe impl Send for ModuleInner {}
// SAFETY: as above.
unsafe impl Sync for ModuleInner {}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded by `Module::load` and unloaded once, after the last kernel that is from it.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// Compiled kernels on a card.
#[derive(Clone, Debug)]
pub struct Module(Arc<ModuleInner>);

impl Module {
    /// Loads a compiler's output: a cubin, or PTX.
    pub fn load(context: &Context, image: &[u8]) -> Result<Module, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // PTX is text and ends with a zero; one more byte hurts no cubin.
        let image: Vec<u8> = image.iter().copied().chain([0]).collect();
        // SAFETY: the context is bound; the image is whole, ends with a zero and outlives the call.
        checked("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut raw, image.as_ptr().cast()) })?;
        Ok(Module(Arc::new(ModuleInner { context: context.clone(), raw })))
    }

    /// The kernel of this name; `None` where there is none. `signature` is that of its source.
    pub fn kernel(&self, name: &str, signature: &'static [Parameter]) -> Option<Kernel> {
        assert!(signature.len() <= ARGUMENTS_MAX, "{name}: {} parameters", signature.len());
        self.0.context.bind().ok()?;
        let (mut raw, text) = (std::ptr::null_mut(), CString::new(name).ok()?);
        // SAFETY: the module lives; name and target outlive the call.
        let status = unsafe { sys::cuModuleGetFunction(&mut raw, self.0.raw, text.as_ptr()) };
        checked("cuModuleGetFunction", status).ok()?;
        Some(Kernel { _module: self.clone(), raw, name: name.to_owned(), signature, shared_bytes: 0 })
    }
}

/// What a kernel's parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// Eight bytes.
    Pointer,
    /// Four bytes.
    I32,
    /// Four bytes.
    U32,
    /// Four bytes.
    F32,
    /// Eight bytes.
    I64,
}

/// A kernel on a card.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Keeps the code loaded.
    _module: Module,
    raw: sys::CUfunction,
    name: String,
    signature: &'static [Parameter],
    /// Dynamic shared memory of every launch.
    shared_bytes: u32,
}

impl Kernel {
    /// The same kernel, with so much dynamic shared memory in every launch.
    pub fn with_shared(self, bytes: usize) -> Result<Kernel, CudaError> {
        self._module.0.context.bind()?;
        let shared_bytes = u32::try_from(bytes).expect("invariant: shared memory is counted in KiB");
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the module lives, and with it the function.
        let status = unsafe { sys::cuFuncSetAttribute(self.raw, which, shared_bytes as i32) };
        checked("cuFuncSetAttribute", status)?;
        Ok(Kernel { shared_bytes, ..self })
    }
}

// SAFETY: a function is a read-only handle that lives as long as its module.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// A value for a kernel's parameter.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    /// The start of a span; null for none.
    Pointer(Option<Span>),
    /// A count, a width, a stride.
    I32(i32),
    /// An identity.
    U32(u32),
    /// A number.
    F32(f32),
    /// Bytes of something large.
    I64(i64),
}

impl Argument {
    fn kind(&self) -> Parameter {
        match self {
            Argument::Pointer(_) => Parameter::Pointer,
            Argument::I32(_) => Parameter::I32,
            Argument::U32(_) => Parameter::U32,
            Argument::F32(_) => Parameter::F32,
            Argument::I64(_) => Parameter::I64,
        }
    }

    /// In the low bytes, where a little-endian host reads a narrower value.
    fn bits(&self) -> u64 {
        match *self {
            Argument::Pointer(span) => span.map_or(0, |s| s.address),
            Argument::I32(v) => u64::from(v as u32),
            Argument::U32(v) => u64::from(v),
            Argument::F32(v) => u64::from(v.to_bits()),
            Argument::I64(v) => v as u64,
        }
    }
}

const _: () = assert!(cfg!(target_endian = "little"), "arguments are passed in the low bytes of a word");
