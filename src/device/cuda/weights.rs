//! The weights of a stage on a CUDA card: the file's bytes as they are, vectors as f32, in one allocation an item.
//!
//! Invariants: bytes are asked for in the file's order, by several threads, each with two pinned buffers and a stream, so that
//! reading and sending overlap; a tied table is kept once where the stage embeds and heads.
//! Does not know: ops, batches.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::driver::{PinnedMemory, Span, Stream};
use super::memory::{Arena, Memory};
use super::shares::{Work, processors, share};
use crate::device::{CardError, LoadProgress};
use crate::gguf::{self, TensorInfo, formats};
use crate::model::facts::{CardId, StageProgram};
use crate::model::footprint::{self, ItemKind, kept};
use crate::model::program::{WeightDecl, WeightId, WeightUse};

/// Bytes of one sending.
const PART_BYTES: usize = 4 << 20;

/// Threads that send.
const SENDERS_MAX: usize = 8;

/// Kernels read words of up to so many bytes: weights, and the matrix of each expert, begin at multiples of it.
const ALIGN_BYTES: u64 = 16;

/// All weights of a stage.
#[derive(Debug)]
pub struct Weights {
    /// Keeps the places.
    _arenas: Vec<Arena>,
    places: Vec<Option<Span>>,
    /// Divisors of rope angles on the host, which makes the angles.
    divisors: HashMap<WeightId, Vec<f32>>,
}

/// What the card keeps of a weight.
fn bytes_of(decl: &WeightDecl) -> usize {
    match decl.usage {
        WeightUse::Vector => 4 * decl.cols,
        _ => decl.file_bytes() as usize,
    }
}

/// Refuses a stage with experts that kernels could not read.
pub(super) fn check(card: CardId, stage: &StageProgram) -> Result<(), CardError> {
    let weights = stage.program.weights.iter().enumerate();
    let mut own = weights.filter(|(id, decl)| footprint::item_of(stage, WeightId(*id), decl).is_some());
    own.try_for_each(|(_, decl)| aligned(card, decl))
}

fn aligned(card: CardId, decl: &WeightDecl) -> Result<(), CardError> {
    let expert_bytes = decl.file_bytes() / decl.experts as u64;
    if decl.usage != WeightUse::Experts || expert_bytes.is_multiple_of(ALIGN_BYTES) {
        return Ok(());
    }
    let what = format!(
        "GPUs: each expert of {} has {expert_bytes} B, no multiple of {ALIGN_BYTES}; use virtual cards (--gpus \
         cpu:2)",
        decl.name
    );
    Err(CardError::Unsupported { card, what })
}

impl Weights {
    /// Books, takes and fills the memory. On success all has arrived.
    pub fn load(
        memory: &mut Memory<'_>,
        stream: &Stream,
        stage: &StageProgram,
        file: &gguf::File,
        progress: &dyn LoadProgress,
    ) -> Result<Weights, CardError> {
        let (card, program) = (memory.card, &stage.program);
        let mut own: Vec<(usize, ItemKind)> = Vec::new();
        let mut sums: BTreeMap<ItemKind, u64> = BTreeMap::new();
        for (id, decl) in program.weights.iter().enumerate() {
            let Some(item) = footprint::item_of(stage, WeightId(id), decl) else { continue };
            own.push((id, item));
            *sums.entry(item).or_default() += kept(bytes_of(decl) as u64);
        }
        let mut arenas = BTreeMap::new();
        for (item, bytes) in sums {
            arenas.insert(item, memory.arena(item, bytes)?);
        }
        let mut places = vec![None; program.weights.len()];
        let mut by_name: HashMap<&str, Vec<usize>> = HashMap::new();
        for (id, item) in own {
            let decl = &program.weights[id];
            let arena = arenas.get_mut(&item).expect("invariant: every item of a weight has its memory");
            let place = arena.cut(bytes_of(decl));
            assert!(
                place.begins_at_multiple_of(ALIGN_BYTES),
                "{}: not at a multiple of {ALIGN_BYTES}",
                decl.name
            );
            places[id] = Some(place);
            by_name.entry(&decl.name).or_default().push(id);
        }
        let arenas: Vec<Arena> = arenas.into_values().collect();
        for arena in &arenas {
            arena.whole();
        }
        let (mut parts, mut divisors) = (Vec::new(), HashMap::new());
        let mut sender = Sender::new(card, stream)?;
        for tensor in file.tensors() {
            // A tensor that is read in two ways is kept in two ways.
            for id in by_name.remove(tensor.name.as_str()).unwrap_or_default() {
                let decl = &program.weights[id];
                let place = places[id].expect("invariant: a named weight has its place");
                if decl.usage != WeightUse::Vector {
                    let starts = (0..tensor.byte_len as usize).step_by(PART_BYTES);
                    parts.extend(starts.map(|at| Part { tensor, at, to: place.from(at as u64) }));
                    continue;
                }
                let (mut bytes, mut values) = (vec![0; tensor.byte_len as usize], vec![0.0; decl.cols]);
                read(card, file, tensor, 0, &mut bytes)?;
                formats::dequantize_row(decl.ty, &bytes, &mut values);
                sender.send_values(&values, place)?;
                progress.arrived(tensor.byte_len)?;
                if program.ropes.iter().any(|r| r.divisors == Some(WeightId(id))) {
                    divisors.insert(WeightId(id), values);
                }
            }
        }
        if let Some(name) = by_name.keys().next() {
            let what = format!("tensor {name} is gone from {}; load the file again", file.path().display());
            return Err(CardError::File { card, what });
        }
        let context = memory.context;
        let sending = Work {
            begin: || Sender::new(card, &Stream::new(context).map_err(|e| e.on(card))?),
            work: |sender: &mut Sender, index: usize| sender.send_part(file, &parts[index], progress),
            end: Sender::wait,
        };
        let started = Instant::now();
        share(SENDERS_MAX.min(processors()), parts.len(), &sending)?;
        sender.wait()?;
        tracing::info!(%card, ms = started.elapsed().as_millis(), parts = parts.len(), "weights arrived");
        Ok(Weights { _arenas: arenas, places, divisors })
    }

    /// The bytes of a weight.
    pub fn place(&self, id: WeightId) -> Span {
        self.places[id.0].expect("invariant: ops of a stage read weights of that stage only")
    }

    /// All weights of the stage, with their bytes.
    pub fn all(&self) -> impl Iterator<Item = (WeightId, Span)> {
        self.places.iter().enumerate().filter_map(|(id, place)| Some((WeightId(id), (*place)?)))
    }

    /// Divisors of rope angles.
    pub fn divisors(&self, id: WeightId) -> &[f32] {
        &self.divisors[&id]
    }
}

/// Reads the bytes of a tensor from `at` on, not through the mapping: a file that fails meanwhile is an error.
fn read(
    card: CardId,
    file: &gguf::File,
    tensor: &TensorInfo,
    at: usize,
    to: &mut [u8],
) -> Result<(), CardError> {
    file.read(tensor, at, to).map_err(|error| CardError::File {
        card,
        what: format!("{}: {}: {error}; load the file again", file.path().display(), tensor.name),
    })
}

/// Part of a tensor, and where it goes.
struct Part<'a> {
    tensor: &'a TensorInfo,
    at: usize,
    to: Span,
}

/// Two pinned buffers that take turns.
struct Sender {
    card: CardId,
    stream: Stream,
    buffers: [PinnedMemory; 2],
    next: usize,
}

impl Sender {
    fn new(card: CardId, stream: &Stream) -> Result<Sender, CardError> {
        let buffer = || PinnedMemory::new(stream.context(), PART_BYTES as u64).map_err(|e| e.on(card));
        Ok(Sender { card, stream: stream.clone(), buffers: [buffer()?, buffer()?], next: 0 })
    }

    fn send_part(
        &mut self,
        file: &gguf::File,
        part: &Part<'_>,
        progress: &dyn LoadProgress,
    ) -> Result<(), CardError> {
        let (card, bytes) = (self.card, PART_BYTES.min(part.tensor.byte_len as usize - part.at));
        let room = self.room()?;
        read(card, file, part.tensor, part.at, &mut room[..bytes])?;
        self.send(bytes, part.to)?;
        progress.arrived(bytes as u64)
    }

    /// All that was sent has arrived.
    fn wait(self) -> Result<(), CardError> {
        self.stream.wait().map_err(|e| e.on(self.card))
    }

    fn send_values(&mut self, values: &[f32], to: Span) -> Result<(), CardError> {
        for (part, values) in values.chunks(PART_BYTES / 4).enumerate() {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            self.room()?[..bytes.len()].copy_from_slice(&bytes);
            self.send(bytes.len(), to.from((part * PART_BYTES) as u64))?;
        }
        Ok(())
    }

    /// The next buffer, once its bytes have arrived.
    fn room(&mut self) -> Result<&mut [u8], CardError> {
        self.buffers[self.next].bytes_mut().map_err(|e| e.on(self.card))
    }

    /// Starts sending the first bytes of the next buffer.
    fn send(&mut self, bytes: usize, to: Span) -> Result<(), CardError> {
        let buffer = &mut self.buffers[self.next];
        self.next = 1 - self.next;
        self.stream.upload(buffer, bytes as u64, to).map_err(|e| e.on(self.card))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::TensorType;

    #[test]
    fn experts_between_multiples_of_16_are_refused_by_name() {
        let decl = |ty, rows, usage| WeightDecl {
            name: "blk.0.ffn_up_exps.weight".to_owned(),
            ty,
            cols: 256,
            rows,
            experts: 4,
            usage,
            layer: Some(0),
        };
        for (ty, rows) in [(TensorType::Q6_K, 8), (TensorType::Q4_K, 1), (TensorType::MXFP4, 2)] {
            assert!(aligned(CardId::cuda(0), &decl(ty, rows, WeightUse::Experts)).is_ok(), "{ty} {rows}");
        }
        for (ty, rows, bytes) in [(TensorType::Q6_K, 1, 210), (TensorType::MXFP4, 1, 136)] {
            let error =
                aligned(CardId::cuda(0), &decl(ty, rows, WeightUse::Experts)).unwrap_err().to_string();
            assert!(
                error.contains("blk.0.ffn_up_exps.weight") && error.contains(&format!("{bytes} B")),
                "{error}"
            );
            assert!(aligned(CardId::cuda(0), &decl(ty, rows, WeightUse::Matrix)).is_ok(), "{ty} {rows}");
        }
    }
}
