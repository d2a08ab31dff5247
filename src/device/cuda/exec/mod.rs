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
mod host;
mod kernels;
mod launch;
mod launch_rows;
mod link;
pub mod profile;
mod prompt;
mod prompt_attention;
mod steps;
mod tile_attention;
mod touched;
mod window;

use std::sync::Arc;
use std::time::Instant;

use self::angles::Angles;
use self::block::{Block, HandOff, Places, States};
use self::buffers::{Buffers, HeadPlaces};
use self::fuse::{Launch, Launches};
use self::graphs::{Graphs, Shape, Wanted};
use self::host::{HostSide, Left, Turn};
use self::kernels::StageKernels;
use self::launch::{Fault, Pool, Rows};
use self::link::Links;
use self::window::Room;
use super::CudaError;
use super::driver::graph::Graph;
use super::driver::{Event, PinnedMemory, Span, Stream};
use super::kernels::Kernels;
use super::links::side::LinkKernels;
use super::memory::{Arena, Memory};
use super::weights::Weights;
use crate::device::batch::{Batch, BatchKind, PageTables, RowWants};
use crate::device::best;
use crate::device::lower::Steps;
use crate::device::{
    BesideExec, CardError, CardSlot, CardStamps, RowsIn, RunStamp, StageExec, StageSettings,
};
use crate::model::facts::{
    BEST_MAX, CardId, CardKind, KvFormat, PAGE_POSITIONS, PageId, StageProgram, WINDOW_ROWS_MAX,
};
use crate::model::footprint::ItemKind;
use crate::model::footprint::gpu::{BEST_PIECE, GpuSizes};
use crate::model::program::{Program, StateKind};

/// Layers of a chunk that are queued ahead: a chunk that nobody wants any more ends so much later.
const LAYERS_AHEAD: usize = 2;

/// Where a fault word holds its card: a bit for AMD's, and the number, of which the largest stands for all above it.
const CARD_SHIFT: u32 = 24;
const HIP_BIT: u32 = 0x80;
const CARD_NUMBER_MAX: u32 = 0x7f;

/// The most of a grid's second and third dimensions: rows of a batch, pages of a table.
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
        let number = card.number.min(CARD_NUMBER_MAX);
        let card = if card.kind == CardKind::Hip { number | HIP_BIT } else { number };
        card << CARD_SHIFT | (1 + layer * Met::ALL.len() + index) as u32
    }

    /// What a fault word other than 0 says.
    fn of_fault(id: u32) -> (CardId, &'static str, usize) {
        let place = (id & ((1 << CARD_SHIFT) - 1)) as usize - 1;
        let card = id >> CARD_SHIFT;
        let kind = if card & HIP_BIT == 0 { CardKind::Cuda } else { CardKind::Hip };
        (
            CardId { kind, number: card & CARD_NUMBER_MAX },
            Met::ALL[place % Met::ALL.len()].1,
            place / Met::ALL.len(),
        )
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
    kv: KvFormat,
    buffers: Buffers,
    block: Block,
    angles: Angles,
    context_pages: usize,
    links: Links,
    input: PinnedMemory,
    /// The rows or logits of a batch as far as they have room.
    made: PinnedMemory,
    host: HostSide,
    /// Behind the last launch of a batch.
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
    turn: Turn,
    /// What leaves the stage, dense.
    made: Rows,
    shape: Shape,
    leaving: Option<CardSlot>,
}

/// What the steps of one batch share.
struct Run<'a> {
    /// Rows: all of the batch, or those that want something.
    n: usize,
    batch: &'a Batch,
    /// What they want, where the stage gives it.
    wanted: Wanted,
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
    /// Takes the memory that the stage needs beside its weights, which have arrived by `stream`.
    pub(super) fn new(
        mut memory: Memory<'_>,
        kernels: &Kernels,
        (stream, weights): (Stream, Weights),
        stage: &StageProgram,
        steps: Steps,
        settings: &StageSettings,
    ) -> Result<CudaExec, CardError> {
        let card = memory.card;
        let failed = |e: CudaError| e.on(card);
        let program = stage.program.clone();
        let sizes = GpuSizes::of(&program, settings.activations);
        let links = LinkKernels::new(kernels).map_err(failed)?;
        let room = Room::of(memory.context).map_err(failed)?;
        let (activations, kv) = (settings.activations, settings.kv);
        let launches = Arc::new(fuse::fuse(&program, &steps));
        let stage_kernels = StageKernels::new(kernels, stage, activations, kv, room, &launches);
        let stage_kernels = stage_kernels.map_err(failed)?;
        let (places, page_bytes) = page_places(card, &states_of(&program, &steps), settings.kv)?;
        let page_memory = (page_bytes * settings.kv_pages) as u64;
        let mut pages = memory.arena(ItemKind::KvPages, page_memory)?;
        let whole = pages.cut(page_bytes * settings.kv_pages);
        // Pages are copied whole, and tiles of keys by 16 bytes: what nobody wrote is read there, and not used.
        stream.zero(whole).map_err(failed)?;
        let pool = |p: PagePlace| Pool {
            at: whole.from(p.at.min(page_memory as usize) as u64),
            page_bytes,
            heads: p.heads,
            key_width: p.key_width,
            value_width: p.value_width,
        };
        let pools = places.into_iter().map(pool).collect();
        let buffers = Buffers::new(&mut memory, stage, settings, &sizes)?;
        let block = Block { on_card: buffers.block };
        let keys = if stage.heads() { BEST_MAX * WINDOW_ROWS_MAX } else { 0 };
        let host =
            HostSide::new(&stream, kernels, buffers.control, buffers.block.bytes(), keys).map_err(failed)?;
        let input_bytes = (sizes.residual * settings.batch_rows_max) as u64;
        let input = PinnedMemory::new(memory.context, input_bytes).map_err(failed)?;
        // Logits of more rows than a window's are fetched without it.
        let made_bytes = match buffers.head {
            Some(_) => (sizes.vocab * settings.logits_rows_max.min(WINDOW_ROWS_MAX)) as u64,
            None => input_bytes,
        };
        let made = PinnedMemory::new(memory.context, made_bytes).map_err(failed)?;
        let ended = Event::new(memory.context).map_err(failed)?;
        let angles = Angles::new(program.clone(), |id| weights.divisors(id).to_vec());
        let event = |_| Event::new(memory.context).map_err(failed);
        let layers_done = (0..LAYERS_AHEAD).map(event).collect::<Result<_, _>>()?;
        let residual = buffers.rows[program.residual.0];
        Ok(CudaExec {
            card,
            program,
            launches,
            queueing: Queueing::default(),
            graphs: Graphs::new(),
            kernels: stage_kernels,
            weights,
            pools,
            pages,
            page_bytes,
            kv,
            buffers,
            block,
            angles,
            context_pages: settings.context.div_ceil(PAGE_POSITIONS),
            links: Links::new(links),
            input,
            made,
            host,
            ended,
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
        let room = self.host.block();
        let places = self.block.fill(room, batch, (&shape, &states), pages, hand_off, &mut self.angles);
        if let (RowsIn::Host(input), true) = (input, self.takes_rows()) {
            assert_eq!(input.len(), n * width, "input rows");
            self.input.values_mut(0, input.len())?.copy_from_slice(input);
        }
        let wanted = shape.wanted;
        let run = Run { n, batch, wanted, places, leaving, is_cancelled };
        if batch.kind() == BatchKind::Window && self.queueing == Queueing::Graphs {
            let mut graph = match self.graphs.take(&shape) {
                Some(graph) => graph,
                None => self.stream.clone().record(|| self.queue_batch(&run))?,
            };
            let launched = graph.launch(&mut [&mut self.input, &mut self.made]);
            self.graphs.keep(shape, graph);
            launched?;
        } else {
            self.queue_batch(&run)?;
        }
        self.ended.record(&self.stream)?;
        Ok(Started { at, turn: self.host.began(), made: self.leaving(), shape, leaving })
    }

    /// Waits until the card has run a batch, and takes what it made.
    fn finish_batch(
        &mut self,
        started: &Started,
        batch: &Batch,
        output: &mut [f32],
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<CardStamps, CardError> {
        let card = self.card;
        let failed = |e: CudaError| e.on(card);
        // What the next batch asks for, most likely, while this one runs.
        let rows = batch.rows.len() as u32;
        batch.rows.iter().for_each(|row| self.angles.prepare(row.position + rows));
        self.record_ahead(started, batch, is_cancelled).map_err(failed)?;
        self.wait_given(started.turn, is_cancelled).map_err(failed)?;
        let Left { fault, stamps } = self.host.left(started.turn);
        if let Some(error) = self.no_rows(fault) {
            return Err(error);
        }
        if fault != 0 && !batch.interest.is_lost() {
            // Of rows that were at fault when they came, this names the card, op and layer that made them so.
            let (card, op, layer) = Met::of_fault(fault);
            return Err(CardError::NotFinite { card, op, layer });
        }
        if output.is_empty() {
            return Ok(stamps);
        }
        if started.shape.wanted.best > 0 {
            self.take_wanted(started, batch, output).map_err(failed)?;
        } else if self.has_room(output.len()) {
            output.copy_from_slice(self.made.values_mut(0, output.len()).map_err(failed)?);
        } else {
            self.stream.download(started.made.at, output).map_err(failed)?;
        }
        Ok(stamps)
    }

    /// Records the graph of the next window, most likely, where tables outgrow the shape of this one.
    fn record_ahead(
        &mut self,
        started: &Started,
        batch: &Batch,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), CudaError> {
        if batch.kind() != BatchKind::Window || self.queueing != Queueing::Graphs {
            return Ok(());
        }
        let next = batch.behind();
        let states = States::of(&next.rows);
        let shape = Shape::of(&next, &states, self.buffers.head.is_some(), self.context_pages);
        let grows = shape.pages_per_state > started.shape.pages_per_state;
        if !grows || shape.pages_per_state > self.context_pages || self.graphs.has(&shape) {
            return Ok(());
        }
        // Only where the parts of its block lie counts; their words are written again before the graph is launched.
        let (room, hand_off) = (self.host.block(), HandOff::default());
        let tables = PageTables::default();
        let places = self.block.fill(room, &next, (&shape, &states), &tables, hand_off, &mut self.angles);
        let (n, wanted, leaving) = (next.rows.len(), shape.wanted, started.leaving);
        let run = Run { n, batch: &next, wanted, places, leaving, is_cancelled };
        let graph = self.stream.clone().record(|| self.queue_batch(&run))?;
        self.graphs.keep(shape, graph);
        Ok(())
    }

    /// What each row wants, where some want their best tokens.
    fn take_wanted(&mut self, started: &Started, batch: &Batch, output: &mut [f32]) -> Result<(), CudaError> {
        let (vocab, Wanted { rows, best, logits }) = (self.program.facts.vocab, started.shape.wanted);
        let made = if logits { self.made.values_mut(0, rows * vocab)? } else { &mut [] };
        let mut rest = output;
        for (row, wants) in batch.wants().enumerate() {
            let (values, behind) = rest.split_at_mut(wants.values(vocab));
            match wants {
                RowWants::Nothing => {}
                RowWants::Best(_) => {
                    let keys = (0..best).map(|rank| self.host.key(started.turn, row * best + rank));
                    best::write(keys, values);
                }
                RowWants::Logits => values.copy_from_slice(&made[row * vocab..][..vocab]),
            }
            rest = behind;
        }
        Ok(())
    }

    /// Whether rows of the stage before arrive here.
    fn takes_rows(&self) -> bool {
        self.launches.front.is_empty()
    }

    /// Whether results of so many values are fetched with the batch.
    fn has_room(&self, values: usize) -> bool {
        4 * values as u64 <= self.made.bytes()
    }

    /// Queues all that the card does for a batch: what arrives, the steps, what is fetched.
    fn queue_batch(&mut self, run: &Run<'_>) -> Result<(), CudaError> {
        self.residual = self.buffers.rows[self.program.residual.0];
        self.host.queue_take(&self.stream, self.block.on_card, run.places.used)?;
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
        }
        let Wanted { rows, best, logits } = run.wanted;
        let values = match self.buffers.head {
            Some(_) if logits => rows * self.program.facts.vocab,
            Some(_) => 0,
            None if run.leaving.is_some() => 0,
            None => run.n * width,
        };
        if self.has_room(values) {
            self.stream.fetch(made.at.part(0, 4 * values as u64), &mut self.made, 0)?;
        }
        let keys = match self.buffers.head {
            Some(head) if best > 0 => (self.choose(head, rows, best)?, rows * best),
            _ => (run.places.fault, 0),
        };
        self.host.queue_give(&self.stream, run.places.fault, keys)
    }

    /// Queues looking for the best tokens of rows: where their keys come to lie.
    fn choose(&self, head: HeadPlaces, rows: usize, best: usize) -> Result<Span, CudaError> {
        let (kernels, mut values) = (&self.kernels, self.program.facts.vocab);
        let [mut to, mut from] = head.keys;
        launch::best_of_logits(&self.stream, &kernels.best_of_logits, (head.logits, values), to, best, rows)?;
        while values > BEST_PIECE {
            values = best * values.div_ceil(BEST_PIECE);
            (from, to) = (to, from);
            launch::best_of_keys(&self.stream, &kernels.best_of_keys, (from, values), to, best, rows)?;
        }
        Ok(to)
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
            let wanted = run.wanted.rows;
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

    /// Puts the residual rows that want something side by side.
    fn gather_wanted(&mut self, run: &Run<'_>, to: Rows, wanted: usize) -> Result<(), CudaError> {
        if wanted < run.n {
            let (kernel, width) = (&self.kernels.gather, to.stride);
            launch_rows::gather(&self.stream, kernel, self.residual, to, run.places.wanted, width, wanted)?;
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
        let output = output.map(|turn| self.leaves(turn));
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
        let started = self.started.take().expect("invariant: a batch is started before it is finished");
        let stamps = self.finish_batch(&started, batch, output, is_cancelled)?;
        let (busy_ns, waited_ns) = (started.at.elapsed().as_nanos() as u64, self.waited_ns());
        Ok(RunStamp { busy_ns, card: Some(stamps), waited_ns: waited_ns.min(busy_ns) })
    }
}

/// Refuses what the kernels do not take.
pub(super) fn check(
    card: CardId,
    program: &Program,
    steps: &Steps,
    settings: &StageSettings,
) -> Result<(), CardError> {
    let unsupported = |what: String| Err(CardError::Unsupported { card, what });
    page_places(card, &states_of(program, steps), settings.kv)?;
    // Attention has a block for each page of a table.
    if settings.context.div_ceil(PAGE_POSITIONS) > GRID_MAX {
        let context = GRID_MAX * PAGE_POSITIONS;
        return unsupported(format!("GPUs attend to up to {context} positions; lower --ctx"));
    }
    if settings.batch_rows_max > GRID_MAX {
        return unsupported(format!("GPUs take batches of up to {GRID_MAX} rows; lower --chunk"));
    }
    // The shared memory of the router's kernel.
    const EXPERTS_MAX: usize = 1024;
    match program.choices.iter().find(|c| c.experts > EXPERTS_MAX) {
        Some(choice) => unsupported(format!(
            "GPUs choose among up to {EXPERTS_MAX} experts, not {}; use virtual cards (--gpus cpu:2)",
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

/// The states of a stage.
fn states_of(program: &Program, steps: &Steps) -> Vec<StateKind> {
    program.states[steps.states.clone()].iter().map(|s| s.kind.clone()).collect()
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
    use super::super::links::side;
    use super::*;

    #[test]
    fn fault_words_name_card_place_and_layer() {
        for (met, text) in Met::ALL {
            let hip = CardId { kind: CardKind::Hip, number: CARD_NUMBER_MAX };
            for (card, layer) in [(CardId::cuda(0), 0), (CardId::cuda(62), 1), (hip, 93)] {
                let id = met.fault_id(card, layer);
                assert!(id > 0 && id < side::LATE);
                assert_eq!(Met::of_fault(id), (card, text, layer));
            }
        }
    }
}
