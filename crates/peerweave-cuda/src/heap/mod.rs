//! The symmetric heap that kernels access: mapped virtual memory, or one allocation of NVSHMEM's
//! heap.
//!
//! Invariant: an offset belongs to the same allocation on every PE, because all PEs make the same
//! calls and compare the results.

mod arena;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::{CudaContext, CudaStream, DeviceBuffer as _, Keep, deadline_after};
use peerweave_types::{Pe, PeerEntry, SymOffset};
use peerweave_vmm::HeapMulticast;
use peerweave_vmm::multicast::MulticastMapping;
use peerweave_vmm::{HeapOptions, SymmetricHeap, SymmetricMemory};

use crate::error::{CudaError, misuse};

pub(crate) use arena::Arena;
use arena::Lease;

/// Minimum alignment of every allocation, in bytes. It is sufficient for bulk copies and cache
/// lines.
const ALIGNMENT_BYTES: u64 = 256;

/// Maximum time for which a call that frees memory waits for destroyed graphs. The driver drops a
/// graph's handles of the memory on another thread, some time after the graph is destroyed.
pub(crate) const AFTER_GRAPHS: Duration = Duration::from_secs(2);

/// A function that returns whether all threads have released a resource: the heap of a GPU, or
/// NVSHMEM's context. Other threads may hold the resource for a short time after this thread has
/// released it.
pub(crate) type Question = Box<dyn Fn() -> bool + Send + Sync>;

pub(crate) enum Heap {
    /// A heap of virtual memory, and the optional multicast mapping of the whole heap.
    Vmm(SymmetricHeap, Option<HeapMulticast>),
    Nvshmem(Arena),
}

/// An allocation of the symmetric heap.
pub(crate) struct Block {
    memory: Memory,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

pub(crate) enum Memory {
    Vmm(SymmetricMemory<u8>),
    Nvshmem(Lease),
}

impl Heap {
    pub(crate) fn vmm(
        rendezvous: &Arc<Rendezvous>,
        context: &Arc<CudaContext>,
        bytes: usize,
        multicast: bool,
    ) -> Result<Self, CudaError> {
        let options = HeapOptions::new(bytes).max_bytes(bytes).multicast(multicast);
        let heap = SymmetricHeap::new(rendezvous, context, options)?;
        // The mapping covers the whole heap, which never grows because it was created with its
        // maximum size.
        let mapping = multicast.then(|| heap.multicast()).transpose()?;
        Ok(Self::Vmm(heap, mapping))
    }

    /// Returns the address by which one store writes to the heaps of all PEs. Returns 0 if there is
    /// no such address.
    pub(crate) fn multicast_address(&self) -> Result<u64, CudaError> {
        Ok(match self {
            Self::Vmm(_, Some(mapping)) => mapping.address_of(SymOffset(0))?,
            Self::Vmm(_, None) => 0,
            Self::Nvshmem(arena) => arena.multicast_address()?,
        })
    }

    /// Records that work of the caller on `stream` may use the multicast mapping of the heap. If
    /// `keep` is `Some`, adds handles of this mapping to the list. A graph that captures the work
    /// must own these handles. Does nothing for a heap without such a mapping, and for NVSHMEM's
    /// heap.
    pub(crate) fn note_multicast(&self, stream: &Arc<CudaStream>, keep: Option<&mut Vec<Keep>>) {
        let Self::Vmm(_, Some(mapping)) = self else { return };
        mapping.mappings().iter().for_each(|part| drop(part.access(stream)));
        if let Some(keep) = keep {
            keep.extend(mapping.mappings().iter().map(MulticastMapping::keep));
        }
    }

    /// Returns the size of the heap on each PE, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Vmm(heap, _) => heap.bytes(),
            Self::Nvshmem(arena) => arena.bytes(),
        }
    }

    /// Returns the table entry by which kernels of this device access the heap of `pe`. The entry
    /// also contains `node_pe`, the index of `pe` among the PEs on its node. If `network` is true,
    /// kernels access NVSHMEM's heap on all other PEs through NVSHMEM's device library.
    pub(crate) fn entry(&self, me: Pe, pe: Pe, node_pe: u32, network: bool) -> Result<PeerEntry, CudaError> {
        let base = match self {
            Self::Vmm(heap, _) => heap.members().contains(&pe).then(|| heap.address_of(pe, 0)).transpose()?,
            Self::Nvshmem(arena) if pe == me => Some(arena.address()),
            Self::Nvshmem(_) if network => None,
            Self::Nvshmem(arena) => arena.peer_address(pe)?,
        };
        let transport = match (self, base) {
            (_, Some(_)) => PeerEntry::MAPPED,
            (Self::Vmm(..), None) => PeerEntry::UNREACHABLE,
            (Self::Nvshmem(_), None) => PeerEntry::NETWORK,
        };
        Ok(PeerEntry { base: base.unwrap_or(0), node_pe, transport })
    }

    /// Returns the maximum alignment that a caller can request for an allocation, in bytes.
    pub(crate) fn max_alignment_bytes(&self) -> usize {
        match self {
            Self::Vmm(..) => 2 << 20,
            Self::Nvshmem(_) => ALIGNMENT_BYTES as usize,
        }
    }

    /// Allocates `bytes` zero-initialised bytes on every PE. All PEs must call this function.
    pub(crate) fn alloc(&self, stream: &Arc<CudaStream>, bytes: usize) -> Result<Block, CudaError> {
        self.alloc_aligned(stream, bytes, ALIGNMENT_BYTES as usize)
    }

    /// Like [`alloc`](Self::alloc), but the offset of the allocation is a multiple of
    /// `alignment_bytes`. This value must be at most
    /// [`max_alignment_bytes`](Self::max_alignment_bytes).
    pub(crate) fn alloc_aligned(
        &self,
        stream: &Arc<CudaStream>,
        bytes: usize,
        alignment_bytes: usize,
    ) -> Result<Block, CudaError> {
        Ok(match self {
            Self::Vmm(heap, _) => {
                let memory = heap.alloc_aligned::<u8>(bytes, alignment_bytes.max(ALIGNMENT_BYTES as usize))?;
                let offset = memory.offset().0;
                Block { memory: Memory::Vmm(memory), offset, bytes: bytes as u64 }
            }
            Self::Nvshmem(arena) => {
                let lease = arena.lease(stream, bytes as u64)?;
                let offset = lease.offset();
                Block { memory: Memory::Nvshmem(lease), offset, bytes: bytes as u64 }
            }
        })
    }

    /// Frees an allocation on every PE. All PEs must call this function.
    pub(crate) fn free(&self, block: Block) -> Result<(), CudaError> {
        match (self, block.memory) {
            (Self::Vmm(heap, _), Memory::Vmm(memory)) => Ok(heap.free(memory)?),
            (Self::Nvshmem(arena), Memory::Nvshmem(lease)) => arena.end(lease),
            _ => {
                Err(misuse("Gpu::free", "the memory", "an allocation of a different kind of heap", "an allocation of this heap"))
            }
        }
    }

    /// Returns functions that the caller can call after it has dropped this heap. Each function
    /// checks whether all threads have released the heap. Returns an empty list for NVSHMEM's heap,
    /// because its memory stays until [`Self::end`] finalises NVSHMEM.
    pub(crate) fn gone(&self) -> Vec<Question> {
        match self {
            Self::Vmm(heap, _) => vec![Box::new(heap.gone())],
            Self::Nvshmem(_) => Vec::new(),
        }
    }

    /// Ends the heap, including the allocations that have not been freed. All PEs must call this
    /// function. Returns a function ([`Question`]) if this call finalises NVSHMEM, otherwise
    /// `None`. The function returns whether all threads have released NVSHMEM's context.
    pub(crate) fn end(self) -> Result<Option<Question>, CudaError> {
        match self {
            Self::Vmm(heap, mapping) => {
                drop(mapping);
                let report = heap.finalize()?;
                tracing::debug!(leaks = report.leaks.len(), "the heap of a GPU has been finalized");
                Ok(None)
            }
            Self::Nvshmem(arena) => arena.finalize(),
        }
    }

    /// Returns the NVSHMEM context of the heap. Returns `None` for a heap of mapped virtual memory.
    pub(crate) fn nvshmem(&self) -> Option<&peerweave_nvshmem::Context> {
        match self {
            Self::Vmm(..) => None,
            Self::Nvshmem(arena) => Some(arena.context()),
        }
    }
}

impl Block {
    /// Records that work of the caller on `stream` uses this allocation. The memory then stays
    /// allocated until the stream has completed that work.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        match &self.memory {
            Memory::Vmm(memory) => drop(memory.read(stream)),
            Memory::Nvshmem(lease) => drop(lease.buffer(stream)),
        }
    }

    /// Returns whether this is the only handle of the allocated memory.
    pub(crate) fn is_only_handle(&self) -> bool {
        match &self.memory {
            Memory::Vmm(memory) => memory.handles() == 1,
            Memory::Nvshmem(lease) => lease.is_only_handle(),
        }
    }

    pub(crate) fn keep(&self) -> Option<Keep> {
        match &self.memory {
            Memory::Vmm(memory) => memory.keep().map(|(_, keep)| keep),
            Memory::Nvshmem(lease) => Some(lease.keep()),
        }
    }

    /// Copies `bytes` from the host to offset `at` of this PE's copy of the allocation. Waits until
    /// the bytes are copied, for at most `longest`.
    pub(crate) fn write(
        &self,
        stream: &Arc<CudaStream>,
        at: usize,
        bytes: &[u8],
        longest: std::time::Duration,
    ) -> Result<(), CudaError> {
        let (range, deadline) = (at..at + bytes.len(), deadline_after(longest));
        match &self.memory {
            Memory::Vmm(memory) => peerweave_vmm::write(stream, &mut memory.slice(range)?, bytes, deadline)?,
            Memory::Nvshmem(lease) => peerweave_vmm::write(stream, &mut lease.buffer(stream).slice(range)?, bytes, deadline)?,
        }
        Ok(())
    }

    /// Copies `len` bytes to the host, after the earlier work in the stream. The bytes begin at
    /// offset `at` of this PE's copy of the allocation. Waits until the bytes are copied, for at
    /// most `longest`.
    pub(crate) fn read(
        &self,
        stream: &Arc<CudaStream>,
        at: usize,
        len: usize,
        longest: std::time::Duration,
    ) -> Result<Vec<u8>, CudaError> {
        let (range, deadline) = (at..at + len, deadline_after(longest));
        Ok(match &self.memory {
            Memory::Vmm(memory) => peerweave_vmm::read(stream, &memory.slice(range)?, deadline)?,
            Memory::Nvshmem(lease) => peerweave_vmm::read(stream, &lease.buffer(stream).slice(range)?, deadline)?,
        })
    }

    /// Enqueues an operation that fills this PE's part of the allocation with zeros.
    pub(crate) fn zero(&self, stream: &Arc<CudaStream>) -> Result<(), CudaError> {
        self.zero_range(stream, 0..self.bytes as usize)
    }

    /// Enqueues an operation that fills a range with zeros. The range is in this PE's part of the
    /// allocation.
    pub(crate) fn zero_range(&self, stream: &Arc<CudaStream>, range: Range<usize>) -> Result<(), CudaError> {
        match &self.memory {
            Memory::Vmm(memory) => peerweave_vmm::zero(stream, &mut memory.slice(range)?)?,
            Memory::Nvshmem(lease) => peerweave_vmm::zero(stream, &mut lease.buffer(stream).slice(range)?)?,
        }
        Ok(())
    }
}
