//! Attention of chunks on tensor cores: which kernel takes a state's heads, and how its rows are cut into launches.
//!
//! Invariants: how rows are cut never shows in a bit (`kernels/attention_prompt.cu`); what no kernel takes runs as a
//! window does. Does not know: programs, steps.

use super::launch::{self, Pool, Rows, Standing};
use crate::device::batch::BatchRow;
use crate::device::cuda::CudaError;
use crate::device::cuda::driver::{Kernel, Span, Stream};
use crate::device::cuda::kernels::Kernels;
use crate::model::facts::{Activations, KvFormat, StageProgram};
use crate::model::program::StateKind;

/// Positions of a span, PROMPT_SPAN of the kernels.
const SPAN_POSITIONS: usize = 2048;

/// Blocks that fill a card well: with fewer, spans have blocks of their own.
const BLOCKS_MIN: usize = 512;

/// Kernels by the widest head that they take.
const FAMILIES: [(usize, &str); 3] =
    [(64, "attend_prompt_64_"), (128, "attend_prompt_128_"), (256, "attend_prompt_256_")];

/// Query rows and heads that a block holds, and its shared memory: PromptShape of the kernels.
#[derive(Clone, Copy, Debug)]
struct Shape {
    slots: usize,
    shared_bytes: usize,
}

impl Shape {
    fn of(width: usize, kv: KvFormat) -> Shape {
        let slots = if width <= 128 { 128 } else { 64 };
        let has_codes = kv == KvFormat::Q8_0;
        let keys = match (width, has_codes) {
            (0..=64, false) => 64,
            (0..=64, true) | (65..=128, false) => 32,
            _ => 16,
        };
        let queries = 2 * 2 * slots * width;
        let tile = 2 * 2 * keys * width;
        let tiles = if has_codes { tile + keys * (2 * kv.row_bytes(width) + width / 8) } else { 2 * tile };
        let shared_bytes = queries + tiles + 20 * slots + 96;
        Shape { slots, shared_bytes }
    }
}

/// A kernel for heads up to `width` values.
#[derive(Debug)]
pub(super) struct PromptKernel {
    width: usize,
    slots: usize,
    attend: Kernel,
    merge: Kernel,
}

/// The kernels of a stage, narrow ones first; none where chunks run as windows do.
#[derive(Debug)]
pub(super) struct PromptAttention(Vec<PromptKernel>);

/// What attention of a chunk reads and writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) q: Rows,
    pub(super) heads: usize,
    pub(super) scale: f32,
    pub(super) out: Rows,
    pub(super) work: Span,
}

impl PromptAttention {
    /// Those that the stage's states need. Float activations and f32 K/V have no exception to their bits, so no kernel.
    pub(super) fn new(
        all: &Kernels,
        stage: &StageProgram,
        activations: Activations,
        kv: KvFormat,
        shared_bytes_max: usize,
    ) -> Result<PromptAttention, CudaError> {
        if activations == Activations::F32 || kv == KvFormat::F32 {
            return Ok(PromptAttention(Vec::new()));
        }
        let widths: Vec<usize> = stage.program.states.iter().filter_map(|s| paged_width(&s.kind)).collect();
        let needed = FAMILIES.into_iter().enumerate().filter(|&(i, (width, _))| {
            let narrower = if i == 0 { 0 } else { FAMILIES[i - 1].0 };
            let exists = kv == KvFormat::F16 || width <= 128;
            exists && widths.iter().any(|&w| narrower < w && w <= width)
        });
        let fitting = needed
            .map(|(_, (width, family))| (width, family, Shape::of(width, kv)))
            .filter(|(.., shape)| shape.shared_bytes <= shared_bytes_max);
        let kernel = |(width, family, shape): (usize, &'static str, Shape)| {
            Ok(PromptKernel {
                width,
                slots: shape.slots,
                attend: all.for_kv(family, kv)?.with_shared(shape.shared_bytes)?,
                merge: all.plain("attend_prompt_merge")?,
            })
        };
        Ok(PromptAttention(fitting.map(kernel).collect::<Result<_, CudaError>>()?))
    }

    /// The kernel for a state's heads, where there is one.
    pub(super) fn of(&self, pool: &Pool, heads: usize) -> Option<&PromptKernel> {
        let copies_whole = pool.key_width.is_multiple_of(8) && pool.value_width.is_multiple_of(8);
        let width = pool.key_width.max(pool.value_width);
        let takes = |k: &&PromptKernel| copies_whole && width <= k.width && heads / pool.heads <= k.slots;
        self.0.iter().find(takes)
    }
}

fn paged_width(kind: &StateKind) -> Option<usize> {
    match *kind {
        StateKind::Paged { key_width, value_width, .. } => Some(key_width.max(value_width)),
        _ => None,
    }
}

impl PromptKernel {
    /// All rows in one launch; or, where these are few and stand far behind, every span in blocks of its own, as many
    /// rows at a time as the work's memory has room for.
    pub(super) fn attend(
        &self,
        s: &Stream,
        rows: &[BatchRow],
        standing: &Standing,
        pool: &Pool,
        chunk: &Chunk,
    ) -> Result<(), CudaError> {
        let tile_rows = self.slots / (chunk.heads / pool.heads);
        let last = rows.iter().map(|r| r.position as usize).max().unwrap_or(0);
        let spans = last / SPAN_POSITIONS + 1;
        let span_bytes = 4 * chunk.heads * (pool.value_width + 2);
        let rows_max = chunk.work.bytes() as usize / (span_bytes * spans);
        let tiles = rows.len().div_ceil(tile_rows);
        let step = if rows_max < rows.len() { rows_max / tile_rows * tile_rows } else { rows.len() };
        // Of few rows at a time a launch has fewer blocks, with all spans, than of all rows without.
        if spans == 1 || tiles * pool.heads >= BLOCKS_MIN || step.div_ceil(tile_rows) * spans <= tiles {
            let grid = [tiles, pool.heads, 1];
            return launch::attend_prompt(s, &self.attend, grid, standing, pool, chunk, None, rows.len());
        }
        for first in (0..rows.len()).step_by(step) {
            let n = step.min(rows.len() - first);
            let standing = standing.behind(first);
            let part = Chunk { q: chunk.q.behind(first), out: chunk.out.behind(first), ..*chunk };
            let work = Some((chunk.work, spans));
            let grid = [n.div_ceil(tile_rows), pool.heads, spans];
            launch::attend_prompt(s, &self.attend, grid, &standing, pool, &part, work, n)?;
            launch::attend_prompt_merge(s, &self.merge, &standing, pool, &part, spans, n)?;
        }
        Ok(())
    }
}
