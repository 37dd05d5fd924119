//! The plug-in by which PEs meet: whether it loads.
//!
//! Whether the one for ids lies beside the library, and networks, are `library.rs`: there it is the
//! version in the name that is wrong. Invariant: NVSHMEM is not started with a plug-in of its own
//! directory that cannot be loaded: it says so on its output at best, and 3.4.5 ends the process
//! (it frees something twice).

use std::ffi::{CStr, CString};
use std::path::Path;

use crate::error::{MisuseKind, NvshmemError, PluginError};
use crate::{Nvshmem, Settings};

/// The plug-in for ids: its name without its end, and the variable by which somebody names another
/// one.
pub(crate) const OF_IDS: (&str, &str) = ("nvshmem_bootstrap_uid", "NVSHMEM_BOOTSTRAP_UID_PLUGIN");

/// As [`OF_IDS`], for MPI; `None` for what NVSHMEM alone understands.
pub(crate) fn of_mpi() -> Option<(&'static str, &'static str)> {
    Some(("nvshmem_bootstrap_mpi", "NVSHMEM_BOOTSTRAP_MPI_PLUGIN"))
}

/// As [`of_mpi`], for what a launcher offers.
///
/// # Errors
/// [`MisuseKind::Text`] for ways to meet that are no launcher's: NVSHMEM would give up, and could
/// not be started any more.
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
            let (what, why) = ("NVSHMEM_BOOTSTRAP", "a launcher's PEs meet by PMI, MPI or SHMEM; ids have calls of their own");
            return Err(NvshmemError::misuse("Context::from_launcher", MisuseKind::Text { what, why }));
        }
        _ => None,
    })
}

/// Loads the plug-in that lies beside the library, as NVSHMEM will: with every function that it
/// needs at once.
///
/// What does not lie there NVSHMEM may find elsewhere, and who names a plug-in by its variable
/// vouches for it.
///
/// # Errors
/// [`NvshmemError::Plugin`] with the dynamic linker's words.
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
            let (directory, found) = (directory.to_path_buf(), format!("it is there and does not load: {words}"));
            Err(PluginError { plugin, directory, found, version: nvshmem.version() }.into())
        }
    }
}

/// Opens it with every function that it needs at once, and leaves it open: NVSHMEM opens it next.
/// `peerweave-dylib` opens lazily, by which a plug-in for another PMIx would seem to load.
fn open(path: &Path) -> Result<(), String> {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the path ends in a zero byte; what the initialisers of NVSHMEM's own plug-in do, who
    // starts NVSHMEM asks for.
    if !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null() {
        return Ok(());
    }
    // SAFETY: it takes nothing, and gives this thread's last error or null.
    let words = unsafe { libc::dlerror() };
    if words.is_null() {
        return Err("the dynamic linker does not say why".to_owned());
    }
    // SAFETY: the dynamic linker's words end in a zero byte and live until this thread's next call
    // of it.
    Err(unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
}
