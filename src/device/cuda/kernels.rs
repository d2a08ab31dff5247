//! The kernels of a card: compiled once (or taken from the cache), then handed out by name with their signatures.
//!
//! Invariants: a signature is that of the source, which a test compares; code is taken from the cache only under
//! everything that it depends on: text, headers, format, options, compiler, architecture; of processes that start together
//! one compiles a piece, and a thread that waits for it holds back no other piece.
//! Does not know: models, memory.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::CudaError;
use super::cache::{Cache, Hash};
use super::compiler::{Compiler, Request, Target};
use super::driver::Parameter::{F32 as F, I32 as I, I64 as L, Pointer as P, U32 as U};
use super::driver::{Context, Device, Kernel, Module, Parameter, Start};
use super::shares::{Work, processors, share};
use super::source::{
    self, APPEND, ATTENTION, ATTENTION_PROMPT, ATTENTION_WINDOW, BEST, FORMATS, Format, HOST, LINKS, PROMPT,
    ROUTER, ROWS, Unit,
};
use super::vendor::Architecture;
use crate::device::{CardError, LoadProgress};
use crate::gguf::TensorType;
use crate::gguf::formats::ImageKind;
use crate::model::facts::{CardId, KvFormat};

/// Of products with images: three matrices, images, what is added, experts, rows of floats.
#[rustfmt::skip]
const WINDOW: &[Parameter] = &[
    P, P, P, P, P, P, I, I, I, I, I, I, P, P, P, P, P, P, I, I, I, I, I,
    P, P, I, I, P, I, P, L, I, I, P, I, P, U,
];

/// Parameters of each kernel, or family of kernels up to the name of a type: unit, name, parameters.
const SIGNATURES: &[(&Unit, &str, &[Parameter])] = &[
    (&FORMATS, "embed_", &[P, P, P, I, I, I]),
    (&FORMATS, "window_one_", WINDOW),
    (&FORMATS, "window_two_", WINDOW),
    (&FORMATS, "window_four_", WINDOW),
    (&FORMATS, "window_narrow_", WINDOW),
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
    (&ROWS, "combine", &[P, P, P, I, I, I, I, I]),
    (&ROWS, "norm_images", &[P, I, P, I, P, I, F, P, I, P, P, P, P, I, P, U]),
    (&ROUTER, "route", &[P, I, I, I, P, P, I, P, U]),
    (&ROUTER, "norm_router_", &[P, I, P, I, F, P, I, P, P, P, P, P, P, P, P, I, I, I, P, U]),
    (&APPEND, "place_heads_", &[P, I, I, P, I, P, I, I, I, I, P, P, F, P, I, I, P, P, P, I, P, L, I, P, U]),
    (&ATTENTION_WINDOW, "attend_tile_1_", TILE),
    (&ATTENTION_WINDOW, "attend_tile_2_", TILE),
    (&ATTENTION_WINDOW, "attend_tile_4_", TILE),
    (&ATTENTION_WINDOW, "attend_tile_8_", TILE),
    (&ATTENTION_WINDOW, "attend_128_1_", TILE),
    (&ATTENTION_WINDOW, "attend_128_2_", TILE),
    (&ATTENTION_WINDOW, "attend_128_4_", TILE),
    (&ATTENTION_WINDOW, "attend_128_8_", TILE),
    (&ATTENTION_WINDOW, "merge_images", &[P, I, P, P, I, I, I, P, P, P, P, I, P, U]),
    (&APPEND, "append_", &[P, I, P, I, I, I, I, P, P, P, I, P, L, I, P, U]),
    (&ATTENTION, "attend_span_", &[P, I, I, I, I, I, F, P, P, P, I, P, L, P, I, I]),
    (&ATTENTION, "attend_merge", &[P, I, P, P, I, I, I, I]),
    (&APPEND, "copy_page", &[P, L, I, I]),
    (&PROMPT, "group_pairs", &[P, I, I, P, P]),
    (&PROMPT, "prompt_product_", &[P, L, P, P, I, P, P, P, I, I, I, I, P, I, P]),
    (&BEST, "best_of_logits", &[P, I, I, P, I, I]),
    (&BEST, "best_of_keys", &[P, I, P, I, I]),
    (&HOST, "take_block", &[P, L, P, P, L]),
    (&HOST, "give_results", &[P, P, P, I, P, L]),
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
    /// NVIDIA's compiler; searched for without it.
    pub nvrtc: Option<PathBuf>,
    /// AMD's compiler; searched for without it.
    pub hiprtc: Option<PathBuf>,
    /// Folder of compiled kernels; nothing is kept without it.
    pub cache: Option<PathBuf>,
}

/// What compiled code depends on beside its text: the card and what serves it.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// The card's instructions.
    pub architecture: Architecture,
    /// The version of CUDA, or of HIP, that the driver serves.
    pub driver: (i32, i32),
}

impl Machine {
    /// Of a device whose architecture is known.
    pub fn of(device: &Device) -> Result<Machine, CudaError> {
        let driver = device.driver().version();
        match &device.architecture {
            Ok(architecture) => Ok(Machine { architecture: *architecture, driver }),
            Err(what) => Err(CudaError::NoArchitecture { what: what.clone() }),
        }
    }
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
    format: Option<Format>,
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

/// What waits for other processes' kernels, all in all: a start compiles all of its own in a minute or two on a slow computer.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// The least driver of CUDA that keeps early launches in captured graphs.
const EARLY_DRIVER: (i32, i32) = (12, 3);

impl Kernels {
    /// The kernels of `units` for `formats`: compiles what the cache does not hold and no other process compiles already,
    /// on all processors, and loads it. A driver that refuses machine code gets text, of which it makes its own.
    pub fn load(
        place: Place<'_>,
        settings: &KernelSettings,
        units: &[&'static Unit],
        formats: &BTreeSet<Format>,
    ) -> Result<Kernels, CardError> {
        let Place { card, context, machine, .. } = place;
        let failed = |e: CudaError| e.on(card);
        let vendor = context.vendor();
        let named = vendor.one_of(&settings.nvrtc, &settings.hiprtc);
        let compiler = Compiler::open(vendor, named.as_deref(), machine.driver).map_err(failed)?;
        let cache = Cache::new(settings.cache.clone());
        cache.remove_leftovers();
        let targets = compiler.targets(machine.architecture).map_err(failed)?;
        let supply = Supply { compiler, cache, place, deadline: Instant::now() + WAIT_MAX };
        let (mut modules, mut missing) = (Vec::new(), Vec::new());
        for piece in pieces(units, formats) {
            match targets.iter().find_map(|&target| supply.kept(piece, target)) {
                Some(loaded) => modules.push(loaded.map_err(failed)?),
                None => missing.push(piece),
            }
        }
        let mut refusal = None;
        for target in targets {
            let mut refused = Vec::new();
            for (piece, made) in missing.iter().zip(supply.make_all(&missing, target)?) {
                match made {
                    Ok(loaded) => modules.push(loaded),
                    Err(error) => {
                        refusal = Some(error);
                        refused.push(*piece);
                    }
                }
            }
            if let Some(error) = refusal.as_ref().filter(|_| !refused.is_empty()) {
                tracing::info!(%target, pieces = refused.len(), "{error}");
            }
            missing = refused;
        }
        match refusal.filter(|_| !missing.is_empty()) {
            Some(error) => Err(failed(error)),
            None => Ok(Kernels { modules, cache: supply.cache, takes_early: machine.driver >= EARLY_DRIVER }),
        }
    }

    /// A kernel without a type in its name.
    pub fn plain(&self, name: &'static str) -> Result<Kernel, CudaError> {
        self.of(name, None)
    }

    /// The kernel of a family for weights of a type.
    pub fn for_type(&self, family: &'static str, ty: TensorType) -> Result<Kernel, CudaError> {
        self.of(family, Some(Format::Weights(ty)))
    }

    /// The kernel of a family for a format of keys and values.
    pub fn for_kv(&self, family: &'static str, format: KvFormat) -> Result<Kernel, CudaError> {
        self.of(family, Some(Format::Kv(format)))
    }

    /// The kernel that makes images.
    pub fn quantise(&self, kind: ImageKind) -> Result<Kernel, CudaError> {
        self.plain(match kind {
            ImageKind::A32 => "quantise_a32",
            ImageKind::A256 => "quantise_a256",
        })
    }

    fn of(&self, family: &'static str, format: Option<Format>) -> Result<Kernel, CudaError> {
        let (unit, _, signature) = *SIGNATURES
            .iter()
            .find(|(_, name, _)| *name == family)
            .expect("invariant: kernels are asked for by names that are listed");
        let name = format!("{family}{}", format.map(Format::name).unwrap_or_default());
        // What a unit of formats has beside them is in each of its pieces.
        let mut of_unit = self.modules.iter().filter(|loaded| loaded.piece.unit == unit);
        let loaded =
            of_unit.find(|loaded| unit.each.is_none() || format.is_none() || loaded.piece.format == format);
        let kernel = match loaded {
            None => None,
            Some(Loaded { target, module, .. }) => {
                let early = self.takes_early && target.can_wait();
                module.kernel(&name, signature, if early { Start::Early } else { Start::InOrder })?
            }
        };
        kernel.ok_or_else(|| CudaError::NoKernel { name, folder: self.cache.shown() })
    }
}

/// What is compiled for these formats.
fn pieces(units: &[&'static Unit], formats: &BTreeSet<Format>) -> Vec<Piece> {
    let of_unit = |&unit: &&'static Unit| -> Vec<Piece> {
        let Some(kind) = unit.each else { return vec![Piece { unit, format: None }] };
        let of_kind = formats.iter().filter(|format| format.kind() == kind);
        of_kind.map(|&format| Piece { unit, format: Some(format) }).collect()
    };
    units.iter().flat_map(of_unit).collect()
}

/// Gives the pieces of one start.
struct Supply<'a> {
    compiler: Compiler,
    cache: Cache,
    place: Place<'a>,
    /// Of all waits for other processes.
    deadline: Instant,
}

/// A piece on the card, or why the driver does not take its code.
type Made = Result<Loaded, CudaError>;

impl Supply<'_> {
    fn key(&self, piece: Piece, target: Target) -> Hash {
        key(piece, &self.compiler, target, self.place.machine)
    }

    /// A piece of the cache's; `None` where it is to be compiled.
    fn kept(&self, piece: Piece, target: Target) -> Option<Made> {
        let image = self.cache.read(self.key(piece, target))?;
        match Module::load(self.place.context, &image) {
            // Another driver, or a damaged file: compiled again.
            Err(CudaError::Image { .. }) => None,
            loaded => Some(loaded.map(|module| Loaded { piece, target, module })),
        }
    }

    /// Each piece, in their order.
    fn make_all(&self, pieces: &[Piece], target: Target) -> Result<Vec<Made>, CardError> {
        let Place { card, progress, .. } = self.place;
        if pieces.is_empty() {
            return Ok(Vec::new());
        }
        progress.compiled(card, 0, pieces.len())?;
        let (done, waited) = (AtomicUsize::new(0), AtomicBool::new(false));
        let waits = || {
            if !waited.swap(true, Ordering::Relaxed) {
                tracing::info!("{card}: waits for kernels that another process compiles");
            }
            progress.waits(card)
        };
        let make = |(): &mut (), index: usize| -> Result<Made, CardError> {
            let made = self.make(pieces[index], target, waits)?;
            progress.compiled(card, done.fetch_add(1, Ordering::Relaxed) + 1, pieces.len())?;
            Ok(made)
        };
        share(processors(), pieces.len(), &Work { begin: || Ok(()), work: make, end: Ok })
    }

    /// Compiles a piece, loads it and keeps it for others, unless another process has done so meanwhile.
    fn make(
        &self,
        piece: Piece,
        target: Target,
        waits: impl FnMut() -> Result<(), CardError>,
    ) -> Result<Made, CardError> {
        let key = self.key(piece, target);
        let _claim = self.cache.claim(key, self.deadline, waits)?;
        let made = match self.kept(piece, target) {
            Some(kept) => kept,
            None => self.compile(piece, target).and_then(|image| {
                let module = Module::load(self.place.context, &image)?;
                self.cache.write(key, &image);
                Ok(Loaded { piece, target, module })
            }),
        };
        match made {
            Err(error) if !matches!(error, CudaError::Image { .. }) => Err(error.on(self.place.card)),
            made => Ok(made),
        }
    }

    fn compile(&self, piece: Piece, target: Target) -> Result<Vec<u8>, CudaError> {
        let headers = source::headers(piece.unit, piece.format);
        let (unit, source) = (piece.unit.name, piece.unit.text);
        let started = Instant::now();
        let image = self.compiler.code(&Request { unit, source, headers: &headers, target })?;
        let (ms, format) =
            (started.elapsed().as_millis(), piece.format.map(Format::name).unwrap_or_default());
        tracing::info!(unit, format, %target, ms, bytes = image.len(), "kernels compiled");
        Ok(image)
    }
}

/// Everything that compiled code depends on; text also depends on the driver that takes it.
fn key(piece: Piece, compiler: &Compiler, target: Target, machine: Machine) -> Hash {
    key_of(piece, (compiler.version(), compiler.options()), target, machine.driver)
}

fn key_of(
    piece: Piece,
    (compiler, options): ((i32, i32), &[&str]),
    target: Target,
    driver: (i32, i32),
) -> Hash {
    let version = |(major, minor): (i32, i32)| format!("{major}.{minor}");
    let mut hash = Hash::new().with(piece.unit.name.as_bytes()).with(piece.unit.text.as_bytes());
    for (name, text) in source::headers(piece.unit, piece.format) {
        hash = hash.with(name.as_bytes()).with(text.as_bytes());
    }
    for option in options {
        hash = hash.with(option.as_bytes());
    }
    hash = hash.with(version(compiler).as_bytes()).with(target.to_string().as_bytes());
    match target {
        Target::Cubin(_) | Target::Object(_) => hash,
        Target::Ptx(_) => hash.with(version(driver).as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::source::{FormatKind, UNITS};

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
        let (rows, sm_90) = (piece(&ROWS, None), Target::Cubin(90));
        const NEW: ((i32, i32), &[&str]) = ((12, 9), &["--fmad=false"]);
        const OLD: ((i32, i32), &[&str]) = ((12, 8), NEW.1);
        let base = key_of(rows, NEW, sm_90, (12, 8));
        static OTHER: Unit = Unit { name: ROWS.name, text: "x", each: None };
        for changed in [
            key_of(rows, OLD, sm_90, (12, 8)),
            key_of(rows, (NEW.0, &[]), sm_90, (12, 8)),
            key_of(rows, NEW, Target::Cubin(89), (12, 8)),
            key_of(rows, NEW, Target::Ptx(90), (12, 8)),
            key_of(piece(&OTHER, None), NEW, sm_90, (12, 8)),
            key_of(piece(&ATTENTION, None), NEW, sm_90, (12, 8)),
        ] {
            assert_ne!(base, changed);
        }
        assert_eq!(base, key_of(rows, NEW, sm_90, (13, 0)), "machine code is what it is");
        let text = |driver| key_of(rows, NEW, Target::Ptx(90), driver);
        assert_ne!(text((12, 8)), text((13, 0)), "a newer driver may take machine code");
        let of_format = |unit, format| key_of(piece(unit, Some(format)), NEW, sm_90, (12, 8));
        let weights = |ty| of_format(&FORMATS, Format::Weights(ty));
        assert_ne!(weights(TensorType::Q4_K), weights(TensorType::Q6_K));
        for unit in [&APPEND, &ATTENTION, &ATTENTION_WINDOW, &ATTENTION_PROMPT] {
            let kv = |format| of_format(unit, Format::Kv(format));
            assert_ne!(kv(KvFormat::F16), kv(KvFormat::Q8_0), "{}", unit.name);
        }
    }

    #[test]
    fn a_unit_of_formats_is_compiled_for_each_and_others_once() {
        let [f32, q4, kv] =
            [Format::Weights(TensorType::F32), Format::Weights(TensorType::Q4_K), Format::Kv(KvFormat::F16)];
        let formats = BTreeSet::from([q4, kv, f32]);
        for unit in UNITS {
            let found: Vec<_> =
                pieces(&UNITS, &formats).iter().filter(|p| p.unit == unit).map(|p| p.format).collect();
            let expected = match unit.each {
                Some(FormatKind::Weights) => vec![Some(f32), Some(q4)],
                Some(FormatKind::Kv) => vec![Some(kv)],
                None => vec![None],
            };
            assert_eq!(found, expected, "{}", unit.name);
        }
    }
}
