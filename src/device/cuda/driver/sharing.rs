//! What cards share with each other and with the host: mapped memory, peer access, copies between cards, times of events.
//!
//! Invariants: as in `driver`; mapped memory outlives no handle that names it, and the host touches it by whole words
//! only, atomically, as the cards do. Does not know: kernels, links.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use super::api::{Own, flags, status};
use super::{Context, Device, Event, Span, Stream, host_memory};
use crate::device::cuda::CudaError;
use crate::device::cuda::faults::Met;
use crate::device::hip;

impl Device {
    /// Whether the system lets this device's work touch memory of `other`. Behind two drivers it never does.
    pub fn can_reach(&self, other: &Device) -> Result<bool, CudaError> {
        if self.vendor() != other.vendor() {
            return Ok(false);
        }
        let (api, mut own, mut peer, mut can) = (self.driver.api, 0, 0, 0);
        // SAFETY: the driver has started and counted both devices; all targets outlive their calls.
        unsafe {
            api.device(&mut own, self.ordinal)?;
            api.device(&mut peer, other.ordinal)?;
            api.device_reaches(&mut can, own, peer)?;
        }
        Ok(can != 0)
    }
}

impl Context {
    /// Whether both are the same device's.
    pub fn is(&self, other: &Context) -> bool {
        self.vendor() == other.vendor() && self.0.device == other.0.device
    }

    /// Lets this device's work touch memory of `other` from now on.
    pub fn reach(&self, other: &Context) -> Result<(), CudaError> {
        assert_eq!(self.vendor(), other.vendor(), "cards behind two drivers share no memory");
        self.bind()?;
        // SAFETY: this context is bound, the other one is in use.
        let (call, status) = unsafe {
            match &self.api().own {
                Own::Cuda(own) => ("cuCtxEnablePeerAccess", (own.peer_enable)(other.0.raw, 0)),
                Own::Hip(own) => ("hipDeviceEnablePeerAccess", (own.calls.peer_enable)(other.0.device, 0)),
            }
        };
        match status {
            status::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            status => self.api().checked(call, status).map_err(Into::into),
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
        let (bytes, mut device) = (bytes.next_multiple_of(4).max(4), 0);
        let coherent = context.vendor().one_of(0, hip::driver::HOST_COHERENT);
        let flags = flags::HOST_PORTABLE | flags::HOST_MAPPED | coherent;
        let address = host_memory(context, bytes as usize, flags)?;
        let span = |address| Span { address, bytes };
        let mut memory = MappedMemory { context: context.clone(), address, span: span(0) };
        // SAFETY: the memory was asked for as mapped; the target outlives the call.
        unsafe { context.api().host_on_device(&mut device, address.as_ptr(), 0)? };
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
            let _ = unsafe { self.context.api().host_free(self.address.as_ptr()) };
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
        unsafe { self.api().fill(span.address, 0, span.bytes as usize, self.0.raw) }.map_err(Into::into)
    }

    /// Queues a copy of this card's memory into that of `other`.
    pub fn copy_to(&self, from: Span, other: &Context, to: Span) -> Result<(), CudaError> {
        assert!(from.bytes <= to.bytes, "{} B to {} B", from.bytes, to.bytes);
        let (here, there, bytes) = (&self.0.context.0, &other.0, from.bytes as usize);
        let (from, to, stream) = (from.address, to.address, self.0.raw);
        // SAFETY: both spans name memory of cards in use, and the range was checked; the stream lives.
        let status = unsafe {
            match &self.api().own {
                Own::Cuda(own) => (own.peer_copy)(to, there.raw, from, here.raw, bytes, stream),
                Own::Hip(own) => (own.calls.peer_copy)(to, there.device, from, here.device, bytes, stream),
            }
        };
        let call = self.context().vendor().one_of("cuMemcpyPeerAsync", "hipMemcpyPeerAsync");
        self.api().checked(call, status).map_err(Into::into)
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
                    return self.context.meets(Met::Wait, ("cuEventQuery", "hipEventQuery"));
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
        match unsafe { self.context.api().event_query(self.raw) } {
            Err(failed) if failed.status == status::NOT_READY => Ok(false),
            Err(failed) => Err(failed.into()),
            Ok(()) => self.context.meets(Met::Wait, ("cuEventQuery", "hipEventQuery")).map(|()| true),
        }
    }
}
