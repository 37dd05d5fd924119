//! The NCCL libraries of this process: search and loading, version, missing functions, and calls to
//! NCCL's functions.
//!
//! `of_communicator.rs` has configurations. `parameters.rs` and `debug_log.rs` have parameters and
//! logs. The modules of `comm` have communicators.
//!
//! # Invariants
//! - **[L1]** A library is never unloaded, and the struct that describes a loaded library is never
//!   freed. So an [`Nccl`] is a plain reference that stays valid.
//! - **[L2]** No function of a library is called in a process that was forked from the process that
//!   loaded the library.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use peerweave_dylib::{Library, Loaded, MissingSymbol, Registry, Search, SymbolInfo, Unsupported, Visibility};
use peerweave_fork::ForkGuard;

use crate::library::error::{CommunicatorName, Failure, NcclError, ResultCode};
use crate::sys::{Api, ncclResult_t};
use crate::{UniqueId, Version, sys, version_from_code};

/// Name of the library in error messages.
pub(crate) const PRODUCT: &str = "NCCL";

/// Oldest supported version of NCCL. Older versions have a bug: an abort waits for a background
/// thread of NCCL only if the aborting thread has started the background thread. If a different
/// thread aborts, the communicator is freed while the background thread uses it (observed as a
/// crash in 2.18.1 on H200).
const OLDEST: Version = Version::new(2, 19, 1);

// SAFETY: a file with one of these names is NCCL, or a substitute with the same interface.
const SEARCH: Search = unsafe { Search::new(PRODUCT, "PEERWEAVE_NCCL_PATH", &["libnccl.so.2", "libnccl.so"]) }
    .known_by(c"ncclGetVersion")
    .in_wheels(&["nvidia/nccl/lib"])
    .in_directories(&[
        #[cfg(target_arch = "x86_64")]
        "/usr/lib/x86_64-linux-gnu",
        #[cfg(target_arch = "aarch64")]
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/local/nccl/lib",
        "/usr/local/cuda/lib64",
        "/opt/nccl/lib",
        "/opt/conda/lib",
    ]);

/// The process in which the first NCCL library was loaded: a guard that detects forks, and the
/// process ID. Forked processes inherit this value.
static FIRST: OnceLock<(ForkGuard, u32)> = OnceLock::new();

/// An NCCL library. The library stays loaded until the process ends.
///
/// A handle to the library can be copied, and can be used on any thread. Two handles are equal if
/// they refer to the same library.
#[derive(Clone, Copy)]
pub struct Nccl(&'static Loaded<Api>);

/// All libraries loaded by this crate. The first loaded library need not be the library that
/// [`Nccl::load`] returns.
static LOADED: Registry<Api> = Registry::new(
    "libnccl.so",
    "peerweave-nccl",
    OLDEST,
    "do not pass communicators, windows or memory of one library to the other library",
);

impl Nccl {
    /// All NCCL functions that this crate can use, each with the NCCL version that introduced the
    /// function.
    pub const FUNCTIONS: &'static [SymbolInfo] = Api::SYMBOLS;

    /// Returns the NCCL library of this process. The first call finds and loads the library. Later
    /// calls return the same library.
    ///
    /// If the environment variable `PEERWEAVE_NCCL_PATH` is set, only the file or directory that it
    /// names is searched. If the variable is not set, the wheels of the active Python
    /// (`nvidia/nccl/lib`) are searched first. The dynamic linker's path (`libnccl.so.2`, then
    /// `libnccl.so`) is searched next, and well-known directories are searched last. Loading needs
    /// neither a GPU nor a driver.
    ///
    /// # Errors
    /// [`NcclError::Load`] if no library can be loaded. The error lists every path that was tried,
    /// and a later call repeats the search. [`NcclError::Unsupported`] for a library older than
    /// 2.19.1. [`NcclError::Forked`] in a process that was forked from the process that loaded
    /// NCCL.
    pub fn load() -> Result<Self, NcclError> {
        static DEFAULT: OnceLock<Nccl> = OnceLock::new();
        // This check precedes everything else. In a forked process, a lock may be held by a thread
        // that exists only in the parent.
        not_forked("Nccl::load")?;
        if let Some(nccl) = DEFAULT.get() {
            return Ok(*nccl);
        }
        let nccl = Self::adopt(SEARCH.open(Visibility::Local)?)?;
        Ok(*DEFAULT.get_or_init(|| nccl))
    }

    /// Loads the NCCL library at `path`, which is a file or a directory. Does not change the result
    /// of [`load`](Self::load).
    ///
    /// Handles of one library are invalid in another library. Each library has separate threads,
    /// memory and settings. So a program should load only one library.
    ///
    /// # Safety
    /// The file is an NCCL library. This call runs the library's initialisers, and later calls use
    /// the library's functions with NCCL's signatures. [`load`](Self::load) is safe, because the
    /// owner of the machine has installed the library, or the environment names the library.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub unsafe fn open(path: impl AsRef<Path>) -> Result<Self, NcclError> {
        not_forked("Nccl::open")?;
        // SAFETY: the caller guarantees that the file is an NCCL library.
        Self::adopt(unsafe { SEARCH.open_at(path.as_ref(), Visibility::Local) }?)
    }

    fn adopt(library: Library) -> Result<Self, NcclError> {
        let loaded = LOADED.adopt(library, |library| {
            FIRST.get_or_init(|| (ForkGuard::new(), std::process::id()));
            let path = Arc::from(library.path());
            let api = Api::new(library);
            let version = version_of(&api, &path)?;
            Ok::<_, NcclError>((api, version))
        })?;
        Ok(Self(loaded))
    }

    /// Returns the library's version.
    pub fn version(self) -> Version {
        self.0.version
    }

    /// Returns the path of the library file that is mapped into the process.
    pub fn path(self) -> &'static Path {
        &self.0.path
    }

    pub(crate) fn shared_path(self) -> Arc<Path> {
        Arc::clone(&self.0.path)
    }

    /// Returns the files of other NCCL libraries that were already mapped in the process when this
    /// library was loaded. For example, an embedded Python or the program's linker may have loaded
    /// another library.
    ///
    /// Several libraries can be used in one process if no handle from one library is passed to
    /// another library. When this library was loaded, a warning was logged for each of the returned
    /// files.
    pub fn others(self) -> &'static [PathBuf] {
        &self.0.others
    }

    /// Returns the functions that this crate can use but the library lacks, each with the NCCL
    /// version that introduced the function.
    pub fn missing(self) -> Vec<SymbolInfo> {
        self.0.functions.missing()
    }

    /// Returns whether the library has a function. `function` is NCCL's name for the function.
    /// Returns `false` for functions that this crate does not use.
    pub fn has(self, function: &str) -> bool {
        self.0.functions.has(function)
    }

    /// Returns NCCL's functions, which are unsafe to call. These functions do not check whether the
    /// process was forked.
    #[cfg(feature = "raw")]
    pub fn api(self) -> &'static Api {
        &self.0.functions
    }

    /// Returns NCCL's description of a result code.
    ///
    /// # Errors
    /// [`NcclError::Forked`].
    pub fn error_string(self, code: ResultCode) -> Result<&'static str, NcclError> {
        self.not_forked("ncclGetErrorString")?;
        Ok(self.meaning(ncclResult_t(code.get())))
    }

    /// Converts the result code of an NCCL function to a `Result`. Use this method for NCCL
    /// functions that the program calls itself, through the bindings or with the handle that
    /// [`Communicator::as_raw`](crate::Communicator::as_raw) returned.
    ///
    /// ```no_run
    /// use peerweave_nccl::{Nccl, ResultCode};
    ///
    /// let nccl = Nccl::load()?;
    /// nccl.check("ncclCommCount", 0)?;
    /// assert_eq!(nccl.check("ncclCommCount", 4).unwrap_err().code(), Some(ResultCode::INVALID_ARGUMENT));
    /// # Ok::<(), peerweave_nccl::NcclError>(())
    /// ```
    ///
    /// # Errors
    /// [`NcclError::Nccl`] for every code except [`ResultCode::SUCCESS`], including
    /// [`ResultCode::IN_PROGRESS`]; [`NcclError::Forked`].
    pub fn check(self, call: &'static str, code: impl Into<ResultCode>) -> Result<(), NcclError> {
        match code.into() {
            ResultCode::SUCCESS => Ok(()),
            code => Err(NcclError::from_code(self, call, code)),
        }
    }

    /// Returns NCCL's message for the last error in this process, or `None` if the message is
    /// empty.
    ///
    /// # Errors
    /// [`NcclError::Forked`].
    pub fn last_error(self) -> Result<Option<String>, NcclError> {
        self.not_forked("ncclGetLastError")?;
        Ok(Some(self.last_error_text(std::ptr::null_mut())).filter(|text| !text.is_empty()))
    }

    /// Creates an id with which ranks connect to each other. NCCL opens a socket in this process,
    /// and listens on the socket until the ranks have connected. NCCL selects the network
    /// interface. The environment variable `NCCL_SOCKET_IFNAME` limits the selection.
    ///
    /// # Errors
    /// [`NcclError::Nccl`] if there is no usable network interface; [`NcclError::Forked`].
    pub fn unique_id(self) -> Result<UniqueId, NcclError> {
        let mut id = sys::ncclUniqueId { internal: [0; sys::NCCL_UNIQUE_ID_BYTES] };
        // SAFETY: `id` is 128 bytes that the function may write.
        self.call("ncclGetUniqueId", |api| unsafe { api.ncclGetUniqueId(&raw mut id) })?;
        Ok(UniqueId::from_raw(id))
    }

    /// Calls an NCCL function that takes no communicator. Returns an error for every result code
    /// except success.
    ///
    /// # Errors
    /// [`NcclError::Nccl`], [`NcclError::Unsupported`], [`NcclError::Forked`].
    #[inline]
    pub(crate) fn call(
        self,
        call: &'static str,
        function: impl FnOnce(&'static Api) -> Result<ncclResult_t, MissingSymbol>,
    ) -> Result<(), NcclError> {
        match self.code(call, function)? {
            ncclResult_t::ncclSuccess => Ok(()),
            code => Err(self.failure(call, code, None)),
        }
    }

    /// Calls a function of NCCL and returns its result. Does not check the result for an error
    /// code.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`], [`NcclError::Forked`].
    #[inline]
    pub(crate) fn code<R>(
        self,
        call: &'static str,
        function: impl FnOnce(&'static Api) -> Result<R, MissingSymbol>,
    ) -> Result<R, NcclError> {
        self.not_forked(call)?;
        function(&self.0.functions).map_err(|missing| self.unsupported_function(&missing))
    }

    /// Creates the error of a failed call, with NCCL's description of the code and NCCL's message
    /// for the last error.
    #[cold]
    pub(crate) fn failure(
        self,
        call: &'static str,
        code: ncclResult_t,
        communicator: Option<Arc<CommunicatorName>>,
    ) -> NcclError {
        Failure {
            call,
            code: ResultCode::new(code),
            meaning: self.meaning(code),
            version: self.0.version,
            last_error: self.last_error_text(std::ptr::null_mut()),
            communicator,
        }
        .into()
    }

    /// Creates the error for a feature that is newer than this library.
    #[cold]
    pub(crate) fn unsupported(self, what: &'static str, since: Version) -> NcclError {
        self.0.unsupported(what, Some(since)).into()
    }

    /// Fails if the library is older than the version `since`.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`].
    pub(crate) fn needs(self, what: &'static str, since: Version) -> Result<(), NcclError> {
        if self.0.version.at_least(since) { Ok(()) } else { Err(self.unsupported(what, since)) }
    }

    /// Fails if the library is older than `since`, or if it lacks the function.
    pub(crate) fn needs_function(self, function: &'static str, since: Version) -> Result<(), NcclError> {
        if self.has(function) { self.needs(function, since) } else { Err(self.unsupported(function, since)) }
    }

    /// Returns NCCL's functions. The caller has checked that the process was not forked after
    /// loading.
    #[inline]
    pub(crate) fn functions(self) -> &'static Api {
        &self.0.functions
    }

    #[cold]
    pub(crate) fn unsupported_function(self, missing: &MissingSymbol) -> NcclError {
        let since = missing.since.parse().expect("the version of every declared NCCL function is valid");
        self.unsupported(missing.name, since)
    }

    /// Fails if the process was forked after NCCL was loaded. In such a process no function of NCCL
    /// may be called ([L2] of this module).
    #[inline]
    pub(crate) fn not_forked(self, call: &'static str) -> Result<(), NcclError> {
        not_forked(call)
    }

    fn meaning(self, code: ncclResult_t) -> &'static str {
        // SAFETY: the function accepts any code, and returns null or text in the library's data,
        // which stays mapped [L1].
        unsafe { self.0.functions.ncclGetErrorString(code).map_or("", |text| static_text(text)) }
    }

    /// Returns NCCL's message for the last error. A null communicator selects the last error of the
    /// process.
    pub(crate) fn last_error_text(self, communicator: sys::ncclComm_t) -> String {
        // SAFETY: the communicator is null or live; NCCL only reads it, and returns null or text in
        // a buffer of the library.
        let text = unsafe { self.0.functions.ncclGetLastError(communicator).unwrap_or(std::ptr::null()) };
        // SAFETY: `text` is null, or a buffer that NCCL never frees [L1]. The buffer has
        // LAST_ERROR_BYTES bytes, or ends with its text.
        unsafe { changing_text(text) }
    }
}

impl PartialEq for Nccl {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Nccl {}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} ({})", self.0.version, self.0.path.display())
    }
}

/// Length, in bytes, of the buffer in which NCCL stores its last error message, including the
/// terminating zero.
const LAST_ERROR_BYTES: usize = 1024;

/// Maximum number of times that [`changing_text`] reads a text. Reading stops earlier if two
/// consecutive reads are equal.
const READINGS: usize = 8;

/// Reads a text that another thread may be changing inside NCCL. Repeats the read until two
/// consecutive reads are equal, and returns this text. After [`READINGS`] reads, returns the last
/// read, which may be a mix of two texts. Never reads beyond NCCL's buffer.
///
/// # Safety
/// `text` is null, or points to [`LAST_ERROR_BYTES`] readable bytes. Fewer readable bytes suffice
/// if one of these bytes is always zero. The bytes stay readable until the process ends.
unsafe fn changing_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    let reading = || -> Vec<u8> {
        let mut bytes = Vec::new();
        for index in 0..LAST_ERROR_BYTES {
            // SAFETY: no byte before this byte was zero, so this byte is readable. A byte is always
            // aligned, and is read atomically.
            let byte = unsafe { AtomicU8::from_ptr(text.cast_mut().cast::<u8>().add(index)) }.load(Ordering::Relaxed);
            if byte == 0 {
                break;
            }
            bytes.push(byte);
        }
        bytes
    };
    let mut bytes = reading();
    for _ in 1..READINGS {
        let again = reading();
        let agree = again == bytes;
        bytes = again;
        if agree {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Converts a text in NCCL's read-only data to a `str`. Returns an empty text if `text` is null or
/// is not valid UTF-8.
///
/// # Safety
/// `text` is null, or points to text that lives until the process ends.
unsafe fn static_text(text: *const c_char) -> &'static str {
    if text.is_null() {
        return "";
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

fn version_of(api: &Api, path: &Arc<Path>) -> Result<Version, NcclError> {
    let unusable = |what| {
        let (since, found) = (Some(OLDEST), Version::UNKNOWN);
        NcclError::from(Unsupported { product: PRODUCT, what, since, found, path: Arc::clone(path) })
    };
    let mut code = 0;
    // SAFETY: the function writes one int.
    let result = unsafe { api.ncclGetVersion(&raw mut code) };
    match result {
        Ok(ncclResult_t::ncclSuccess) => version_from_code(code).ok_or_else(|| unusable("the crate peerweave-nccl")),
        Ok(_) => Err(unusable("the crate peerweave-nccl")),
        Err(missing) => Err(unusable(missing.name)),
    }
}

#[inline]
pub(crate) fn not_forked(call: &'static str) -> Result<(), NcclError> {
    match FIRST.get() {
        Some((guard, loaded_by)) if guard.is_forked() => Err(forked(call, *loaded_by)),
        _ => Ok(()),
    }
}

/// Returns whether the process was forked after NCCL was loaded, so that no function of NCCL may be
/// called ([L2] of this module).
#[inline]
pub(crate) fn is_fork() -> bool {
    FIRST.get().is_some_and(|(guard, _)| guard.is_forked())
}

#[cold]
fn forked(call: &'static str, loaded_by: u32) -> NcclError {
    NcclError::Forked { call, loaded_by, process: std::process::id() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[AtomicU8]) -> String {
        // SAFETY: the buffer has as many bytes as NCCL's buffer, or fewer bytes with a zero among
        // them. The buffer outlives the call.
        unsafe { changing_text(bytes.as_ptr().cast()) }
    }

    #[test]
    fn error_text_ends_at_a_zero_byte_or_at_the_maximum_length() {
        let bytes: Vec<_> = (0..2 * LAST_ERROR_BYTES).map(|_| AtomicU8::new(b'x')).collect();
        assert_eq!(read(&bytes), "x".repeat(LAST_ERROR_BYTES));
        assert_eq!(read(&[AtomicU8::new(b'a'), AtomicU8::new(0)]), "a");
        // SAFETY: null is allowed.
        assert_eq!(unsafe { changing_text(std::ptr::null()) }, "");
    }

    #[test]
    fn text_can_be_read_while_another_thread_writes_it() {
        // Miri would detect a data race.
        let bytes: Vec<_> = (0..64).map(|_| AtomicU8::new(0)).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for letter in [b'a', b'b'].into_iter().cycle().take(20) {
                    bytes[..63].iter().for_each(|byte| byte.store(letter, Ordering::Relaxed));
                }
            });
            for _ in 0..20 {
                assert!(read(&bytes).bytes().all(|byte| byte == b'a' || byte == b'b'));
            }
        });
        assert_eq!(read(&bytes), "b".repeat(63));
    }
}
