//! Arrays of typed elements: symmetric memory on the heap, and memory of one GPU alone.

mod local;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use peerweave_driver::{CudaStream, Keep, deadline_after, wait_until};
use peerweave_types::{Plain, SymOffset, SymSlice};

use crate::context::tables::{bytes_of, elements_of};
use crate::error::{CudaError, misuse};
use crate::gpu::Gpu;
use crate::heap::{AFTER_GRAPHS, Block};

pub use local::Local;

/// Symmetric memory: an array of elements at the same offset in every PE's heap. Pass its
/// [`slice`](Self::slice) to kernels. The host can read and write the elements of this PE.
///
/// [`Gpu::free`] frees the memory collectively. Memory that is dropped instead stays allocated.
pub struct Symmetric<T> {
    block: Arc<Block>,
    gpu: Gpu,
    len: usize,
    _elements: PhantomData<fn() -> T>,
}

impl Gpu {
    /// Allocates an array of `len` elements on every PE, and fills it with zeros. The offset of the
    /// array in the heap is a multiple of 256 bytes.
    ///
    /// # Collective
    /// All PEs, with the same type and length.
    ///
    /// # Errors
    /// Errors of the heap, in particular if too little memory is free. [`CudaError::Misuse`] if the
    /// elements exceed the address space.
    pub fn alloc<T: Plain>(&self, len: usize) -> Result<Symmetric<T>, CudaError> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes = bytes.ok_or_else(|| misuse("Gpu::alloc", "len", len, "a number of elements that fits the address space"))?;
        self.allocated(self.0.heap.alloc(&self.0.stream, bytes)?, len)
    }

    /// Like [`alloc`](Self::alloc), but allocates bytes, at an offset that is a multiple of
    /// `alignment_bytes`.
    pub(crate) fn alloc_aligned(&self, bytes: usize, alignment_bytes: usize) -> Result<Symmetric<u8>, CudaError> {
        self.allocated(self.0.heap.alloc_aligned(&self.0.stream, bytes, alignment_bytes)?, bytes)
    }

    fn allocated<T: Plain>(&self, block: Block, len: usize) -> Result<Symmetric<T>, CudaError> {
        let block = Arc::new(block);
        self.0.allocations().insert(block.offset, Arc::downgrade(&block));
        Ok(Symmetric { block, gpu: self.clone(), len, _elements: PhantomData })
    }

    /// Frees symmetric memory on every PE, after the streams of this PE have completed the work
    /// that uses the memory. If other handles of the memory exist, waits for up to 2 s, because a
    /// destroyed graph drops its handle some time later.
    ///
    /// # Collective
    /// All PEs, with a handle of the same allocation.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] if the memory belongs to another GPU, or while another thread uses the
    /// memory in a launch. Errors of the heap, in particular [`CudaError::Vmm`] while a graph uses
    /// the memory.
    pub fn free<T: Plain>(&self, memory: Symmetric<T>) -> Result<(), CudaError> {
        const CALL: &str = "Gpu::free";
        if !Arc::ptr_eq(&memory.gpu.0, &self.0) {
            return Err(misuse(CALL, "the memory", "an allocation of another GPU", "an allocation of this GPU"));
        }
        wait_until(deadline_after(AFTER_GRAPHS), || Ok::<_, CudaError>(memory.is_only_handle()))?;
        let offset = memory.block.offset;
        let block = Arc::try_unwrap(memory.block)
            .map_err(|_| misuse(CALL, "the memory", "in use", "memory that no launch on another thread uses"))?;
        self.0.allocations().remove(&offset);
        self.0.heap.free(block)
    }
}

impl<T: Plain> Symmetric<T> {
    /// Returns the number of elements on each PE.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a view of all elements, which can be passed to kernels. A launch checks that the
    /// memory is still allocated.
    pub fn slice(&self) -> SymSlice<T> {
        // SAFETY: the elements are those of a live allocation, aligned to 256 bytes. A launch looks
        // up the allocation again, and keeps it alive until the kernel has ended.
        unsafe { SymSlice::from_raw(SymOffset(self.block.offset), self.len) }
    }

    /// Returns the device address of this PE's first element.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] if this GPU does not map the heap.
    pub fn address(&self) -> Result<u64, CudaError> {
        Ok(self.gpu.0.base_of(self.gpu.pe())? + self.block.offset)
    }

    /// Copies `values` to this PE's elements, starting at index `first`, after the earlier work in
    /// the stream. Waits until the copy is complete.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] if the range extends beyond the array. Errors of the driver.
    pub fn write(&self, stream: &Arc<CudaStream>, first: usize, values: &[T]) -> Result<(), CudaError> {
        self.check("Symmetric::write", first, values.len())?;
        self.block.write(stream, first * size_of::<T>(), bytes_of(values), self.gpu.deadline())
    }

    /// Copies all elements of this PE to the host, after the earlier work in the stream. Waits for
    /// that work like [`Gpu::wait`], so this call also returns the failure of an earlier kernel.
    ///
    /// # Errors
    /// As for [`Gpu::wait`].
    pub fn read(&self, stream: &Arc<CudaStream>) -> Result<Vec<T>, CudaError> {
        self.gpu.wait(stream)?;
        let bytes = self.block.read(stream, 0, self.len * size_of::<T>(), self.gpu.deadline())?;
        Ok(elements_of(&bytes))
    }

    /// Records that work of the caller on `stream` uses this memory. The memory then stays
    /// allocated until the stream has completed that work.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        self.block.note(stream);
    }

    /// Returns a handle of this memory. A graph must own this handle, so that the memory stays
    /// allocated.
    pub(crate) fn keep(&self) -> Option<Keep> {
        self.block.keep()
    }

    /// Enqueues an operation that fills this PE's elements with zero bytes.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn zero(&self, stream: &Arc<CudaStream>) -> Result<(), CudaError> {
        self.block.zero(stream)
    }

    /// Enqueues an operation that fills a range of bytes of this PE's memory with zeros.
    pub(crate) fn zero_range(&self, stream: &Arc<CudaStream>, bytes: std::ops::Range<usize>) -> Result<(), CudaError> {
        self.block.zero_range(stream, bytes)
    }

    /// Returns whether this value is the only handle of the symmetric memory.
    pub(crate) fn is_only_handle(&self) -> bool {
        Arc::strong_count(&self.block) == 1 && self.block.is_only_handle()
    }

    /// Returns the offset of the first element in the heap of every PE.
    pub(crate) fn offset(&self) -> SymOffset {
        SymOffset(self.block.offset)
    }

    fn check(&self, call: &'static str, first: usize, len: usize) -> Result<(), CudaError> {
        match first.checked_add(len).is_some_and(|end| end <= self.len) {
            true => Ok(()),
            false => Err(misuse(
                call,
                "the range",
                format!("{len} elements from index {first}"),
                &format!("a range within the {} elements of the memory", self.len),
            )),
        }
    }
}

impl<T> fmt::Debug for Symmetric<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Symmetric({} x {} at offset {:#x})", self.len, std::any::type_name::<T>(), self.block.offset)
    }
}
