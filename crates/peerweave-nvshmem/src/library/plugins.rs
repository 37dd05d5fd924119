//! The plug-ins by which PEs connect to each other (bootstrap plug-ins): which one NVSHMEM will
//! load, and a check that it can be loaded.
//!
//! `mod.rs` checks the versions in the names of plug-in files. Invariant: NVSHMEM is not started if
//! its bootstrap plug-in is in the library's directory but cannot be loaded. NVSHMEM would only
//! print the error, and NVSHMEM 3.4.5 would end the process by a double free.

use std::path::Path;

use crate::error::{MisuseKind, NvshmemError, PluginError};
use crate::{Nvshmem, Settings};

/// The plug-in for an initialisation by an id. The first text is the plug-in's file name without
/// suffix. The second text is the environment variable by which the user can replace the plug-in.
pub(crate) const OF_IDS: (&str, &str) = ("nvshmem_bootstrap_uid", "NVSHMEM_BOOTSTRAP_UID_PLUGIN");

/// Returns the plug-in for the bootstrap by MPI: its file name without suffix, and the environment
/// variable by which the user can replace it. The result is never `None`.
pub(crate) fn of_mpi() -> Option<(&'static str, &'static str)> {
    Some(("nvshmem_bootstrap_mpi", "NVSHMEM_BOOTSTRAP_MPI_PLUGIN"))
}

/// Returns the plug-in for the bootstrap that `settings` select: its file name without suffix, and
/// the environment variable by which the user can replace it. Returns `None` for a bootstrap that
/// this crate does not know. NVSHMEM alone then interprets the setting.
///
/// # Errors
/// [`MisuseKind::Text`] if the selected bootstrap is `UID` or `PLUGIN`. No launcher provides these
/// bootstraps, so NVSHMEM would fail, and could not be started again.
pub(crate) fn of_launcher(settings: &Settings) -> Result<Option<(&'static str, &'static str)>, NvshmemError> {
    let set = |name| settings.effective(name).filter(|value| !value.is_empty()).map(|value| value.to_ascii_uppercase());
    Ok(match set("NVSHMEM_BOOTSTRAP").as_deref().unwrap_or("PMI") {
        "PMI" => match set("NVSHMEM_BOOTSTRAP_PMI").as_deref().unwrap_or("PMI") {
            "PMI" | "PMI-1" => Some(("nvshmem_bootstrap_pmi", "NVSHMEM_BOOTSTRAP_PMI_PLUGIN")),
            "PMI-2" | "PMI2" => Some(("nvshmem_bootstrap_pmi2", "NVSHMEM_BOOTSTRAP_PMI2_PLUGIN")),
            "PMIX" => Some(("nvshmem_bootstrap_pmix", "NVSHMEM_BOOTSTRAP_PMIX_PLUGIN")),
            _ => None,
        },
        "MPI" => of_mpi(),
        "SHMEM" => Some(("nvshmem_bootstrap_shmem", "NVSHMEM_BOOTSTRAP_SHMEM_PLUGIN")),
        "UID" | "PLUGIN" => {
            let (what, why) = (
                "NVSHMEM_BOOTSTRAP",
                "the value is UID or PLUGIN, expected PMI, MPI or SHMEM; to start with an id, call from_unique_id",
            );
            return Err(NvshmemError::misuse("Context::from_launcher", MisuseKind::Text { what, why }));
        }
        _ => None,
    })
}

/// Loads `plugin` from the directory of the NVSHMEM library, to check that it can be loaded. Like
/// NVSHMEM, immediately resolves all functions that the plug-in needs.
///
/// Succeeds without loading anything if `plugin` is `None`, or if the environment variable that
/// `plugin` names selects another plug-in. Also succeeds without loading anything if the library's
/// directory is unknown or lacks the plug-in, because the plug-in may be in another directory.
///
/// # Errors
/// [`NvshmemError::Plugin`] with the dynamic linker's message.
pub(crate) fn check(
    nvshmem: Nvshmem,
    plugin: Option<(&'static str, &'static str)>,
    settings: &Settings,
) -> Result<(), NvshmemError> {
    let Some((stem, variable)) = plugin else { return Ok(()) };
    let Some(directory) = nvshmem.plugins() else { return Ok(()) };
    if settings.names(variable) {
        return Ok(());
    }
    let plugin = format!("{stem}.so.3");
    let path = directory.join(&plugin);
    if !path.is_file() {
        return Ok(());
    }
    match open(&path) {
        Ok(()) => Ok(()),
        Err(words) => {
            let (directory, found) = (directory.to_path_buf(), format!("the plug-in cannot be loaded: {words}"));
            Err(PluginError { plugin, directory, found, version: nvshmem.version() }.into())
        }
    }
}

/// Returns an error, because NVSHMEM exists only on Linux.
#[cfg(not(unix))]
fn open(_path: &Path) -> Result<(), String> {
    Err("plug-ins can be loaded on Linux only".to_owned())
}

/// Loads a plug-in, and immediately resolves all functions that the plug-in needs. The plug-in
/// stays loaded, because NVSHMEM loads it next.
///
/// The crate `peerweave-dylib` is not used here, because it resolves functions only at their first
/// call. With that crate, a plug-in for a different version of PMIx would seem to load.
#[cfg(unix)]
fn open(path: &Path) -> Result<(), String> {
    use std::ffi::{CStr, CString};
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the path ends in a zero byte. The initialisers of the plug-in run as they do when
    // NVSHMEM starts.
    if !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null() {
        return Ok(());
    }
    // SAFETY: the function takes no arguments, and returns this thread's last error or null.
    let words = unsafe { libc::dlerror() };
    if words.is_null() {
        return Err("the dynamic linker reported no reason".to_owned());
    }
    // SAFETY: the dynamic linker's message ends in a zero byte, and is valid until this thread's
    // next call of the dynamic linker.
    Err(unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
}
