//! Buffers that one rank registers with NCCL. Other ranks need not register a buffer.

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

/// A buffer that one rank has registered with NCCL. For a collective on a registered buffer, NCCL
/// need not copy the data to an internal buffer first.
///
/// After this value has been dropped, the buffer stays registered until the communicator ends,
/// because peers may still access the memory. [`deregister`](Self::deregister) unregisters the
/// buffer earlier.
pub struct Registration {
    communicator: Communicator,
    handle: Raw<c_void>,
    keep: Option<Keep>,
}

impl Communicator {
    /// Registers a buffer for this rank, and keeps the buffer's memory alive. Requires NCCL 2.19.1.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for memory that is empty, is not on the communicator's device, or is a
    /// borrowed slice, which cannot be kept alive; [`NcclError::Unsupported`]; [`NcclError::Dead`];
    /// errors that NCCL returns.
    pub fn register<T: Element>(&self, memory: &impl DeviceBuffer<T>) -> Result<Registration, NcclError> {
        const CALL: &str = "register";
        let _span = spans::of(&self.inner, CALL);
        let place = Place::of(CALL, self, memory)?;
        let (pointer, len) = (place.pointer(), place.len_bytes as usize);
        self.inner.registered.add();
        // After an error the registration stays counted, because NCCL may have registered the
        // buffer.
        let handle = self.inner.call_into(CALL, Allowed::LIVE, std::ptr::null_mut(), |api, comm, place| {
            // SAFETY: the handle is live inside the gate. The memory has `len` bytes and is kept
            // alive. `place` is live.
            unsafe { api.ncclCommRegister(comm, pointer, len, place) }
        })?;
        Ok(Registration { communicator: self.clone(), handle: Raw(handle), keep: Some(place.keep) })
    }
}

impl Registration {
    /// Unregisters the buffer before the communicator ends. Waits until every rank has called this
    /// function and has completed its earlier work on `stream`.
    ///
    /// # Collective
    /// All ranks of the communicator must make this call, each for one of its registered buffers.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if captured graphs still use the communicator; [`NcclError::Timeout`];
    /// [`NcclError::Dead`]; errors that NCCL returns. After an error the buffer stays registered
    /// until the communicator ends.
    pub fn deregister(self, stream: &Arc<CudaStream>, deadline: Duration) -> Result<(), NcclError> {
        const CALL: &str = "Registration::deregister";
        let end = deadline_after(deadline);
        {
            let _span = spans::of(&self.communicator.inner, CALL);
            meet(CALL, &self.communicator, stream, end)?;
        }
        self.give_back(CALL, end)
    }

    /// Unregisters the buffer on this rank only. Waits until this rank's work on the communicator
    /// is complete. Other ranks need not call this function. The memory can be freed after this
    /// call, because a collective completes on this rank only when no other rank accesses this
    /// rank's buffers any more.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use peerweave_nccl::{Communicator, DeviceMemory, NcclError};
    /// # fn f(communicator: &Communicator, memory: &DeviceMemory<f32>) -> Result<(), NcclError> {
    /// let registration = communicator.register(memory)?;
    /// // Here the program issues collectives on the memory.
    /// registration.deregister_local(Duration::from_secs(10))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`deregister`](Self::deregister). [`NcclError::Timeout`] also if a stream that was
    /// used with this communicator is busy with other work.
    pub fn deregister_local(self, deadline: Duration) -> Result<(), NcclError> {
        self.give_back("Registration::deregister_local", deadline_after(deadline))
    }

    fn give_back(mut self, call: &'static str, end: Instant) -> Result<(), NcclError> {
        let _span = spans::of(&self.communicator.inner, call);
        let handle = self.handle.0;
        unregister(call, &self.communicator, end, |api, comm| {
            // SAFETY: the communicator's handle is live inside the gate, and the registration
            // belongs to this communicator. This is the only deregistration, because `self` is
            // consumed. No stream of this rank uses the registration, and no graph can use it.
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
