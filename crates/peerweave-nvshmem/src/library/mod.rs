//! The NVSHMEM library of this process: search, version, missing functions and plug-ins.
//!
//! `startup` starts NVSHMEM.
//!
//! # Invariants
//! - **\[L1\]** A library is never unloaded and its [`Loaded`] value is never freed, so an
//!   [`Nvshmem`] is a plain `&'static` reference.
//! - **\[L2\]** No function of a library is called in a forked child of the process that loaded it.

#[cfg(unix)]
mod environment;
#[cfg(not(unix))]
#[path = "environment_elsewhere.rs"]
mod environment;
pub(crate) mod plugins;
mod settings;

pub use settings::Settings;

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use peerweave_dylib::{Library, Loaded, MissingSymbol, Registry, Search, SymbolInfo, Unsupported, Visibility};
use peerweave_fork::ForkGuard;

use crate::error::{Failure, NvshmemError, PluginError, StatusCode};
use crate::sys::{Api, Families};
use crate::{Version, sys};

/// Name of the library in messages.
const PRODUCT: &str = "NVSHMEM";

/// The oldest supported version.
const OLDEST: Version = Version::new(3, 3, 0);

// SAFETY: a library with one of these names is NVSHMEM or a substitute for NVSHMEM.
const SEARCH: Search = unsafe { Search::new(PRODUCT, "PEERWEAVE_NVSHMEM_PATH", &["libnvshmem_host.so.3", "libnvshmem_host.so"]) }
    .known_by(c"nvshmemx_vendor_get_version_info")
    .in_wheels(&["nvidia/nvshmem/lib"])
    .in_directories(&[
        #[cfg(target_arch = "x86_64")]
        "/usr/lib/x86_64-linux-gnu/nvshmem/13",
        #[cfg(target_arch = "x86_64")]
        "/usr/lib/x86_64-linux-gnu/nvshmem/12",
        #[cfg(target_arch = "x86_64")]
        "/usr/lib/x86_64-linux-gnu",
        #[cfg(target_arch = "aarch64")]
        "/usr/lib/aarch64-linux-gnu/nvshmem/13",
        #[cfg(target_arch = "aarch64")]
        "/usr/lib/aarch64-linux-gnu/nvshmem/12",
        #[cfg(target_arch = "aarch64")]
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/nvshmem/lib",
        "/opt/nvshmem/lib",
        "/usr/local/lib",
        "/opt/conda/lib",
    ]);

/// The fork guard of the process that first loaded NVSHMEM. In a forked child of this process, the
/// guard reports the fork.
static FIRST: OnceLock<ForkGuard> = OnceLock::new();

/// A loaded NVSHMEM host library. The library stays loaded until the process ends.
///
/// This handle can be copied, and any thread can use it. Two handles are equal if they refer to the
/// same library.
#[derive(Clone, Copy)]
pub struct Nvshmem(&'static Loaded<Functions>);

struct Functions {
    api: Api,
    families: Families,
    loaded_by: u32,
    guard: ForkGuard,
}

/// All NVSHMEM libraries that this crate has loaded in this process.
static LOADED: Registry<Functions> = Registry::new(
    "libnvshmem_host.so",
    "peerweave-nvshmem",
    OLDEST,
    "NVSHMEM's plug-ins may call functions of the wrong library; load only one NVSHMEM library",
);

impl Nvshmem {
    /// Returns the NVSHMEM library that this process uses. The first successful call searches for
    /// the library and loads it. Later calls return the same library.
    ///
    /// The library is searched in these places, in this order:
    ///
    /// 1. the path in `PEERWEAVE_NVSHMEM_PATH`, which is a file or a directory
    /// 2. the wheels of the active Python environment (`nvidia/nvshmem/lib`)
    /// 3. the search path of the dynamic linker (`libnvshmem_host.so.3`)
    /// 4. well-known directories
    ///
    /// If `PEERWEAVE_NVSHMEM_PATH` is set, only this path is searched.
    ///
    /// The symbols of the NVSHMEM library are visible to libraries that are loaded later, because
    /// NVSHMEM's plug-ins need these symbols. This call needs neither a GPU nor a CUDA driver.
    ///
    /// # Errors
    /// [`NvshmemError::Load`] if no usable library was found. The error lists every path that was
    /// tried, and a later call searches again. [`NvshmemError::Unsupported`] if the library is
    /// older than 3.3. [`NvshmemError::Forked`] in a forked child of the process that loaded the
    /// library.
    pub fn load() -> Result<Self, NvshmemError> {
        static DEFAULT: OnceLock<Nvshmem> = OnceLock::new();
        if let Some(nvshmem) = DEFAULT.get() {
            return nvshmem.not_forked("Nvshmem::load").map(|()| *nvshmem);
        }
        let nvshmem = Self::adopt(SEARCH.open(Visibility::Global)?)?;
        Ok(*DEFAULT.get_or_init(|| nvshmem))
    }

    /// Loads the library at `path`, which is a file or a directory. This call does not change the
    /// result of [`load`](Self::load).
    ///
    /// Plug-ins use the symbols of the library that was loaded first, so a process should load only
    /// one NVSHMEM library.
    ///
    /// # Safety
    /// The file must be an NVSHMEM library. Loading the file runs its initialisers, and this crate
    /// calls its functions with NVSHMEM's signatures.
    ///
    /// # Errors
    /// Returns the same errors as [`load`](Self::load).
    pub unsafe fn open(path: impl AsRef<Path>) -> Result<Self, NvshmemError> {
        // SAFETY: the caller guarantees that the file is an NVSHMEM library.
        Self::adopt(unsafe { SEARCH.open_at(path.as_ref(), Visibility::Global) }?)
    }

    fn adopt(library: Library) -> Result<Self, NvshmemError> {
        let loaded = LOADED.adopt(library, |library| {
            FIRST.get_or_init(ForkGuard::new);
            let path = Arc::from(library.path());
            let (api, families) = (Api::new(library.clone()), Families::new(library));
            let version = version_of(&api, &path)?;
            Ok::<_, NvshmemError>((Functions { api, families, loaded_by: std::process::id(), guard: ForkGuard::new() }, version))
        })?;
        Self(loaded).not_forked("Nvshmem::load").map(|()| Self(loaded))
    }

    /// Returns the version of the NVSHMEM library, which differs from the version of the OpenSHMEM
    /// specification.
    pub fn version(self) -> Version {
        self.0.version
    }

    /// Returns the major and minor version of the OpenSHMEM specification that the library
    /// implements.
    ///
    /// # Errors
    /// [`NvshmemError::Forked`] in a forked child of the process that loaded the library.
    /// [`NvshmemError::Unsupported`] if the library lacks the function.
    pub fn specification(self) -> Result<(u32, u32), NvshmemError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the function writes two integers.
        self.code("nvshmem_info_get_version", |api| unsafe { api.nvshmem_info_get_version(&raw mut major, &raw mut minor) })?;
        Ok((major.unsigned_abs(), minor.unsigned_abs()))
    }

    /// Returns the name that the library reports for itself.
    ///
    /// # Errors
    /// Returns the same errors as [`specification`](Self::specification).
    pub fn name(self) -> Result<String, NvshmemError> {
        let mut name = [0 as c_char; sys::NVSHMEM_MAX_NAME_LEN + 1];
        // SAFETY: the function writes at most NVSHMEM_MAX_NAME_LEN bytes, including the final zero.
        self.code("nvshmem_info_get_name", |api| unsafe { api.nvshmem_info_get_name(name.as_mut_ptr()) })?;
        // SAFETY: the function does not write the last byte, which is zero.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Returns whether, and to what extent, the library is initialised in this process.
    ///
    /// # Errors
    /// Returns the same errors as [`specification`](Self::specification).
    pub fn status(self) -> Result<Status, NvshmemError> {
        // SAFETY: the function only reads the library's state.
        Ok(Status::new(self.code("nvshmemx_init_status", |api| unsafe { api.nvshmemx_init_status() })?))
    }

    /// Returns the path of the loaded file.
    pub fn path(self) -> &'static Path {
        &self.0.path
    }

    /// Returns every function that this crate declares, with the first library version that exports
    /// the function.
    pub fn functions() -> Vec<SymbolInfo> {
        Api::SYMBOLS.iter().copied().chain(sys::typed_symbols()).collect()
    }

    /// Returns every declared function that this library lacks, with the first library version that
    /// exports the function.
    pub fn missing(self) -> Vec<SymbolInfo> {
        let mut missing = self.0.functions.api.missing();
        missing.extend(self.0.functions.families.missing());
        missing
    }

    /// Returns whether the library exports the untyped NVSHMEM function with the name `function`.
    /// Returns `false` for a function that this crate does not declare.
    pub fn has(self, function: &str) -> bool {
        self.0.functions.api.has(function)
    }

    /// Returns NVSHMEM's untyped functions. Calling these functions is unsafe, because this crate
    /// checks neither whether the process was forked nor whether another thread is inside NVSHMEM.
    #[cfg(feature = "raw")]
    pub fn api(self) -> &'static Api {
        &self.0.functions.api
    }

    /// Returns NVSHMEM's typed functions. Calling these functions is unsafe, because this crate
    /// checks neither whether the process was forked nor whether another thread is inside NVSHMEM.
    #[cfg(feature = "raw")]
    pub fn families(self) -> &'static Families {
        &self.0.functions.families
    }

    /// Checks the plug-ins that an initialisation by an id needs. The bootstrap plug-in must be in
    /// the library's directory, and must have a version that the library can load. The transport
    /// plug-in may be missing: NVSHMEM then uses only NVLink. If a transport plug-in is installed,
    /// it must have the version that the library loads.
    ///
    /// `remote_transport` is the value that `NVSHMEM_REMOTE_TRANSPORT` will have, such as `ibrc` or
    /// `none`.
    ///
    /// # Errors
    /// [`NvshmemError::Plugin`] if a plug-in is missing or has a wrong version. The error names the
    /// plug-in and the files that were found instead.
    pub fn check_plugins(self, remote_transport: &str) -> Result<(), NvshmemError> {
        self.check_id_plugin(&Settings::default())?;
        self.check_transport(remote_transport)
    }

    /// Checks the bootstrap plug-in that an initialisation by an id needs. If `settings` select a
    /// different plug-in, that plug-in is not checked. The transport plug-in is not checked either.
    pub(crate) fn check_id_plugin(self, settings: &Settings) -> Result<(), NvshmemError> {
        let (stem, variable) = plugins::OF_IDS;
        // A plug-in that its own variable selects may have any name, so such a plug-in is not
        // checked.
        match self.plugins() {
            Some(directory) if !settings.names(variable) => check_plugin(directory, stem, Some(3), self.0.version),
            _ => Ok(()),
        }
    }

    /// Returns the directory of the plug-ins, or `None` if the library's path is not absolute.
    pub(crate) fn plugins(self) -> Option<&'static Path> {
        self.0.path.parent().filter(|directory| directory.is_absolute())
    }

    /// Checks the installed plug-in for the network transport `remote_transport`. This plug-in must
    /// have the version that the library loads. If no such plug-in is installed, the check
    /// succeeds, because NVSHMEM then uses only NVLink.
    pub(crate) fn check_transport(self, remote_transport: &str) -> Result<(), NvshmemError> {
        let Some(directory) = self.plugins() else { return Ok(()) };
        if remote_transport != "none" && !remote_transport.is_empty() {
            let abi = transport_abi(self.0.version);
            let stem = format!("nvshmem_transport_{remote_transport}");
            // Only a transport of another version is an error. If no transport is installed,
            // NVSHMEM uses NVLink only.
            if !names_of(directory, &stem).is_empty() {
                check_plugin(directory, &stem, abi, self.0.version)?;
            }
        }
        Ok(())
    }

    /// Calls a function and returns its result. Returns an error only if the library lacks the
    /// function, or if this process is a forked child.
    #[inline]
    pub(crate) fn code<R>(
        self,
        call: &'static str,
        function: impl FnOnce(&'static Api) -> Result<R, MissingSymbol>,
    ) -> Result<R, NvshmemError> {
        self.not_forked(call)?;
        function(&self.0.functions.api).map_err(|missing| self.unsupported_function(call, &missing))
    }

    pub(crate) fn raw_api(self) -> &'static Api {
        &self.0.functions.api
    }

    pub(crate) fn raw_families(self) -> &'static Families {
        &self.0.functions.families
    }

    /// Returns the error for the failed call `call`. `code` is `None` if there is no error code,
    /// for example because the call returned a null pointer, or because NVSHMEM was not called.
    #[cold]
    pub(crate) fn failure(self, call: &'static str, code: Option<c_int>, detail: String) -> NvshmemError {
        Failure { call, code: code.map(StatusCode::new), detail, version: self.0.version }.into()
    }

    /// Returns an error unless `code` is success.
    #[inline]
    pub(crate) fn check(self, call: &'static str, code: c_int) -> Result<(), NvshmemError> {
        if code == sys::NVSHMEMX_SUCCESS { Ok(()) } else { Err(self.failure(call, Some(code), String::new())) }
    }

    /// Returns the error for a function that this library lacks.
    #[cold]
    pub(crate) fn unsupported(self, call: &'static str, since: Option<Version>) -> NvshmemError {
        self.0.unsupported(call, since).into()
    }

    #[cold]
    pub(crate) fn unsupported_function(self, call: &'static str, missing: &MissingSymbol) -> NvshmemError {
        let name = if missing.name.is_empty() { call } else { missing.name };
        self.unsupported(name, missing.since.parse().ok())
    }

    /// Returns whether this process is a forked child of a process that had loaded an NVSHMEM
    /// library.
    pub(crate) fn is_forked() -> bool {
        FIRST.get().is_some_and(|guard| guard.is_forked())
    }

    /// Returns an error in a forked child of the process that loaded the library (invariant [L2]).
    #[inline]
    pub(crate) fn not_forked(self, call: &'static str) -> Result<(), NvshmemError> {
        if self.0.functions.guard.is_forked() { Err(self.forked(call)) } else { Ok(()) }
    }

    #[cold]
    fn forked(self, call: &'static str) -> NvshmemError {
        NvshmemError::Forked { call, loaded_by: self.0.functions.loaded_by, process: std::process::id() }
    }
}

impl PartialEq for Nvshmem {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Nvshmem {}

impl fmt::Debug for Nvshmem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVSHMEM {} ({})", self.0.version, self.0.path.display())
    }
}

/// State of NVSHMEM's initialisation in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// NVSHMEM is not initialised.
    NotInitialized,
    /// The PEs are connected, but NVSHMEM is not initialised.
    Bootstrapped,
    /// NVSHMEM is initialised.
    Initialized,
    /// NVSHMEM is initialised. Some PEs share a GPU, and only some calls are supported.
    LimitedSharing,
    /// NVSHMEM is initialised. Some PEs share a GPU, and all calls are supported.
    FullSharing,
    /// A status number that this crate does not know.
    Unknown(i32),
}

impl Status {
    const fn new(status: c_int) -> Self {
        match status {
            sys::NVSHMEM_STATUS_NOT_INITIALIZED => Self::NotInitialized,
            sys::NVSHMEM_STATUS_IS_BOOTSTRAPPED => Self::Bootstrapped,
            sys::NVSHMEM_STATUS_IS_INITIALIZED => Self::Initialized,
            sys::NVSHMEM_STATUS_LIMITED_MPG => Self::LimitedSharing,
            sys::NVSHMEM_STATUS_FULL_MPG => Self::FullSharing,
            other => Self::Unknown(other),
        }
    }
}

/// Returns the version number of the transport plug-ins that NVSHMEM `version` loads. In the file
/// name of such a plug-in, this number follows `.so.`. Returns `None` if the number is unknown.
fn transport_abi(version: Version) -> Option<u32> {
    match (version.major, version.minor) {
        (3, 3 | 4) => Some(3),
        (3, 6) => Some(5),
        (3, 8) => Some(7),
        _ => None,
    }
}

fn names_of(directory: &Path, stem: &str) -> Vec<String> {
    let prefix = format!("{stem}.so");
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with(&prefix));
    names.sort();
    names
}

fn check_plugin(directory: &Path, stem: &str, abi: Option<u32>, version: Version) -> Result<(), NvshmemError> {
    let Some(abi) = abi else { return Ok(()) };
    let plugin = format!("{stem}.so.{abi}");
    if directory.join(&plugin).is_file() {
        return Ok(());
    }
    let found = match names_of(directory, stem).as_slice() {
        [] => "no file of this plug-in was found".to_owned(),
        others => format!("only files of a different version were found: {}", others.join(", ")),
    };
    Err(PluginError { plugin, directory: directory.to_path_buf(), found, version }.into())
}

fn version_of(api: &Api, path: &Arc<Path>) -> Result<Version, NvshmemError> {
    let unusable = |call| {
        let found = Version::UNKNOWN;
        NvshmemError::from(Unsupported { product: PRODUCT, what: call, since: Some(OLDEST), found, path: Arc::clone(path) })
    };
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the function writes three integers.
    unsafe { api.nvshmemx_vendor_get_version_info(&raw mut major, &raw mut minor, &raw mut patch) }
        .map_err(|missing| unusable(missing.name))?;
    match (major.try_into(), minor.try_into(), patch.try_into()) {
        (Ok(major), Ok(minor), Ok(patch)) => Ok(Version::new(major, minor, patch)),
        _ => Err(unusable("the crate peerweave-nvshmem")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(directory: &Path, name: &str) {
        std::fs::write(directory.join(name), "").expect("the temporary directory is writable");
    }

    #[test]
    fn missing_plugins_error_lists_missing_and_present_files() {
        let directory = tempfile::tempdir().expect("the temporary directory is created");
        let version = Version::new(3, 4, 5);
        let check = || check_plugin(directory.path(), "nvshmem_bootstrap_uid", Some(3), version);
        let error = check().expect_err("the directory is empty");
        assert!(
            error.to_string().contains("nvshmem_bootstrap_uid.so.3")
                && error.to_string().contains("no file of this plug-in was found"),
            "{error}"
        );
        touch(directory.path(), "nvshmem_bootstrap_uid.so.2");
        let error = check().expect_err("the plug-in has another version");
        assert!(
            error.to_string().contains("only files of a different version were found: nvshmem_bootstrap_uid.so.2"),
            "{error}"
        );
        touch(directory.path(), "nvshmem_bootstrap_uid.so.3");
        assert!(check().is_ok());
    }

    #[test]
    fn transport_plugin_is_not_checked_for_unknown_nvshmem_version() {
        let directory = tempfile::tempdir().expect("the temporary directory is created");
        let version = Version::new(3, 7, 0);
        assert!(check_plugin(directory.path(), "nvshmem_transport_ibrc", transport_abi(version), version).is_ok());
    }

    #[test]
    fn missing_nvshmem_library_error_lists_tried_paths() {
        // SAFETY: the file does not exist, so no code of it runs.
        let error = unsafe { Nvshmem::open("/nowhere/libnvshmem_host.so.3") }.expect_err("the file does not exist");
        assert!(
            matches!(&error, NvshmemError::Load(load) if load.scope == peerweave_dylib::SearchScope::Path && load.tried.len() == 1),
            "{error}"
        );
    }

    #[test]
    fn library_other_than_nvshmem_is_refused() {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the test runs on Linux");
        let libc = maps.split_whitespace().find(|word| word.contains("libc.so")).expect("the test is linked to libc");
        // SAFETY: libc is already loaded. None of its functions is called, because it lacks
        // NVSHMEM's version function.
        let error = unsafe { Nvshmem::open(libc) }.expect_err("libc is not NVSHMEM");
        assert!(matches!(&error, NvshmemError::Load(_)), "{error}");
        assert!(
            error.to_string().contains("lacks the function nvshmemx_vendor_get_version_info, so the file is not NVSHMEM"),
            "{error}"
        );
    }
}
