//! Compiled code on a card: modules, their kernels, and what a launch gives a kernel.
//!
//! Invariants: a kernel keeps its module loaded; a launch has the arguments of the kernel's signature. Does not know: kernels
//! by name, what a launch is for.

#![allow(unsafe_code, reason = "calls of a foreign library; every handle is made and freed in this file")]

use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::sync::Arc;

use parking_lot::Mutex;

use super::api::{Handle, Own, status};
use super::{Context, Span};
use crate::device::cuda::CudaError;
use crate::device::cuda::faults::Met;

/// The most arguments of a kernel.
pub(super) const ARGUMENTS_MAX: usize = 37;

#[derive(Debug)]
struct ModuleInner {
    context: Context,
    raw: Handle,
    /// What the driver said of blocks at once, by function, threads and shared memory: each recording of a launch asks.
    residents: Mutex<BTreeMap<(usize, usize, u32), usize>>,
    /// CUDA's driver copies it; HIP's library does not promise to.
    _image: Vec<u8>,
}

// SAFETY: a module may be used by any thread; the driver locks.
unsafe impl Send for ModuleInner {}
// SAFETY: as above.
unsafe impl Sync for ModuleInner {}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded by `Module::load` and unloaded once, after the last kernel that is from it.
            let _ = unsafe { self.context.api().module_unload(self.raw) };
        }
    }
}

/// Compiled kernels on a card.
#[derive(Clone, Debug)]
pub struct Module(Arc<ModuleInner>);

impl Module {
    /// Loads a compiler's output: a cubin, PTX, or AMD's code object.
    pub fn load(context: &Context, image: &[u8]) -> Result<Module, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        context.meets(Met::Module, ("cuModuleLoadData", "hipModuleLoadData"))?;
        // PTX is text and ends with a zero; one more byte hurts no machine code.
        let image: Vec<u8> = image.iter().copied().chain([0]).collect();
        // SAFETY: the context is bound; the image is whole, ends with a zero and lives as long as the module.
        unsafe { context.api().module_load(&mut raw, image.as_ptr().cast())? };
        Ok(Module(Arc::new(ModuleInner {
            context: context.clone(),
            raw,
            residents: Mutex::default(),
            _image: image,
        })))
    }

    /// Whether it is the same one.
    pub(super) fn is(&self, other: &Module) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The kernel of this name; `None` where there is none. `signature` is that of its source, `start` what it waits for.
    pub fn kernel(
        &self,
        name: &str,
        signature: &'static [Parameter],
        start: Start,
    ) -> Result<Option<Kernel>, CudaError> {
        assert!(signature.len() <= ARGUMENTS_MAX, "{name}: {} parameters", signature.len());
        self.0.context.bind()?;
        let (mut raw, text) = (std::ptr::null_mut(), CString::new(name));
        let text = text.expect("invariant: names of kernels are those of the sources");
        // SAFETY: the module lives; name and target outlive the call.
        let found = unsafe { self.0.context.api().module_function(&mut raw, self.0.raw, text.as_ptr()) };
        match found {
            Ok(()) => {
                let (module, name) = (self.clone(), name.to_owned());
                Ok(Some(Kernel { module, raw, name, signature, start, shared_bytes: 0 }))
            }
            Err(failed) if failed.status == status::NOT_FOUND => Ok(None),
            Err(failed) => Err(failed.into()),
        }
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
    pub(super) module: Module,
    pub(super) raw: Handle,
    pub(super) name: String,
    pub(super) signature: &'static [Parameter],
    pub(super) start: Start,
    /// Dynamic shared memory of every launch.
    pub(super) shared_bytes: u32,
}

impl Kernel {
    /// The same kernel, with so much dynamic shared memory in every launch.
    pub fn with_shared(self, bytes: usize) -> Result<Kernel, CudaError> {
        let context = &self.module.0.context;
        context.bind()?;
        let shared_bytes = u32::try_from(bytes).expect("invariant: shared memory is counted in KiB");
        // HIP's launches may have all that a block can have.
        if let Own::Cuda(own) = &context.api().own {
            // SAFETY: the module lives, and with it the function.
            let status = unsafe { own.allow_shared(self.raw, shared_bytes as c_int) };
            context.api().checked("cuFuncSetAttribute", status)?;
        }
        Ok(Kernel { shared_bytes, ..self })
    }

    /// The same kernel, with less dynamic shared memory in every launch, or as much.
    pub fn with_less_shared(&self, bytes: usize) -> Kernel {
        assert!(bytes <= self.shared_bytes as usize, "{}: {bytes} B of {}", self.name, self.shared_bytes);
        Kernel { shared_bytes: bytes as u32, ..self.clone() }
    }

    /// Blocks of so many threads that a multiprocessor has at once. The driver is asked once.
    pub fn resident(&self, threads: usize) -> Result<usize, CudaError> {
        let ModuleInner { context, residents, .. } = &*self.module.0;
        let key = (self.raw.addr(), threads, self.shared_bytes);
        if let Some(&blocks) = residents.lock().get(&key) {
            return Ok(blocks);
        }
        context.bind()?;
        let (mut blocks, threads) = (0, c_int::try_from(threads).expect("invariant: threads of a block"));
        // SAFETY: the module lives, and with it the function; the target outlives the call.
        unsafe { context.api().function_occupancy(&mut blocks, self.raw, threads, self.shared_bytes())? };
        residents.lock().insert(key, blocks as usize);
        Ok(blocks as usize)
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
    pub(super) fn kind(&self) -> Parameter {
        match self {
            Argument::Pointer(_) => Parameter::Pointer,
            Argument::I32(_) => Parameter::I32,
            Argument::U32(_) => Parameter::U32,
            Argument::F32(_) => Parameter::F32,
            Argument::I64(_) => Parameter::I64,
        }
    }

    /// In the low bytes, where a little-endian host reads a narrower value.
    pub(super) fn bits(&self) -> u64 {
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
