//! The CUDA driver behind safe types: devices, contexts, memory of cards, pinned memory, streams, events, kernels;
//! `graph` records what a stream is given and gives it again in one call.
//!
//! The library is opened at run time; [`Driver::open`] looks for it first, since a call without it would panic.
//! Invariants: each call's status is checked and its error names the call; handles are freed with their context bound;
//! memory that the card reads or writes by itself is not touched by the host until its event has passed; a launch has
//! the arguments of the kernel's signature. A span's address never leaves this fence.
//! Does not know: kernels by name, models, plans.

#![allow(unsafe_code, reason = "calls of a foreign library; every handle is made and freed in this file")]

pub mod graph;
mod sharing;

use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys;
use parking_lot::Mutex;

use self::graph::Recording;
use super::CudaError;
use super::faults::{FaultKind, Faults, ForcedFault, Met};
pub use sharing::MappedMemory;

/// The most arguments of a kernel.
const ARGUMENTS_MAX: usize = 37;

/// What a driver says of code that it cannot load.
const REFUSES_IMAGE: [sys::CUresult; 5] = [
    sys::CUresult::CUDA_ERROR_INVALID_IMAGE,
    sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
    sys::CUresult::CUDA_ERROR_INVALID_PTX,
    sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    sys::CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
];

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
        _ => "; check nvidia-smi and the system's log, and start again",
    };
    let code = if meaning.is_empty() || meaning == name { name } else { format!("{name} ({meaning})") };
    let code = if code.is_empty() { format!("error {}", status as u32) } else { code };
    if REFUSES_IMAGE.contains(&status) {
        return Err(CudaError::Image { code });
    }
    Err(CudaError::Call { call, code, advice })
}

/// A driver that is there and has started.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: i32,
    fault: Option<ForcedFault>,
}

/// One GPU as the driver lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    ordinal: i32,
    fault: Option<FaultKind>,
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
    /// Opens and starts the driver, whose cards fail as `fault` says.
    pub fn open(fault: Option<ForcedFault>) -> Result<Driver, CudaError> {
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
        Ok(Driver { version, fault })
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
        for (number, device) in devices.iter_mut().enumerate() {
            device.fault = self.fault.and_then(|fault| fault.of_card(number));
        }
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
        fault: None,
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
    faults: Faults,
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
        let faults = Faults::new(device.fault);
        let context = Context(Arc::new(ContextInner { device: handle, raw, faults }));
        context.bind()?;
        Ok(context)
    }

    /// Makes the calls of this thread go to this device.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as `self` lives.
        checked("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.0.raw) })
    }

    /// The error of a fault that stands in place of `call`.
    fn meets(&self, met: Met, call: &'static str) -> Result<(), CudaError> {
        self.0.faults.instead_of(met).map_or(Ok(()), |status| checked(call, status))
    }

    /// Bytes of shared memory that a block can have.
    pub fn shared_bytes_max(&self) -> Result<usize, CudaError> {
        self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    }

    /// Multiprocessors of the card.
    pub fn multiprocessors(&self) -> Result<usize, CudaError> {
        self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    }

    fn attribute(&self, which: sys::CUdevice_attribute) -> Result<usize, CudaError> {
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
            context.meets(Met::Allocation, "cuMemAlloc")?;
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

    /// Whether it begins at a multiple of `bytes`.
    pub fn begins_at_multiple_of(&self, bytes: u64) -> bool {
        self.address.is_multiple_of(bytes)
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
    /// What a graph that is being recorded needs when it runs.
    recording: Mutex<Option<Recording>>,
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
        Ok(Stream(Arc::new(StreamInner { context: context.clone(), raw, recording: Mutex::new(None) })))
    }

    /// Makes the calls of this thread go to this stream's device. Launches and copies need it once a thread.
    pub fn bind(&self) -> Result<(), CudaError> {
        self.0.context.bind()
    }

    /// Waits until everything queued has run.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives as long as `self`.
        checked("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0.raw) })?;
        self.0.context.meets(Met::Wait, "cuStreamSynchronize")
    }

    /// What is queued from now on runs after what `event` was recorded behind.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: stream and event live; the driver keeps what it needs of them.
        checked("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.0.raw, event.raw, 0) })
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
        // SAFETY: both ranges were checked; the pinned bytes are neither written nor freed before the copy has run
        // (`PinnedMemory::used_by`; a recorded copy runs in `Graph::launch` alone).
        let status = unsafe { sys::cuMemcpyHtoDAsync_v2(to.address, source, bytes as usize, self.0.raw) };
        checked("cuMemcpyHtoDAsync", status)?;
        from.used_by(self)
    }

    /// Queues a copy from the card into pinned memory, `at` bytes behind its start.
    pub fn fetch(&self, from: Span, to: &mut PinnedMemory, at: u64) -> Result<(), CudaError> {
        let end = at.checked_add(from.bytes);
        assert!(
            end.is_some_and(|end| end <= to.bytes as u64),
            "{} B at {at} of {} B of pinned memory",
            from.bytes,
            to.bytes
        );
        if from.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the place lies inside the pinned memory, as was checked.
        let target = unsafe { to.address.as_ptr().byte_add(at as usize) };
        // SAFETY: as in `upload`, with the host's side written.
        let status =
            unsafe { sys::cuMemcpyDtoHAsync_v2(target, from.address, from.bytes as usize, self.0.raw) };
        checked("cuMemcpyDtoHAsync", status)?;
        to.used_by(self)
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
        self.0.context.meets(Met::Launch, "cuLaunchKernelEx")?;
        let mut values = [0u64; ARGUMENTS_MAX];
        let mut places = [std::ptr::null_mut::<c_void>(); ARGUMENTS_MAX];
        let slots = values.iter_mut().zip(&mut places).zip(arguments);
        for ((value, place), argument) in slots {
            *value = argument.bits();
            *place = std::ptr::from_mut(value).cast();
        }
        if let Some(recording) = self.0.recording.lock().as_mut() {
            recording.keep_module(&kernel.module);
        }
        let [x, y, z] = grid.map(|g| u32::try_from(g).expect("invariant: grids are counted by batches"));
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: block as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: kernel.shared_bytes,
            hStream: self.0.raw,
            attrs: &mut early,
            numAttrs: u32::from(kernel.start == Start::Early),
        };
        // SAFETY: kernel and stream live; configuration and attribute outlive the call; the driver reads as many values,
        // each of as many bytes, as the kernel has parameters, which is the signature that the arguments were compared
        // with, and copies them before it returns. Spans name memory of a card, so a kernel writes no memory of the
        // host.
        let status =
            unsafe { sys::cuLaunchKernelEx(&config, kernel.raw, places.as_mut_ptr(), std::ptr::null_mut()) };
        checked("cuLaunchKernelEx", status)
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

// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that has passed.
    pub fn new(context: &Context) -> Result<Event, CudaError> {
        Event::with(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// The same, with the time at which it passes.
    pub fn timed(context: &Context) -> Result<Event, CudaError> {
        Event::with(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(context: &Context, flags: sys::CUevent_flags) -> Result<Event, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is bound; the target outlives the call.
        checked("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, flags as u32) })?;
        Ok(Event { context: context.clone(), raw })
    }

    /// Passes when everything that is queued now has run.
    pub fn record(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.put(stream)
    }

    /// The same for an event that is shared inside this fence.
    fn put(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: event and stream live.
        checked("cuEventRecord", unsafe { sys::cuEventRecord(self.raw, stream.0.raw) })
    }

    /// Waits until it has passed.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives.
        checked("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })?;
        self.context.meets(Met::Wait, "cuEventSynchronize")
    }

    /// Nanoseconds of the card's clock between two timed events that have passed; `None` where one has not, or where
    /// the times do not rise.
    pub fn ns_since(&self, earlier: &Event) -> Option<u64> {
        let mut ms = 0.0;
        // SAFETY: both events live; the target outlives the call.
        let status = unsafe { sys::cuEventElapsedTime(&mut ms, earlier.raw, self.raw) };
        (status == sys::CUresult::CUDA_SUCCESS && ms > 0.0).then_some((f64::from(ms) * 1e6) as u64)
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

/// Memory of the host that cards read and write without a copy between.
#[derive(Debug)]
pub struct PinnedMemory {
    address: NonNull<c_void>,
    bytes: usize,
    /// No other pinned memory has had it.
    id: u64,
    /// Of copies that are queued one by one.
    own: Arc<Event>,
    /// The card's last use of it.
    last: Option<Use>,
}

/// What pinned memory is in use for: work of one stream, until an event passes.
#[derive(Debug)]
struct Use {
    stream: Stream,
    until: Arc<Event>,
}

// SAFETY: the memory is owned like a box's and reached through `&mut self` only.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    /// `bytes` zeroed bytes, at least one.
    pub fn new(context: &Context, bytes: u64) -> Result<PinnedMemory, CudaError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        context.bind()?;
        let own = Arc::new(Event::new(context)?);
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
        Ok(PinnedMemory { address, bytes, id: NEXT.fetch_add(1, Ordering::Relaxed), own, last: None })
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The bytes, once the card is done with them.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], CudaError> {
        self.values_mut(0, self.bytes)
    }

    /// `count` values from byte `at` on, once the card is done with them.
    pub fn values_mut<T: Plain>(&mut self, at: usize, count: usize) -> Result<&mut [T], CudaError> {
        if let Some(last) = &self.last {
            last.until.wait()?;
            self.last = None;
        }
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(at));
        assert!(
            end.is_some_and(|end| end <= self.bytes) && at.is_multiple_of(align_of::<T>()),
            "{count} values at {at} of {} B of pinned memory",
            self.bytes
        );
        // SAFETY: the range lies inside what `new` allocated (on a page of its own, so `at` gives the alignment) and
        // zeroed and `Drop` frees; any bits are a `T`; no copy is under way.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr().byte_add(at).cast::<T>(), count) })
    }

    /// Notes that the stream's last call uses the memory.
    fn used_by(&mut self, stream: &Stream) -> Result<(), CudaError> {
        if let Some(recording) = stream.0.recording.lock().as_mut() {
            recording.keep_pinned(self.id);
            return Ok(());
        }
        let own = self.own.clone();
        // Without its event the memory is free only when all has run.
        let noted = self.used_until(stream, &own).and_then(|()| own.put(stream));
        noted.or_else(|error| stream.wait().and(Err(error)))
    }

    /// Notes that the stream's last call uses the memory until `event`, which is recorded next.
    fn used_until(&mut self, stream: &Stream, event: &Arc<Event>) -> Result<(), CudaError> {
        let last = self.last.replace(Use { stream: stream.clone(), until: event.clone() });
        match last {
            // Events of one stream pass in order.
            Some(last) if !Arc::ptr_eq(&last.stream.0, &stream.0) => last.until.wait(),
            _ => Ok(()),
        }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // A card that does not end its copy has failed, and touches nothing more.
        let _ = self.last.as_ref().map(|last| last.until.wait());
        if self.own.context.bind().is_ok() {
            // SAFETY: allocated by `new` and freed once; no copy is under way, and a graph that would start one is
            // launched with a borrow of the memory only.
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
        context.meets(Met::Module, "cuModuleLoadData")?;
        // PTX is text and ends with a zero; one more byte hurts no cubin.
        let image: Vec<u8> = image.iter().copied().chain([0]).collect();
        // SAFETY: the context is bound; the image is whole, ends with a zero and outlives the call.
        checked("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut raw, image.as_ptr().cast()) })?;
        Ok(Module(Arc::new(ModuleInner { context: context.clone(), raw })))
    }

    /// The kernel of this name; `None` where there is none. `signature` is that of its source, `start` what it waits for.
    pub fn kernel(&self, name: &str, signature: &'static [Parameter], start: Start) -> Option<Kernel> {
        assert!(signature.len() <= ARGUMENTS_MAX, "{name}: {} parameters", signature.len());
        self.0.context.bind().ok()?;
        let (mut raw, text) = (std::ptr::null_mut(), CString::new(name).ok()?);
        // SAFETY: the module lives; name and target outlive the call.
        let status = unsafe { sys::cuModuleGetFunction(&mut raw, self.0.raw, text.as_ptr()) };
        checked("cuModuleGetFunction", status).ok()?;
        Some(Kernel { module: self.clone(), raw, name: name.to_owned(), signature, start, shared_bytes: 0 })
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

/// When a kernel begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// When what was queued before has ended.
    InOrder,
    /// As soon as the kernel before lets it; it waits by itself. For cards from compute capability 9.0 on.
    Early,
}

/// A kernel on a card.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Keeps the code loaded.
    module: Module,
    raw: sys::CUfunction,
    name: String,
    signature: &'static [Parameter],
    start: Start,
    /// Dynamic shared memory of every launch.
    shared_bytes: u32,
}

impl Kernel {
    /// The same kernel, with so much dynamic shared memory in every launch.
    pub fn with_shared(self, bytes: usize) -> Result<Kernel, CudaError> {
        self.module.0.context.bind()?;
        let shared_bytes = u32::try_from(bytes).expect("invariant: shared memory is counted in KiB");
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the module lives, and with it the function.
        let status = unsafe { sys::cuFuncSetAttribute(self.raw, which, shared_bytes as i32) };
        checked("cuFuncSetAttribute", status)?;
        Ok(Kernel { shared_bytes, ..self })
    }

    /// The same kernel, with less dynamic shared memory in every launch, or as much.
    pub fn with_less_shared(&self, bytes: usize) -> Kernel {
        assert!(bytes <= self.shared_bytes as usize, "{}: {bytes} B of {}", self.name, self.shared_bytes);
        Kernel { shared_bytes: bytes as u32, ..self.clone() }
    }

    /// Blocks of so many threads that a multiprocessor has at once.
    pub fn resident(&self, threads: usize) -> Result<usize, CudaError> {
        self.module.0.context.bind()?;
        let (mut blocks, shared_bytes) = (0, self.shared_bytes());
        // SAFETY: the module lives, and with it the function; the target outlives the call.
        let status = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.raw,
                threads as i32,
                shared_bytes,
            )
        };
        checked("cuOccupancyMaxActiveBlocksPerMultiprocessor", status).map(|()| blocks as usize)
    }

    /// Dynamic shared memory of every launch.
    pub fn shared_bytes(&self) -> usize {
        self.shared_bytes as usize
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
