//! A driver behind safe types: devices, contexts, memory of cards, pinned memory, streams, events, kernels; `graph` records
//! what a stream is given and gives it again in one call, `notes` lists it launch by launch.
//!
//! The library is CUDA's or HIP's, opened at run time by [`Driver::open`] (`api`); a device knows which, and with it all
//! that is made on it.
//! Invariants: each call's status is checked and its error names the call; handles are freed with their context bound;
//! memory that the card reads or writes by itself is not touched by the host until its event has passed; a launch has
//! the arguments of the kernel's signature. A span's address never leaves this fence.
//! Does not know: kernels by name, models, plans.

#![allow(unsafe_code, reason = "calls of a foreign library; every handle is made and freed in this file")]

pub(in crate::device) mod api;
pub mod graph;
mod modules;
mod notes;
pub(in crate::device) mod own;
mod sharing;

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use self::api::{Address, Api, Failed, Handle, Own, flags};
use self::graph::Recording;
use super::CudaError;
use super::faults::{FaultKind, Faults, ForcedFault, Met, Told};
use super::vendor::{Architecture, Vendor};
use crate::device::hip;
use modules::ARGUMENTS_MAX;
pub use modules::{Argument, Kernel, Module, Parameter, Start};
pub use notes::Note;
pub use sharing::MappedMemory;

/// A driver that is there and has started.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    api: &'static Api,
    version: i32,
    fault: Option<ForcedFault>,
}

/// One GPU as the driver lists it.
#[derive(Clone, Debug)]
pub struct Device {
    driver: Driver,
    ordinal: c_int,
    fault: Option<Told>,
    /// As its maker calls it.
    pub name: String,
    /// Domain, bus and device on PCI.
    pub pci: (i32, i32, i32),
    /// The instructions that it has, or what the driver says in place of a name.
    pub architecture: Result<Architecture, String>,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Bytes a second that its memory could give, by clock and width; 0 where the driver does not say.
    pub memory_bytes_per_s: f64,
    /// Multiprocessors.
    pub multiprocessors: i32,
    /// Their clock.
    pub clock_hz: f64,
}

/// Numbers of what a driver tells of a device.
pub(in crate::device) struct Attributes {
    pub clock_khz: c_int,
    pub multiprocessors: c_int,
    pub pci_domain: c_int,
    pub pci_bus: c_int,
    pub pci_device: c_int,
    pub memory_clock_khz: c_int,
    pub memory_bus_bits: c_int,
    pub shared_bytes_max: c_int,
}

/// A launch beside its arguments.
pub(in crate::device) struct Launch {
    pub grid: [c_uint; 3],
    pub block: c_uint,
    pub shared_bytes: c_uint,
    pub stream: Handle,
    pub start: Start,
}

impl Driver {
    /// Opens and starts the vendor's driver, whose cards fail as `fault` says.
    pub fn open(vendor: Vendor, fault: Option<ForcedFault>) -> Result<Driver, CudaError> {
        let (api, mut version) = (Api::of(vendor)?, 0);
        // SAFETY: `version` outlives the call.
        unsafe {
            api.start(0)?;
            api.version(&mut version)?;
        }
        Ok(Driver { api, version, fault })
    }

    /// Whose it is.
    pub fn vendor(&self) -> Vendor {
        self.api.vendor()
    }

    /// Version that the driver serves: (12, 8) of CUDA, (6, 3) of HIP.
    pub fn version(&self) -> (i32, i32) {
        match self.vendor() {
            Vendor::Cuda => (self.version / 1000, self.version % 1000 / 10),
            Vendor::Hip => (self.version / 10_000_000, self.version / 100_000 % 100),
        }
    }

    /// Name or path of the library.
    pub fn place(&self) -> &'static str {
        &self.api.place
    }

    /// All devices in the order of their PCI addresses, as nvidia-smi numbers them.
    pub fn devices(&self) -> Result<Vec<Device>, CudaError> {
        let mut count = 0;
        // SAFETY: the driver has started; `count` outlives the call.
        unsafe { self.api.device_count(&mut count)? };
        let mut devices = (0..count).map(|n| self.device(n)).collect::<Result<Vec<Device>, _>>()?;
        devices.sort_by_key(|d| (d.pci, d.ordinal));
        for (number, device) in devices.iter_mut().enumerate() {
            device.fault = self.fault.and_then(|fault| fault.of_card(number)).map(Told::new);
        }
        Ok(devices)
    }

    fn device(&self, ordinal: c_int) -> Result<Device, Failed> {
        let (api, of) = (self.api, self.attributes());
        let (mut handle, mut name, mut bytes) = (0, [0; 256], 0usize);
        // SAFETY: the driver has started and counted this ordinal; all targets outlive their calls, and the name's length
        // is that of the buffer.
        unsafe {
            api.device(&mut handle, ordinal)?;
            api.device_name(name.as_mut_ptr(), name.len() as c_int, handle)?;
            api.device_memory(&mut bytes, handle)?;
        }
        let attribute = |which| attribute(api, which, handle);
        let name: Vec<u8> = name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        let memory_khz = f64::from(attribute(of.memory_clock_khz)?);
        let bus_bits = f64::from(attribute(of.memory_bus_bits)?);
        let architecture = self.architecture(handle)?;
        let transfers = match architecture {
            Ok(Architecture::Gfx(gfx)) => gfx.transfers_per_clock(),
            _ => 2.0,
        };
        Ok(Device {
            driver: *self,
            ordinal,
            fault: None,
            name: String::from_utf8_lossy(&name).into_owned(),
            pci: (attribute(of.pci_domain)?, attribute(of.pci_bus)?, attribute(of.pci_device)?),
            architecture,
            memory_bytes: bytes as u64,
            memory_bytes_per_s: transfers * 1e3 * memory_khz * bus_bits / 8.0,
            multiprocessors: attribute(of.multiprocessors)?,
            clock_hz: 1e3 * f64::from(attribute(of.clock_khz)?),
        })
    }

    fn attributes(&self) -> &'static Attributes {
        self.vendor().one_of(&own::ATTRIBUTES, &hip::driver::ATTRIBUTES)
    }

    fn architecture(&self, device: c_int) -> Result<Result<Architecture, String>, Failed> {
        match &self.api.own {
            Own::Cuda(_) => {
                let [major, minor] = own::CAPABILITY.map(|which| attribute(self.api, which, device));
                Ok(Ok(Architecture::Capability(major?, minor?)))
            }
            Own::Hip(own) => match own.architecture(device) {
                Ok(name) => Ok(name.parse().map(Architecture::Gfx)),
                Err(status) => {
                    self.api.checked("hipGetDeviceProperties", status).map(|()| Err(String::new()))
                }
            },
        }
    }
}

/// What a driver tells of a device.
fn attribute(api: &'static Api, which: c_int, device: c_int) -> Result<c_int, Failed> {
    let mut value = 0;
    // SAFETY: `device` is one of the driver's; `value` outlives the call.
    unsafe { api.device_attribute(&mut value, which, device) }.map(|()| value)
}

impl Device {
    /// Whether it was told to fail so.
    pub fn is_to_fail(&self, fault: FaultKind) -> bool {
        self.fault.as_ref().is_some_and(|told| told.kind() == fault)
    }

    /// What it was told to do wrong.
    pub fn fault(&self) -> Option<&Told> {
        self.fault.as_ref()
    }

    /// The driver that it stands behind.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Whose it is.
    pub fn vendor(&self) -> Vendor {
        self.driver.vendor()
    }
}

/// A device taken into use until the last handle that needs it is freed: CUDA's primary context, or HIP's device, which
/// has none.
#[derive(Debug)]
struct ContextInner {
    api: &'static Api,
    device: c_int,
    /// Null for HIP.
    raw: Handle,
    faults: Faults,
}

// SAFETY: a context may be bound by any thread, and its calls are thread safe.
unsafe impl Send for ContextInner {}
// SAFETY: as above.
unsafe impl Sync for ContextInner {}

impl Drop for ContextInner {
    fn drop(&mut self) {
        if let Own::Cuda(own) = &self.api.own {
            // SAFETY: retained once by `Context::open`. A driver that ends with the process refuses, which changes
            // nothing.
            let _ = unsafe { (own.context_release)(self.device) };
        }
    }
}

/// A device in use.
#[derive(Clone, Debug)]
pub struct Context(Arc<ContextInner>);

impl Context {
    /// Takes the device into use.
    pub fn open(device: &Device) -> Result<Context, CudaError> {
        let (api, mut handle, mut raw) = (device.driver.api, 0, std::ptr::null_mut());
        // SAFETY: the driver has started, for there is a `Device`; the target outlives the call.
        unsafe { api.device(&mut handle, device.ordinal)? };
        if let Own::Cuda(own) = &api.own {
            // SAFETY: `handle` is a device; the target outlives the call.
            let status = unsafe { (own.context_retain)(&mut raw, handle) };
            api.checked("cuDevicePrimaryCtxRetain", status)?;
        }
        let faults = Faults::new(device.fault.clone());
        let context = Context(Arc::new(ContextInner { api, device: handle, raw, faults }));
        context.bind()?;
        Ok(context)
    }

    /// Whose device it is.
    pub fn vendor(&self) -> Vendor {
        self.api().vendor()
    }

    fn api(&self) -> &'static Api {
        self.0.api
    }

    /// Makes the calls of this thread go to this device.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as `self` lives; the device is one of the driver's.
        let (call, status) = unsafe {
            match &self.api().own {
                Own::Cuda(own) => ("cuCtxSetCurrent", (own.context_bind)(self.0.raw)),
                Own::Hip(own) => ("hipSetDevice", (own.calls.device_bind)(self.0.device)),
            }
        };
        self.api().checked(call, status).map_err(Into::into)
    }

    /// The error of a fault that stands in place of `call`.
    fn meets(&self, met: Met, (cuda, hip): (&'static str, &'static str)) -> Result<(), CudaError> {
        let call = self.vendor().one_of(cuda, hip);
        let instead = self.0.faults.instead_of(met);
        instead.map_or(Ok(()), |status| self.api().checked(call, status).map_err(Into::into))
    }

    /// What it was told to do wrong.
    pub fn faults(&self) -> &Faults {
        &self.0.faults
    }

    /// Bytes of shared memory that a block can have.
    pub fn shared_bytes_max(&self) -> Result<usize, CudaError> {
        let which = self.vendor().one_of(own::ATTRIBUTES, hip::driver::ATTRIBUTES).shared_bytes_max;
        Ok(attribute(self.api(), which, self.0.device)? as usize)
    }

    /// Multiprocessors of the card.
    pub fn multiprocessors(&self) -> Result<usize, CudaError> {
        let which = self.vendor().one_of(own::ATTRIBUTES, hip::driver::ATTRIBUTES).multiprocessors;
        Ok(attribute(self.api(), which, self.0.device)? as usize)
    }

    /// Bytes that are free now.
    pub fn free_bytes(&self) -> Result<u64, CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is bound; both targets outlive the call.
        unsafe { self.api().memory_info(&mut free, &mut total)? };
        Ok(free as u64)
    }
}

/// Memory of a card.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Context,
    address: Address,
    bytes: u64,
}

/// Part of a card's memory. It is a name, not a loan: using one whose memory was freed is an error of the card, and
/// never touches the host's memory.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    address: Address,
    bytes: u64,
}

impl DeviceMemory {
    /// Takes `bytes` bytes; nothing for none.
    pub fn new(context: &Context, bytes: u64) -> Result<DeviceMemory, CudaError> {
        context.bind()?;
        let mut address = 0;
        if bytes > 0 {
            context.meets(Met::Allocation, ("cuMemAlloc", "hipMalloc"))?;
            // SAFETY: the context is bound; the target outlives the call.
            unsafe { context.api().memory_take(&mut address, bytes as usize)? };
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
            let _ = unsafe { self.context.api().memory_free(self.address) };
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
    raw: Handle,
    /// What a graph that is being recorded needs when it runs.
    recording: Mutex<Option<Recording>>,
    /// Launches, where they are noted.
    notes: Mutex<Option<Vec<Note>>>,
}

// SAFETY: a stream may be used by any thread, one call at a time or several: the driver locks.
unsafe impl Send for StreamInner {}
// SAFETY: as above.
unsafe impl Sync for StreamInner {}

impl Drop for StreamInner {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made by `Stream::new` and destroyed once, after the last handle that uses it.
            let _ = unsafe { self.context.api().stream_destroy(self.raw) };
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
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is bound; the target outlives the call.
        unsafe { context.api().stream_make(&mut raw, flags::STREAM_NON_BLOCKING)? };
        let (recording, notes) = (Mutex::new(None), Mutex::new(None));
        Ok(Stream(Arc::new(StreamInner { context: context.clone(), raw, recording, notes })))
    }

    /// Makes the calls of this thread go to this stream's device. Launches and copies need it once a thread.
    pub fn bind(&self) -> Result<(), CudaError> {
        self.0.context.bind()
    }

    /// Waits until everything queued has run.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.api().stream_wait(self.0.raw)? };
        self.0.context.meets(Met::Wait, ("cuStreamSynchronize", "hipStreamSynchronize"))
    }

    /// What is queued from now on runs after what `event` was recorded behind.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: stream and event live; the driver keeps what it needs of them.
        unsafe { self.api().stream_wait_event(self.0.raw, event.raw, 0) }.map_err(Into::into)
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
        unsafe { self.api().copy_to_card(to.address, source, bytes as usize, self.0.raw)? };
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
        unsafe { self.api().copy_to_host(target, from.address, from.bytes as usize, self.0.raw)? };
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
        let queued = unsafe { self.api().copy_to_host(target, from.address, bytes, self.0.raw) };
        let waited = self.wait();
        queued?;
        waited
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
        let call = ("cuLaunchKernelEx", "hipModuleLaunchKernel");
        self.0.context.meets(Met::Launch, call)?;
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
        if let Some(notes) = self.0.notes.lock().as_mut() {
            notes.push(Note { kernel: kernel.clone(), grid, block, arguments: arguments.to_vec() });
        }
        let [x, y, z] = grid.map(|g| u32::try_from(g).expect("invariant: grids are counted by batches"));
        let launch = Launch {
            grid: [x, y, z],
            block: block as c_uint,
            shared_bytes: kernel.shared_bytes,
            stream: self.0.raw,
            start: kernel.start,
        };
        // SAFETY: kernel and stream live; the driver reads as many values, each of as many bytes, as the kernel has
        // parameters, which is the signature that the arguments were compared with, and copies them before it returns.
        // Spans name memory of a card, so a kernel writes no memory of the host.
        let (call, status) = unsafe {
            match &self.api().own {
                Own::Cuda(own) => (call.0, own.launch(kernel.raw, &launch, places.as_mut_ptr())),
                Own::Hip(own) => (call.1, own.launch(kernel.raw, &launch, places.as_mut_ptr())),
            }
        };
        self.api().checked(call, status).map_err(Into::into)
    }

    fn api(&self) -> &'static Api {
        self.0.context.api()
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
    raw: Handle,
}

// SAFETY: an event may be used by any thread; the driver locks.
unsafe impl Send for Event {}

// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that has passed.
    pub fn new(context: &Context) -> Result<Event, CudaError> {
        Event::with(context, flags::EVENT_UNTIMED)
    }

    /// The same, with the time at which it passes.
    pub fn timed(context: &Context) -> Result<Event, CudaError> {
        Event::with(context, flags::EVENT_TIMED)
    }

    fn with(context: &Context, flags: c_uint) -> Result<Event, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is bound; the target outlives the call.
        unsafe { context.api().event_make(&mut raw, flags)? };
        Ok(Event { context: context.clone(), raw })
    }

    /// Passes when everything that is queued now has run.
    pub fn record(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.put(stream)
    }

    /// The same for an event that is shared inside this fence.
    fn put(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: event and stream live.
        unsafe { self.context.api().event_record(self.raw, stream.0.raw) }.map_err(Into::into)
    }

    /// Waits until it has passed.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives.
        unsafe { self.context.api().event_wait(self.raw)? };
        self.context.meets(Met::Wait, ("cuEventSynchronize", "hipEventSynchronize"))
    }

    /// Nanoseconds of the card's clock between two timed events that have passed; `None` where one has not, or where
    /// the times do not rise.
    pub fn ns_since(&self, earlier: &Event) -> Option<u64> {
        let mut ms = 0.0;
        // SAFETY: both events live; the target outlives the call.
        let told = unsafe { self.context.api().event_ms(&mut ms, earlier.raw, self.raw) };
        (told.is_ok() && ms > 0.0).then_some((f64::from(ms) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made by `new` and destroyed once.
            let _ = unsafe { self.context.api().event_destroy(self.raw) };
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
        let bytes = (bytes as usize).max(1);
        let address = host_memory(context, bytes, flags::HOST_PORTABLE)?;
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
            let _ = unsafe { self.own.context.api().host_free(self.address.as_ptr()) };
        }
    }
}

/// `bytes` zeroed bytes of the host that the card reaches.
fn host_memory(context: &Context, bytes: usize, flags: c_uint) -> Result<NonNull<c_void>, CudaError> {
    let mut address = std::ptr::null_mut();
    context.bind()?;
    // SAFETY: the context is bound; the target outlives the call.
    unsafe { context.api().host_take(&mut address, bytes, flags)? };
    let address = NonNull::new(address).ok_or(CudaError::Call {
        call: context.vendor().one_of("cuMemHostAlloc", "hipHostMalloc"),
        code: "no memory".to_owned(),
        status: None,
        advice: "; close other programs",
    })?;
    // SAFETY: the call gave `bytes` bytes, which nobody else knows.
    unsafe { address.cast::<u8>().write_bytes(0, bytes) };
    Ok(address)
}
