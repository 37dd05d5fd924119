//! Modules whose kernels call NVSHMEM: each must be told of NVSHMEM's state before its first
//! launch, and NVSHMEM has to forget it before it is unloaded.
//!
//! Loading and linking modules is not done here.

use std::fmt;
use std::sync::Arc;

use peerweave_driver::Keep;
use peerweave_driver::cudarc::driver::sys::{CUlibrary, CUmodule};
use peerweave_dylib::MissingSymbol;

use crate::comm::Comm;
use crate::comm::deferred::{DeferredCall, Held};
use crate::comm::streams::pass;
use crate::context::Context;
use crate::error::NvshmemError;
use crate::sys::Api;

/// A module or library that knows NVSHMEM's state, until this is dropped.
///
/// Dropping is local. It is to be dropped when no kernel of the module runs any more, and before
/// NVSHMEM ends; the module is kept until then.
pub struct ModuleGuard {
    comm: Arc<Comm>,
    module: Kind,
    held: Held,
    /// NVSHMEM does not end while it lives: it would write its state into the module when it is
    /// started again.
    _counted: Arc<()>,
}

/// The exposed addresses of the driver's handles, which any thread may use.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Module(usize),
    Library(usize),
}

impl Context {
    /// Tells a module of NVSHMEM's state, so that its kernels may call NVSHMEM's device functions.
    /// `keep` keeps the module loaded; it is dropped by a thread of [`peerweave_driver`]'s, with
    /// the device's context current, some time after NVSHMEM has forgotten it.
    ///
    /// NVSHMEM waits for the whole device: first this waits for every stream that was used with
    /// this context, and for the default stream, at most for the context's deadline. Other work
    /// there that waits for a PE, for longer than the deadline, is the end of the context.
    ///
    /// # Errors
    /// [`NvshmemError::Nvshmem`] for a module that was linked with another version of NVSHMEM's
    /// device functions, or with none of them; [`NvshmemError::Timeout`], [`NvshmemError::Dead`].
    ///
    /// # Safety
    /// The module is loaded in this context's device, and stays so while `keep` lives. Its kernels
    /// run while the guard lives, and not after it was dropped: NVSHMEM's state is taken from them
    /// then.
    pub unsafe fn init_module(&self, module: CUmodule, keep: Keep) -> Result<ModuleGuard, NvshmemError> {
        let (address, held) = (module.expose_provenance(), Held::new(&self.comm.context, keep));
        self.told("nvshmemx_cumodule_init", &held, move |api| {
            // SAFETY: the module is loaded: the caller's promise, and it is kept until the call is
            // over.
            unsafe { api.nvshmemx_cumodule_init(std::ptr::with_exposed_provenance_mut(address)) }
        })?;
        Ok(self.guard(Kind::Module(address), held))
    }

    /// As [`init_module`](Self::init_module), for a library of the driver's. CUDA 12.
    ///
    /// # Errors
    /// As [`init_module`](Self::init_module).
    ///
    /// # Safety
    /// The library is loaded and stays so while `keep` lives. Its kernels run as those of
    /// [`init_module`](Self::init_module) do.
    pub unsafe fn init_library(&self, library: CUlibrary, keep: Keep) -> Result<ModuleGuard, NvshmemError> {
        let (address, held) = (library.expose_provenance(), Held::new(&self.comm.context, keep));
        self.told("nvshmemx_culibrary_init", &held, move |api| {
            // SAFETY: the library is loaded: the caller's promise, and it is kept until the call is
            // over.
            unsafe { api.nvshmemx_culibrary_init(std::ptr::with_exposed_provenance_mut(address)) }
        })?;
        Ok(self.guard(Kind::Library(address), held))
    }

    /// NVSHMEM copies by the default stream, and waits for the whole device: so what is known to be
    /// under way is waited for first, where it is an error and not the end.
    fn told(
        &self,
        call: &'static str,
        held: &Held,
        tell: impl FnOnce(&'static Api) -> Result<i32, MissingSymbol> + Send + 'static,
    ) -> Result<(), NvshmemError> {
        let comm = &self.comm;
        comm.alive(call)?;
        comm.drain(call)?;
        pass(call, comm, &comm.context.default_stream())?;
        // However late it comes back.
        let kept = held.clone();
        let code = comm.block(call, move |api, _| {
            let code = tell(api);
            drop(kept);
            code
        })?;
        comm.nvshmem.check(call, code)
    }

    fn guard(&self, module: Kind, held: Held) -> ModuleGuard {
        ModuleGuard { comm: Arc::clone(&self.comm), module, held, _counted: Arc::clone(&self.comm.enqueued.modules) }
    }
}

impl Drop for ModuleGuard {
    fn drop(&mut self) {
        let held = self.held.clone();
        self.comm.defer(match self.module {
            Kind::Module(address) => {
                DeferredCall { call: "nvshmemx_cumodule_finalize", run: finalize_module, address, streams: None, held }
            }
            Kind::Library(address) => {
                DeferredCall { call: "nvshmemx_culibrary_finalize", run: finalize_library, address, streams: None, held }
            }
        });
    }
}

fn finalize_module(comm: &Comm, address: usize) -> Result<(), NvshmemError> {
    let nvshmem = comm.nvshmem;
    let module = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the module is kept, was told once, and is forgotten once, by the thread that is
    // inside.
    let code = nvshmem.code("nvshmemx_cumodule_finalize", |api| unsafe { api.nvshmemx_cumodule_finalize(module) })?;
    nvshmem.check("nvshmemx_cumodule_finalize", code)
}

fn finalize_library(comm: &Comm, address: usize) -> Result<(), NvshmemError> {
    let nvshmem = comm.nvshmem;
    let library = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: as above.
    let code = nvshmem.code("nvshmemx_culibrary_finalize", |api| unsafe { api.nvshmemx_culibrary_finalize(library) })?;
    nvshmem.check("nvshmemx_culibrary_finalize", code)
}

impl fmt::Debug for ModuleGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModuleGuard({:?})", self.module)
    }
}
