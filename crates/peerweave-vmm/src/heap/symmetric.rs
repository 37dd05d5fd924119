//! Typed memory of the symmetric heap. A handle to this memory gives access to this PE's elements.
//! From this handle, a PE gets handles to the elements at the same offset on other PEs.
//!
//! The heap allocates and frees the memory. No Rust references to the memory are returned, because
//! a peer may write the memory at any time. Invariants: a handle keeps the heap mapped; memory
//! whose handles are dropped without `free` stays allocated.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use peerweave_driver::cudarc::driver::sys::CUdeviceptr;
use peerweave_driver::{CudaStream, Keep, Streams};
use peerweave_types::{Element, Pe, SymOffset};

use crate::error::VmmError;
use crate::heap::HeapInner;
use crate::heap::view::SymmetricView;
use crate::memory::buffer::buffers;
use crate::memory::mapping::elements_of;

/// An allocated range of the heap. All handles to the allocation share this value.
pub(crate) struct Block {
    heap: Arc<HeapInner>,
    offset: u64,
    address: CUdeviceptr,
    /// The streams that use this range, a subset of the streams that use the heap.
    streams: Streams,
    freed: AtomicBool,
}

impl Block {
    pub(crate) fn new(heap: Arc<HeapInner>, offset: u64, bytes: u64) -> Result<Self, VmmError> {
        let own = heap.layout.members[heap.layout.place];
        let address = heap.address_of("SymmetricHeap::alloc", own, offset, bytes)?;
        let streams = Streams::within(&heap.layout.streams);
        Ok(Self { heap, offset, address, streams, freed: AtomicBool::new(false) })
    }

    pub(crate) fn heap(&self) -> &Arc<HeapInner> {
        &self.heap
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Marks the range as freed, so that dropping this value does not record the range as a leak.
    /// Called after the range was returned to the heap's allocator.
    pub(crate) fn forget(&self) {
        self.freed.store(true, Ordering::Release);
    }

    fn note(&self, stream: &Arc<CudaStream>) {
        self.streams.note(stream);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !*self.freed.get_mut() {
            self.heap.record_dropped(self.offset);
        }
    }
}

/// A handle to elements at the same offset in every PE's segment. In calls that take a device
/// buffer, the handle refers to this PE's elements. Clones and slices are handles to the same
/// allocation.
///
/// All PEs free the memory together by [`SymmetricHeap::free`](crate::SymmetricHeap::free). If
/// accesses on different streams or by different PEs race, the values of the elements are
/// unspecified, but the race is not undefined behavior.
pub struct SymmetricMemory<T> {
    block: Arc<Block>,
    start: usize,
    len: usize,
    _elements: PhantomData<fn() -> T>,
}

impl<T> SymmetricMemory<T> {
    pub(crate) fn new(block: Arc<Block>, len: usize) -> Self {
        Self { block, start: 0, len, _elements: PhantomData }
    }

    pub(crate) fn block(&self) -> &Arc<Block> {
        &self.block
    }

    /// Returns whether the allocation has no other handle. A weak reference from
    /// [`keep`](peerweave_driver::DeviceBuffer::keep) also counts as a handle, because it can be
    /// upgraded to a handle.
    pub(crate) fn is_only_handle(&mut self) -> bool {
        Arc::get_mut(&mut self.block).is_some()
    }

    /// Returns the number of handles to the allocation, including the handles that graphs own.
    pub fn handles(&self) -> usize {
        Arc::strong_count(&self.block)
    }

    /// Returns the address of this PE's first element. The address is valid while a handle to the
    /// allocation lives. Calls that access memory through an address are `unsafe`.
    pub fn address(&self) -> CUdeviceptr {
        self.block.address + self.start_bytes()
    }

    /// Returns the offset of the first element, which is the same in every segment.
    pub fn offset(&self) -> SymOffset {
        SymOffset(self.block.offset + self.start_bytes())
    }

    /// Returns a handle to the elements whose indices are in `range`. The new handle, like this
    /// handle, refers to the memory of every PE.
    ///
    /// # Errors
    /// [`Misuse::OutOfRange`](crate::Misuse::OutOfRange) if the range exceeds the memory.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, VmmError> {
        let range = elements_of("SymmetricMemory::slice", range, self.len)?;
        Ok(Self { block: Arc::clone(&self.block), start: self.start + range.start, len: range.len(), _elements: PhantomData })
    }

    fn start_bytes(&self) -> u64 {
        (self.start * size_of::<T>()) as u64
    }

    fn device_of(&self) -> usize {
        self.block.heap.layout.context.ordinal()
    }

    fn note(&self, stream: &Arc<CudaStream>) {
        self.block.note(stream);
    }

    fn keep_alive(&self) -> Keep {
        Arc::<Block>::clone(&self.block)
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// Returns a handle to the same elements in the segment of `pe`, which may be this PE.
    ///
    /// # Errors
    /// [`Misuse::NotMapped`](crate::Misuse::NotMapped) if `pe` is on another machine or does not
    /// exist.
    pub fn peer(&self, pe: Pe) -> Result<PeerMemory<T>, VmmError> {
        let bytes = (self.len * size_of::<T>()) as u64;
        let address = self.block.heap.address_of("SymmetricMemory::peer", pe, self.offset().0, bytes)?;
        Ok(PeerMemory { block: Arc::clone(&self.block), pe, address, len: self.len, _elements: PhantomData })
    }

    /// Returns the addresses through which a kernel accesses these elements on every PE of the
    /// machine. The addresses are valid while a handle to the memory lives.
    ///
    /// # Errors
    /// [`VmmError::Unsupported`] if the transport is legacy IPC, whose segments are not at equal
    /// strides.
    pub fn view(&self) -> Result<SymmetricView, VmmError> {
        let layout = &self.block.heap.layout;
        let reservation = layout.reservation.as_ref().ok_or_else(|| VmmError::Unsupported {
            feature: "a heap with a constant address stride between PEs",
            needs: "virtual memory management".into(),
            found: "legacy IPC".into(),
        })?;
        Ok(SymmetricView {
            base: reservation.base() + self.offset().0,
            stride: layout.stride,
            bytes: (self.len * size_of::<T>()) as u64,
            multicast: 0,
            me: layout.place as u32,
            n_pes: layout.members.len() as u32,
        })
    }
}

impl<T> Clone for SymmetricMemory<T> {
    fn clone(&self) -> Self {
        Self { block: Arc::clone(&self.block), start: self.start, len: self.len, _elements: PhantomData }
    }
}

buffers!(SymmetricMemory);

/// A handle to elements in the segment of one PE of this machine. Clones and slices are handles to
/// the same allocation.
///
/// In calls that take a device buffer, the memory is treated as memory of this PE's device. A copy
/// to the memory is a put, and a copy from the memory is a get.
pub struct PeerMemory<T> {
    block: Arc<Block>,
    pe: Pe,
    address: CUdeviceptr,
    len: usize,
    _elements: PhantomData<fn() -> T>,
}

impl<T> PeerMemory<T> {
    /// Returns the address that the first element has in this process.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Returns the PE that owns the memory.
    pub fn pe(&self) -> Pe {
        self.pe
    }

    /// Returns a handle to a part of the memory. The indices in `range` are indices of elements.
    ///
    /// # Errors
    /// [`Misuse::OutOfRange`](crate::Misuse::OutOfRange) if the range exceeds the memory.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, VmmError> {
        let range = elements_of("PeerMemory::slice", range, self.len)?;
        let address = self.address + (range.start * size_of::<T>()) as u64;
        Ok(Self { block: Arc::clone(&self.block), pe: self.pe, address, len: range.len(), _elements: PhantomData })
    }

    fn device_of(&self) -> usize {
        self.block.heap.layout.context.ordinal()
    }

    fn note(&self, stream: &Arc<CudaStream>) {
        self.block.note(stream);
    }

    fn keep_alive(&self) -> Keep {
        Arc::<Block>::clone(&self.block)
    }
}

impl<T> Clone for PeerMemory<T> {
    fn clone(&self) -> Self {
        let Self { pe, address, len, .. } = *self;
        Self { block: Arc::clone(&self.block), pe, address, len, _elements: PhantomData }
    }
}

buffers!(PeerMemory);
