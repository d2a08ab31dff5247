//! Captured graphs: what a stream was given while one was recorded, given again in one call.
//!
//! Invariants: a graph keeps the code of its kernels loaded; it is launched with a borrow of all pinned memory that it
//! uses, which is then in use until the launch has ended. Spans in it are names, as in every launch.
//! Does not know: what is recorded, when a graph fits.

#![allow(unsafe_code, reason = "calls of a foreign library; every handle is made and freed in this file")]

use std::sync::Arc;

use super::api::{Api, Handle, flags};
use super::{Event, Module, PinnedMemory, Stream};
use crate::device::cuda::CudaError;
use crate::device::cuda::faults::Met;

/// What a graph needs when it runs.
#[derive(Debug, Default)]
pub(super) struct Recording {
    modules: Vec<Module>,
    /// Ids of pinned memory.
    pinned: Vec<u64>,
}

impl Recording {
    pub(super) fn keep_module(&mut self, module: &Module) {
        if !self.modules.iter().any(|m| m.is(module)) {
            self.modules.push(module.clone());
        }
    }

    pub(super) fn keep_pinned(&mut self, id: u64) {
        if !self.pinned.contains(&id) {
            self.pinned.push(id);
        }
    }
}

/// Work of a stream, ready to be queued there at once, any number of times.
#[derive(Debug)]
pub struct Graph {
    stream: Stream,
    raw: Handle,
    needs: Recording,
    /// Passes when the last launch has run.
    done: Arc<Event>,
}

// SAFETY: a graph may be used by any thread, one call at a time, which `&mut self` ensures.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.stream.bind().is_ok() {
            // SAFETY: made by `Stream::record` and destroyed once; a launch that runs goes on to its end.
            let _ = unsafe { self.stream.api().graph_exec_destroy(self.raw) };
        }
    }
}

impl Stream {
    /// Records what `queue` gives this stream, which does not run. Waiting, taking memory and copies by pageable memory
    /// are errors meanwhile.
    pub fn record<E: From<CudaError>>(&self, queue: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        self.bind()?;
        let done = Arc::new(Event::new(&self.0.context)?);
        // SAFETY: the stream lives.
        let begun = unsafe { self.api().capture_begin(self.0.raw, flags::CAPTURE_THREAD_LOCAL) };
        begun.map_err(CudaError::from)?;
        let open = OpenRecording::new(self);
        let queued = queue();
        let (needs, graph) = open.end()?;
        queued?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph lives; the target outlives the call.
        let made = unsafe { self.api().graph_instantiate(&mut raw, graph.raw, 0) };
        made.map_err(CudaError::from)?;
        Ok(Graph { stream: self.clone(), raw, needs, done })
    }
}

/// A recording that ends whatever happens, so that the stream is well again.
struct OpenRecording<'a> {
    stream: &'a Stream,
}

impl<'a> OpenRecording<'a> {
    fn new(stream: &'a Stream) -> OpenRecording<'a> {
        let before = stream.0.recording.lock().replace(Recording::default());
        assert!(before.is_none(), "a recording inside a recording");
        OpenRecording { stream }
    }

    /// What the graph needs, and the graph.
    fn end(self) -> Result<(Recording, Template), CudaError> {
        let needs = self.stream.0.recording.lock().take().unwrap_or_default();
        let mut raw = std::ptr::null_mut();
        // SAFETY: the stream lives; the target outlives the call.
        let ended = unsafe { self.stream.api().capture_end(self.stream.0.raw, &mut raw) };
        let graph = Template { api: self.stream.api(), raw };
        ended?;
        Ok((needs, graph))
    }
}

impl Drop for OpenRecording<'_> {
    fn drop(&mut self) {
        if self.stream.0.recording.lock().take().is_some() {
            let mut raw = std::ptr::null_mut();
            // SAFETY: as in `end`, which has not run.
            let _ = unsafe { self.stream.api().capture_end(self.stream.0.raw, &mut raw) };
            drop(Template { api: self.stream.api(), raw });
        }
    }
}

/// A graph that cannot run yet; null for one that failed.
struct Template {
    api: &'static Api,
    raw: Handle,
}

impl Drop for Template {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: made by the end of a capture and destroyed once.
            let _ = unsafe { self.api.graph_destroy(self.raw) };
        }
    }
}

impl Graph {
    /// Queues all of it. `pinned` holds at least the pinned memory that was recorded.
    pub fn launch(&mut self, pinned: &mut [&mut PinnedMemory]) -> Result<(), CudaError> {
        let borrowed = |id: &u64| pinned.iter().any(|p| p.id == *id);
        assert!(
            self.needs.pinned.iter().all(borrowed),
            "a graph is launched with all pinned memory that it uses"
        );
        self.stream.0.context.meets(Met::Launch, ("cuGraphLaunch", "hipGraphLaunch"))?;
        for memory in pinned.iter_mut() {
            memory.used_until(&self.stream, &self.done)?;
        }
        // SAFETY: graph and stream live; its kernels' code is kept by `needs`; all pinned memory in it is borrowed, and
        // is neither touched nor freed before `done` has passed, which later launches on the same stream only put off.
        unsafe { self.stream.api().graph_launch(self.raw, self.stream.0.raw)? };
        // Without its event the memory is free only when all has run.
        self.done.put(&self.stream).or_else(|error| self.stream.wait().and(Err(error)))
    }
}
