//! Issues a checked call. If the communicator's lock is free, the call is issued immediately. If
//! another thread holds the lock, the call is issued after waiting for the lock.
//!
//! Invariant: a call is issued while the lock is held, after all of its checks.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use peerweave_driver::CudaStream;
use peerweave_driver::cudarc::driver::CudaEvent;
use peerweave_dylib::MissingSymbol;

use crate::config::of_call::RawCollConfig;
use crate::library::error::{MisuseKind, NcclError};
use crate::library::loading::is_fork;
use crate::member::membership::Inner;
use crate::member::state::{Allowed, Inside};
use crate::ops::check::{CallBuilder, Checked};
use crate::ops::holds::{Holds, keep_call};
use crate::ops::operation::{Operations, Put, grouped};
use crate::sys::{Api, ncclResult_t};
use crate::{Call, CollConfig};

impl CallBuilder<'_, '_> {
    /// Issues a checked call. The fast path is for one operation without a configuration. It also
    /// requires that the communicator's lock is free, and that the stream is not being captured. In
    /// all other cases, this function calls [`issue_locked`](Self::issue_locked).
    ///
    /// The caller keeps the owners of the operation's buffers alive.
    // `inline(always)` saves a function call: the only caller is not generic.
    #[inline(always)]
    pub(super) fn issue(&mut self, config: Option<&CollConfig>) -> Checked<()> {
        let (inner, stream) = (self.inner, self.stream);
        if let (None, Operations::One(operation), false) = (config, &*self.operations, self.holds.is_captured() || is_fork())
            && let Some(inside) = inner.gate.try_enter_blocking()
        {
            inner.count(self.call);
            inner.registered.note(stream);
            let (comm, handle) = (inner.handle.get(), stream.cu_stream());
            // SAFETY: the handle is live inside the gate. The operation was checked, so the buffers
            // have the length that the operation states. The caller keeps the buffers alive until
            // NCCL is done. Afterwards the buffers live as long as the stream needs them.
            let issued = unsafe { operation.issue(inner.nccl.functions(), inner, comm, handle, std::ptr::null()) };
            return match issued {
                Ok(ncclResult_t::ncclSuccess) if inner.is_surely_not_captured(stream) => Ok(()),
                Ok(code) => self.complete_issued(code, inside),
                Err(missing) => Err(inner.nccl.unsupported_function(&missing).into()),
            };
        }
        self.issue_locked(config)
    }

    #[cold]
    fn complete_issued(&self, code: ncclResult_t, inside: Inside<'_>) -> Checked<()> {
        let (inner, name) = (self.inner, self.call.name());
        let completed = inner.complete(name, code, inside);
        Ok(inner.not_captured_meanwhile(name, self.stream).and(completed)?)
    }

    /// Acquires the communicator's lock, waits for the lock if necessary, and issues the call.
    /// Unlike the fast path in [`issue`](Self::issue), this function accepts configurations,
    /// captured streams and several operations.
    #[cold]
    fn issue_locked(&mut self, config: Option<&CollConfig>) -> Checked<()> {
        let (inner, name) = (self.inner, self.call.name());
        let (operations, holds) = (std::mem::take(self.operations), std::mem::take(self.holds));
        let mut request = Request::new(self.call, self.stream, operations, holds);
        request.configure(inner, config)?;
        let inside = inner.enter(name, Allowed::LIVE)?;
        // A capture may have begun or ended while this thread waited for the gate.
        request.check_capture(inner)?;
        request.hand_to_graph(inner)?;
        inner.enter_blocking(name, &inside)?;
        inner.count(request.call);
        inner.registered.note(request.stream);
        // SAFETY: this thread is inside the gate.
        let code = inner.nccl.code(name, |api| unsafe { request.issue(api, inner) })?;
        // The request lives until NCCL is done. The request owns the configuration of the call and
        // the guards of the buffers.
        let completed = inner.complete(name, code, inside);
        Ok(request.is_captured_as_before(inner).and(completed)?)
    }
}

/// A checked call, with the resources that the call keeps alive.
pub(crate) struct Request<'a> {
    pub(crate) call: Call,
    pub(crate) stream: &'a Arc<CudaStream>,
    pub(crate) operations: Operations,
    /// Resources that the call keeps alive. The resources are boxed to keep a recorded call small:
    /// most calls have no resources, and a group may record many calls.
    holds: Option<Box<Holds<'a>>>,
    /// Configuration of the call, or `None` if the caller has passed no configuration.
    config: Option<Box<RawCollConfig>>,
}

impl<'a> Request<'a> {
    /// Creates a request from a call whose checks have succeeded.
    #[inline]
    pub(crate) fn new(call: Call, stream: &'a Arc<CudaStream>, operations: Operations, holds: Holds<'a>) -> Self {
        let holds = if holds.is_empty() { None } else { Some(Box::new(holds)) };
        Self { call, stream, operations, holds, config: None }
    }

    /// Returns whether the stream of the call is being captured, so that a graph records the call.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        self.holds.as_ref().is_some_and(|holds| holds.is_captured())
    }

    /// Fails if a capture of the stream began or ended after the buffers were acquired.
    pub(crate) fn check_capture(&self, inner: &Inner) -> Result<(), NcclError> {
        if inner.is_capturing(self.stream)? == self.is_captured() {
            return Ok(());
        }
        let why = "a stream capture began or ended between the checks and the launch of the call; keep the whole call or group either inside or outside the capture";
        Err(NcclError::misuse(self.call.name(), MisuseKind::Context { why }))
    }

    /// Checks that no capture of the stream began or ended during a call of NCCL. Called after the
    /// call of NCCL. If a capture ended, also leaks the resources of the call, because the call's
    /// work may still use the resources.
    pub(crate) fn is_captured_as_before(&self, inner: &Inner) -> Result<(), NcclError> {
        let Some(holds) = self.holds.as_ref().filter(|holds| holds.is_captured()) else {
            return inner.not_captured_meanwhile(self.call.name(), self.stream);
        };
        if matches!(inner.is_capturing(self.stream), Ok(true)) {
            return Ok(());
        }
        // The work may run in the stream instead of a graph. This crate cannot observe when that
        // work is complete, so its resources are leaked.
        std::mem::forget(holds.keeps.clone());
        let why = "another thread ended the stream capture during the call, so the resources of the call are leaked; end a capture only after all captured calls have returned";
        Err(NcclError::misuse(self.call.name(), MisuseKind::Context { why }))
    }

    /// Hands the resources of a captured call to the graph, which then keeps the resources alive.
    /// Called before the call is issued. Does nothing if the call is not captured.
    pub(crate) fn hand_to_graph(&self, inner: &Arc<Inner>) -> Result<(), NcclError> {
        let Some(holds) = self.holds.as_ref().filter(|holds| holds.is_captured()) else { return Ok(()) };
        keep_call(inner, self.stream, &holds.keeps)
    }

    /// Converts `config` and stores it as the configuration of the call. Does nothing if `config`
    /// is `None`.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] for options that the library does not support.
    /// [`NcclError::Misuse`] for an invalid configuration.
    pub(crate) fn configure(&mut self, inner: &Inner, config: Option<&CollConfig>) -> Result<(), NcclError> {
        let Some(config) = config else { return Ok(()) };
        let config = config.to_raw(self.call.name(), inner)?;
        if let (Some(event), Some(holds)) = (config.event(), self.holds.as_mut().filter(|holds| holds.is_captured())) {
            holds.keeps.push(Arc::<CudaEvent>::clone(event));
        }
        self.config = Some(Box::new(config));
        Ok(())
    }

    /// Makes the NCCL calls of this request on the communicator to which `inner` belongs.
    ///
    /// # Safety
    /// This thread is inside the communicator's gate (it holds the lock).
    pub(crate) unsafe fn issue(&self, api: &Api, inner: &Inner) -> Result<ncclResult_t, MissingSymbol> {
        // The configuration lives as long as this request.
        let config = self.config.as_ref().map_or(std::ptr::null(), |config| config.as_ptr());
        let (comm, stream) = (inner.handle.get(), self.stream.cu_stream());
        match &self.operations {
            // SAFETY: the handle is live inside the gate. The operation was checked, so the buffers
            // have the length that the operation states. The buffers live as long as this request,
            // and afterwards as long as the stream needs them.
            Operations::One(operation) => unsafe { operation.issue(api, inner, comm, stream, config) },
            // SAFETY: as above. The range in the window was also checked.
            Operations::Put(put) => unsafe {
                let Put { count, data_type, peer, window, offset_bytes, index, context, .. } = *put;
                let source: *const c_void = std::ptr::with_exposed_provenance(put.source as usize);
                api.ncclPutSignal(source, count, data_type, peer, window, offset_bytes, index, context, 0, comm, stream)
            },
            // SAFETY: the handle is live inside the gate. NCCL only reads the list, during the
            // call.
            Operations::Wait(waits) => unsafe {
                let count = c_int::try_from(waits.len()).unwrap_or(c_int::MAX);
                api.ncclWaitSignal(count, waits.as_ptr().cast_mut(), comm, stream)
            },
            // SAFETY: as above, for each operation.
            Operations::Many(operations) => unsafe {
                grouped(api, || operations.iter().map(|operation| operation.issue(api, inner, comm, stream, config)))
            },
        }
    }
}
