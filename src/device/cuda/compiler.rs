//! A run-time compiler: NVRTC, or hiprtc, which mirrors it; found at run time, asked for code of one architecture.
//!
//! Invariants: the library stays open as long as a compiler lives; each call's status is checked; a library newer than
//! the driver is not taken unless it was named, since its machine code may be in a form that the driver refuses.
//! Does not know: what is compiled, caches. Source: the manuals of NVRTC and HIP RTC (functions, order of calls).

#![allow(unsafe_code, reason = "calls of a foreign library that is opened at run time")]

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

use libloading::Library;

use super::CudaError;
use super::vendor::{Architecture, Vendor};
use super::{libraries, nvrtc};
use crate::device::hip::gfx::Gfx;
use crate::device::hip::hiprtc;

type Program = *mut c_void;
type Status = c_int;

macro_rules! functions {
    ($(#[$doc:meta])* $Table:ident { $($name:ident $end:literal: fn($($argument:ty),*) -> $result:ty;)* }) => {
        $(#[$doc])*
        struct $Table {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $Table {
            /// Functions by their names behind `start`; `Err` names the one that is missing.
            fn of(library: &Library, start: &str) -> Result<$Table, String> {
                Ok($Table {
                    // SAFETY: each type is the function's declaration in nvrtc.h and hiprtc.h; the table is kept beside
                    // the open library and used no longer than it.
                    $($name: *unsafe { library.get(format!("{start}{}", $end).as_bytes()) }
                        .map_err(|_| format!("it has no {start}{}", $end))?,)*
                })
            }
        }
    };
}

functions! {
    /// What both libraries have.
    Functions {
        version "Version": fn(*mut c_int, *mut c_int) -> Status;
        status_text "GetErrorString": fn(Status) -> *const c_char;
        program_make "CreateProgram": fn(*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> Status;
        program_destroy "DestroyProgram": fn(*mut Program) -> Status;
        program_compile "CompileProgram": fn(Program, c_int, *const *const c_char) -> Status;
        log_bytes "GetProgramLogSize": fn(Program, *mut usize) -> Status;
        log "GetProgramLog": fn(Program, *mut c_char) -> Status;
    }
}

functions! {
    /// What NVRTC gives.
    NvrtcCodes {
        cubin_bytes "GetCUBINSize": fn(Program, *mut usize) -> Status;
        cubin "GetCUBIN": fn(Program, *mut c_char) -> Status;
        ptx_bytes "GetPTXSize": fn(Program, *mut usize) -> Status;
        ptx "GetPTX": fn(Program, *mut c_char) -> Status;
        architecture_count "GetNumSupportedArchs": fn(*mut c_int) -> Status;
        architectures "GetSupportedArchs": fn(*mut c_int) -> Status;
    }
}

functions! {
    /// What hiprtc gives.
    HiprtcCodes {
        object_bytes "GetCodeSize": fn(Program, *mut usize) -> Status;
        object "GetCode": fn(Program, *mut c_char) -> Status;
    }
}

/// What each library gives in its own way.
enum Codes {
    Nvrtc(NvrtcCodes),
    Hiprtc(HiprtcCodes),
}

/// An open compiler.
pub struct Compiler {
    functions: Functions,
    codes: Codes,
    version: (i32, i32),
    place: String,
    /// Last, so that it closes after the tables are gone.
    _library: Library,
}

/// A source with its headers, all as text.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// File name, for messages.
    pub unit: &'static str,
    /// Text.
    pub source: &'a str,
    /// (name as included, text).
    pub headers: &'a [(&'static str, Cow<'static, str>)],
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
    /// A code object of an AMD card.
    Object(Gfx),
}

/// The least architecture whose code can wait for the kernel before. Text for an older one cannot, on any card.
const WAITS_SINCE: i32 = 90;

impl Target {
    /// Whether its kernels may begin while the one before runs, and wait by themselves.
    pub fn can_wait(self) -> bool {
        match self {
            Target::Cubin(architecture) | Target::Ptx(architecture) => architecture >= WAITS_SINCE,
            Target::Object(_) => false,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Cubin(arch) => write!(f, "sm_{arch}"),
            Target::Ptx(arch) => write!(f, "compute_{arch}"),
            Target::Object(gfx) => gfx.fmt(f),
        }
    }
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").field("version", &self.version).field("place", &self.place).finish()
    }
}

impl Compiler {
    /// The vendor's library at `named`, or the first that serves a driver of version `driver`.
    pub fn open(vendor: Vendor, named: Option<&Path>, driver: (i32, i32)) -> Result<Compiler, CudaError> {
        let candidates = match named {
            Some(path) => vec![(path.display().to_string(), None)],
            None => vendor.compiler_places().into_iter().map(|(place, major)| (place, Some(major))).collect(),
        };
        let mut failures = Vec::new();
        for (place, major) in candidates {
            if major.is_some_and(|major| major > driver.0) {
                let maker = vendor.one_of("CUDA", "HIP");
                failures.push(format!("{place}: newer than the driver's {maker} {}.{}", driver.0, driver.1));
                continue;
            }
            match Compiler::at(vendor, &place) {
                Ok(compiler) => return Ok(compiler),
                Err(what) => failures.push(format!("{place}: {what}")),
            }
        }
        Err(CudaError::NoCompiler { vendor, searched: failures.join(", ") })
    }

    fn at(vendor: Vendor, place: &str) -> Result<Compiler, String> {
        // SAFETY: opening a library runs its start-up code: it is the user's own compiler, by name or by path.
        let library = unsafe { Library::new(place) }.map_err(|error| libraries::unopened(place, &error))?;
        let start = vendor.one_of("nvrtc", "hiprtc");
        let functions = Functions::of(&library, start)?;
        let codes = match vendor {
            Vendor::Cuda => Codes::Nvrtc(NvrtcCodes::of(&library, start)?),
            Vendor::Hip => Codes::Hiprtc(HiprtcCodes::of(&library, start)?),
        };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both targets outlive the call.
        let status = unsafe { (functions.version)(&mut major, &mut minor) };
        if status != 0 {
            return Err(format!("{start}Version: error {status}"));
        }
        Ok(Compiler { functions, codes, version: (major, minor), place: place.to_owned(), _library: library })
    }

    /// Whose it is.
    pub fn vendor(&self) -> Vendor {
        match self.codes {
            Codes::Nvrtc(_) => Vendor::Cuda,
            Codes::Hiprtc(_) => Vendor::Hip,
        }
    }

    /// (12, 9).
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Name or path of the library.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Options of every compilation, beside the architecture.
    pub fn options(&self) -> &'static [&'static str] {
        self.vendor().one_of(nvrtc::OPTIONS, hiprtc::OPTIONS)
    }

    /// What can be made for a card of this architecture, the best first; at least one.
    pub fn targets(&self, architecture: Architecture) -> Result<Vec<Target>, CudaError> {
        let vendor = self.vendor();
        let none =
            |what: String| CudaError::NoTarget { vendor, place: self.place.clone(), architecture, what };
        match (&self.codes, architecture) {
            (Codes::Nvrtc(codes), Architecture::Capability(major, minor)) => {
                let compiled = self.architectures(codes).map_err(none)?;
                let targets = nvrtc::targets(&compiled, 10 * major + minor);
                if targets.is_empty() {
                    return Err(none(format!("it compiles for {compiled:?}")));
                }
                Ok(targets)
            }
            // It does not say what it serves; a compilation does.
            (Codes::Hiprtc(_), Architecture::Gfx(gfx)) => Ok(vec![Target::Object(gfx)]),
            _ => Err(none("it is another vendor's".to_owned())),
        }
    }

    fn architectures(&self, codes: &NvrtcCodes) -> Result<Vec<i32>, String> {
        let mut count = 0;
        // SAFETY: the target outlives the call.
        let status = unsafe { (codes.architecture_count)(&mut count) };
        self.checked("GetNumSupportedArchs", status)?;
        let mut all = vec![0; usize::try_from(count).unwrap_or_default()];
        // SAFETY: the list has as many places as the library said that it fills.
        let status = unsafe { (codes.architectures)(all.as_mut_ptr()) };
        self.checked("GetSupportedArchs", status)?;
        Ok(all)
    }

    /// The code that was asked for.
    pub fn code(&self, request: &Request<'_>) -> Result<Vec<u8>, CudaError> {
        let error = |what: String| CudaError::Compile {
            vendor: self.vendor(),
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
        let named = self.vendor().one_of(nvrtc::ARCHITECTURE, hiprtc::ARCHITECTURE);
        let architecture = format!("{named}{}", request.target);
        let options: Vec<&str> = self.options().iter().copied().chain([architecture.as_str()]).collect();
        let options = texts(&options)?;
        let pointers = |all: &[CString]| all.iter().map(|t| t.as_ptr()).collect::<Vec<_>>();
        let (names, bodies) = (pointers(&names), pointers(&bodies));
        let mut raw = std::ptr::null_mut();
        // SAFETY: all texts end with a zero and outlive the call, which copies them; both lists have as many entries
        // as it is told.
        self.checked("CreateProgram", unsafe {
            (self.functions.program_make)(
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
            (self.functions.program_compile)(program.raw, options.len() as c_int, options.as_ptr())
        };
        self.checked("CompileProgram", compiled).map_err(|what| format!("{what}: {}", self.log(&program)))?;
        match (&self.codes, request.target) {
            (Codes::Nvrtc(of), Target::Cubin(_)) => {
                self.bytes(&program, of.cubin_bytes, of.cubin, "GetCUBIN")
            }
            (Codes::Nvrtc(of), Target::Ptx(_)) => self.bytes(&program, of.ptx_bytes, of.ptx, "GetPTX"),
            (Codes::Hiprtc(of), Target::Object(_)) => {
                self.bytes(&program, of.object_bytes, of.object, "GetCode")
            }
            _ => Err("a target of another vendor's".to_owned()),
        }
    }

    fn log(&self, program: &OpenProgram<'_>) -> String {
        let functions = (self.functions.log_bytes, self.functions.log);
        let log = self.bytes(program, functions.0, functions.1, "GetProgramLog").unwrap_or_default();
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
            let text = (self.functions.status_text)(status);
            if text.is_null() { None } else { Some(CStr::from_ptr(text)) }
        };
        let text = text.map_or_else(|| format!("error {status}"), |t| t.to_string_lossy().into_owned());
        Err(format!("{}{call}: {text}", self.vendor().one_of("nvrtc", "hiprtc")))
    }
}

/// A program that is closed when it is dropped.
struct OpenProgram<'a> {
    functions: &'a Functions,
    raw: Program,
}

impl Drop for OpenProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `compile` and destroyed once.
        let _ = unsafe { (self.functions.program_destroy)(&mut self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_named_and_missing_is_told_with_its_place() {
        for (vendor, name) in [(Vendor::Cuda, "libnvrtc.so.12"), (Vendor::Hip, "libhiprtc.so.6")] {
            let place = format!("/nowhere/{name}");
            let error = Compiler::open(vendor, Some(Path::new(&place)), (12, 8)).unwrap_err().to_string();
            let told = format!("{place}: not found");
            assert!(error.contains(&told) && error.contains(vendor.compiler_flag()), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_no_library_is_told_with_the_loaders_reason() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "no library".repeat(100)).unwrap();
        for vendor in Vendor::ALL {
            let error = Compiler::open(vendor, Some(file.path()), (12, 8)).unwrap_err().to_string();
            let told = format!("{}: cannot be opened: ", file.path().display());
            assert!(error.contains(&told) && !error.contains("not found"), "{error}");
        }
    }

    #[test]
    fn libraries_newer_than_the_driver_are_named_and_left_alone() {
        for (vendor, driver, version) in
            [(Vendor::Cuda, (11, 4), "CUDA 11.4"), (Vendor::Hip, (5, 7), "HIP 5.7")]
        {
            let Err(error) = Compiler::open(vendor, None, driver) else { panic!("a library was found") };
            let error = error.to_string();
            for (place, _) in vendor.compiler_places() {
                assert!(error.contains(&format!("{place}: newer than the driver's {version}")), "{error}");
            }
        }
    }
}
