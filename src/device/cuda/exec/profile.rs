//! Where the time of a batch goes on a card: its launches by kind, each kind timed alone.
//!
//! A batch runs once, its launches noted. Then the launches of a kind, of all layers in their order, are queued again as
//! one graph, once and three times: half the difference is the time of one pass, without what starting a graph takes.
//! Invariants: what is queued again has the arguments that the batch had; the stage computes nothing of use afterwards,
//! since rows are added to again. Does not know: links, blocks and results that pass between card and host.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{CudaExec, Queueing};
use crate::device::batch::{Batch, PageTables};
use crate::device::cuda::CudaError;
use crate::device::cuda::driver::{Note, Stream};
use crate::device::{CardError, StageExec as _};
use crate::model::facts::StateId;
use crate::model::program::{ChoiceId, Op, Program, WeightId, WeightUse};

/// Measurements of a pass, of which the median counts: at least so many, then as many as fit into some time.
const REPEATS_MIN: usize = 3;
const REPEATS_MAX: usize = 25;
const MEASURED: Duration = Duration::from_millis(20);

/// Kernels that count batches with the host, so that they run once for each.
pub const COUNTING: [&str; 2] = ["take_block", "give_results"];

/// The kind of a launch that reads no matrix, by the begin of its kernel's name.
const KINDS: [(&str, &str); 18] = [
    ("embed_", "embedding"),
    ("rms_norm", "norms"),
    ("norm_", "norms"),
    ("best_of_", "best tokens"),
    ("quantise_", "images"),
    ("place_heads_", "heads"),
    ("rope", "heads"),
    ("append_", "heads"),
    ("merge_", "merge"),
    ("attend_merge", "merge"),
    ("attend_prompt_merge", "merge"),
    ("attend_", "attention"),
    ("route", "router"),
    ("group_pairs", "order of experts"),
    ("combine", "sum of experts"),
    ("swiglu", "elementwise"),
    ("add", "elementwise"),
    ("gather", "elementwise"),
];

/// The launches of one kind in a batch.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct LaunchKind {
    /// Embedding, norms, products, experts, attention and so on.
    pub kind: &'static str,
    /// The tensors that they read, without their layer.
    pub tensors: String,
    /// The kernel.
    pub kernel: String,
    /// How many.
    pub launches: usize,
    /// Nanoseconds of all of them, alone in a graph.
    pub ns: f64,
    /// Bytes of weights, keys and values that they have to read.
    pub read_bytes: u64,
}

/// A batch by kinds of launches.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct BatchProfile {
    /// Rows.
    pub rows: usize,
    /// The last one's position.
    pub position: u32,
    /// In the order of their first launches.
    pub kinds: Vec<LaunchKind>,
    /// Nanoseconds of all launches as one graph.
    pub whole_ns: f64,
}

impl CudaExec {
    /// Runs a batch on made-up rows, where rows of another stage would arrive; what it makes is dropped.
    pub fn run_alone(&mut self, batch: &Batch, pages: &PageTables) -> Result<(), CardError> {
        let (n, width) = (batch.rows.len(), self.program.rows[self.program.residual.0].width);
        let value = |i: usize| ((i as u32).wrapping_mul(0x9E37_79B9) >> 8) as f32 / (1 << 23) as f32 - 1.0;
        let input: Vec<f32> =
            if self.takes_rows() { (0..n * width).map(value).collect() } else { Vec::new() };
        let values = match self.buffers.head {
            Some(_) => batch.wanted_values(self.program.facts.vocab),
            None => n * width,
        };
        self.run(batch, pages, &input, &mut vec![0.0; values]).map(drop)
    }

    /// Runs a batch and times its launches. The stage is neither linked nor used for text.
    pub fn profile(&mut self, batch: &Batch, pages: &PageTables) -> Result<BatchProfile, CardError> {
        let queueing = std::mem::replace(&mut self.queueing, Queueing::Launches);
        self.stream.take_notes();
        let ran = self.run_alone(batch, pages);
        let mut notes = self.stream.notes();
        notes.retain(|note| !COUNTING.contains(&note.kernel()));
        self.queueing = queueing;
        ran?;
        self.times(batch, &notes).map_err(|e| e.on(self.card))
    }

    fn times(&self, batch: &Batch, notes: &[Note]) -> Result<BatchProfile, CudaError> {
        let reads = Reads::of(self, batch)?;
        let mut kinds: Vec<(LaunchKind, Vec<&Note>)> = Vec::new();
        for note in notes {
            let own = reads.kind_of(self, note);
            let name = |k: &LaunchKind| (k.kind, k.tensors.clone(), k.kernel.clone());
            match kinds.iter_mut().find(|(known, _)| name(known) == name(&own)) {
                Some((known, notes)) => {
                    known.launches += 1;
                    known.read_bytes += own.read_bytes;
                    notes.push(note);
                }
                None => kinds.push((own, vec![note])),
            }
        }
        let all: Vec<&Note> = notes.iter().collect();
        let whole_ns = pass_ns(&self.stream, &all)?;
        let timed = |(kind, notes): (LaunchKind, Vec<&Note>)| {
            Ok(LaunchKind { ns: pass_ns(&self.stream, &notes)?, ..kind })
        };
        let kinds = kinds.into_iter().map(timed).collect::<Result<_, CudaError>>()?;
        let position = batch.rows.iter().map(|row| row.position).max().unwrap_or(0);
        Ok(BatchProfile { rows: batch.rows.len(), position, kinds, whole_ns })
    }
}

/// What a batch has to read.
struct Reads {
    rows: usize,
    /// Positions of the batch's states, together.
    positions: u64,
    /// Weights whose products are experts' choices or logits of the vocabulary.
    routers: BTreeSet<WeightId>,
    heads: BTreeSet<WeightId>,
    /// Weights of experts, with how many of these were asked in the last layer.
    experts: Vec<(WeightId, usize)>,
}

impl Reads {
    fn of(exec: &CudaExec, batch: &Batch) -> Result<Reads, CudaError> {
        let program = &exec.program;
        let states: BTreeSet<StateId> = batch.rows.iter().map(|row| row.state).collect();
        let last = |state: &StateId| {
            batch.rows.iter().filter(|row| row.state == *state).map(|row| row.position).max()
        };
        let positions = states.iter().filter_map(last).map(|position| u64::from(position) + 1).sum();
        let rows = batch.rows.len();
        let asked = (0..program.choices.len()).map(|choice| {
            let mut ids = vec![0u32; rows * program.choices[choice].used];
            exec.stream.download(exec.buffers.choices[choice].0, &mut ids)?;
            Ok(ids.into_iter().collect::<BTreeSet<u32>>().len())
        });
        let asked: Vec<usize> = asked.collect::<Result<_, CudaError>>()?;
        let mut reads =
            Reads { rows, positions, routers: routers(program), heads: BTreeSet::new(), experts: Vec::new() };
        for (_, op) in program.ops() {
            match op {
                Op::Head { weight, .. } => drop(reads.heads.insert(*weight)),
                Op::Experts { choice: ChoiceId(choice), gate, up, down, .. } => {
                    reads.experts.extend([gate, up, down].map(|product| (product.weight, asked[*choice])));
                }
                _ => {}
            }
        }
        Ok(reads)
    }

    /// One launch, without its time.
    fn kind_of(&self, exec: &CudaExec, note: &Note) -> LaunchKind {
        let kernel = note.kernel();
        let (mut matrices, mut vectors, mut read_bytes, mut products) = (Vec::new(), Vec::new(), 0, None);
        for span in note.spans() {
            for (id, _) in exec.weights.all().filter(|(_, place)| span.begins_with(place)) {
                let decl = exec.program.weight(id);
                let name = tensor(&decl.name);
                if decl.usage == WeightUse::Vector {
                    vectors.push(name);
                    read_bytes += 4 * decl.cols as u64;
                    continue;
                }
                matrices.push(name);
                if kernel.starts_with("embed_") {
                    read_bytes += (self.rows * decl.ty.row_bytes(decl.cols)) as u64;
                    continue;
                }
                let asked = self.experts.iter().find(|(weight, _)| *weight == id).map(|(_, asked)| *asked);
                read_bytes += decl.file_bytes() / decl.experts as u64 * asked.unwrap_or(1) as u64;
                products = Some(match asked {
                    Some(_) => "experts",
                    None if self.routers.contains(&id) => "router",
                    None if self.heads.contains(&id) => "head",
                    None => "products",
                });
            }
            if kernel.starts_with("attend_") {
                for pool in exec.pools.iter().filter(|pool| span.begins_with(&pool.at)) {
                    let row_bytes = exec.kv.row_bytes(pool.key_width) + exec.kv.row_bytes(pool.value_width);
                    read_bytes += self.positions * (pool.heads * row_bytes) as u64;
                }
            }
        }
        let of_name =
            || KINDS.iter().find(|(begin, _)| kernel.starts_with(begin)).map_or("other", |(_, kind)| kind);
        let tensors = if matrices.is_empty() { vectors } else { matrices };
        let (kind, kernel) = (products.unwrap_or_else(of_name), kernel.to_owned());
        LaunchKind { kind, tensors: tensors.join(" "), kernel, launches: 1, ns: 0.0, read_bytes }
    }
}

/// The matrices whose products choose experts.
fn routers(program: &Program) -> BTreeSet<WeightId> {
    let of_layer = |ops: &[Op]| -> Vec<WeightId> {
        let chooses = |out| ops.iter().any(|op| matches!(op, Op::Route { logits, .. } if logits.row == out));
        let router = |op: &Op| match op {
            Op::Linear { product, out, .. } if chooses(out.row) => Some(product.weight),
            _ => None,
        };
        ops.iter().filter_map(router).collect()
    };
    program.layers.iter().flat_map(|layer| of_layer(&layer.ops)).collect()
}

/// `attn_q` of `blk.3.attn_q.weight`.
fn tensor(name: &str) -> &str {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((_, rest)) => rest,
        None => name,
    }
}

/// Nanoseconds of a pass through these launches.
fn pass_ns(stream: &Stream, notes: &[&Note]) -> Result<f64, CudaError> {
    let median = |passes: usize| -> Result<u64, CudaError> {
        let queue = || (0..passes).try_for_each(|_| notes.iter().try_for_each(|note| stream.repeat(note)));
        let mut graph = stream.record(queue)?;
        graph.launch(&mut [])?;
        let (begun, mut all) = (Instant::now(), Vec::new());
        while all.len() < REPEATS_MIN || (all.len() < REPEATS_MAX && begun.elapsed() < MEASURED) {
            all.push(stream.timed_ns(|| graph.launch(&mut []))?);
        }
        all.sort_unstable();
        Ok(all[all.len() / 2])
    };
    let (one, three) = (median(1)?, median(3)?);
    Ok(three.saturating_sub(one) as f64 / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_all_layers_share_a_name() {
        for (name, expected) in [
            ("blk.3.attn_q.weight", "attn_q"),
            ("blk.47.ffn_gate_exps.weight", "ffn_gate_exps"),
            ("output_norm.weight", "output_norm"),
            ("blk.0.attn_q.bias", "attn_q.bias"),
        ] {
            assert_eq!(tensor(name), expected);
        }
    }
}
