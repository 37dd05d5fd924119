//! Code shared by windows and registered buffers: checks of the memory to be registered, and
//! unregistering.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_driver::{CudaStream, DeviceBuffer, DeviceMemory, Keep};
use peerweave_dylib::MissingSymbol;
use peerweave_types::Element;

use crate::OnExpiry;
use crate::comm::communicator::Communicator;
use crate::comm::lifecycle;
use crate::library::error::{MisuseKind, NcclError};
use crate::member::state::Allowed;
use crate::sys::{Api, ncclComm_t, ncclResult_t};

/// A pointer that NCCL returned as a handle. This wrapper makes the pointer `Send` and `Sync`.
pub(super) struct Raw<P>(pub(super) *mut P);

// SAFETY: the shared pointer is dereferenced only by NCCL, in calls on its communicator, which the
// communicator's gate synchronises. A failure would be caught by the test
// `every_rank_puts_to_every_window`.
unsafe impl<P> Send for Raw<P> {}
// SAFETY: the shared pointer is dereferenced only by NCCL, in calls on its communicator, which the
// communicator's gate synchronises. A failure would be caught by the test
// `every_rank_puts_to_every_window`.
unsafe impl<P> Sync for Raw<P> {}

/// Memory that will be registered with NCCL. The device and the length of the memory have been
/// checked.
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) len_bytes: u64,
    /// Owner of the memory. The memory stays allocated until this value is dropped.
    pub(super) keep: Keep,
}

impl Place {
    pub(super) fn of<T: Element>(
        call: &'static str,
        communicator: &Communicator,
        memory: &dyn DeviceBuffer<T>,
    ) -> Result<Self, NcclError> {
        let (found, expected) = (memory.device(), communicator.cuda_device());
        if found != expected {
            return Err(NcclError::misuse(call, MisuseKind::Device { what: "the memory", found, expected }));
        }
        if memory.is_empty() {
            let kind = MisuseKind::TooShort { what: "the memory", found: 0, at_least: 1, unit: "elements" };
            return Err(NcclError::misuse(call, kind));
        }
        let Some((address, keep)) = memory.keep() else {
            let why =
                "registered memory must outlive the call; pass an NcclMem, a DeviceMemory or a Raw instead of a borrowed slice";
            return Err(NcclError::misuse(call, MisuseKind::Context { why }));
        };
        Ok(Self { address, len_bytes: (memory.len() * size_of::<T>()) as u64, keep })
    }

    pub(super) fn pointer(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

/// Calls `function`, which makes NCCL unregister memory. First waits until the communicator's
/// streams are idle. These are the streams on which calls of the communicator were enqueued. Fails
/// if captured graphs use the communicator, because the graphs may contain addresses in the memory.
pub(super) fn unregister(
    call: &'static str,
    communicator: &Communicator,
    end: Instant,
    function: impl FnOnce(&'static Api, ncclComm_t) -> Result<ncclResult_t, MissingSymbol>,
) -> Result<(), NcclError> {
    let (inner, start) = (&communicator.inner, Instant::now());
    let rest = || end.saturating_duration_since(Instant::now());
    lifecycle::no_graphs(call, [inner], inner.deadline().min(rest()))?;
    loop {
        for used in inner.registered.streams() {
            communicator.wait_with(&used, rest(), OnExpiry::LeaveAlone)?;
        }
        let inside = inner.enter_within(call, Allowed::LIVE, rest)?;
        // A capture, or a call of another thread, may have begun since the first check. Neither can
        // begin while this thread is inside the gate.
        lifecycle::no_graphs(call, [inner], Duration::ZERO)?;
        let mut idle = true;
        for used in inner.registered.streams() {
            idle &= peerweave_driver::wait(&used, Instant::now())?;
        }
        if idle {
            inner.call_inside(call, inside, function)?;
            inner.registered.remove();
            return Ok(());
        }
        drop(inside);
        if rest().is_zero() {
            return Err(inner.timeout(call, start.elapsed()));
        }
    }
}

/// Waits until every rank has called this function and has completed its earlier work. This work is
/// the work on `stream`, and the work on all streams that may use the registered memory.
pub(super) fn meet(
    call: &'static str,
    communicator: &Communicator,
    stream: &Arc<CudaStream>,
    end: Instant,
) -> Result<(), NcclError> {
    // This check precedes calls of the driver, which fail in a forked process.
    communicator.nccl().not_forked(call)?;
    communicator.inner.check_stream(call, stream)?;
    let rest = || end.saturating_duration_since(Instant::now());
    // This wait has a deadline. The copy to the device below also waits for these streams, but
    // without a deadline.
    let used = communicator.inner.registered.streams();
    for used in used.iter().filter(|used| !Arc::ptr_eq(used, stream)).chain([stream]) {
        communicator.wait_with(used, rest(), OnExpiry::LeaveAlone)?;
    }
    let mut numbers = DeviceMemory::from_slice(stream, &vec![0u8; communicator.n_ranks()])?;
    communicator.all_gather_in_place(stream, &mut numbers)?;
    communicator.wait_with(stream, rest(), OnExpiry::LeaveAlone)
}
