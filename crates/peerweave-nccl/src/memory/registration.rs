//! Buffers that one rank registers by itself.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_driver::{CudaStream, DeviceBuffer, Keep, deadline_after};
use peerweave_types::Element;

use crate::comm::communicator::Communicator;
use crate::library::error::NcclError;
use crate::member::spans;
use crate::member::state::Allowed;
use crate::memory::register::{Place, Raw, meet, unregister};

/// A buffer that one rank has registered, so that collectives on it need not copy it first.
///
/// If it is dropped, the buffer stays registered until the communicator ends, because peers may
/// still access the memory. [`deregister`](Self::deregister) unregisters it earlier.
pub struct Registration {
    communicator: Communicator,
    handle: Raw<c_void>,
    keep: Option<Keep>,
}

impl Communicator {
    /// Registers a buffer of this rank, and keeps its memory alive. Requires NCCL 2.19.1.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for memory that is borrowed, empty, or on another device;
    /// [`NcclError::Unsupported`]; [`NcclError::Dead`]; errors of NCCL.
    pub fn register<T: Element>(&self, memory: &impl DeviceBuffer<T>) -> Result<Registration, NcclError> {
        const CALL: &str = "register";
        let _span = spans::of(&self.inner, CALL);
        let place = Place::of(CALL, self, memory)?;
        let (pointer, len) = (place.pointer(), place.len_bytes as usize);
        self.inner.registered.add();
        // After an error the registration stays counted, because NCCL may have made it.
        let handle = self.inner.call_into(CALL, Allowed::LIVE, std::ptr::null_mut(), |api, comm, place| {
            // SAFETY: the handle is live inside the gate; the memory is as long as that and is
            // kept; the place is live.
            unsafe { api.ncclCommRegister(comm, pointer, len, place) }
        })?;
        Ok(Registration { communicator: self.clone(), handle: Raw(handle), keep: Some(place.keep) })
    }
}

impl Registration {
    /// Unregisters the buffer before the communicator ends. Waits until every rank has called this,
    /// and has completed its earlier work on `stream`.
    ///
    /// # Collective
    /// All ranks that registered a buffer; these must be all ranks of the communicator.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] while captured graphs use the communicator; [`NcclError::Timeout`];
    /// [`NcclError::Dead`]; errors of NCCL. After an error the buffer stays registered until the
    /// communicator ends.
    pub fn deregister(self, stream: &Arc<CudaStream>, deadline: Duration) -> Result<(), NcclError> {
        const CALL: &str = "Registration::deregister";
        let end = deadline_after(deadline);
        {
            let _span = spans::of(&self.communicator.inner, CALL);
            meet(CALL, &self.communicator, stream, end)?;
        }
        self.give_back(CALL, end)
    }

    /// Unregisters the buffer of this rank only, when this rank's work on the communicator is
    /// complete. Other ranks need not call it. The memory can be freed afterwards: a collective is
    /// complete on this rank only when no other rank accesses this rank's buffers any more.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use peerweave_nccl::{Communicator, DeviceMemory, NcclError};
    /// # fn f(communicator: &Communicator, memory: &DeviceMemory<f32>) -> Result<(), NcclError> {
    /// let registration = communicator.register(memory)?;
    /// // Collectives on the memory, as many as you like.
    /// registration.deregister_local(Duration::from_secs(10))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`deregister`](Self::deregister); [`NcclError::Timeout`] if a stream used with this
    /// communicator is still busy, even with other work.
    pub fn deregister_local(self, deadline: Duration) -> Result<(), NcclError> {
        self.give_back("Registration::deregister_local", deadline_after(deadline))
    }

    fn give_back(mut self, call: &'static str, end: Instant) -> Result<(), NcclError> {
        let _span = spans::of(&self.communicator.inner, call);
        let handle = self.handle.0;
        unregister(call, &self.communicator, end, |api, comm| {
            // SAFETY: the handle is live inside the gate, the registration is its own, and this is
            // the only deregistration: the value is not used again. No stream of this rank uses it,
            // and no graph will.
            unsafe { api.ncclCommDeregister(comm, handle) }
        })?;
        self.keep = None;
        Ok(())
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration of {}", self.communicator.inner.name)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(keep) = self.keep.take() {
            self.communicator.inner.defer_free(keep);
        }
    }
}
