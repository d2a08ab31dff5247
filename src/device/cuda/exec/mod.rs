//! A stage on a CUDA card, ready to run: the shared steps on one stream, a window's as one graph.
//!
//! Invariants: a run allocates nothing on the card but the graphs of new shapes; it ends when the card has ended, with
//! the fault word read; a graph holds what the same code queues without one; the bits of a row depend on that row and
//! its state alone (`docs/numerics.md`, L1, L2).
//! Does not know: sequences, whose turn a slot of a link is, the split.

mod angles;
mod block;
mod buffers;
mod fuse;
mod graphs;
mod kernels;
mod launch;
mod link;
mod prompt;
mod prompt_attention;
mod steps;
mod tile_attention;

use std::sync::Arc;
use std::time::Instant;

use self::angles::Angles;
use self::block::{Block, HandOff, Places, States};
use self::buffers::Buffers;
use self::fuse::{Launch, Launches};
use self::graphs::{Graphs, Shape};
use self::kernels::StageKernels;
use self::launch::{Fault, Pool, Rows};
use self::link::Links;
use super::CudaError;
use super::driver::graph::Graph;
use super::driver::{Event, PinnedMemory, Stream};
use super::kernels::Kernels;
use super::links::side::{self, LinkKernels};
use super::memory::{Arena, Memory};
use super::weights::Weights;
use crate::device::batch::{Batch, BatchKind, PageTables};
use crate::device::lower::Steps;
use crate::device::{
    BesideExec, CardError, CardSlot, LoadProgress, RowsIn, RunStamp, StageExec, StageSettings,
};
use crate::gguf;
use crate::model::facts::{CardId, KvFormat, PAGE_POSITIONS, PageId, StageProgram, WINDOW_ROWS_MAX};
use crate::model::footprint::ItemKind;
use crate::model::footprint::gpu::GpuSizes;
use crate::model::program::{Program, StateKind};

/// Layers of a chunk that are queued ahead: a chunk that nobody wants any more ends so much later.
const LAYERS_AHEAD: usize = 2;

/// Where the values lie in the memory that results arrive in; the fault word lies at its start.
const VALUES_AT: usize = 64;

/// Where a fault word holds its card; a plan has fewer than 64.
const CARD_SHIFT: u32 = 24;

/// The most of a grid's second and third dimensions: rows of a batch.
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

    /// Above 0, and below the words of links. It travels with the rows, so it names the card too.
    fn fault_id(self, card: CardId, layer: usize) -> u32 {
        let index = Met::ALL.iter().position(|(met, _)| *met == self);
        let index = index.expect("invariant: all places are listed");
        card.0 << CARD_SHIFT | (1 + layer * Met::ALL.len() + index) as u32
    }

    /// What a fault word other than 0 says.
    fn of_fault(id: u32) -> (CardId, &'static str, usize) {
        let place = (id & ((1 << CARD_SHIFT) - 1)) as usize - 1;
        (CardId(id >> CARD_SHIFT), Met::ALL[place % Met::ALL.len()].1, place / Met::ALL.len())
    }
}

/// How a window's launches come to the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queueing {
    /// As one graph.
    #[default]
    Graphs,
    /// One by one, as a chunk's: for tests, and for tools that look into a launch.
    Launches,
}

/// A lowered stage. Fields are freed in order: graphs, kernels and memory before the stream.
pub struct CudaExec {
    card: CardId,
    program: Arc<Program>,
    launches: Arc<Launches>,
    queueing: Queueing,
    graphs: Graphs<Graph>,
    kernels: StageKernels,
    weights: Weights,
    /// One for each state of the stage.
    pools: Vec<Pool>,
    pages: Arena,
    page_bytes: usize,
    buffers: Buffers,
    block: Block,
    angles: Angles,
    context_pages: usize,
    links: Links,
    input: PinnedMemory,
    /// The fault word, and behind it the rows or logits of a batch as far as they have room.
    results: PinnedMemory,
    /// Before the first and behind the last launch of a batch.
    begun: Event,
    ended: Event,
    /// Passed when a layer has run.
    layers_done: Vec<Event>,
    /// Where the residual rows of the running batch are.
    residual: Rows,
    started: Option<Started>,
    stream: Stream,
}

/// A batch that was queued and is to be finished.
struct Started {
    at: Instant,
    /// What leaves the stage, dense.
    made: Rows,
}

/// What the steps of one batch share.
struct Run<'a> {
    /// Rows: all of the batch, or those that want logits.
    n: usize,
    batch: &'a Batch,
    places: Places,
    /// The turn in which rows leave.
    leaving: Option<CardSlot>,
    is_cancelled: &'a dyn Fn() -> bool,
}

impl Run<'_> {
    /// Whether the kernels of windows serve its rows.
    fn is_window(&self) -> bool {
        self.n <= WINDOW_ROWS_MAX
    }
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
        check(card, &program, settings)?;
        let links = LinkKernels::new(kernels).map_err(failed)?;
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
        // Logits of more rows than a window's are fetched without it.
        let made_bytes = match buffers.head {
            Some(_) => (sizes.vocab * settings.logits_rows_max.min(WINDOW_ROWS_MAX)) as u64,
            None => input_bytes,
        };
        let results = PinnedMemory::new(memory.context, VALUES_AT as u64 + made_bytes).map_err(failed)?;
        let [begun, ended] = [Event::timed(memory.context), Event::timed(memory.context)];
        let angles = Angles::new(program.clone(), |id| weights.divisors(id).to_vec());
        let event = |_| Event::new(memory.context).map_err(failed);
        let layers_done = (0..LAYERS_AHEAD).map(event).collect::<Result<_, _>>()?;
        let residual = buffers.rows[program.residual.0];
        let launches = Arc::new(fuse::fuse(&program, &steps));
        Ok(CudaExec {
            card,
            program,
            launches,
            queueing: Queueing::default(),
            graphs: Graphs::new(),
            kernels,
            weights,
            pools,
            pages,
            page_bytes,
            buffers,
            block,
            angles,
            context_pages: settings.context.div_ceil(PAGE_POSITIONS),
            links: Links::new(links),
            input,
            results,
            begun: begun.map_err(failed)?,
            ended: ended.map_err(failed)?,
            layers_done,
            residual,
            started: None,
            stream,
        })
    }

    /// How windows are queued from now on.
    pub(super) fn queue_by(&mut self, queueing: Queueing) {
        self.queueing = queueing;
    }

    /// Queues a batch. A window is queued without waiting for the card.
    fn start_batch(
        &mut self,
        batch: &Batch,
        pages: &PageTables,
        (input, leaving): (RowsIn<'_>, Option<CardSlot>),
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Started, CudaError> {
        let at = Instant::now();
        let (n, width) = (batch.rows.len(), self.program.rows[self.program.residual.0].width);
        assert!(n <= self.buffers.rows_max, "a batch of {n} rows, at most {}", self.buffers.rows_max);
        self.stream.bind()?;
        let states = States::of(&batch.rows);
        let shape = Shape::of(batch, &states, self.buffers.head.is_some(), self.context_pages);
        let arriving = if let RowsIn::Card(turn) = input { Some(turn) } else { None };
        self.links.check(arriving, leaving);
        let hand_off = HandOff::of(arriving, leaving);
        let places = self.block.fill(batch, (&shape, &states), pages, hand_off, &mut self.angles)?;
        if let (RowsIn::Host(input), true) = (input, self.takes_rows()) {
            assert_eq!(input.len(), n * width, "input rows");
            self.input.values_mut(0, input.len())?.copy_from_slice(input);
        }
        self.begun.record(&self.stream)?;
        let run = Run { n, batch, places, leaving, is_cancelled };
        if batch.kind() == BatchKind::Window && self.queueing == Queueing::Graphs {
            let mut graph = match self.graphs.take(&shape) {
                Some(graph) => graph,
                None => self.stream.clone().record(|| self.queue_batch(&run))?,
            };
            let launched = graph.launch(&mut [&mut self.block.pinned, &mut self.input, &mut self.results]);
            self.graphs.keep(shape, graph);
            launched?;
        } else {
            self.queue_batch(&run)?;
        }
        self.ended.record(&self.stream)?;
        Ok(Started { at, made: self.leaving() })
    }

    /// Waits until the card has run a batch, and takes what it made: the card's nanoseconds.
    fn finish_batch(
        &mut self,
        made: Rows,
        batch: &Batch,
        output: &mut [f32],
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<u64>, CardError> {
        let card = self.card;
        let failed = |e: CudaError| e.on(card);
        // What the next batch asks for, most likely, while this one runs.
        let rows = batch.rows.len() as u32;
        batch.rows.iter().for_each(|row| self.angles.prepare(row.position + rows));
        self.wait_watched(&self.ended, is_cancelled).map_err(failed)?;
        let device_ns = self.ended.ns_since(&self.begun);
        let fault = self.results.values_mut::<u32>(0, 1).map_err(failed)?[0];
        let lost = |what: &str| Err(CardError::Rows { card, what: what.to_owned() });
        match fault {
            side::LATE => return lost("the rows of the card before did not come in time; end its requests"),
            side::ENDED => return lost("the card before is gone, or the engine ends; open the stages anew"),
            fault if fault != 0 && !batch.interest.is_lost() => {
                // Of rows that were at fault when they came, this names the card, op and layer that made them so.
                let (card, op, layer) = Met::of_fault(fault);
                return Err(CardError::NotFinite { card, op, layer });
            }
            _ => {}
        }
        if output.is_empty() {
            return Ok(device_ns);
        }
        if self.has_room(output.len()) {
            let values = self.results.values_mut(VALUES_AT, output.len()).map_err(failed)?;
            output.copy_from_slice(values);
        } else {
            self.stream.download(made.at, output).map_err(failed)?;
        }
        Ok(device_ns)
    }

    /// Whether rows of the stage before arrive here.
    fn takes_rows(&self) -> bool {
        self.launches.front.is_empty()
    }

    /// Whether results of so many values are fetched with the batch.
    fn has_room(&self, values: usize) -> bool {
        (VALUES_AT + 4 * values) as u64 <= self.results.bytes()
    }

    /// Queues all that the card does for a batch: what arrives, the steps, what is fetched.
    fn queue_batch(&mut self, run: &Run<'_>) -> Result<(), CudaError> {
        self.residual = self.buffers.rows[self.program.residual.0];
        self.block.send(&self.stream)?;
        let width = self.program.rows[self.program.residual.0].width;
        if self.links.arrive() {
            self.await_rows(run.n * width, run.places.link_in())?;
        } else if self.takes_rows() {
            self.stream.upload(&mut self.input, (4 * run.n * width) as u64, self.residual.at)?;
        }
        let launches = self.launches.clone();
        let made = self.run_launches(&launches, run)?;
        if let Some(turn) = run.leaving {
            self.post_rows(run, turn, run.n * width)?;
            return self.stream.fetch(run.places.fault, &mut self.results, 0);
        }
        let values = match self.buffers.head {
            Some(_) => run.batch.logits_rows() * self.program.facts.vocab,
            None => run.n * width,
        };
        if self.has_room(values) {
            self.stream.fetch(made.at.part(0, 4 * values as u64), &mut self.results, VALUES_AT as u64)?;
        }
        self.stream.fetch(run.places.fault, &mut self.results, 0)
    }

    /// Queues the launches; gives the rows that leave the stage.
    fn run_launches(&mut self, launches: &Launches, run: &Run<'_>) -> Result<Rows, CudaError> {
        let first = launches.layers.first().map_or(0, |l| l.layer);
        self.queue(&launches.front, run, first)?;
        let is_chunk = run.batch.kind() == BatchKind::Chunk;
        for (at, layer) in launches.layers.iter().enumerate() {
            if is_chunk && run.batch.interest.is_lost() {
                return Ok(self.leaving());
            }
            if is_chunk && at >= LAYERS_AHEAD {
                self.wait_watched(&self.layers_done[at % LAYERS_AHEAD], run.is_cancelled)?;
            }
            self.queue(&layer.launches, run, layer.layer)?;
            if is_chunk {
                self.layers_done[at % LAYERS_AHEAD].record(&self.stream)?;
            }
        }
        if let Some(head) = self.buffers.head {
            let wanted = run.batch.logits_rows();
            if wanted > 0 {
                self.gather_wanted(run, head.wanted, wanted)?;
                let tail = Run { n: wanted, places: run.places.clone(), ..*run };
                let last = launches.layers.last().map_or(0, |l| l.layer);
                self.queue(&launches.tail, &tail, last)?;
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

    fn queue(&mut self, launches: &[Launch], run: &Run<'_>, layer: usize) -> Result<(), CudaError> {
        launches.iter().try_for_each(|launch| self.launch(launch, run, layer))
    }

    fn fault(&self, run: &Run<'_>, met: Met, layer: usize) -> Fault {
        Fault { word: run.places.fault, id: met.fault_id(self.card, layer) }
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
        self.start(batch, pages, RowsIn::Host(input), None, &|| false)?;
        self.finish(batch, output, &|| false)
    }

    fn beside(&mut self) -> Option<&mut dyn BesideExec> {
        Some(self)
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

impl BesideExec for CudaExec {
    fn start(
        &mut self,
        batch: &Batch,
        pages: &PageTables,
        input: RowsIn<'_>,
        output: Option<CardSlot>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), CardError> {
        let started = self.start_batch(batch, pages, (input, output), is_cancelled);
        self.started = Some(started.map_err(|e| e.on(self.card))?);
        Ok(())
    }

    fn finish(
        &mut self,
        batch: &Batch,
        output: &mut [f32],
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<RunStamp, CardError> {
        let Started { at, made } =
            self.started.take().expect("invariant: a batch is started before it is finished");
        let device_ns = self.finish_batch(made, batch, output, is_cancelled)?;
        let (busy_ns, waited_ns) = (at.elapsed().as_nanos() as u64, self.waited_ns());
        Ok(RunStamp { busy_ns, device_ns, waited_ns: waited_ns.min(busy_ns) })
    }
}

/// Refuses what the kernels do not take.
fn check(card: CardId, program: &Program, settings: &StageSettings) -> Result<(), CardError> {
    let unsupported = |what: String| Err(CardError::Unsupported { card, what });
    if settings.batch_rows_max > GRID_MAX {
        return unsupported(format!("CUDA cards take batches of up to {GRID_MAX} rows; lower --chunk"));
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
    fn fault_words_name_card_place_and_layer() {
        for (met, text) in Met::ALL {
            for (card, layer) in [(0, 0), (1, 1), (62, 93)].map(|(c, l)| (CardId(c), l)) {
                let id = met.fault_id(card, layer);
                assert!(id > 0 && id < side::LATE);
                assert_eq!(Met::of_fault(id), (card, text, layer));
            }
        }
    }
}
