//! Loads and calls NVRTC, NVIDIA's library for compiling CUDA C++.
//!
//! Invariant: a function that creates a program of NVRTC also destroys the program, on all paths.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use peerweave_dylib::{Library, MissingSymbol, Search, Visibility};

use crate::Version;
use crate::arch::Arch;
use crate::error::LinkError;
use crate::source::Source;

// SAFETY: a file with one of these names is NVRTC, which can be loaded safely at any time.
const SEARCH: Search =
    unsafe { Search::new("NVRTC", "PEERWEAVE_NVRTC_PATH", &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]) }
        .known_by(c"nvrtcCompileProgram")
        .in_wheels(&["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"])
        .in_directories(&[
            "/usr/local/cuda/lib64",
            "/usr/local/cuda/targets/x86_64-linux/lib",
            "/opt/cuda/lib64",
            "/opt/conda/lib",
        ]);

// SAFETY: a file with this name in the directory of NVRTC is a part of NVRTC.
const BUILTINS: Search = unsafe { Search::without_variable("NVRTC's built-in functions", &["libnvrtc-builtins.so"]) };

/// The oldest supported version of NVRTC. Version 12.0 is the first version with the functions
/// `nvrtcGetLTOIR…` and with `sm_90`.
const OLDEST: Version = Version::new(12, 0, 0);

type Program = *mut std::ffi::c_void;

peerweave_dylib::bindings! {
    /// Bindings of NVRTC's functions.
    struct Api {
        /// Returns the version of the library.
        "7.0" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int;
        /// Returns the text of an error code.
        "7.0" fn nvrtcGetErrorString(code: c_int) -> *const c_char;
        /// Returns the number of supported architectures.
        "11.2" fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> c_int;
        /// Writes the numbers of the supported architectures to a buffer.
        "11.2" fn nvrtcGetSupportedArchs(archs: *mut c_int) -> c_int;
        /// Creates a program: a translation unit with its headers.
        "7.0" fn nvrtcCreateProgram(
            program: *mut Program, source: *const c_char, name: *const c_char, n_headers: c_int, headers: *const *const c_char,
            names: *const *const c_char,
        ) -> c_int;
        /// Destroys a program.
        "7.0" fn nvrtcDestroyProgram(program: *mut Program) -> c_int;
        /// Compiles a program.
        "7.0" fn nvrtcCompileProgram(program: Program, n_options: c_int, options: *const *const c_char) -> c_int;
        /// Returns the length of the log in bytes, including the terminating zero.
        "7.0" fn nvrtcGetProgramLogSize(program: Program, bytes: *mut usize) -> c_int;
        /// Writes the log to a buffer.
        "7.0" fn nvrtcGetProgramLog(program: Program, log: *mut c_char) -> c_int;
        /// Returns the length of the PTX in bytes, including the terminating zero.
        "7.0" fn nvrtcGetPTXSize(program: Program, bytes: *mut usize) -> c_int;
        /// Writes the PTX to a buffer.
        "7.0" fn nvrtcGetPTX(program: Program, ptx: *mut c_char) -> c_int;
        /// Returns the length of the cubin in bytes.
        "11.2" fn nvrtcGetCUBINSize(program: Program, bytes: *mut usize) -> c_int;
        /// Writes the cubin to a buffer.
        "11.2" fn nvrtcGetCUBIN(program: Program, cubin: *mut c_char) -> c_int;
        /// Returns the length of the LTO-IR in bytes.
        "12.0" fn nvrtcGetLTOIRSize(program: Program, bytes: *mut usize) -> c_int;
        /// Writes the LTO-IR to a buffer.
        "12.0" fn nvrtcGetLTOIR(program: Program, ir: *mut c_char) -> c_int;
    }
}

/// The output format and the architecture of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// PTX text for a virtual architecture, with a terminating zero.
    Ptx(Arch),
    /// Machine code for one architecture.
    Cubin(Arch),
    /// LTO-IR, which nvJitLink optimises together with other inputs.
    LtoIr(Arch),
}

impl Target {
    /// Returns the architecture for which the code is compiled.
    pub fn arch(self) -> Arch {
        match self {
            Self::Ptx(arch) | Self::Cubin(arch) | Self::LtoIr(arch) => arch,
        }
    }
}

/// The result of a compilation.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compiled {
    /// The compiled code: PTX, a cubin or LTO-IR.
    pub image: Vec<u8>,
    /// Warnings and remarks that NVRTC wrote; empty if NVRTC wrote none.
    pub log: String,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compiled({} bytes, log of {} bytes)", self.image.len(), self.log.len())
    }
}

/// A loaded NVRTC library. The library stays loaded until the process ends. All threads can use the
/// library.
pub struct Nvrtc {
    api: Api,
    version: Version,
}

impl Nvrtc {
    /// Returns the NVRTC that the whole process shares. The first successful call finds and loads
    /// the library.
    ///
    /// If `PEERWEAVE_NVRTC_PATH` is set, searches only the file or directory in that variable. If
    /// the variable is not set, first searches the wheels of the active Python, then the search
    /// path of the dynamic linker. Finally searches the directories in which CUDA is usually
    /// installed.
    ///
    /// ```
    /// match peerweave_link::Nvrtc::load() {
    ///     Ok(nvrtc) => println!("NVRTC {}", nvrtc.version()),
    ///     Err(error) => println!("{error}"), // names every path that was tried
    /// }
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Load`] if the library cannot be loaded; the error lists every path that was
    /// tried. [`LinkError::VersionMismatch`] if the library is older than 12.0. After an error, the
    /// next call searches again.
    pub fn load() -> Result<&'static Self, LinkError> {
        static LOADED: OnceLock<Nvrtc> = OnceLock::new();
        match LOADED.get() {
            Some(nvrtc) => Ok(nvrtc),
            None => {
                let nvrtc = Self::adopt(SEARCH.open(Visibility::Local)?)?;
                Ok(LOADED.get_or_init(|| nvrtc))
            }
        }
    }

    /// Loads NVRTC from a file or from a directory.
    ///
    /// # Safety
    /// The file must be NVRTC, because loading a library runs the library's initialization code.
    ///
    /// # Errors
    /// [`LinkError::Load`] if the library cannot be loaded. [`LinkError::VersionMismatch`] if the
    /// library is older than 12.0.
    pub unsafe fn open(path: &Path) -> Result<Self, LinkError> {
        // SAFETY: the caller guarantees that the file is NVRTC.
        Self::adopt(unsafe { SEARCH.open_at(path, Visibility::Local) }?)
    }

    fn adopt(library: Library) -> Result<Self, LinkError> {
        let api = Api::new(library);
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: the pointers are to live integers.
        let code = unsafe { api.nvrtcVersion(&raw mut major, &raw mut minor) }?;
        let version = Version::of_numbers([major.unsigned_abs(), minor.unsigned_abs(), 0]);
        if code != 0 || version < OLDEST {
            return Err(LinkError::VersionMismatch {
                what: format!("NVRTC at {}", api.library().path().display()),
                found: format!("{version:#}"),
                expected: format!("{OLDEST:#} or newer"),
            });
        }
        load_builtins(api.library(), version);
        Ok(Self { api, version })
    }

    /// Returns the version of NVRTC. The CUDA release that contains this NVRTC has the same
    /// version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the path of the loaded library file.
    pub fn path(&self) -> &Path {
        self.api.library().path()
    }

    /// Returns the architectures that NVRTC supports, in ascending order and without suffixes. The
    /// list is empty if NVRTC cannot report its architectures.
    ///
    /// # Errors
    /// [`LinkError::Missing`] if NVRTC lacks the function that reports its architectures.
    pub fn archs(&self) -> Result<Vec<Arch>, LinkError> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is to a live integer.
        let code = unsafe { self.api.nvrtcGetNumSupportedArchs(&raw mut count) }?;
        let mut numbers = vec![0; if code == 0 { count.unsigned_abs() as usize } else { 0 }];
        if !numbers.is_empty() {
            // SAFETY: the buffer has the number of elements that the library reported.
            let code = unsafe { self.api.nvrtcGetSupportedArchs(numbers.as_mut_ptr()) }?;
            if code != 0 {
                numbers.clear();
            }
        }
        Ok(numbers.iter().map(|number: &c_int| Arch::new((number / 10) as u8, (number % 10) as u8)).collect())
    }

    /// Compiles a source. The compilation has no time limit. Several threads can compile sources
    /// concurrently.
    ///
    /// ```no_run
    /// use peerweave_link::{Arch, Nvrtc, Source, Target};
    ///
    /// let source = Source::new("one.cu", "extern \"C\" __global__ void one(int* x) { *x = 1; }");
    /// let compiled = Nvrtc::load()?.compile(&source, Target::Ptx(Arch::new(9, 0)))?;
    /// assert!(compiled.image.starts_with(b"//"));
    /// # Ok::<(), peerweave_link::LinkError>(())
    /// ```
    ///
    /// # Errors
    /// - [`LinkError::Compile`] if NVRTC cannot compile the source; the error contains NVRTC's log.
    /// - [`LinkError::UnknownArch`] if NVRTC does not support the architecture.
    /// - [`LinkError::Misuse`] if a text, a name or an option contains a zero byte.
    /// - [`LinkError::Missing`] if NVRTC lacks a function.
    pub fn compile(&self, source: &Source, target: Target) -> Result<Compiled, LinkError> {
        let archs = self.archs()?;
        let plain = Arch { suffix: None, ..target.arch() };
        if !archs.is_empty() && !archs.contains(&plain) {
            return Err(LinkError::UnknownArch {
                what: "NVRTC",
                version: self.version,
                arch: target.arch().to_string(),
                known: archs.iter().map(Arch::to_string).collect::<Vec<_>>().join(", "),
            });
        }
        let (text, name) = (zero_ended("text", &source.text)?, zero_ended("name", &source.name)?);
        let names = source.headers.iter().map(|(name, _)| zero_ended("header", name)).collect::<Result<Vec<_>, _>>()?;
        let texts = source.headers.iter().map(|(_, text)| zero_ended("header", text)).collect::<Result<Vec<_>, _>>()?;
        let options = options(source, target).iter().map(|option| zero_ended("option", option)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (names, texts, options) = (pointers(&names), pointers(&texts), (pointers(&options), options));
        let mut program = OwnedProgram { api: &self.api, program: std::ptr::null_mut() };
        // SAFETY: all texts are zero-terminated, and stay allocated until the call returns. The
        // call gets the length of the lists.
        let code = unsafe {
            self.api.nvrtcCreateProgram(
                &raw mut program.program,
                text.as_ptr(),
                name.as_ptr(),
                texts.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        }?;
        self.done(source, code, String::new)?;
        // SAFETY: the program was created, and the options stay allocated during the call.
        let code = unsafe { self.api.nvrtcCompileProgram(program.program, options.0.len() as c_int, options.0.as_ptr()) }?;
        let log = String::from_utf8_lossy(&self.bytes(&program, Api::nvrtcGetProgramLogSize, Api::nvrtcGetProgramLog)?)
            .trim_end_matches(['\0', '\n'])
            .to_owned();
        self.done(source, code, || log.clone())?;
        let image = match target {
            Target::Ptx(_) => self.bytes(&program, Api::nvrtcGetPTXSize, Api::nvrtcGetPTX),
            Target::Cubin(_) => self.bytes(&program, Api::nvrtcGetCUBINSize, Api::nvrtcGetCUBIN),
            Target::LtoIr(_) => self.bytes(&program, Api::nvrtcGetLTOIRSize, Api::nvrtcGetLTOIR),
        }?;
        tracing::debug!(source = source.name, arch = %target.arch(), bytes = image.len(), "compiled");
        Ok(Compiled { image, log })
    }

    /// Returns an output of an NVRTC program; empty if NVRTC does not provide the output. `len` and
    /// `get` are NVRTC's functions that return the length and the bytes of the output.
    fn bytes(
        &self,
        program: &OwnedProgram<'_>,
        len: unsafe fn(&Api, Program, *mut usize) -> Result<c_int, MissingSymbol>,
        get: unsafe fn(&Api, Program, *mut c_char) -> Result<c_int, MissingSymbol>,
    ) -> Result<Vec<u8>, LinkError> {
        let mut bytes = 0;
        // SAFETY: the program is live, and the pointer is to a live integer.
        if unsafe { len(&self.api, program.program, &raw mut bytes) }? != 0 {
            return Ok(Vec::new());
        }
        let mut image = vec![0; bytes];
        // SAFETY: the buffer has the length that the library reported.
        let code = if bytes == 0 { 0 } else { unsafe { get(&self.api, program.program, image.as_mut_ptr().cast()) }? };
        Ok(if code == 0 { image } else { Vec::new() })
    }

    fn done(&self, source: &Source, code: c_int, log: impl FnOnce() -> String) -> Result<(), LinkError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function accepts any number.
        let text = unsafe { self.api.nvrtcGetErrorString(code) }?;
        let text = if text.is_null() {
            String::new()
        } else {
            // SAFETY: the library returns the address of a zero-terminated constant.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(LinkError::Compile {
            name: source.name.clone(),
            version: self.version,
            status: format!("{code}, {text}"),
            log: log(),
        })
    }
}

/// Loads NVRTC's library of built-in functions from the directory of NVRTC. At each compilation,
/// NVRTC opens this library by its file name. With the wheel of NVRTC 13.0, this fails unless the
/// library is already loaded, because the dynamic linker does not search the wheel's directory. If
/// this function cannot load the library, later compilations report the missing library.
fn load_builtins(compiler: &Library, version: Version) {
    let name = format!("libnvrtc-builtins.so.{}.{}", version.major, version.minor);
    let Some(file) = compiler.directory().map(|directory| directory.join(name)).filter(|file| file.is_file()) else { return };
    // SAFETY: the file lies in the directory of NVRTC, and has the name that NVRTC opens.
    if let Err(error) = unsafe { BUILTINS.open_at(&file, Visibility::Local) } {
        tracing::debug!(%error, "cannot load NVRTC's built-in functions");
    }
}

/// Returns the options of a compilation: the options for the target, then the options and the
/// header directories of the source.
fn options(source: &Source, target: Target) -> Vec<String> {
    let arch = match target {
        Target::Ptx(arch) => vec![format!("--gpu-architecture={}", arch.virtual_name())],
        Target::Cubin(arch) => vec![format!("--gpu-architecture={arch}")],
        Target::LtoIr(arch) => vec![format!("--gpu-architecture={}", arch.virtual_name()), "-dlto".into()],
    };
    let include = source.include.iter().map(|directory| format!("--include-path={}", directory.display()));
    arch.into_iter().chain(source.options.iter().cloned()).chain(include).collect()
}

fn zero_ended(what: &'static str, text: &str) -> Result<CString, LinkError> {
    CString::new(text).map_err(|error| LinkError::Misuse {
        call: "Nvrtc::compile",
        what,
        value: format!("a string with a zero byte at offset {}", error.nul_position()),
        expected: "a string without zero bytes",
    })
}

struct OwnedProgram<'a> {
    api: &'a Api,
    program: Program,
}

impl Drop for OwnedProgram<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: the program was created, and only this value contains its handle.
            let _ = unsafe { self.api.nvrtcDestroyProgram(&raw mut self.program) };
        }
    }
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nvrtc({:#} at {})", self.version, self.path().display())
    }
}
