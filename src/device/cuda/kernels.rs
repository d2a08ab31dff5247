//! The kernels of a card: compiled once (or taken from the cache), then handed out by name with their signatures.
//!
//! Invariants: a signature is that of the source, which a test compares; machine code is taken from the cache only
//! under everything that it depends on: text, headers, options, compiler, architecture.
//! Does not know: models, memory.

use std::path::PathBuf;

use super::CudaError;
use super::cache::{Cache, Hash};
use super::driver::Parameter::{F32 as F, I32 as I, I64 as L, Pointer as P, U32 as U};
use super::driver::{Context, Kernel, Module, Parameter};
use super::nvrtc::{Nvrtc, Request};
use super::source::{self, ATTENTION, ATTENTION_PROMPT, FORMATS, HEADERS, OPTIONS, ROWS, UNITS, Unit};
use crate::gguf::TensorType;
use crate::gguf::formats::ImageKind;
use crate::model::facts::KvFormat;

/// Parameters of each kernel, or family of kernels up to the name of a type: unit, name, parameters.
const SIGNATURES: &[(&Unit, &str, &[Parameter])] = &[
    (&FORMATS, "embed_", &[P, P, P, I, I, I]),
    (&FORMATS, "product_", &[P, P, P, P, I, I, I, I, P, P]),
    (&FORMATS, "product_float_", &[P, P, I, P, I, I, I, I, P, P]),
    (&FORMATS, "expert_product_", &[P, L, P, I, I, P, P, P, I, I, I, P, I]),
    (&FORMATS, "expert_product_float_", &[P, L, P, I, I, P, I, P, I, I, I, P, I]),
    (&ROWS, "rms_norm", &[P, I, I, P, I, I, P, I, I, F, I]),
    (&ROWS, "quantise_a32", &[P, I, P, P, I, I, P, U]),
    (&ROWS, "quantise_a256", &[P, I, P, P, I, I, P, U]),
    (&ROWS, "rope", &[P, I, I, P, I, I, I]),
    (&ROWS, "add", &[P, I, P, I, I, I]),
    (&ROWS, "swiglu", &[P, I, P, I, I, I]),
    (&ROWS, "gather", &[P, I, P, I, P, I, I]),
    (&ROWS, "route", &[P, I, I, I, P, P, I, P, U]),
    (&ROWS, "combine", &[P, P, P, I, I, I, I]),
    (&ATTENTION, "append_", &[P, I, P, I, I, I, I, P, P, P, I, P, L, I, P, U]),
    (&ATTENTION, "attend_span_", &[P, I, I, I, I, I, F, P, P, P, I, P, L, P, I, I]),
    (&ATTENTION, "attend_merge", &[P, I, P, P, I, I, I, I]),
    (&ATTENTION, "copy_page", &[P, L, I, I]),
    (&ATTENTION_PROMPT, "attend_prompt_64_", PROMPT_PARAMETERS),
    (&ATTENTION_PROMPT, "attend_prompt_128_", PROMPT_PARAMETERS),
    (&ATTENTION_PROMPT, "attend_prompt_256_", PROMPT_PARAMETERS),
    (&ATTENTION_PROMPT, "attend_prompt_merge", &[P, I, P, P, I, I, I, I]),
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

/// The compiled units on a card.
#[derive(Debug)]
pub struct Kernels {
    modules: Vec<(&'static str, Module)>,
    cache: Cache,
}

impl Kernels {
    /// Compiles what the cache does not hold, and loads it. `driver` is the CUDA version that the driver serves.
    pub fn load(
        context: &Context,
        capability: (i32, i32),
        driver: (i32, i32),
        settings: &KernelSettings,
    ) -> Result<Kernels, CudaError> {
        let nvrtc = Nvrtc::open(settings.nvrtc.as_deref(), driver)?;
        let cache = Cache::new(settings.cache.clone());
        let arch = format!("sm_{}{}", capability.0, capability.1);
        let module = |unit: &Unit| -> Result<(&'static str, Module), CudaError> {
            let key = key(unit, nvrtc.version(), &arch);
            if let Some(image) = cache.read(key)
                && let Ok(module) = Module::load(context, &image)
            {
                return Ok((unit.name, module));
            }
            let request = Request {
                unit: unit.name,
                source: unit.text,
                headers: HEADERS,
                options: OPTIONS,
                arch: &arch,
            };
            let started = std::time::Instant::now();
            let image = nvrtc.cubin(&request)?;
            let ms = started.elapsed().as_millis();
            tracing::info!(unit = unit.name, arch, ms, bytes = image.len(), "kernels compiled");
            let module = Module::load(context, &image)?;
            cache.write(key, &image);
            Ok((unit.name, module))
        };
        let modules = UNITS.into_iter().map(module).collect::<Result<_, _>>()?;
        Ok(Kernels { modules, cache })
    }

    /// A kernel without a type in its name.
    pub fn plain(&self, name: &'static str) -> Result<Kernel, CudaError> {
        self.of(name, "")
    }

    /// The kernel of a family for weights of a type.
    pub fn for_type(&self, family: &'static str, ty: TensorType) -> Result<Kernel, CudaError> {
        self.of(family, &ty.name().to_ascii_lowercase())
    }

    /// The kernel of a family for a format of keys and values.
    pub fn for_kv(&self, family: &'static str, format: KvFormat) -> Result<Kernel, CudaError> {
        self.of(family, format.name())
    }

    /// The kernel that makes images.
    pub fn quantise(&self, kind: ImageKind) -> Result<Kernel, CudaError> {
        self.plain(match kind {
            ImageKind::A32 => "quantise_a32",
            ImageKind::A256 => "quantise_a256",
        })
    }

    fn of(&self, family: &'static str, ty: &str) -> Result<Kernel, CudaError> {
        let (unit, _, signature) = *SIGNATURES
            .iter()
            .find(|(_, name, _)| *name == family)
            .expect("invariant: kernels are asked for by names that are listed");
        let (_, module) = self
            .modules
            .iter()
            .find(|(name, _)| *name == unit.name)
            .expect("invariant: every listed unit is compiled");
        let name = format!("{family}{ty}");
        let missing = || CudaError::NoKernel { name: name.clone(), folder: self.cache.shown() };
        module.kernel(&name, signature).ok_or_else(missing)
    }
}

/// Everything that machine code depends on.
fn key(unit: &Unit, version: (i32, i32), arch: &str) -> Hash {
    let mut hash = Hash::new().with(unit.name.as_bytes()).with(unit.text.as_bytes());
    for (name, text) in source::HEADERS {
        hash = hash.with(name.as_bytes()).with(text.as_bytes());
    }
    for option in OPTIONS {
        hash = hash.with(option.as_bytes());
    }
    hash.with(format!("{}.{}", version.0, version.1).as_bytes()).with(arch.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of the kernels of a source, with what stands between their parentheses. A macro's kernel has the name of
    /// the family (`product_##T`), or is called NAME and named by the macro's uses.
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
            let uses = text.lines().filter_map(|l| l.strip_prefix(makro)?.strip_prefix('('));
            for name in uses.map(|u| u.split(',').next().unwrap()) {
                let family = ["_f32", "_f16", "_q8_0"].iter().find_map(|f| name.strip_suffix(f)).unwrap();
                found.push((format!("{family}_"), parameters.to_owned()));
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
    fn every_type_of_weight_has_its_kernels() {
        let named = |family: &str, ty: TensorType| {
            let macros = ["PLAIN_KERNELS", "BLOCK_KERNELS"];
            let of = if ty.is_float() { macros[0] } else { macros[1] };
            let line = format!("{of}({}, ", ty.name().to_ascii_lowercase());
            assert!(FORMATS.text.lines().any(|l| l.starts_with(&line)), "{family}: no {line}");
        };
        let products = TensorType::ALL.iter().filter(|ty| ty.is_float() || ty.is_quantised());
        for &ty in products {
            named("embed_", ty);
            assert_eq!(crate::gguf::formats::format(ty).is_some(), ty.is_quantised(), "{ty}");
        }
    }

    #[test]
    fn the_key_depends_on_compiler_architecture_and_text() {
        let base = key(&ROWS, (12, 9), "sm_90");
        let other = Unit { name: ROWS.name, text: "x" };
        for changed in [
            key(&ROWS, (12, 8), "sm_90"),
            key(&ROWS, (12, 9), "sm_89"),
            key(&other, (12, 9), "sm_90"),
            key(&ATTENTION, (12, 9), "sm_90"),
        ] {
            assert_ne!(base, changed);
        }
        assert_eq!(base, key(&ROWS, (12, 9), "sm_90"));
    }
}
