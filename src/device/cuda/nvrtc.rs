//! NVRTC, the run-time compiler: found at run time, asked for code of one architecture.
//!
//! Invariants: the library stays open as long as a compiler lives; each call's status is checked; a library newer than
//! the driver is not taken unless it was named, since its machine code may be in a form that the driver refuses.
//! Does not know: what is compiled, caches. Source: NVRTC's manual (functions and their order of calls).

#![allow(unsafe_code, reason = "calls of a foreign library that is opened at run time")]

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

use super::CudaError;

/// Names that are tried, newest first; the major version stands beside.
const NAMES: [(&str, i32); 2] = [("libnvrtc.so.13", 13), ("libnvrtc.so.12", 12)];

/// Where toolkits put their libraries.
const FOLDERS_ROOT: &str = "/usr/local";

type Program = *mut c_void;
type Status = c_int;

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of the library, by their own names.
        #[allow(non_snake_case, reason = "the library's own names")]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// `Err` names the function that is missing.
            fn of(library: &Library) -> Result<Functions, String> {
                Ok(Functions {
                    // SAFETY: each type is the function's declaration in nvrtc.h; the table is kept beside the open
                    // library and used no longer than it.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|_| format!("it has no {}", stringify!($name)))?,)*
                })
            }
        }
    };
}

functions! {
    nvrtcVersion: fn(*mut c_int, *mut c_int) -> Status;
    nvrtcGetErrorString: fn(Status) -> *const c_char;
    nvrtcCreateProgram: fn(*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> Status;
    nvrtcDestroyProgram: fn(*mut Program) -> Status;
    nvrtcCompileProgram: fn(Program, c_int, *const *const c_char) -> Status;
    nvrtcGetProgramLogSize: fn(Program, *mut usize) -> Status;
    nvrtcGetProgramLog: fn(Program, *mut c_char) -> Status;
    nvrtcGetCUBINSize: fn(Program, *mut usize) -> Status;
    nvrtcGetCUBIN: fn(Program, *mut c_char) -> Status;
    nvrtcGetPTXSize: fn(Program, *mut usize) -> Status;
    nvrtcGetPTX: fn(Program, *mut c_char) -> Status;
    nvrtcGetNumSupportedArchs: fn(*mut c_int) -> Status;
    nvrtcGetSupportedArchs: fn(*mut c_int) -> Status;
}

/// An open compiler.
pub struct Nvrtc {
    functions: Functions,
    version: (i32, i32),
    place: String,
    /// Last, so that it closes after the table is gone.
    _library: Library,
}

/// A source with its headers, all as text, and the compiler's options.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// File name, for messages.
    pub unit: &'static str,
    /// Text.
    pub source: &'a str,
    /// (name as included, text).
    pub headers: &'a [(&'static str, Cow<'static, str>)],
    /// Beside the architecture.
    pub options: &'a [&'a str],
    /// For what.
    pub target: Target,
}

/// What is made, for an architecture: 90 is compute capability 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Machine code of the card.
    Cubin(i32),
    /// NVIDIA's intermediate text, of which the driver makes machine code for its card when it is loaded.
    Ptx(i32),
}

impl Target {
    /// Which architecture's instructions it may have.
    pub fn architecture(self) -> i32 {
        match self {
            Target::Cubin(architecture) | Target::Ptx(architecture) => architecture,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Cubin(arch) => write!(f, "sm_{arch}"),
            Target::Ptx(arch) => write!(f, "compute_{arch}"),
        }
    }
}

/// What serves a card, the best first: its own machine code, then text for the highest architecture that it has in it.
fn targets(compiled: &[i32], card: i32) -> Vec<Target> {
    let own = compiled.contains(&card).then_some(Target::Cubin(card));
    let text = compiled.iter().copied().filter(|arch| *arch <= card).max().map(Target::Ptx);
    own.into_iter().chain(text).collect()
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nvrtc").field("version", &self.version).field("place", &self.place).finish()
    }
}

impl Nvrtc {
    /// The library at `named`, or the first that serves a driver of version `driver`.
    pub fn open(named: Option<&Path>, driver: (i32, i32)) -> Result<Nvrtc, CudaError> {
        let candidates = match named {
            Some(path) => vec![(path.display().to_string(), None)],
            None => candidates().into_iter().map(|(place, major)| (place, Some(major))).collect(),
        };
        let mut failures = Vec::new();
        for (place, major) in candidates {
            if major.is_some_and(|major| major > driver.0) {
                failures.push(format!("{place}: newer than the driver's CUDA {}.{}", driver.0, driver.1));
                continue;
            }
            match Nvrtc::at(&place) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(what) => failures.push(format!("{place}: {what}")),
            }
        }
        Err(CudaError::NoNvrtc { searched: failures.join(", ") })
    }

    fn at(place: &str) -> Result<Nvrtc, String> {
        // SAFETY: opening a library runs its start-up code: it is the user's own compiler, by name or by path.
        let library = unsafe { Library::new(place) }.map_err(|_| "not found".to_owned())?;
        let functions = Functions::of(&library)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both targets outlive the call.
        let status = unsafe { (functions.nvrtcVersion)(&mut major, &mut minor) };
        if status != 0 {
            return Err(format!("nvrtcVersion: error {status}"));
        }
        Ok(Nvrtc { functions, version: (major, minor), place: place.to_owned(), _library: library })
    }

    /// (12, 9).
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Name or path of the library.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// What can be made for a card of this compute capability, the best first; at least one.
    pub fn targets(&self, capability: (i32, i32)) -> Result<Vec<Target>, CudaError> {
        let none = |what: String| CudaError::NoTarget { place: self.place.clone(), capability, what };
        let compiled = self.architectures().map_err(none)?;
        let targets = targets(&compiled, 10 * capability.0 + capability.1);
        if targets.is_empty() {
            return Err(none(format!("it compiles for {compiled:?}")));
        }
        Ok(targets)
    }

    fn architectures(&self) -> Result<Vec<i32>, String> {
        let mut count = 0;
        // SAFETY: the target outlives the call.
        let status = unsafe { (self.functions.nvrtcGetNumSupportedArchs)(&mut count) };
        self.checked("nvrtcGetNumSupportedArchs", status)?;
        let mut all = vec![0; usize::try_from(count).unwrap_or_default()];
        // SAFETY: the list has as many places as the library said that it fills.
        let status = unsafe { (self.functions.nvrtcGetSupportedArchs)(all.as_mut_ptr()) };
        self.checked("nvrtcGetSupportedArchs", status)?;
        Ok(all)
    }

    /// The code that was asked for.
    pub fn code(&self, request: &Request<'_>) -> Result<Vec<u8>, CudaError> {
        let error = |what: String| CudaError::Compile {
            unit: request.unit,
            arch: request.target.to_string(),
            what: what.split_whitespace().collect::<Vec<_>>().join(" "),
        };
        self.compile(request).map_err(error)
    }

    fn compile(&self, request: &Request<'_>) -> Result<Vec<u8>, String> {
        let text = |text: &str| CString::new(text).map_err(|_| "a source holds a zero byte".to_owned());
        let texts = |all: &[&str]| all.iter().map(|t| text(t)).collect::<Result<Vec<CString>, String>>();
        let (source, unit) = (text(request.source)?, text(request.unit)?);
        let names = texts(&request.headers.iter().map(|h| h.0).collect::<Vec<_>>())?;
        let bodies = texts(&request.headers.iter().map(|h| h.1.as_ref()).collect::<Vec<_>>())?;
        let arch = format!("--gpu-architecture={}", request.target);
        let options: Vec<&str> = request.options.iter().copied().chain([arch.as_str()]).collect();
        let options = texts(&options)?;
        let pointers = |all: &[CString]| all.iter().map(|t| t.as_ptr()).collect::<Vec<_>>();
        let (names, bodies) = (pointers(&names), pointers(&bodies));
        let mut raw = std::ptr::null_mut();
        // SAFETY: all texts end with a zero and outlive the call, which copies them; both lists have as many entries
        // as it is told.
        self.checked("nvrtcCreateProgram", unsafe {
            (self.functions.nvrtcCreateProgram)(
                &mut raw,
                source.as_ptr(),
                unit.as_ptr(),
                names.len() as c_int,
                bodies.as_ptr(),
                names.as_ptr(),
            )
        })?;
        let program = OpenProgram { functions: &self.functions, raw };
        let options = pointers(&options);
        // SAFETY: the program is open; the options' texts outlive the call.
        let compiled = unsafe {
            (self.functions.nvrtcCompileProgram)(program.raw, options.len() as c_int, options.as_ptr())
        };
        self.checked("nvrtcCompileProgram", compiled)
            .map_err(|what| format!("{what}: {}", self.log(&program)))?;
        let f = &self.functions;
        match request.target {
            Target::Cubin(_) => self.bytes(&program, f.nvrtcGetCUBINSize, f.nvrtcGetCUBIN, "nvrtcGetCUBIN"),
            Target::Ptx(_) => self.bytes(&program, f.nvrtcGetPTXSize, f.nvrtcGetPTX, "nvrtcGetPTX"),
        }
    }

    fn log(&self, program: &OpenProgram<'_>) -> String {
        let functions = (self.functions.nvrtcGetProgramLogSize, self.functions.nvrtcGetProgramLog);
        let log = self.bytes(program, functions.0, functions.1, "nvrtcGetProgramLog").unwrap_or_default();
        String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned()
    }

    /// What a pair of functions, one for the size and one for the bytes, gives.
    fn bytes(
        &self,
        program: &OpenProgram<'_>,
        size: unsafe extern "C" fn(Program, *mut usize) -> Status,
        get: unsafe extern "C" fn(Program, *mut c_char) -> Status,
        call: &str,
    ) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program is open; the target outlives the call.
        self.checked(call, unsafe { size(program.raw, &mut bytes) })?;
        let mut out = vec![0u8; bytes];
        // SAFETY: the program is open; the buffer has as many bytes as the library asked for.
        self.checked(call, unsafe { get(program.raw, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }

    fn checked(&self, call: &str, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library gives a constant text for every status.
        let text = unsafe {
            let text = (self.functions.nvrtcGetErrorString)(status);
            if text.is_null() { None } else { Some(CStr::from_ptr(text)) }
        };
        let text = text.map_or_else(|| format!("error {status}"), |t| t.to_string_lossy().into_owned());
        Err(format!("{call}: {text}"))
    }
}

/// A program that is closed when it is dropped.
struct OpenProgram<'a> {
    functions: &'a Functions,
    raw: Program,
}

impl Drop for OpenProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: made by nvrtcCreateProgram and destroyed once.
        let _ = unsafe { (self.functions.nvrtcDestroyProgram)(&mut self.raw) };
    }
}

/// Names for the system's search, then paths in the folders of toolkits; of each major version, the newest first.
fn candidates() -> Vec<(String, i32)> {
    let toolkits = toolkits(Path::new(FOLDERS_ROOT));
    let of_name = |&(name, major): &(&str, i32)| {
        let paths = toolkits.iter().map(|t| t.join("lib64").join(name)).filter(|p| p.exists());
        let places = std::iter::once(name.to_owned()).chain(paths.map(|p| p.display().to_string()));
        let last = format!("{FOLDERS_ROOT}/cuda*/lib64/{name}");
        let none = toolkits.iter().all(|t| !t.join("lib64").join(name).exists());
        places.chain(none.then_some(last)).map(|place| (place, major)).collect::<Vec<_>>()
    };
    NAMES.iter().flat_map(of_name).collect()
}

/// The folders `cuda*` of `root`, the newest first by name.
fn toolkits(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> =
        entries.filter(|e| e.file_name().to_string_lossy().starts_with("cuda")).map(|e| e.path()).collect();
    folders.sort();
    folders.reverse();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_named_and_missing_is_told_with_its_place() {
        let error = Nvrtc::open(Some(Path::new("/nowhere/libnvrtc.so.12")), (12, 8)).unwrap_err().to_string();
        assert!(error.contains("/nowhere/libnvrtc.so.12: not found") && error.contains("--nvrtc"), "{error}");
    }

    #[test]
    fn a_card_gets_its_own_code_or_text_for_an_architecture_below() {
        use Target::{Cubin, Ptx};
        let compiled = [75, 80, 86, 90, 100];
        for (card, expected) in [
            (90, vec![Cubin(90), Ptx(90)]),
            (89, vec![Ptx(86)]),
            (120, vec![Ptx(100)]),
            (75, vec![Cubin(75), Ptx(75)]),
            (70, vec![]),
        ] {
            assert_eq!(targets(&compiled, card), expected, "{card}");
        }
    }

    #[test]
    fn libraries_newer_than_the_driver_are_named_and_left_alone() {
        let Err(error) = Nvrtc::open(None, (11, 4)) else { panic!("a library for CUDA 11 was found") };
        let error = error.to_string();
        for (name, _) in NAMES {
            assert!(error.contains(&format!("{name}: newer than the driver's CUDA 11.4")), "{error}");
        }
    }

    #[test]
    fn toolkits_are_searched_from_the_newest() {
        let root = std::env::temp_dir().join(format!("tandem-toolkits-{}", std::process::id()));
        for name in ["cuda", "cuda-12.4", "cuda-12.8", "other"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        let found: Vec<_> =
            toolkits(&root).iter().map(|p| p.strip_prefix(&root).unwrap().to_owned()).collect();
        assert_eq!(found, ["cuda-12.8", "cuda-12.4", "cuda"].map(PathBuf::from));
        std::fs::remove_dir_all(root).unwrap();
    }
}
