//! Modules whose kernels call NVSHMEM. A module must be initialised with NVSHMEM's state before its
//! first launch, and finalised before it is unloaded. This crate neither loads nor links modules.

use std::fmt;
use std::sync::Arc;

use peerweave_driver::Keep;
use peerweave_driver::cudarc::driver::sys::{CUlibrary, CUmodule};
use peerweave_dylib::MissingSymbol;

use crate::comm::Comm;
use crate::comm::deferred::{DeferredCall, Held};
use crate::comm::streams::wait_stream;
use crate::context::Context;
use crate::error::NvshmemError;
use crate::sys::Api;

/// The guard for a CUDA module or library that has been initialised with NVSHMEM's state. The guard
/// keeps the module loaded. Dropping the guard removes the state from the module.
///
/// Dropping is local. Drop the guard once no kernel of the module runs any more, and before NVSHMEM
/// is finalised.
pub struct ModuleGuard {
    comm: Arc<Comm>,
    module: Kind,
    held: Held,
    /// A clone of the token `InFlight::modules`. NVSHMEM cannot be finalised while a clone exists.
    /// If NVSHMEM were finalised and started again before this guard is dropped, the new start
    /// would write NVSHMEM's state into the module.
    _counted: Arc<()>,
}

/// A CUDA module or library: the driver's handle, which is a pointer. It is stored as a number, so
/// that this type is `Send`.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Module(usize),
    Library(usize),
}

impl Context {
    /// Initialises a module with NVSHMEM's state, so that the module's kernels may call NVSHMEM's
    /// device functions.
    ///
    /// `keep` is an owner that keeps the module loaded. Some time after NVSHMEM has finalised the
    /// module, a thread of [`peerweave_driver`] drops `keep`. The device's context is current on
    /// that thread.
    ///
    /// To initialise the module, NVSHMEM waits for all work on the device. This call therefore
    /// first waits, within the context's deadline, for the default stream and for every stream that
    /// has been used with this context. If other work on the device waits for a PE beyond the
    /// deadline, the context becomes unusable.
    ///
    /// # Errors
    /// [`NvshmemError::Nvshmem`] if the module is linked with a different version of NVSHMEM's
    /// device library, or without NVSHMEM's device library. [`NvshmemError::Timeout`] if a stream
    /// or NVSHMEM does not complete by the deadline. [`NvshmemError::Dead`] if NVSHMEM is unusable.
    ///
    /// # Safety
    /// The module must be loaded on this context's device, and must stay loaded while `keep` lives.
    /// The module's kernels must run only while the returned guard lives.
    pub unsafe fn init_module(&self, module: CUmodule, keep: Keep) -> Result<ModuleGuard, NvshmemError> {
        let (address, held) = (module.expose_provenance(), Held::new(&self.comm.context, keep));
        self.init_with("nvshmemx_cumodule_init", &held, move |api| {
            // SAFETY: the caller guarantees that the module is loaded. The module is kept loaded
            // until the call has returned.
            unsafe { api.nvshmemx_cumodule_init(std::ptr::with_exposed_provenance_mut(address)) }
        })?;
        Ok(self.guard(Kind::Module(address), held))
    }

    /// Initialises a CUDA library (`CUlibrary`) with NVSHMEM's state, like
    /// [`init_module`](Self::init_module). Requires CUDA 12.
    ///
    /// # Errors
    /// Returns the same errors as [`init_module`](Self::init_module).
    ///
    /// # Safety
    /// The library must be loaded, and must stay loaded while `keep` lives. The library's kernels
    /// must run only while the returned guard lives.
    pub unsafe fn init_library(&self, library: CUlibrary, keep: Keep) -> Result<ModuleGuard, NvshmemError> {
        let (address, held) = (library.expose_provenance(), Held::new(&self.comm.context, keep));
        self.init_with("nvshmemx_culibrary_init", &held, move |api| {
            // SAFETY: the caller guarantees that the library is loaded. The library is kept loaded
            // until the call has returned.
            unsafe { api.nvshmemx_culibrary_init(std::ptr::with_exposed_provenance_mut(address)) }
        })?;
        Ok(self.guard(Kind::Library(address), held))
    }

    /// Calls `tell`, which calls NVSHMEM's initialisation function for a module or library. That
    /// function copies data on the default stream, and waits for the whole device. This function
    /// therefore first waits for the default stream, and for every stream that has been used with
    /// this context.
    ///
    /// If the first wait times out, returns an error, and the context stays usable. If NVSHMEM's
    /// function times out, the context becomes unusable.
    fn init_with(
        &self,
        call: &'static str,
        held: &Held,
        tell: impl FnOnce(&'static Api) -> Result<i32, MissingSymbol> + Send + 'static,
    ) -> Result<(), NvshmemError> {
        let comm = &self.comm;
        comm.check_usable(call)?;
        comm.drain(call)?;
        wait_stream(call, comm, &comm.context.default_stream())?;
        // The module is kept loaded until the call returns, even after a timeout.
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
    // SAFETY: the module is kept loaded, was initialised once and is finalised once. The calling
    // thread holds the gate.
    let code = nvshmem.code("nvshmemx_cumodule_finalize", |api| unsafe { api.nvshmemx_cumodule_finalize(module) })?;
    nvshmem.check("nvshmemx_cumodule_finalize", code)
}

fn finalize_library(comm: &Comm, address: usize) -> Result<(), NvshmemError> {
    let nvshmem = comm.nvshmem;
    let library = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: as in `finalize_module`.
    let code = nvshmem.code("nvshmemx_culibrary_finalize", |api| unsafe { api.nvshmemx_culibrary_finalize(library) })?;
    nvshmem.check("nvshmemx_culibrary_finalize", code)
}

impl fmt::Debug for ModuleGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModuleGuard({:?})", self.module)
    }
}
