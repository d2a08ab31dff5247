//! A stage on a CUDA card, ready to run: the shared steps, one launch an op, on one stream.
//!
//! Invariants: a run allocates nothing on the card; it ends when the card has ended, with the fault word read; the bits
//! of a row depend on that row and its state alone (`docs/numerics.md`, L1, L2).
//! Does not know: sequences, links, the split.

mod block;
mod buffers;
mod kernels;
mod launch;
mod prompt_attention;
mod steps;

use std::sync::Arc;
use std::time::Instant;

use self::block::{Block, Places};
use self::buffers::Buffers;
use self::kernels::StageKernels;
use self::launch::{Fault, Pool, Rows};
use super::CudaError;
use super::driver::{Event, PinnedMemory, Stream};
use super::kernels::Kernels;
use super::memory::{Arena, Memory};
use super::weights::Weights;
use crate::device::batch::{Batch, BatchKind, PageTables};
use crate::device::lower::{Step, Steps};
use crate::device::{CardError, LoadProgress, RunStamp, StageExec, StageSettings};
use crate::gguf;
use crate::model::facts::{CardId, KvFormat, PAGE_POSITIONS, PageId, StageProgram};
use crate::model::footprint::ItemKind;
use crate::model::footprint::gpu::GpuSizes;
use crate::model::program::{Program, StateKind};

/// Layers of a chunk that are queued ahead: a chunk that nobody wants any more ends so much later.
const LAYERS_AHEAD: usize = 2;

/// The most of a grid's second and third dimensions.
const GRID_MAX: usize = 65_535;

/// Where a value that is not finite can be met, as fault words and errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    Input,
    Router,
    Append,
    Inner,
}

impl Met {
    const ALL: [(Met, &str); 4] = [
        (Met::Input, "the input of a product"),
        (Met::Router, "the logits of a router"),
        (Met::Append, "append (a key or value)"),
        (Met::Inner, "the inner row of an expert"),
    ];

    /// Above 0.
    fn fault_id(self, layer: usize) -> u32 {
        let index = Met::ALL.iter().position(|(met, _)| *met == self);
        let index = index.expect("invariant: all places are listed");
        (1 + layer * Met::ALL.len() + index) as u32
    }

    /// What a fault word other than 0 says.
    fn of_fault(id: u32) -> (&'static str, usize) {
        let id = id as usize - 1;
        (Met::ALL[id % Met::ALL.len()].1, id / Met::ALL.len())
    }
}

/// A lowered stage. Fields are freed in order: kernels and memory before the stream.
pub struct CudaExec {
    card: CardId,
    program: Arc<Program>,
    steps: Arc<Steps>,
    kernels: StageKernels,
    weights: Weights,
    /// One for each state of the stage.
    pools: Vec<Pool>,
    pages: Arena,
    page_bytes: usize,
    buffers: Buffers,
    block: Block,
    input: PinnedMemory,
    /// Passed when a layer has run.
    layers_done: Vec<Event>,
    /// Where the residual rows of the running batch are.
    residual: Rows,
    stream: Stream,
}

/// What the steps of one batch share.
struct Run<'a> {
    /// Rows: all of the batch, or those that want logits.
    n: usize,
    batch: &'a Batch,
    places: Places,
}

impl CudaExec {
    /// Takes all memory of the stage and fills it.
    pub(super) fn new(
        mut memory: Memory<'_>,
        kernels: &Kernels,
        stage: &StageProgram,
        steps: Steps,
        file: &gguf::File,
        settings: &StageSettings,
        progress: &dyn LoadProgress,
    ) -> Result<CudaExec, CardError> {
        let card = memory.card;
        let failed = |e: CudaError| e.on(card);
        let program = stage.program.clone();
        let sizes = GpuSizes::of(&program, settings.activations);
        check(card, &program, &sizes, settings)?;
        let shared_bytes_max = memory.context.shared_bytes_max().map_err(failed)?;
        let (activations, kv) = (settings.activations, settings.kv);
        let kernels = StageKernels::new(kernels, stage, activations, kv, shared_bytes_max).map_err(failed)?;
        let stream = Stream::new(memory.context).map_err(failed)?;
        let states: Vec<StateKind> =
            program.states[steps.states.clone()].iter().map(|s| s.kind.clone()).collect();
        let (places, page_bytes) = page_places(card, &states, settings.kv)?;
        let page_memory = (page_bytes * settings.kv_pages) as u64;
        let mut pages = memory.arena(ItemKind::KvPages, page_memory)?;
        let whole = pages.cut(page_bytes * settings.kv_pages);
        let pool = |p: PagePlace| Pool {
            at: whole.from(p.at.min(page_memory as usize) as u64),
            page_bytes,
            heads: p.heads,
            key_width: p.key_width,
            value_width: p.value_width,
        };
        let pools = places.into_iter().map(pool).collect();
        let buffers = Buffers::new(&mut memory, stage, settings, &sizes)?;
        let weights = Weights::load(&mut memory, &stream, stage, file, progress)?;
        let block = Block::new(memory.context, buffers.block).map_err(failed)?;
        let input_bytes = (sizes.residual * settings.batch_rows_max) as u64;
        let input = PinnedMemory::new(memory.context, input_bytes).map_err(failed)?;
        let event = |_| Event::new(memory.context).map_err(failed);
        let layers_done = (0..LAYERS_AHEAD).map(event).collect::<Result<_, _>>()?;
        let residual = buffers.rows[program.residual.0];
        let steps = Arc::new(steps);
        Ok(CudaExec {
            card,
            program,
            steps,
            kernels,
            weights,
            pools,
            pages,
            page_bytes,
            buffers,
            block,
            input,
            layers_done,
            residual,
            stream,
        })
    }

    fn run_batch(
        &mut self,
        batch: &Batch,
        pages: &PageTables,
        input: &[f32],
        output: &mut [f32],
    ) -> Result<(), CardError> {
        let card = self.card;
        let failed = |e: CudaError| e.on(card);
        let (n, width) = (batch.rows.len(), self.program.rows[self.program.residual.0].width);
        assert!(n <= self.buffers.rows_max, "a batch of {n} rows, at most {}", self.buffers.rows_max);
        self.stream.bind().map_err(failed)?;
        let sent = self.block.send(&self.stream, &batch.rows, pages, &self.program, &self.weights);
        let places = sent.map_err(failed)?;
        self.residual = self.buffers.rows[self.program.residual.0];
        let steps = self.steps.clone();
        if steps.front.is_empty() {
            assert_eq!(input.len(), n * width, "input rows");
            let room = self.input.bytes_mut().map_err(failed)?;
            for (to, value) in room.chunks_exact_mut(4).zip(input) {
                to.copy_from_slice(&value.to_le_bytes());
            }
            let bytes = 4 * input.len() as u64;
            self.stream.upload(&mut self.input, bytes, self.residual.at).map_err(failed)?;
        }
        let run = Run { n, batch, places };
        let made = self.run_steps(&steps, &run).map_err(failed)?;
        self.stream.download(made.at, output).map_err(failed)?;
        let mut fault = [0u32];
        self.stream.download(run.places.fault, &mut fault).map_err(failed)?;
        if fault[0] == 0 || batch.interest.is_lost() {
            return Ok(());
        }
        let (op, layer) = Met::of_fault(fault[0]);
        Err(CardError::NotFinite { card, op, layer })
    }

    /// Queues everything; gives the rows that leave the stage.
    fn run_steps(&mut self, steps: &Steps, run: &Run<'_>) -> Result<Rows, CudaError> {
        let first = steps.layers.first().map_or(0, |l| l.layer);
        self.queue(&steps.front, run, first)?;
        let is_chunk = run.batch.kind() == BatchKind::Chunk;
        for (at, layer) in steps.layers.iter().enumerate() {
            if run.batch.interest.is_lost() {
                return Ok(self.leaving());
            }
            let done = &self.layers_done[at % LAYERS_AHEAD];
            if is_chunk && at >= LAYERS_AHEAD {
                done.wait()?;
            }
            self.queue(&layer.steps, run, layer.layer)?;
            if is_chunk {
                self.layers_done[at % LAYERS_AHEAD].record(&self.stream)?;
            }
        }
        if let Some(head) = self.buffers.head {
            let wanted = run.batch.logits_rows();
            if wanted > 0 {
                self.gather_wanted(run, head.wanted, wanted)?;
                let tail = Run { n: wanted, batch: run.batch, places: run.places.clone() };
                let last = steps.layers.last().map_or(0, |l| l.layer);
                self.queue(&steps.tail, &tail, last)?;
            }
        }
        Ok(self.leaving())
    }

    /// The logits, or the residual rows.
    fn leaving(&self) -> Rows {
        self.buffers.head.map_or(self.residual, |head| head.logits)
    }

    /// Puts the residual rows that want logits side by side.
    fn gather_wanted(&mut self, run: &Run<'_>, to: Rows, wanted: usize) -> Result<(), CudaError> {
        if wanted < run.n {
            let (kernel, width) = (&self.kernels.gather, to.stride);
            launch::gather(&self.stream, kernel, self.residual, to, run.places.wanted, width, wanted)?;
            self.residual = to;
        }
        Ok(())
    }

    fn queue(&mut self, steps: &[Step], run: &Run<'_>, layer: usize) -> Result<(), CudaError> {
        steps.iter().try_for_each(|step| self.step(step, run, layer))
    }

    fn fault(&self, run: &Run<'_>, met: Met, layer: usize) -> Fault {
        Fault { word: run.places.fault, id: met.fault_id(layer) }
    }
}

impl StageExec for CudaExec {
    fn run(
        &mut self,
        batch: &Batch,
        pages: &PageTables,
        input: &[f32],
        output: &mut [f32],
    ) -> Result<RunStamp, CardError> {
        let start = Instant::now();
        self.run_batch(batch, pages, input, output)?;
        Ok(RunStamp { busy_ns: start.elapsed().as_nanos() as u64 })
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), CardError> {
        if self.page_bytes == 0 {
            return Ok(());
        }
        let pages = self.pages.whole();
        let (kernel, bytes) = (&self.kernels.copy_page, self.page_bytes);
        let queued = self
            .stream
            .bind()
            .and_then(|()| launch::copy_page(&self.stream, kernel, pages, bytes, from.index(), to.index()));
        queued.map_err(|e| e.on(self.card))
    }
}

/// Refuses what the kernels do not take.
fn check(
    card: CardId,
    program: &Program,
    sizes: &GpuSizes,
    settings: &StageSettings,
) -> Result<(), CardError> {
    let unsupported = |what: String| Err(CardError::Unsupported { card, what });
    let pairs = settings.batch_rows_max * sizes.experts_used.max(1);
    if pairs > GRID_MAX {
        let rows = GRID_MAX / sizes.experts_used.max(1);
        return unsupported(format!(
            "CUDA cards take batches of up to {rows} rows of this model; lower --chunk"
        ));
    }
    // The shared memory of the router's kernel.
    const EXPERTS_MAX: usize = 1024;
    match program.choices.iter().find(|c| c.experts > EXPERTS_MAX) {
        Some(choice) => unsupported(format!(
            "CUDA cards choose among up to {EXPERTS_MAX} experts, not {}; use virtual cards (--gpus cpu:2)",
            choice.experts
        )),
        None => Ok(()),
    }
}

/// Where a state's rows lie inside a page: keys, then values, head after head.
struct PagePlace {
    at: usize,
    heads: usize,
    key_width: usize,
    value_width: usize,
}

/// Places of all states in a page, and its bytes.
fn page_places(
    card: CardId,
    states: &[StateKind],
    kv: KvFormat,
) -> Result<(Vec<PagePlace>, usize), CardError> {
    let (mut places, mut page_bytes) = (Vec::new(), 0);
    for state in states {
        let StateKind::Paged { heads, key_width, value_width } = *state else { continue };
        if kv == KvFormat::Q8_0 && (key_width % 32 != 0 || value_width % 32 != 0) {
            let what = format!("--kv q8_0 needs heads of whole 32 values, not {key_width}; use --kv f16");
            return Err(CardError::Unsupported { card, what });
        }
        places.push(PagePlace { at: page_bytes, heads, key_width, value_width });
        page_bytes += heads * PAGE_POSITIONS * (kv.row_bytes(key_width) + kv.row_bytes(value_width));
    }
    Ok((places, page_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_words_name_place_and_layer() {
        for (met, text) in Met::ALL {
            for layer in [0, 1, 93] {
                let id = met.fault_id(layer);
                assert_ne!(id, 0);
                assert_eq!(Met::of_fault(id), (text, layer));
            }
        }
    }
}
