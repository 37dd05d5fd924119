//! Checks that the plug-in of a bootstrap can be loaded, before NVSHMEM loads it.
//!
//! `mod.rs` checks the versions in file names. Invariant: NVSHMEM is not started if a plug-in in
//! its directory cannot be loaded. NVSHMEM would only print the error, and NVSHMEM 3.4.5 would end
//! the process by a double free.

use std::path::Path;

use crate::error::{MisuseKind, NvshmemError, PluginError};
use crate::{Nvshmem, Settings};

/// The plug-in for an initialisation by an id. The first text is the plug-in's file name without
/// suffix. The second text is the environment variable by which the user can replace the plug-in.
pub(crate) const OF_IDS: (&str, &str) = ("nvshmem_bootstrap_uid", "NVSHMEM_BOOTSTRAP_UID_PLUGIN");

/// Returns the plug-in for MPI. The first text is the plug-in's file name without suffix. The
/// second text is the environment variable by which the user can replace the plug-in.
pub(crate) fn of_mpi() -> Option<(&'static str, &'static str)> {
    Some(("nvshmem_bootstrap_mpi", "NVSHMEM_BOOTSTRAP_MPI_PLUGIN"))
}

/// Returns the plug-in for the bootstrap that the settings select. The two texts have the same
/// meaning as in [`OF_IDS`]. Returns `None` if this crate does not know the selected bootstrap. In
/// this case, NVSHMEM alone interprets the setting.
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
            let (what, why) =
                ("NVSHMEM_BOOTSTRAP", "a launcher connects PEs by PMI, MPI or SHMEM; for an id, call from_unique_id");
            return Err(NvshmemError::misuse("Context::from_launcher", MisuseKind::Text { what, why }));
        }
        _ => None,
    })
}

/// Checks that the plug-in in the library's directory can be loaded. Like NVSHMEM, resolves all
/// functions of the plug-in immediately.
///
/// If this directory does not contain the plug-in, the check succeeds, because the plug-in may be
/// elsewhere. A plug-in that an environment variable selects is not checked.
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
