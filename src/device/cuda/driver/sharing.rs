//! What cards share with each other and with the host: mapped memory, peer access, copies between cards, times of events.
//!
//! Invariants: as in `driver`; mapped memory outlives no handle that names it, and the host touches it by whole words
//! only, atomically, as the cards do. Does not know: kernels, links.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use cudarc::driver::sys;

use super::{Context, Device, Event, Span, Stream, checked};
use crate::device::cuda::CudaError;
use crate::device::cuda::faults::Met;

impl Device {
    /// Whether the system lets this device's work touch memory of `other`.
    pub fn can_reach(&self, other: &Device) -> Result<bool, CudaError> {
        let (mut own, mut peer, mut can) = (0, 0, 0);
        // SAFETY: the driver has started and counted both devices; all targets outlive their calls.
        unsafe {
            checked("cuDeviceGet", sys::cuDeviceGet(&mut own, self.ordinal))?;
            checked("cuDeviceGet", sys::cuDeviceGet(&mut peer, other.ordinal))?;
            checked("cuDeviceCanAccessPeer", sys::cuDeviceCanAccessPeer(&mut can, own, peer))?;
        }
        Ok(can != 0)
    }
}

impl Context {
    /// Whether both are the same device's.
    pub fn is(&self, other: &Context) -> bool {
        self.0.device == other.0.device
    }

    /// Lets this device's work touch memory of `other` from now on.
    pub fn reach(&self, other: &Context) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: this context is bound, the other one is retained.
        match unsafe { sys::cuCtxEnablePeerAccess(other.0.raw, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            status => checked("cuCtxEnablePeerAccess", status),
        }
    }
}

/// Host memory that every card reads and writes in place.
#[derive(Debug)]
pub struct MappedMemory {
    context: Context,
    address: NonNull<c_void>,
    span: Span,
}

// SAFETY: the memory is freed once, by its owner; the host reaches it through atomic words.
unsafe impl Send for MappedMemory {}
// SAFETY: as above.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// `bytes` zeroed bytes, at least one word.
    pub fn new(context: &Context, bytes: u64) -> Result<MappedMemory, CudaError> {
        context.bind()?;
        let (mut address, mut device) = (std::ptr::null_mut(), 0);
        let bytes = bytes.next_multiple_of(4).max(4);
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is bound; the target outlives the call.
        checked("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut address, bytes as usize, flags) })?;
        let address = NonNull::new(address).ok_or(CudaError::Call {
            call: "cuMemHostAlloc",
            code: "no memory".to_owned(),
            advice: "; close other programs",
        })?;
        // SAFETY: the call gave `bytes` bytes, which nobody else knows.
        unsafe { address.cast::<u8>().write_bytes(0, bytes as usize) };
        let span = |address| Span { address, bytes };
        let mut memory = MappedMemory { context: context.clone(), address, span: span(0) };
        // SAFETY: the memory was asked for as mapped; the target outlives the call.
        checked("cuMemHostGetDevicePointer", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut device, address.as_ptr(), 0)
        })?;
        memory.span = span(device);
        Ok(memory)
    }

    /// All of it, as cards see it.
    pub fn span(&self) -> Span {
        self.span
    }

    /// The word `index` words from the start.
    pub fn word(&self, index: usize) -> &AtomicU32 {
        &self.words(index, 1)[0]
    }

    /// `count` words, the first of them `first` words from the start.
    pub fn words(&self, first: usize, count: usize) -> &[AtomicU32] {
        let words = self.span.bytes as usize / 4;
        let is_inside = first.checked_add(count).is_some_and(|end| end <= words);
        assert!(is_inside, "{count} words from word {first} on of {words}");
        // SAFETY: the memory is `words` words, aligned to more than a word, and lives as long as `self`; everybody
        // reads and writes its words whole, the host as atomics, which have a word's layout.
        unsafe { std::slice::from_raw_parts(self.address.cast::<AtomicU32>().as_ptr().add(first), count) }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated by `new` and freed once, by the last owner of whatever names it.
            let _ = unsafe { sys::cuMemFreeHost(self.address.as_ptr()) };
        }
    }
}

impl Stream {
    /// The device that it queues work for.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Queues filling a span with zeros.
    pub fn zero(&self, span: Span) -> Result<(), CudaError> {
        if span.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the span names memory of a card; the stream lives.
        let status = unsafe { sys::cuMemsetD8Async(span.address, 0, span.bytes as usize, self.0.raw) };
        checked("cuMemsetD8Async", status)
    }

    /// Queues a copy of this card's memory into that of `other`.
    pub fn copy_to(&self, from: Span, other: &Context, to: Span) -> Result<(), CudaError> {
        assert!(from.bytes <= to.bytes, "{} B to {} B", from.bytes, to.bytes);
        let (own, bytes) = (self.0.context.0.raw, from.bytes as usize);
        // SAFETY: both spans name memory of cards in use, and the range was checked; the stream lives.
        let status =
            unsafe { sys::cuMemcpyPeerAsync(to.address, other.0.raw, from.address, own, bytes, self.0.raw) };
        checked("cuMemcpyPeerAsync", status)
    }
}

impl Event {
    /// Waits until work before this event has shown a sign in mapped memory, or until the event has passed. `look` is asked
    /// over and over whether the sign is there, by a thread that lets others have its CPU; the driver, which takes
    /// microseconds to answer, only now and then.
    pub fn wait_for_sign(&self, mut look: impl FnMut() -> bool) -> Result<(), CudaError> {
        const LOOKS: usize = 64;
        const ASKING: Duration = Duration::from_micros(500);
        let mut asked = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if look() {
                    return self.context.meets(Met::Wait, "cuEventQuery");
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now - asked >= ASKING {
                if self.has_passed()? {
                    return Ok(());
                }
                asked = now;
            }
            std::thread::yield_now();
        }
    }

    /// Whether it has passed.
    pub fn has_passed(&self) -> Result<bool, CudaError> {
        // SAFETY: the event lives.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => {
                checked("cuEventQuery", status)?;
                self.context.meets(Met::Wait, "cuEventQuery").map(|()| true)
            }
        }
    }
}
