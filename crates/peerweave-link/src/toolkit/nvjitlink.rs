//! Loads and calls nvJitLink, NVIDIA's library for linking device code.
//!
//! Invariants: on all paths, a function that creates a handle also destroys the handle. Only one
//! thread of the process passes inputs to nvJitLink.
//!
//! The second invariant avoids a fault of nvJitLink 13.5. After it has refused a cubin for a
//! different architecture, it does not release a recursive lock. Any other thread would then wait
//! for the lock forever.
//!
//! nvJitLink has a second fault, seen in versions 13.3 to 13.5. After it has refused PTX of a newer
//! version, it no longer reports undefined functions. From such a refusal on, this crate therefore
//! searches each linked cubin for undefined symbols.

use std::borrow::Cow;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use object::{Object as _, ObjectSymbol as _};
use peerweave_dylib::{Library, MissingSymbol, Search, Visibility};

use crate::Version;
use crate::arch::Arch;
use crate::error::LinkError;

// SAFETY: a file with one of these names is nvJitLink, which can be loaded safely at any time.
const SEARCH: Search = unsafe {
    Search::new("nvJitLink", "PEERWEAVE_NVJITLINK_PATH", &["libnvJitLink.so.13", "libnvJitLink.so.12", "libnvJitLink.so"])
}
.in_wheels(&["nvidia/cu13/lib", "nvidia/nvjitlink/lib"])
.in_directories(&["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/opt/cuda/lib64", "/opt/conda/lib"]);

/// The oldest supported version of nvJitLink. Older versions export their functions only under
/// versioned names.
const OLDEST: Version = Version::new(12, 3, 0);

type Handle = *mut c_void;

peerweave_dylib::bindings! {
    /// Bindings of nvJitLink's functions.
    struct Api {
        /// Returns the version of the library.
        "12.3" fn nvJitLinkVersion(major: *mut c_uint, minor: *mut c_uint) -> c_int;
        /// Creates a linker handle with options.
        "12.3" fn nvJitLinkCreate(handle: *mut Handle, n_options: u32, options: *const *const c_char) -> c_int;
        /// Destroys a linker handle.
        "12.3" fn nvJitLinkDestroy(handle: *mut Handle) -> c_int;
        /// Copies an input from memory to the linker.
        "12.3" fn nvJitLinkAddData(handle: Handle, kind: c_int, data: *const c_void, bytes: usize, name: *const c_char) -> c_int;
        /// Links the inputs that were added.
        "12.3" fn nvJitLinkComplete(handle: Handle) -> c_int;
        /// Returns the length of the linked cubin in bytes.
        "12.3" fn nvJitLinkGetLinkedCubinSize(handle: Handle, bytes: *mut usize) -> c_int;
        /// Writes the linked cubin to a buffer.
        "12.3" fn nvJitLinkGetLinkedCubin(handle: Handle, cubin: *mut c_void) -> c_int;
        /// Returns the length of the error log in bytes, including the terminating zero.
        "12.3" fn nvJitLinkGetErrorLogSize(handle: Handle, bytes: *mut usize) -> c_int;
        /// Writes the error log to a buffer.
        "12.3" fn nvJitLinkGetErrorLog(handle: Handle, log: *mut c_char) -> c_int;
        /// Returns the length of the info log in bytes, including the terminating zero.
        "12.3" fn nvJitLinkGetInfoLogSize(handle: Handle, bytes: *mut usize) -> c_int;
        /// Writes the info log to a buffer.
        "12.3" fn nvJitLinkGetInfoLog(handle: Handle, log: *mut c_char) -> c_int;
    }
}

/// The format of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InputKind {
    /// Relocatable machine code for one architecture.
    Cubin,
    /// PTX text.
    Ptx,
    /// LTO-IR: intermediate code that is optimised when it is linked.
    LtoIr,
    /// A fatbin: a container that holds code for several architectures.
    Fatbin,
    /// A host object file that contains device code.
    Object,
    /// An archive of host object files that contain device code.
    Archive,
}

impl InputKind {
    /// Returns the value of nvJitLink's enum `nvJitLinkInputType` for this format.
    fn number(self) -> i32 {
        match self {
            Self::Cubin => 1,
            Self::Ptx => 2,
            Self::LtoIr => 3,
            Self::Fatbin => 4,
            Self::Object => 5,
            Self::Archive => 6,
        }
    }
}

/// An input for nvJitLink: its format, its name in messages, and its bytes.
#[derive(Clone)]
pub struct Input<'a> {
    pub(crate) kind: InputKind,
    pub(crate) name: String,
    pub(crate) bytes: Cow<'a, [u8]>,
}

impl<'a> Input<'a> {
    /// Creates an input. PTX text may end with a zero byte, but it does not have to.
    pub fn new(kind: InputKind, name: impl Into<String>, bytes: impl Into<Cow<'a, [u8]>>) -> Self {
        Self { kind, name: name.into(), bytes: bytes.into() }
    }
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Input({:?} {}, {} bytes)", self.kind, self.name, self.bytes.len())
    }
}

/// A loaded nvJitLink library. The library stays loaded until the process ends. All threads can use
/// the library, but only one link runs at a time.
pub struct NvJitLink(Arc<Loaded>);

struct Loaded {
    api: Api,
    version: Version,
    /// Whether nvJitLink has refused an input because it does not support the PTX version. From
    /// then on, nvJitLink does not report undefined functions.
    has_refused_ptx: AtomicBool,
}

/// Time limit of a link. For comparison, a link of NVSHMEM's device library takes some seconds on a
/// busy machine.
const LONGEST_LINK: Duration = Duration::from_secs(300);

/// Runs a closure on the only thread that passes inputs to nvJitLink. Waits for the closure's
/// result and returns it. Returns `None` if the closure has not returned within [`LONGEST_LINK`],
/// or if the thread could not be started.
fn on_the_linkers_thread<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    type Job = Box<dyn FnOnce() + Send>;
    static JOBS: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let jobs = JOBS.get_or_init(|| {
        let (sender, receiver) = channel::<Job>();
        let work = move || receiver.iter().for_each(|job| job());
        // If the thread cannot be started, the channel is closed, and each link returns an error.
        let _ = std::thread::Builder::new().name("peerweave-link".into()).spawn(work);
        Mutex::new(sender)
    });
    let (done, result) = channel();
    let job: Job = Box::new(move || drop(done.send(run())));
    jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job).ok()?;
    result.recv_timeout(LONGEST_LINK).ok()
}

impl NvJitLink {
    /// Returns the nvJitLink that the whole process shares. The first successful call finds and
    /// loads the library.
    ///
    /// If `PEERWEAVE_NVJITLINK_PATH` is set, searches only the file or directory in that variable.
    /// If the variable is not set, first searches the wheels of the active Python, then the search
    /// path of the dynamic linker. Finally searches the directories in which CUDA is usually
    /// installed.
    ///
    /// # Errors
    /// [`LinkError::Load`] if the library cannot be loaded; the error lists every path that was
    /// tried. [`LinkError::VersionMismatch`] if the library is older than 12.3. After an error, the
    /// next call searches again.
    pub fn load() -> Result<&'static Self, LinkError> {
        static LOADED: OnceLock<NvJitLink> = OnceLock::new();
        match LOADED.get() {
            Some(linker) => Ok(linker),
            None => {
                let linker = Self::adopt(SEARCH.open(Visibility::Local)?)?;
                Ok(LOADED.get_or_init(|| linker))
            }
        }
    }

    /// Loads nvJitLink from a file or from a directory.
    ///
    /// # Safety
    /// The file must be nvJitLink, because loading a library runs the library's initialization
    /// code.
    ///
    /// # Errors
    /// [`LinkError::Load`] if the library cannot be loaded. [`LinkError::VersionMismatch`] if the
    /// library is older than 12.3.
    pub unsafe fn open(path: &Path) -> Result<Self, LinkError> {
        // SAFETY: the caller guarantees that the file is nvJitLink.
        Self::adopt(unsafe { SEARCH.open_at(path, Visibility::Local) }?)
    }

    fn adopt(library: Library) -> Result<Self, LinkError> {
        let api = Api::new(library);
        let (mut major, mut minor): (c_uint, c_uint) = (0, 0);
        // SAFETY: the pointers are to live integers.
        let told = unsafe { api.nvJitLinkVersion(&raw mut major, &raw mut minor) };
        let version = Version::of_numbers([major, minor, 0]);
        if !matches!(told, Ok(0)) || version < OLDEST {
            return Err(LinkError::VersionMismatch {
                what: format!("nvJitLink at {}", api.library().path().display()),
                found: if told.is_ok() { format!("{version:#}") } else { format!("older than {OLDEST:#}") },
                expected: format!("{OLDEST:#} or newer"),
            });
        }
        Ok(Self(Arc::new(Loaded { api, version, has_refused_ptx: AtomicBool::new(false) })))
    }

    /// Returns the version of nvJitLink. The CUDA release that contains this nvJitLink has the same
    /// version.
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// Returns the path of the loaded library file.
    pub fn path(&self) -> &Path {
        self.0.api.library().path()
    }

    /// Links inputs to a cubin. Returns the cubin, and the log with nvJitLink's informational
    /// messages. Prefer [`Linker`](crate::Linker), which also compiles sources and caches results.
    ///
    /// # Errors
    /// - [`LinkError::Link`] if nvJitLink cannot link the inputs; the error contains nvJitLink's
    ///   log.
    /// - [`LinkError::VersionMismatch`] if PTX or LTO-IR comes from a compiler that is newer than
    ///   nvJitLink, or if an input is for an incompatible architecture.
    /// - [`LinkError::UnknownArch`] if nvJitLink does not support `arch`.
    /// - [`LinkError::Misuse`] if there are no inputs, if an input is empty, or if a name or an
    ///   option contains a zero byte.
    /// - [`LinkError::Stuck`] on a timeout, or if the thread of nvJitLink cannot be started.
    pub fn link(&self, arch: Arch, options: &[String], inputs: &[Input<'_>]) -> Result<(Vec<u8>, String), LinkError> {
        let misuse = |what, value: String, expected| LinkError::Misuse { call: "NvJitLink::link", what, value, expected };
        if inputs.is_empty() {
            return Err(misuse("the list of inputs", "empty".into(), "at least one input"));
        }
        for input in inputs {
            if input.bytes.is_empty() {
                return Err(misuse("an input", format!("{:?}, which has 0 bytes", input.name), "at least one byte"));
            }
            check_arch(arch, input)?;
        }
        let zero_ended = |text: &str| {
            CString::new(text).map_err(|_| misuse("an option or name", format!("{text:?}"), "text without zero bytes"))
        };
        let options = std::iter::once(format!("-arch={arch}")).chain(options.iter().cloned());
        let options = options.map(|option| zero_ended(&option)).collect::<Result<Vec<_>, _>>()?;
        let owned = |input: &Input<'_>| Ok((input.kind, zero_ended(&input.name)?, input.with_zero().into_owned()));
        let inputs = inputs.iter().map(owned).collect::<Result<Vec<_>, LinkError>>()?;
        let loaded = Arc::clone(&self.0);
        on_the_linkers_thread(move || loaded.link(arch, &options, &inputs)).unwrap_or_else(|| {
            Err(LinkError::Stuck { what: format!("nvJitLink at {}", self.path().display()), waited: LONGEST_LINK })
        })
    }
}

type OwnedInput = (InputKind, CString, Vec<u8>);

impl Loaded {
    fn link(&self, arch: Arch, options: &[CString], inputs: &[OwnedInput]) -> Result<(Vec<u8>, String), LinkError> {
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let mut session = Session { linker: self, arch, handle: std::ptr::null_mut(), inputs };
        // SAFETY: the options are zero-terminated, and stay allocated until the call returns. The
        // call gets their number.
        let code = unsafe { self.api.nvJitLinkCreate(&raw mut session.handle, pointers.len() as u32, pointers.as_ptr()) }?;
        session.done(code)?;
        for (kind, name, bytes) in inputs {
            // SAFETY: the handle is live. The bytes and the name stay allocated during the call, in
            // which the linker copies them.
            let code = unsafe {
                self.api.nvJitLinkAddData(session.handle, kind.number(), bytes.as_ptr().cast(), bytes.len(), name.as_ptr())
            }?;
            session.done(code)?;
        }
        // SAFETY: the handle is live.
        session.done(unsafe { self.api.nvJitLinkComplete(session.handle) }?)?;
        let mut len = 0;
        // SAFETY: the handle is live, and the pointer is to a live integer.
        session.done(unsafe { self.api.nvJitLinkGetLinkedCubinSize(session.handle, &raw mut len) }?)?;
        let mut cubin = vec![0_u8; len];
        // SAFETY: the buffer has the length that the linker reported.
        session.done(unsafe { self.api.nvJitLinkGetLinkedCubin(session.handle, cubin.as_mut_ptr().cast()) }?)?;
        if self.has_refused_ptx.load(Ordering::Relaxed) {
            session.check_defined(&cubin)?;
        }
        let log = session.log(Api::nvJitLinkGetInfoLogSize, Api::nvJitLinkGetInfoLog);
        tracing::debug!(%arch, inputs = inputs.len(), bytes = cubin.len(), "linked");
        Ok((cubin, log))
    }
}

/// Functions that a cubin may leave undefined, because the driver defines them.
const OF_THE_DRIVER: [&str; 4] = ["vprintf", "__assertfail", "malloc", "free"];

/// Returns the symbols that a cubin uses and does not define, except those that the driver defines.
fn undefined_symbols(cubin: &[u8]) -> Vec<String> {
    let Ok(file) = object::File::parse(cubin) else { return Vec::new() };
    let names = file.symbols().filter(|symbol| symbol.is_undefined()).filter_map(|symbol| symbol.name().ok());
    let is_missing = |name: &&str| !name.is_empty() && !name.starts_with('.') && !OF_THE_DRIVER.contains(name);
    names.filter(is_missing).map(str::to_owned).collect()
}

/// Returns an error if `input` is a cubin for an incompatible architecture. nvJitLink must not
/// receive such a cubin, because nvJitLink would then not release a lock. The documentation of this
/// module describes this fault.
fn check_arch(arch: Arch, input: &Input<'_>) -> Result<(), LinkError> {
    let Some(found) = (input.kind == InputKind::Cubin).then(|| arch_of_cubin(&input.bytes)).flatten() else { return Ok(()) };
    if found.major == arch.major && found.minor <= arch.minor {
        return Ok(());
    }
    Err(LinkError::VersionMismatch {
        what: format!("the cubin {}", input.name),
        found: format!("for {found}"),
        expected: format!("a cubin for {arch}"),
    })
}

/// Returns the architecture of a cubin, from the flags of its ELF header; `None` if the format is
/// unknown.
fn arch_of_cubin(bytes: &[u8]) -> Option<Arch> {
    /// The ELF machine number of NVIDIA GPUs (`EM_CUDA`).
    const MACHINE: [u8; 2] = 190_u16.to_le_bytes();
    let head = bytes.get(..52)?;
    if !head.starts_with(b"\x7fELF") || head[18..20] != MACHINE {
        return None;
    }
    // The position of the architecture in the flags depends on the ABI version.
    let number = if head[8] >= 8 { head[49] } else { head[48] };
    Some(Arch::new(number / 10, number % 10))
}

impl Input<'_> {
    /// Returns the bytes of the input. For PTX, adds a terminating zero if there is none. nvJitLink
    /// expects the zero, and counts it as part of the length.
    fn with_zero(&self) -> Cow<'_, [u8]> {
        if self.kind == InputKind::Ptx && self.bytes.last() != Some(&0) {
            let mut text = self.bytes.to_vec();
            text.push(0);
            return Cow::Owned(text);
        }
        Cow::Borrowed(&self.bytes)
    }
}

/// One link by nvJitLink. Dropping this value destroys the linker handle.
struct Session<'a> {
    linker: &'a Loaded,
    arch: Arch,
    handle: Handle,
    inputs: &'a [OwnedInput],
}

impl Session<'_> {
    fn done(&self, code: c_int) -> Result<(), LinkError> {
        if code == 0 {
            return Ok(());
        }
        let mut log = self.log(Api::nvJitLinkGetErrorLogSize, Api::nvJitLinkGetErrorLog);
        let more = self.log(Api::nvJitLinkGetInfoLogSize, Api::nvJitLinkGetInfoLog);
        if !more.is_empty() {
            log = format!("{log}\n{more}");
        }
        let (arch, version, names) = (self.arch.to_string(), self.linker.version, self.names());
        let unknown_arch = || LinkError::UnknownArch {
            what: "nvJitLink",
            version,
            arch: arch.clone(),
            known: format!("the architectures of CUDA {version:#}"),
        };
        Err(match code {
            OUTDATED => LinkError::VersionMismatch {
                what: format!("nvJitLink at {}", self.linker.api.library().path().display()),
                found: format!("{version:#}"),
                expected: format!("at least the version of the compiler that compiled {names}; nvJitLink reported: {log}"),
            },
            _ if log.contains("Unsupported .version") => {
                self.linker.has_refused_ptx.store(true, Ordering::Relaxed);
                LinkError::VersionMismatch {
                    what: format!("nvJitLink at {}", self.linker.api.library().path().display()),
                    found: format!("{version:#}"),
                    expected: format!("a version that supports the PTX version of {names}: {log}"),
                }
            }
            ARCH_MISMATCH => LinkError::VersionMismatch {
                what: format!("one of the inputs {names}"),
                found: "code for another architecture".to_string(),
                expected: format!("code for {arch}: {log}"),
            },
            UNRECOGNIZED_ARCH | UNSUPPORTED_ARCH => unknown_arch(),
            // The message of nvJitLink before CUDA 13.
            _ if log.contains("is not defined for option 'gpu-name'") => unknown_arch(),
            _ => LinkError::Link { inputs: names, arch, version, status: format!("{code}, {}", name_of(code)), log },
        })
    }

    /// Returns the names of the inputs.
    fn names(&self) -> String {
        self.inputs.iter().map(|(_, name, _)| name.to_string_lossy()).collect::<Vec<_>>().join(", ")
    }

    /// Returns an error if `cubin` uses an undefined function. This check is needed because
    /// nvJitLink does not always report undefined functions.
    fn check_defined(&self, cubin: &[u8]) -> Result<(), LinkError> {
        let undefined = undefined_symbols(cubin);
        if undefined.is_empty() {
            return Ok(());
        }
        Err(LinkError::Link {
            inputs: self.names(),
            arch: self.arch.to_string(),
            version: self.linker.version,
            status: "found by Peerweave in the linked cubin".to_owned(),
            log: format!("undefined symbols: {}", undefined.join(", ")),
        })
    }

    /// Returns a log of the linker; empty if there is no log. `len` and `get` are nvJitLink's
    /// functions that return the length and the text of the log.
    fn log(
        &self,
        len: unsafe fn(&Api, Handle, *mut usize) -> Result<c_int, MissingSymbol>,
        get: unsafe fn(&Api, Handle, *mut c_char) -> Result<c_int, MissingSymbol>,
    ) -> String {
        let mut bytes = 0;
        if self.handle.is_null() {
            return String::new();
        }
        // SAFETY: the handle is live, and the pointer is to a live integer.
        if !matches!(unsafe { len(&self.linker.api, self.handle, &raw mut bytes) }, Ok(0)) || bytes == 0 {
            return String::new();
        }
        let mut text = vec![0_u8; bytes];
        // SAFETY: the buffer has the length that the linker reported.
        if !matches!(unsafe { get(&self.linker.api, self.handle, text.as_mut_ptr().cast()) }, Ok(0)) {
            return String::new();
        }
        String::from_utf8_lossy(&text).trim_end_matches(['\0', '\n']).to_owned()
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle was created, and only this value contains it.
            let _ = unsafe { self.linker.api.nvJitLinkDestroy(&raw mut self.handle) };
        }
    }
}

const ARCH_MISMATCH: c_int = 13;
const OUTDATED: c_int = 14;
const UNRECOGNIZED_ARCH: c_int = 16;
const UNSUPPORTED_ARCH: c_int = 17;

fn name_of(code: c_int) -> &'static str {
    const NAMES: [&str; 18] = [
        "NVJITLINK_SUCCESS",
        "NVJITLINK_ERROR_UNRECOGNIZED_OPTION",
        "NVJITLINK_ERROR_MISSING_ARCH",
        "NVJITLINK_ERROR_INVALID_INPUT",
        "NVJITLINK_ERROR_PTX_COMPILE",
        "NVJITLINK_ERROR_NVVM_COMPILE",
        "NVJITLINK_ERROR_INTERNAL",
        "NVJITLINK_ERROR_THREADPOOL",
        "NVJITLINK_ERROR_UNRECOGNIZED_INPUT",
        "NVJITLINK_ERROR_FINALIZE",
        "NVJITLINK_ERROR_NULL_INPUT",
        "NVJITLINK_ERROR_INCOMPATIBLE_OPTIONS",
        "NVJITLINK_ERROR_INCORRECT_INPUT_TYPE",
        "NVJITLINK_ERROR_ARCH_MISMATCH",
        "NVJITLINK_ERROR_OUTDATED_LIBRARY",
        "NVJITLINK_ERROR_MISSING_FATBIN",
        "NVJITLINK_ERROR_UNRECOGNIZED_ARCH",
        "NVJITLINK_ERROR_UNSUPPORTED_ARCH",
    ];
    usize::try_from(code).ok().and_then(|code| NAMES.get(code)).unwrap_or(&"unknown error code")
}

impl fmt::Debug for NvJitLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NvJitLink({:#} at {})", self.version(), self.path().display())
    }
}
