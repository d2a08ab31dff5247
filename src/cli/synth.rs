//! `tandem synth`: a model file of a real geometry with random weights.
//!
//! Threads make pieces of tensors side by side; one writes them in file order. Invariant: the bytes depend on geometry,
//! types and seed alone, not on threads; the file appears whole or not at all.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Context as _, anyhow, bail};

use super::args::SynthArgs;
use super::interrupt;
use super::out_file::OutFile;
use super::progress;
use super::streams::tell;
use crate::device::cpu::machine;
use crate::device::threads;
use crate::gguf::formats::random::RandomBlocks;
use crate::gguf::writer::{Layout, TensorSpec, head};
use crate::gguf::{File, TensorType};
use crate::model::synth::{Blueprint, Changes, Fill, Geometry, Otherwise, Planned, like};
use crate::split::budget::{format_bytes, format_bytes_up};
use crate::text::plain_vocab;

/// Bytes of a piece, about: large beside the cost of handing it over.
const PIECE_BYTES: u64 = 4 << 20;

/// Pieces that wait for the writer, for each thread.
const WAITING: usize = 2;

const WRITING: &str = "writing {bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// Runs the command.
pub(super) fn run(args: &SynthArgs) -> anyhow::Result<()> {
    let quant = args.quant.as_deref().map(quant_named).transpose()?;
    let sizes = [("--layers", args.layers, 1024), ("--experts", args.experts, 65_536)];
    if let Some((flag, n, most)) = sizes.into_iter().find_map(|(flag, n, most)| Some((flag, n?, most)))
        && !(1..=most).contains(&n)
    {
        bail!("{flag} is {n}; it must be 1 to {most}");
    }
    let changes = Changes { quant, layers: args.layers, experts: args.experts };
    let (mut blueprint, inputs) = match Geometry::named(&args.like) {
        Some(geometry) => (geometry.blueprint(&changes)?, Vec::new()),
        None if std::path::Path::new(&args.like).exists() => {
            let file = File::open(args.like.as_ref())?;
            (like(&file, &changes)?, file.paths().to_vec())
        }
        None => {
            let names: Vec<&str> = Geometry::ALL.iter().map(|g| g.name).collect();
            bail!("--like {}: neither a file nor one of {}", args.like, names.join(", "));
        }
    };
    if let Some((size, pre)) = blueprint.vocab.take() {
        for (key, value) in plain_vocab(size, pre).iter() {
            blueprint.metadata.insert(key.to_owned(), value.clone());
        }
    }
    let mut out = OutFile::create(&args.out, &inputs, args.force.models()).context("--out")?;
    let _watched = interrupt::looks();
    let (head, data_bytes) = head_of(&blueprint);
    let bytes = head.len() as u64 + data_bytes;
    if let Some(free_bytes) = out.free_bytes().filter(|free_bytes| *free_bytes < bytes) {
        bail!(
            "--out {}: the file takes {}, and {} are free there; free some, choose another folder, or lower --layers or \
             --experts",
            args.out.display(),
            format_bytes_up(bytes),
            format_bytes(free_bytes)
        );
    }
    tell(format_args!("{}: {} to write", args.out.display(), format_bytes(bytes)));
    let all = format_bytes(blueprint.tensor_bytes());
    for Otherwise { asked, ty, cols, bytes } in blueprint.otherwise() {
        let (asked, ty, part) = (asked.name().to_lowercase(), ty.name().to_lowercase(), format_bytes(bytes));
        tell(format_args!(
            "{part} of {all} as {ty} in place of {asked}, for rows of {cols} values are no whole blocks"
        ));
    }
    out.write_all(&head)?;
    write_tensors(&blueprint, args.seed, data_bytes, &mut out)?;
    out.finish().context("--out")?;
    tell(format_args!(
        "{}: {} tensors, {} parameters, {}",
        args.out.display(),
        blueprint.tensors.len(),
        blueprint.parameters(),
        format_bytes(bytes)
    ));
    Ok(())
}

/// Writes the whole file, with a progress bar; `interrupt` is looked at.
pub(super) fn write(blueprint: &Blueprint, seed: u64, out: &mut dyn Write) -> anyhow::Result<()> {
    let (head, data_bytes) = head_of(blueprint);
    out.write_all(&head)?;
    write_tensors(blueprint, seed, data_bytes, out)
}

/// The bytes in front of the tensors, and how many follow.
fn head_of(blueprint: &Blueprint) -> (Vec<u8>, u64) {
    let specs: Vec<TensorSpec> = blueprint.tensors.iter().map(|t| t.spec.clone()).collect();
    let layout = Layout::of(&specs);
    (head(&blueprint.metadata, &specs, &layout), layout.data_bytes)
}

/// A type by the name that people use, in any case.
fn quant_named(name: &str) -> anyhow::Result<TensorType> {
    let weights = |ty: &TensorType| ty.is_quantised() || ty.is_float();
    let mut all = TensorType::ALL.iter().copied().filter(weights);
    let found = all.clone().find(|ty| ty.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| {
        let names: Vec<String> = all.by_ref().map(|ty| ty.name().to_lowercase()).collect();
        anyhow!("--quant {name}: no such type; it is one of {}", names.join(", "))
    })
}

/// A piece of a tensor, whole blocks, with the padding behind the last.
struct Piece {
    tensor: usize,
    number: u64,
    bytes: u64,
    padding: u64,
}

/// All pieces in file order.
fn pieces(tensors: &[Planned]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (tensor, planned) in tensors.iter().enumerate() {
        let (bytes, block) = (planned.spec.bytes(), planned.spec.ty.block_bytes() as u64);
        let step = PIECE_BYTES / block * block;
        for number in 0..bytes.div_ceil(step) {
            let left = bytes - number * step;
            let padding = if left <= step { bytes.next_multiple_of(32) - bytes } else { 0 };
            pieces.push(Piece { tensor, number, bytes: left.min(step), padding });
        }
    }
    pieces
}

fn write_tensors(blueprint: &Blueprint, seed: u64, bytes: u64, out: &mut dyn Write) -> anyhow::Result<()> {
    let pieces = pieces(&blueprint.tensors);
    let threads = machine::allowed_cpus().min(pieces.len().max(1));
    let bar = progress::bar(WRITING, bytes);
    let stop = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        // Where the system refuses a thread, the writer makes its pieces.
        let makers: Vec<Option<Receiver<Vec<u8>>>> = (0..threads)
            .map(|thread| {
                let (sender, receiver) = sync_channel(WAITING);
                let (pieces, stop) = (&pieces, &stop);
                let started = threads::start(scope, move || {
                    let own = pieces.iter().skip(thread).step_by(threads);
                    make(&blueprint.tensors, own, seed, stop, &sender);
                });
                started.is_ok().then_some(receiver)
            })
            .collect();
        let mut own = Maker::new(&blueprint.tensors, seed);
        let mut write = || {
            for (number, piece) in pieces.iter().enumerate() {
                if interrupt::happened() {
                    bail!("interrupted");
                }
                let piece = match &makers[number % threads] {
                    Some(maker) => maker.recv().context("a thread that makes weights ended early")?,
                    None => own.piece(piece),
                };
                out.write_all(&piece)?;
                bar.inc(piece.len() as u64);
            }
            Ok(())
        };
        let written = write();
        // A thread that waits for room gets it when its receiver goes.
        stop.store(true, Ordering::Relaxed);
        drop(makers);
        written
    });
    bar.finish_and_clear();
    written
}

fn make<'a>(
    tensors: &[Planned],
    pieces: impl Iterator<Item = &'a Piece>,
    seed: u64,
    stop: &AtomicBool,
    sender: &SyncSender<Vec<u8>>,
) {
    let mut maker = Maker::new(tensors, seed);
    for piece in pieces {
        if stop.load(Ordering::Relaxed) || sender.send(maker.piece(piece)).is_err() {
            return;
        }
    }
}

/// Makes pieces, best those of a tensor one after the other.
struct Maker<'a> {
    tensors: &'a [Planned],
    seed: u64,
    /// Of the last piece's tensor.
    blocks: Option<(usize, RandomBlocks)>,
}

impl Maker<'_> {
    fn new(tensors: &[Planned], seed: u64) -> Maker<'_> {
        Maker { tensors, seed, blocks: None }
    }

    fn piece(&mut self, piece: &Piece) -> Vec<u8> {
        let Planned { spec, fill, .. } = &self.tensors[piece.tensor];
        if self.blocks.as_ref().is_none_or(|(tensor, _)| *tensor != piece.tensor) {
            let random = match fill {
                Fill::Norm => RandomBlocks::around(spec.ty, 1.0, 0.05),
                Fill::Random(rms) => RandomBlocks::new(spec.ty, *rms),
            };
            self.blocks = random.map(|random| (piece.tensor, random));
        }
        let mut bytes = vec![0u8; piece.bytes as usize];
        if let Some((_, random)) = &self.blocks {
            let place = (piece.tensor as u64) << 32 | piece.number;
            random.fill(
                self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place.wrapping_mul(0xd6e8_feb8_6659_fd93),
                &mut bytes,
            );
        }
        bytes.resize((piece.bytes + piece.padding) as usize, 0);
        bytes
    }
}
