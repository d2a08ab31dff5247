//! The kernels of a card: compiled once (or taken from the cache), then handed out by name with their signatures.
//!
//! Invariants: a signature is that of the source, which a test compares; code is taken from the cache only under
//! everything that it depends on: text, headers, format, options, compiler, architecture.
//! Does not know: models, memory.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::CudaError;
use super::cache::{Cache, Hash};
use super::driver::Parameter::{F32 as F, I32 as I, I64 as L, Pointer as P, U32 as U};
use super::driver::{Context, Kernel, Module, Parameter, Start};
use super::early::waits_by_itself;
use super::nvrtc::{Nvrtc, Request, Target};
use super::source::{
    self, APPEND, ATTENTION, ATTENTION_PROMPT, ATTENTION_WINDOW, FORMATS, LINKS, OPTIONS, PROMPT, ROWS, Unit,
};
use crate::device::{CardError, LoadProgress};
use crate::gguf::TensorType;
use crate::gguf::formats::ImageKind;
use crate::model::facts::{CardId, KvFormat};

/// Of products with images: three matrices, images, what is added, experts, rows of floats.
#[rustfmt::skip]
const WINDOW: &[Parameter] = &[
    P, P, P, P, P, P, I, I, I, I, I, I, P, P, P, P, P, P, I, I,
    P, P, I, I, P, I, P, L, I, I, P, I, P, U,
];

/// Parameters of each kernel, or family of kernels up to the name of a type: unit, name, parameters.
const SIGNATURES: &[(&Unit, &str, &[Parameter])] = &[
    (&FORMATS, "embed_", &[P, P, P, I, I, I]),
    (&FORMATS, "window_", WINDOW),
    (&FORMATS, "window_wide_", WINDOW),
    (&FORMATS, "product_float_", &[P, P, I, P, I, I, I, I, P, P]),
    (&FORMATS, "expert_product_float_", &[P, L, P, I, I, P, I, P, I, I, I, P, I]),
    (&ROWS, "rms_norm", &[P, I, I, P, I, I, P, I, I, F, I]),
    (&ROWS, "quantise_a32", &[P, I, P, P, I, I, P, U]),
    (&ROWS, "quantise_a256", &[P, I, P, P, I, I, P, U]),
    (&ROWS, "rope", &[P, I, I, P, I, I, I]),
    (&ROWS, "add", &[P, I, P, I, I, I]),
    (&ROWS, "swiglu", &[P, I, P, I, I, I]),
    (&ROWS, "gather", &[P, I, P, I, P, I, I]),
    (&ROWS, "route", &[P, I, I, I, P, P, I, P, U]),
    (&ROWS, "combine", &[P, P, P, I, I, I, I, I]),
    (&ROWS, "norm_images", &[P, I, P, I, P, I, F, P, I, P, P, P, P, I, P, U]),
    (&APPEND, "place_heads_", &[P, I, I, P, I, P, I, I, I, I, P, P, F, P, I, I, P, P, P, I, P, L, I, P, U]),
    (&ATTENTION_WINDOW, "attend_tile_1_", TILE),
    (&ATTENTION_WINDOW, "attend_tile_2_", TILE),
    (&ATTENTION_WINDOW, "attend_tile_4_", TILE),
    (&ATTENTION_WINDOW, "attend_tile_8_", TILE),
    (&ATTENTION_WINDOW, "merge_images", &[P, I, P, P, I, I, I, P, P, P, P, I, P, U]),
    (&APPEND, "append_", &[P, I, P, I, I, I, I, P, P, P, I, P, L, I, P, U]),
    (&ATTENTION, "attend_span_", &[P, I, I, I, I, I, F, P, P, P, I, P, L, P, I, I]),
    (&ATTENTION, "attend_merge", &[P, I, P, P, I, I, I, I]),
    (&APPEND, "copy_page", &[P, L, I, I]),
    (&PROMPT, "group_pairs", &[P, I, I, P, P]),
    (&PROMPT, "prompt_product_", &[P, L, P, P, I, P, P, P, I, I, I, I, P, I, P]),
    (&LINKS, "post_rows", &[P, P, P, L, P, P, L]),
    (&LINKS, "await_rows", &[P, P, P, L, P, P, P, P, L, L]),
    (&ATTENTION_PROMPT, "attend_prompt_64_", PROMPT_PARAMETERS),
    (&ATTENTION_PROMPT, "attend_prompt_128_", PROMPT_PARAMETERS),
    (&ATTENTION_PROMPT, "attend_prompt_256_", PROMPT_PARAMETERS),
    (&ATTENTION_PROMPT, "attend_prompt_merge", &[P, I, P, P, I, I, I, I]),
];

/// Heads, where rows stand, pages, work.
#[rustfmt::skip]
const TILE: &[Parameter] = &[
    P, I, I, P, I, P, I, I, I, I, P, P, F, P, I, I, F, P, P, P, I, P, L, P, I, I, I, P, U,
];

const PROMPT_PARAMETERS: &[Parameter] = &[P, I, I, I, I, I, F, P, P, P, I, P, L, P, I, P, I, I];

/// Where kernels come from.
#[derive(Clone, Debug, Default)]
pub struct KernelSettings {
    /// The compiler's library; searched for without it.
    pub nvrtc: Option<PathBuf>,
    /// Folder of compiled kernels; nothing is kept without it.
    pub cache: Option<PathBuf>,
}

/// What compiled code depends on beside its text: the card and what serves it.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// The card's compute capability.
    pub capability: (i32, i32),
    /// The CUDA version that the driver serves.
    pub driver: (i32, i32),
}

/// Where kernels are wanted, and who hears how far they are.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// Which card.
    pub card: CardId,
    /// Its device.
    pub context: &'a Context,
    /// What it is.
    pub machine: Machine,
    /// Told while kernels are compiled.
    pub progress: &'a dyn LoadProgress,
}

/// A unit and, where it is compiled for each format, the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    unit: &'static Unit,
    format: Option<TensorType>,
}

/// The compiled units on a card.
#[derive(Debug)]
pub struct Kernels {
    modules: Vec<Loaded>,
    cache: Cache,
    takes_early: bool,
}

/// A piece on the card.
#[derive(Debug)]
struct Loaded {
    piece: Piece,
    target: Target,
    module: Module,
}

/// The least architecture whose code can wait for the kernel before. Text for an older one cannot, on any card.
const EARLY_SINCE: i32 = 90;
/// The least driver that keeps early launches in captured graphs.
const EARLY_DRIVER: (i32, i32) = (12, 3);

impl Kernels {
    /// The kernels of `units` for weights of `formats`: compiles what the cache does not hold, on all processors, and
    /// loads it. A driver that refuses machine code gets text, of which it makes its own.
    pub fn load(
        place: Place<'_>,
        settings: &KernelSettings,
        units: &[&'static Unit],
        formats: &BTreeSet<TensorType>,
    ) -> Result<Kernels, CardError> {
        let Place { card, context, machine, .. } = place;
        let failed = |e: CudaError| e.on(card);
        let nvrtc = Nvrtc::open(settings.nvrtc.as_deref(), machine.driver).map_err(failed)?;
        let cache = Cache::new(settings.cache.clone());
        let targets = nvrtc.targets(machine.capability).map_err(failed)?;
        let (mut modules, mut missing) = (Vec::new(), Vec::new());
        for piece in pieces(units, formats) {
            let kept = |&target: &Target| {
                let image = cache.read(key(piece, &nvrtc, target, machine))?;
                let module = Module::load(context, &image).ok()?;
                Some(Loaded { piece, target, module })
            };
            match targets.iter().find_map(kept) {
                Some(loaded) => modules.push(loaded),
                None => missing.push(piece),
            }
        }
        let mut refusal = None;
        for target in targets {
            let images = compile_all(&nvrtc, &missing, target, place)?;
            let mut refused = Vec::new();
            for (piece, image) in missing.into_iter().zip(images) {
                match Module::load(context, &image) {
                    Ok(module) => {
                        cache.write(key(piece, &nvrtc, target, machine), &image);
                        modules.push(Loaded { piece, target, module });
                    }
                    Err(error @ CudaError::Image { .. }) => {
                        refusal = Some(error);
                        refused.push(piece);
                    }
                    Err(error) => return Err(failed(error)),
                }
            }
            if let Some(error) = refusal.as_ref().filter(|_| !refused.is_empty()) {
                tracing::info!(%target, pieces = refused.len(), "{error}");
            }
            missing = refused;
        }
        match refusal.filter(|_| !missing.is_empty()) {
            Some(error) => Err(failed(error)),
            None => Ok(Kernels { modules, cache, takes_early: machine.driver >= EARLY_DRIVER }),
        }
    }

    /// A kernel without a type in its name.
    pub fn plain(&self, name: &'static str) -> Result<Kernel, CudaError> {
        self.of(name, None, "")
    }

    /// The kernel of a family for weights of a type.
    pub fn for_type(&self, family: &'static str, ty: TensorType) -> Result<Kernel, CudaError> {
        self.of(family, Some(ty), &ty.name().to_ascii_lowercase())
    }

    /// The kernel of a family for a format of keys and values.
    pub fn for_kv(&self, family: &'static str, format: KvFormat) -> Result<Kernel, CudaError> {
        self.of(family, None, format.name())
    }

    /// The kernel that makes images.
    pub fn quantise(&self, kind: ImageKind) -> Result<Kernel, CudaError> {
        self.plain(match kind {
            ImageKind::A32 => "quantise_a32",
            ImageKind::A256 => "quantise_a256",
        })
    }

    fn of(&self, family: &'static str, ty: Option<TensorType>, end: &str) -> Result<Kernel, CudaError> {
        let (unit, _, signature) = *SIGNATURES
            .iter()
            .find(|(_, name, _)| *name == family)
            .expect("invariant: kernels are asked for by names that are listed");
        let name = format!("{family}{end}");
        // What a unit of formats has beside them is in each of its pieces.
        let mut of_unit = self.modules.iter().filter(|loaded| loaded.piece.unit == unit);
        let loaded = of_unit.find(|loaded| !unit.per_format || ty.is_none() || loaded.piece.format == ty);
        let kernel = loaded.and_then(|loaded| {
            let can_wait = loaded.target.architecture() >= EARLY_SINCE;
            let early = self.takes_early && can_wait && waits_by_itself(unit, &name);
            loaded.module.kernel(&name, signature, if early { Start::Early } else { Start::InOrder })
        });
        kernel.ok_or_else(|| CudaError::NoKernel { name, folder: self.cache.shown() })
    }
}

/// What is compiled for weights of these formats.
fn pieces(units: &[&'static Unit], formats: &BTreeSet<TensorType>) -> Vec<Piece> {
    let of_unit = |&unit: &&'static Unit| -> Vec<Piece> {
        if unit.per_format {
            formats.iter().map(|&ty| Piece { unit, format: Some(ty) }).collect()
        } else {
            vec![Piece { unit, format: None }]
        }
    };
    units.iter().flat_map(of_unit).collect()
}

/// The code of each piece, in their order.
fn compile_all(
    nvrtc: &Nvrtc,
    pieces: &[Piece],
    target: Target,
    place: Place<'_>,
) -> Result<Vec<Vec<u8>>, CardError> {
    let Place { card, progress, .. } = place;
    if pieces.is_empty() {
        return Ok(Vec::new());
    }
    progress.compiled(card, 0, pieces.len())?;
    let (next, done, ended) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let compile = |piece: Piece| -> Result<Vec<u8>, CardError> {
        let image = compile(nvrtc, piece, target).map_err(|e| e.on(card))?;
        progress.compiled(card, done.fetch_add(1, Ordering::Relaxed) + 1, pieces.len())?;
        Ok(image)
    };
    let work = || -> Result<Vec<(usize, Vec<u8>)>, CardError> {
        let mut images = Vec::new();
        while !ended.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(&piece) = pieces.get(index) else { break };
            let image = compile(piece).inspect_err(|_| ended.store(true, Ordering::Relaxed))?;
            images.push((index, image));
        }
        Ok(images)
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(pieces.len());
    let results = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let images = workers.into_iter().map(|worker| match worker.join() {
            Ok(images) => images,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        images.collect::<Result<Vec<_>, CardError>>()
    })?;
    let mut images: Vec<(usize, Vec<u8>)> = results.into_iter().flatten().collect();
    images.sort_by_key(|(index, _)| *index);
    Ok(images.into_iter().map(|(_, image)| image).collect())
}

fn compile(nvrtc: &Nvrtc, piece: Piece, target: Target) -> Result<Vec<u8>, CudaError> {
    let headers = source::headers(piece.unit, piece.format);
    let (unit, source) = (piece.unit.name, piece.unit.text);
    let started = std::time::Instant::now();
    let image = nvrtc.code(&Request { unit, source, headers: &headers, options: OPTIONS, target })?;
    let (ms, format) = (started.elapsed().as_millis(), piece.format.map_or("", TensorType::name));
    tracing::info!(unit, format, %target, ms, bytes = image.len(), "kernels compiled");
    Ok(image)
}

/// Everything that compiled code depends on; text also depends on the driver that takes it.
fn key(piece: Piece, nvrtc: &Nvrtc, target: Target, machine: Machine) -> Hash {
    key_of(piece, nvrtc.version(), target, machine.driver)
}

fn key_of(piece: Piece, nvrtc: (i32, i32), target: Target, driver: (i32, i32)) -> Hash {
    let version = |(major, minor): (i32, i32)| format!("{major}.{minor}");
    let mut hash = Hash::new().with(piece.unit.name.as_bytes()).with(piece.unit.text.as_bytes());
    for (name, text) in source::headers(piece.unit, piece.format) {
        hash = hash.with(name.as_bytes()).with(text.as_bytes());
    }
    for option in OPTIONS {
        hash = hash.with(option.as_bytes());
    }
    hash = hash.with(version(nvrtc).as_bytes()).with(target.to_string().as_bytes());
    match target {
        Target::Cubin(_) => hash,
        Target::Ptx(_) => hash.with(version(driver).as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::source::UNITS;

    /// Names of the kernels of a source, with what stands between their parentheses. A macro's kernel has the name of
    /// the family (`embed_##T`), or is called NAME and named by the macro's uses.
    fn kernels(text: &str) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (at, _) in text.match_indices("extern \"C\" __global__") {
            let rest = text[at..].replace('\\', " ");
            let rest = rest.split_once("void").unwrap().1.trim_start();
            let rest = match rest.strip_prefix("__launch_bounds__") {
                Some(bounds) => bounds.split_once(')').unwrap().1.trim_start(),
                None => rest,
            };
            let (name, rest) = rest.split_once('(').unwrap();
            let (parameters, _) = rest.split_once(')').unwrap();
            let name = name.trim().trim_end_matches("##T").to_owned();
            if name != "NAME" {
                found.push((name, parameters.to_owned()));
                continue;
            }
            let (head, _) = text[..at].rsplit_once("(NAME,").unwrap();
            let makro = head.rsplit_once("#define ").unwrap().1;
            let uses = text.lines().filter_map(|l| l.trim_start().strip_prefix(makro)?.strip_prefix('('));
            for name in uses.map(|u| u.split(',').next().unwrap()) {
                let family = ["f32", "f16", "q8_0", "##T"].iter().find_map(|f| name.strip_suffix(f)).unwrap();
                found.push((family.to_owned(), parameters.to_owned()));
            }
        }
        found
    }

    fn parameter(text: &str) -> Parameter {
        match text.split_whitespace().next().unwrap() {
            _ if text.contains('*') => P,
            "i32" => I,
            "u32" => U,
            "f32" => F,
            "i64" => L,
            other => panic!("a parameter of type {other}"),
        }
    }

    #[test]
    fn signatures_are_those_of_the_sources() {
        let mut seen = std::collections::BTreeSet::new();
        for unit in UNITS {
            for (name, parameters) in kernels(unit.text) {
                let listed = SIGNATURES.iter().find(|(u, n, _)| u.name == unit.name && *n == name);
                let (_, _, signature) =
                    listed.unwrap_or_else(|| panic!("{}: {name} is not listed", unit.name));
                let found: Vec<Parameter> = parameters.split(',').map(parameter).collect();
                assert_eq!(found, *signature, "{}: {name}", unit.name);
                seen.insert(name);
            }
        }
        let listed: std::collections::BTreeSet<String> =
            SIGNATURES.iter().map(|(_, name, _)| (*name).to_owned()).collect();
        assert_eq!(seen, listed, "left: in the sources, right: listed");
    }

    #[test]
    fn the_key_depends_on_compiler_architecture_format_and_text() {
        let piece = |unit, format| Piece { unit, format };
        let (rows, q4, sm_90) = (piece(&ROWS, None), Some(TensorType::Q4_K), Target::Cubin(90));
        let base = key_of(rows, (12, 9), sm_90, (12, 8));
        static OTHER: Unit = Unit { name: ROWS.name, text: "x", per_format: false };
        for changed in [
            key_of(rows, (12, 8), sm_90, (12, 8)),
            key_of(rows, (12, 9), Target::Cubin(89), (12, 8)),
            key_of(rows, (12, 9), Target::Ptx(90), (12, 8)),
            key_of(piece(&OTHER, None), (12, 9), sm_90, (12, 8)),
            key_of(piece(&ATTENTION, None), (12, 9), sm_90, (12, 8)),
        ] {
            assert_ne!(base, changed);
        }
        assert_eq!(base, key_of(rows, (12, 9), sm_90, (13, 0)), "machine code is what it is");
        let text = |driver| key_of(rows, (12, 9), Target::Ptx(90), driver);
        assert_ne!(text((12, 8)), text((13, 0)), "a newer driver may take machine code");
        let of_format = |ty| key_of(piece(&FORMATS, ty), (12, 9), sm_90, (12, 8));
        assert_ne!(of_format(q4), of_format(Some(TensorType::Q6_K)));
    }

    #[test]
    fn a_unit_of_formats_is_compiled_for_each_and_others_once() {
        let formats = BTreeSet::from([TensorType::Q4_K, TensorType::F32]);
        for unit in UNITS {
            let found: Vec<_> =
                pieces(&UNITS, &formats).iter().filter(|p| p.unit == unit).map(|p| p.format).collect();
            let each = vec![Some(TensorType::F32), Some(TensorType::Q4_K)];
            assert_eq!(found, if unit.per_format { each } else { vec![None] }, "{}", unit.name);
        }
    }
}
