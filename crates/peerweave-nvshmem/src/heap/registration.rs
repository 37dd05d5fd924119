//! Registration of memory that this PE uses in network transfers.

use std::fmt;
use std::sync::{Arc, Weak};

use peerweave_driver::CudaStream;

use super::Heap;
use crate::comm::Comm;
use crate::comm::deferred::{DeferredCall, Held};
use crate::comm::streams::Streams;
use crate::error::NvshmemError;

/// A registration of this PE's memory for transfers over a network. Puts can read this memory, and
/// gets can write this memory. The memory is unregistered once this value has been dropped and the
/// streams that use the memory have completed.
pub struct Registration(pub(super) Arc<Registered>);

impl Registration {
    /// Returns the length of the memory in bytes.
    pub fn len_bytes(&self) -> usize {
        self.0.bytes
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({} bytes at {:#x})", self.0.bytes, self.0.address)
    }
}

/// A registration of memory for network transfers. The caller's handle, calls in progress and
/// graphs share this value. Dropping the last handle unregisters the memory.
pub(crate) struct Registered {
    heap: Arc<Heap>,
    address: u64,
    bytes: usize,
    /// The streams with network transfers that use the memory.
    streams: Arc<Streams>,
    held: Held,
}

/// An entry in the heap's list of the memory that this PE has registered for network transfers.
pub(super) struct Record {
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) registered: Weak<Registered>,
}

impl Registered {
    pub(super) fn new(heap: &Arc<Heap>, address: u64, bytes: usize, held: Held) -> Self {
        let streams = Arc::new(Streams::new(&heap.comm));
        Self { heap: Arc::clone(heap), address, bytes, streams, held }
    }

    /// Adds `stream` to the list of the streams whose work needs this registration.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        self.streams.note(stream);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let comm = &self.heap.comm;
        // In a forked child, the lock may be held by a thread that exists only in the parent. The
        // list is not used there.
        if comm.nvshmem.not_forked(UNREGISTER).is_ok() {
            self.heap.registered().retain(|record| record.address != self.address);
        }
        let (held, streams) = (self.held.clone(), Some(Arc::clone(&self.streams)));
        comm.defer(DeferredCall { call: UNREGISTER, run: unregister, address: self.address as usize, streams, held });
    }
}

const UNREGISTER: &str = "nvshmemx_buffer_unregister";

fn unregister(comm: &Comm, address: usize) -> Result<(), NvshmemError> {
    let address = std::ptr::without_provenance_mut(address);
    // SAFETY: the address was registered once and is unregistered once. The calling thread holds
    // the gate.
    let code = comm.nvshmem.code(UNREGISTER, |api| unsafe { api.nvshmemx_buffer_unregister(address) })?;
    comm.nvshmem.check(UNREGISTER, code)
}
