//! Modules whose kernels call NVSHMEM: each must be told of NVSHMEM's state before its first launch, and told off before it is unloaded.
//!
//! Loading and linking modules is not done here.

use std::fmt;
use std::sync::Arc;

use peerweave_driver::Keep;
use peerweave_driver::cudarc::driver::sys::{CUlibrary, CUmodule};

use crate::context::{Context, Inner};
use crate::error::NvshmemError;

/// A module or library that knows NVSHMEM's state, until this is dropped.
///
/// Dropping is local. It is to be dropped when no kernel of the module runs any more; the module is kept until then.
pub struct ModuleGuard {
    inner: Arc<Inner>,
    module: Kind,
    _keep: Keep,
}

/// The exposed addresses of the driver's handles, which any thread may use.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Module(usize),
    Library(usize),
}

impl Context {
    /// Tells a module of NVSHMEM's state, so that its kernels may call NVSHMEM's device functions. `keep` keeps the module loaded.
    ///
    /// # Errors
    /// [`NvshmemError::Nvshmem`] for a module that was linked with another version of NVSHMEM's device functions, or with none of them;
    /// [`NvshmemError::Dead`].
    ///
    /// # Safety
    /// The module is loaded in this context's device, and stays so while `keep` lives.
    pub unsafe fn init_module(&self, module: CUmodule, keep: Keep) -> Result<ModuleGuard, NvshmemError> {
        // SAFETY: the module is loaded: the caller's promise.
        self.inner.issue_status("nvshmemx_cumodule_init", |api, _| unsafe { api.nvshmemx_cumodule_init(module) })?;
        Ok(ModuleGuard { inner: Arc::clone(&self.inner), module: Kind::Module(module.expose_provenance()), _keep: keep })
    }

    /// As [`init_module`](Self::init_module), for a library of the driver's. CUDA 12.
    ///
    /// # Errors
    /// As [`init_module`](Self::init_module).
    ///
    /// # Safety
    /// The library is loaded and stays so while `keep` lives.
    pub unsafe fn init_library(&self, library: CUlibrary, keep: Keep) -> Result<ModuleGuard, NvshmemError> {
        // SAFETY: the library is loaded: the caller's promise.
        self.inner.issue_status("nvshmemx_culibrary_init", |api, _| unsafe { api.nvshmemx_culibrary_init(library) })?;
        Ok(ModuleGuard { inner: Arc::clone(&self.inner), module: Kind::Library(library.expose_provenance()), _keep: keep })
    }
}

impl Drop for ModuleGuard {
    fn drop(&mut self) {
        const CALL: &str = "nvshmemx_cumodule_finalize";
        if self.inner.alive(CALL).is_err() {
            // NVSHMEM has ended, and what the module knows of it means nothing.
            return;
        }
        let ended = self.inner.issue_status(CALL, |api, _| match self.module {
            // SAFETY: the module is kept, was told once, and is told off once.
            Kind::Module(module) => unsafe { api.nvshmemx_cumodule_finalize(std::ptr::with_exposed_provenance_mut(module)) },
            // SAFETY: as above.
            Kind::Library(library) => unsafe { api.nvshmemx_culibrary_finalize(std::ptr::with_exposed_provenance_mut(library)) },
        });
        if let Err(error) = ended {
            tracing::warn!(%error, "a module keeps NVSHMEM's state");
        }
    }
}

impl fmt::Debug for ModuleGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModuleGuard({:?})", self.module)
    }
}
