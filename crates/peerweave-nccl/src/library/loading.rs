//! The NCCL that this process uses: finding it, its version, what it lacks, and every call into it.
//!
//! What to configure is `of_communicator.rs`; parameters and logs are `parameters.rs` and
//! `debug_log.rs`; communicators have their own modules.
//!
//! # Invariants
//! - **[L1]** A library is never unloaded and its record never freed, so that a [`Nccl`] is a plain
//!   reference forever.
//! - **[L2]** No function of a library is called in a fork of the process that loaded it.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use peerweave_dylib::{MissingSymbol, Search, SymbolInfo, Unsupported, Visibility};
use peerweave_fork::ForkGuard;

use crate::library::error::{CommunicatorName, Failure, NcclError, ResultCode};
use crate::sys::{Api, ncclResult_t};
use crate::{UniqueId, Version, sys, version_from_code};

/// What the vendor calls the library.
pub(crate) const PRODUCT: &str = "NCCL";

/// The oldest library that this crate uses. Before it, a thread of NCCL's that works on a
/// communicator is known to the thread alone that started it, so that an abort by another one frees
/// the communicator under it (a crash in 2.18.1 on H200).
const OLDEST: Version = Version::new(2, 19, 1);

// SAFETY: what a machine has under these names is NCCL, or stands in for it.
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

/// The process that loaded NCCL first.
static FIRST: OnceLock<(ForkGuard, u32)> = OnceLock::new();

/// An NCCL library, loaded until the process ends.
///
/// A handle: copying it is free, and it may be used from any thread. Two are equal if they are the
/// same library.
#[derive(Clone, Copy)]
pub struct Nccl(&'static Loaded);

struct Loaded {
    api: Api,
    version: Version,
    path: Arc<Path>,
    /// Files of other libnccl that the process had mapped when this one was loaded.
    others: Vec<PathBuf>,
}

/// All libraries that were loaded here, so that a file is loaded once. The first is not always the
/// one of [`Nccl::load`].
static LOADED: Mutex<Vec<&'static Loaded>> = Mutex::new(Vec::new());

impl Nccl {
    /// Every function of NCCL that this crate can use, with the version that brought it.
    pub const FUNCTIONS: &'static [SymbolInfo] = Api::SYMBOLS;

    /// Loads the library of this process: found by the first call, the same ever after.
    ///
    /// Tried in order: `PEERWEAVE_NCCL_PATH` (a file or a directory; if it is set, nothing else
    /// is), the wheels of the active Python (`nvidia/nccl/lib`), the dynamic linker's path
    /// (`libnccl.so.2`, then `libnccl.so`), well-known directories. No GPU and no driver is needed.
    ///
    /// # Errors
    /// [`NcclError::Load`] with every path that was tried; a later call tries again.
    /// [`NcclError::Unsupported`] for a library older than 2.19.1. [`NcclError::Forked`] in a fork
    /// of the process that loaded it.
    pub fn load() -> Result<Self, NcclError> {
        static DEFAULT: OnceLock<Nccl> = OnceLock::new();
        // First of all: in a fork, locks may be held by threads that are not there.
        not_forked("Nccl::load")?;
        if let Some(nccl) = DEFAULT.get() {
            return Ok(*nccl);
        }
        let nccl = Self::adopt(SEARCH.open(Visibility::Local)?)?;
        Ok(*DEFAULT.get_or_init(|| nccl))
    }

    /// Loads one particular library: a file, or the directory that has it. Does not change the
    /// result of [`load`](Self::load).
    ///
    /// Handles of one library mean nothing to another, and each has its own threads, memory and
    /// environment: a program should have one.
    ///
    /// # Safety
    /// The file is an NCCL. What a library is to do when it is loaded runs, and its functions are
    /// called with NCCL's signatures; [`load`](Self::load) takes what the machine, its owner or the
    /// environment has under NCCL's name.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub unsafe fn open(path: impl AsRef<Path>) -> Result<Self, NcclError> {
        not_forked("Nccl::open")?;
        // SAFETY: the caller says that it is an NCCL.
        Self::adopt(unsafe { SEARCH.open_at(path.as_ref(), Visibility::Local) }?)
    }

    fn adopt(library: peerweave_dylib::Library) -> Result<Self, NcclError> {
        let (adopted, is_new) = Self::adopt_once(library)?;
        // Not under the lock: a subscriber may use NCCL.
        if is_new {
            tracing::debug!(version = %adopted.version(), path = %adopted.path().display(), "NCCL loaded");
            for other in &adopted.0.others {
                tracing::warn!(
                    used = %adopted.path().display(), other = %other.display(),
                    "a second libnccl is mapped in this process; communicators, windows and memory of one must not reach the other"
                );
            }
        }
        Ok(adopted)
    }

    /// Gives whether it was not known.
    fn adopt_once(library: peerweave_dylib::Library) -> Result<(Self, bool), NcclError> {
        let path: Arc<Path> = library.path().into();
        let identity = identity(&path);
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = loaded.iter().find(|known| self::identity(&known.path) == identity) {
            return Ok((Self(known), false));
        }
        FIRST.get_or_init(|| (ForkGuard::new(), std::process::id()));
        // Those that others mapped, and those that were loaded here under whatever name.
        let known = loaded.iter().map(|known| self::identity(&known.path));
        let mut others: Vec<PathBuf> = Vec::new();
        for other in peerweave_dylib::mapped("libnccl.so").into_iter().chain(known) {
            if self::identity(&other) != identity && !others.contains(&other) {
                others.push(other);
            }
        }
        let api = Api::new(library);
        let version = version_of(&api, &path)?;
        if !version.at_least(OLDEST) {
            return Err(
                Unsupported { product: PRODUCT, what: "peerweave-nccl", since: Some(OLDEST), found: version, path }.into()
            );
        }
        let record: &'static Loaded = Box::leak(Box::new(Loaded { api, version, path, others }));
        loaded.push(record);
        Ok((Self(record), true))
    }

    /// Returns the library's version.
    pub fn version(self) -> Version {
        self.0.version
    }

    /// Returns the file that is mapped.
    pub fn path(self) -> &'static Path {
        &self.0.path
    }

    pub(crate) fn shared_path(self) -> Arc<Path> {
        Arc::clone(&self.0.path)
    }

    /// Files of other libnccl that this process had mapped when this one was loaded: of a Python
    /// that runs in it, say, or linked at build time.
    ///
    /// They work beside each other only as long as no handle of one reaches the other. A warning
    /// was logged for each.
    pub fn others(self) -> &'static [PathBuf] {
        &self.0.others
    }

    /// Returns the functions that this crate can use and that the library lacks, each with the
    /// version that brought it.
    pub fn missing(self) -> Vec<SymbolInfo> {
        self.0.api.missing()
    }

    /// Returns whether the library has a function, by NCCL's name. False for names that this crate
    /// does not use.
    pub fn has(self, function: &str) -> bool {
        self.0.api.has(function)
    }

    /// Returns NCCL's functions, unsafe to call. Calls through it are not guarded against a fork.
    #[cfg(feature = "raw")]
    pub fn api(self) -> &'static Api {
        &self.0.api
    }

    /// Returns NCCL's description of a code.
    ///
    /// # Errors
    /// [`NcclError::Forked`].
    pub fn error_string(self, code: ResultCode) -> Result<&'static str, NcclError> {
        self.not_forked("ncclGetErrorString")?;
        Ok(self.meaning(ncclResult_t(code.get())))
    }

    /// Converts the code of a function of NCCL into a result, for calls that this crate does not
    /// make: through [`Communicator::as_raw`](crate::Communicator::as_raw), or of the bindings.
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
    /// [`NcclError::Nccl`] for every code but [`ResultCode::SUCCESS`], [`ResultCode::IN_PROGRESS`]
    /// included; [`NcclError::Forked`].
    pub fn check(self, call: &'static str, code: impl Into<ResultCode>) -> Result<(), NcclError> {
        match code.into() {
            ResultCode::SUCCESS => Ok(()),
            code => Err(NcclError::from_code(self, call, code)),
        }
    }

    /// Returns NCCL's text of the last error of this process; `None` if there was none.
    ///
    /// # Errors
    /// [`NcclError::Forked`].
    pub fn last_error(self) -> Result<Option<String>, NcclError> {
        self.not_forked("ncclGetLastError")?;
        Ok(Some(self.last_error_text(std::ptr::null_mut())).filter(|text| !text.is_empty()))
    }

    /// Creates an id for ranks to meet with. Opens a socket in this process that listens until they
    /// have met, on the interface that NCCL chooses (`NCCL_SOCKET_IFNAME`).
    ///
    /// # Errors
    /// [`NcclError::Nccl`] where there is no usable interface; [`NcclError::Forked`].
    pub fn unique_id(self) -> Result<UniqueId, NcclError> {
        let mut id = sys::ncclUniqueId { internal: [0; sys::NCCL_UNIQUE_ID_BYTES] };
        // SAFETY: `id` is 128 bytes that the function may write.
        self.call("ncclGetUniqueId", |api| unsafe { api.ncclGetUniqueId(&raw mut id) })?;
        Ok(UniqueId::from_raw(id))
    }

    /// Calls a function that belongs to no communicator. Every code but success is an error.
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

    /// Calls a function and gives what it returns; only what is wrong before NCCL is reached is an
    /// error.
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
        function(&self.0.api).map_err(|missing| self.unsupported_function(&missing))
    }

    /// Returns the error of a call, with NCCL's text.
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

    /// Something that came later than this library.
    #[cold]
    pub(crate) fn unsupported(self, what: &'static str, since: Version) -> NcclError {
        Unsupported { product: PRODUCT, what, since: Some(since), found: self.0.version, path: self.shared_path() }.into()
    }

    /// An error unless the library is at least that version.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`].
    pub(crate) fn needs(self, what: &'static str, since: Version) -> Result<(), NcclError> {
        if self.0.version.at_least(since) { Ok(()) } else { Err(self.unsupported(what, since)) }
    }

    /// As [`needs`](Self::needs), and of a library whose version is not the truth too.
    pub(crate) fn needs_function(self, function: &'static str, since: Version) -> Result<(), NcclError> {
        if self.has(function) { self.needs(function, since) } else { Err(self.unsupported(function, since)) }
    }

    /// The functions, for a process that is no fork.
    #[inline]
    pub(crate) fn functions(self) -> &'static Api {
        &self.0.api
    }

    #[cold]
    pub(crate) fn unsupported_function(self, missing: &MissingSymbol) -> NcclError {
        let since = missing.since.parse().expect("the bindings state versions");
        self.unsupported(missing.name, since)
    }

    /// Upholds [L2].
    #[inline]
    pub(crate) fn not_forked(self, call: &'static str) -> Result<(), NcclError> {
        not_forked(call)
    }

    fn meaning(self, code: ncclResult_t) -> &'static str {
        // SAFETY: it takes any code, and gives null or text that the library holds in its data,
        // which is mapped forever [L1].
        unsafe { self.0.api.ncclGetErrorString(code).map_or("", |text| static_text(text)) }
    }

    /// NCCL's last error. The communicator may be null, then it is the process's.
    pub(crate) fn last_error_text(self, communicator: sys::ncclComm_t) -> String {
        // SAFETY: the communicator is null or live; NCCL only reads it, and gives null or text in a
        // buffer of the library's.
        let text = unsafe { self.0.api.ncclGetLastError(communicator).unwrap_or(std::ptr::null()) };
        // SAFETY: null, or a buffer of NCCL's that is never freed [L1]: of LAST_ERROR_BYTES, or as
        // long as its text.
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

/// How long NCCL's buffer for its last error is, the zero byte at the end included.
const LAST_ERROR_BYTES: usize = 1024;

/// How often a text is read until two readings agree.
const READINGS: usize = 8;

/// Reads a text that another thread may write meanwhile, under a lock of NCCL's own: what two
/// consecutive reads agree on. If the writer never stops, the last read, which may be a mixture.
/// Never reads more than NCCL's buffer has.
///
/// # Safety
/// Null, or [`LAST_ERROR_BYTES`] readable bytes, or fewer with a zero among them, that live
/// forever.
unsafe fn changing_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    let reading = || -> Vec<u8> {
        let mut bytes = Vec::new();
        for index in 0..LAST_ERROR_BYTES {
            // SAFETY: no byte before this one was zero, so that it is readable; a byte is always
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

/// # Safety
/// Null, or text that lives forever.
unsafe fn static_text(text: *const c_char) -> &'static str {
    if text.is_null() {
        return "";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

fn version_of(api: &Api, path: &Arc<Path>) -> Result<Version, NcclError> {
    let unknown = Version::new(0, 0, 0);
    let unusable = |what, since| {
        NcclError::from(Unsupported { product: PRODUCT, what, since: Some(since), found: unknown, path: Arc::clone(path) })
    };
    let mut code = 0;
    // SAFETY: it writes one int.
    let result = unsafe { api.ncclGetVersion(&raw mut code) };
    match result {
        Ok(ncclResult_t::ncclSuccess) => version_from_code(code).ok_or_else(|| unusable("a version that can be read", OLDEST)),
        Ok(_) => Err(unusable("ncclGetVersion that succeeds", OLDEST)),
        Err(missing) => Err(unusable(missing.name, OLDEST)),
    }
}

/// What identifies a file, whatever links lead to it.
fn identity(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

#[inline]
pub(crate) fn not_forked(call: &'static str) -> Result<(), NcclError> {
    match FIRST.get() {
        Some((guard, loaded_by)) if guard.is_forked() => Err(forked(call, *loaded_by)),
        _ => Ok(()),
    }
}

/// Whether no function of a library may be called in this process [L2].
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
        // SAFETY: as many bytes as the buffer of NCCL has, or a zero among fewer, and they outlive
        // the call.
        unsafe { changing_text(bytes.as_ptr().cast()) }
    }

    #[test]
    fn text_without_an_end_is_read_no_further_than_its_buffer() {
        let bytes: Vec<_> = (0..2 * LAST_ERROR_BYTES).map(|_| AtomicU8::new(b'x')).collect();
        assert_eq!(read(&bytes), "x".repeat(LAST_ERROR_BYTES));
        assert_eq!(read(&[AtomicU8::new(b'a'), AtomicU8::new(0)]), "a");
        // SAFETY: null is text of nothing.
        assert_eq!(unsafe { changing_text(std::ptr::null()) }, "");
    }

    #[test]
    fn text_that_another_thread_writes_is_read_without_a_race() {
        // Miri would find one.
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
