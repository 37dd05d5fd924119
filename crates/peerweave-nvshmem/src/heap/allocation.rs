//! An allocation of symmetric memory, and its release.

use std::fmt;
use std::sync::Arc;

use peerweave_driver::CudaStream;

use super::handle::Count;
use crate::comm::Comm;
use crate::comm::deferred::Held;
use crate::comm::entry::Entered;
use crate::comm::streams::Streams;
use crate::error::NvshmemError;

/// An allocation of symmetric memory. The heap and all handles of the memory share this value.
pub(crate) struct Allocation {
    pub(crate) comm: Arc<Comm>,
    pub(crate) address: u64,
    bytes: usize,
    /// Number of the allocation, the same on every PE.
    id: u64,
    /// Owner of the memory, if this memory was allocated outside of the heap and then made
    /// symmetric. `None` for memory of the heap.
    outside: Option<Held>,
    /// The streams that use the memory.
    pub(crate) streams: Arc<Streams>,
    pub(crate) handles: Count,
}

impl Allocation {
    pub(super) fn new(comm: &Arc<Comm>, address: u64, bytes: usize, id: u64, outside: Option<Held>) -> Self {
        let (comm, streams) = (Arc::clone(comm), Arc::new(Streams::new(comm)));
        Self { comm, address, bytes, id, outside, streams, handles: Count::default() }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Adds `stream` to the list of the streams that use this memory.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        self.streams.note(stream);
    }

    /// Waits until every stream that used the memory has completed its work. Fails at the deadline.
    pub(crate) fn drain(&self, call: &'static str) -> Result<(), NvshmemError> {
        self.streams.drain(call, &self.comm)
    }

    /// Returns the memory to NVSHMEM; see [`Heap::release`](super::Heap::release).
    pub(super) fn release(self: &Arc<Self>, entered: &mut Entered<'_>) -> Result<(), NvshmemError> {
        self.call_release(entered).inspect_err(|_| {
            // NVSHMEM and the other PEs may still use the memory, so memory from outside the heap
            // is leaked.
            std::mem::forget(Arc::clone(self));
        })
    }

    fn call_release(&self, entered: &mut Entered<'_>) -> Result<(), NvshmemError> {
        let (address, bytes) = (self.address as usize, self.bytes);
        match &self.outside {
            None => entered.block("nvshmem_free", move |api, _| {
                // SAFETY: the address is that of an allocation of the heap. It is freed once,
                // because the allocation is no longer in the heap's list.
                unsafe { api.nvshmem_free(std::ptr::without_provenance_mut(address)) }
            }),
            Some(_) => {
                const CALL: &str = "nvshmemx_buffer_unregister_symmetric";
                let code = entered.block(CALL, move |api, _| {
                    // SAFETY: the address and the length are those of one registration, which ends
                    // only once.
                    unsafe { api.nvshmemx_buffer_unregister_symmetric(std::ptr::without_provenance_mut(address), bytes) }
                })?;
                self.comm.nvshmem.check(CALL, code)
            }
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "allocation #{}: {} bytes at {:#x}", self.id, self.bytes, self.address)
    }
}
