//! Typed memory: symmetric memory of a GPU's heap, and memory of one GPU alone.

mod local;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use peerweave_driver::CudaStream;
use peerweave_types::{Plain, SymOffset, SymSlice};

use crate::context::tables::{bytes_of, elements_of};
use crate::error::{CudaError, misuse};
use crate::gpu::Gpu;
use crate::heap::Block;

pub use local::Local;

/// `len` elements at the same offset of every PE's heap. Kernels get its [`slice`](Self::slice);
/// the host reads and writes this PE's part.
///
/// Freed by [`Gpu::free`], collectively.
pub struct Symmetric<T> {
    block: Arc<Block>,
    gpu: Gpu,
    len: usize,
    _elements: PhantomData<fn() -> T>,
}

impl Gpu {
    /// Allocates `len` elements on every PE, filled with zeros, at a multiple of 256 bytes.
    ///
    /// # Collective
    /// All PEs, with the same type and length.
    ///
    /// # Errors
    /// Those of the heap, above all that there is no room.
    pub fn alloc<T: Plain>(&self, len: usize) -> Result<Symmetric<T>, CudaError> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes = bytes.ok_or_else(|| misuse("Gpu::alloc", "len", len, "a number of elements that fits the address space"))?;
        let block = Arc::new(self.0.heap.alloc(&self.0.stream, bytes)?);
        self.0.allocations().insert(block.offset, Arc::downgrade(&block));
        Ok(Symmetric { block, gpu: self.clone(), len, _elements: PhantomData })
    }

    /// Frees memory on every PE, once the streams of this PE have passed the work that uses it.
    ///
    /// # Collective
    /// All PEs, with the handle of the same allocation.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] for memory of another GPU, or that a graph still uses; those of the
    /// heap.
    pub fn free<T: Plain>(&self, memory: Symmetric<T>) -> Result<(), CudaError> {
        const CALL: &str = "Gpu::free";
        if !Arc::ptr_eq(&memory.gpu.0, &self.0) {
            return Err(misuse(CALL, "the memory", "of another GPU", "an allocation of this one"));
        }
        let offset = memory.block.offset;
        let block =
            Arc::try_unwrap(memory.block).map_err(|_| misuse(CALL, "the memory", "in use", "no launch at the same time"))?;
        self.0.allocations().remove(&offset);
        self.0.heap.free(block)
    }
}

impl<T: Plain> Symmetric<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The view that kernels take. A launch checks that the memory is still allocated.
    pub fn slice(&self) -> SymSlice<T> {
        // SAFETY: the elements are those of a live allocation, aligned to 256 bytes; a launch looks
        // up the allocation again, and keeps it until the kernel has ended.
        unsafe { SymSlice::from_raw(SymOffset(self.block.offset), self.len) }
    }

    /// Copies `values` to the elements of this PE from index `first` on, after what the stream has
    /// before, and waits for it.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] for a range beyond the memory; what the driver says.
    pub fn write(&self, stream: &Arc<CudaStream>, first: usize, values: &[T]) -> Result<(), CudaError> {
        self.check("Symmetric::write", first, values.len())?;
        self.block.write(stream, first * size_of::<T>(), bytes_of(values), self.gpu.deadline())
    }

    /// Copies the elements of this PE to the host, after what the stream has before. Waits for the
    /// stream as [`Gpu::wait`] does: a kernel that failed before is an error here too.
    ///
    /// # Errors
    /// As [`Gpu::wait`].
    pub fn read(&self, stream: &Arc<CudaStream>) -> Result<Vec<T>, CudaError> {
        self.gpu.wait(stream)?;
        let bytes = self.block.read(stream, 0, self.len * size_of::<T>(), self.gpu.deadline())?;
        Ok(elements_of(&bytes))
    }

    /// Fills the elements of this PE with zero bytes, in the order of the stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn zero(&self, stream: &Arc<CudaStream>) -> Result<(), CudaError> {
        self.block.zero(stream)
    }

    fn check(&self, call: &'static str, first: usize, len: usize) -> Result<(), CudaError> {
        match first.checked_add(len).is_some_and(|end| end <= self.len) {
            true => Ok(()),
            false => {
                Err(misuse(call, "the range", format!("{len} elements from {first}"), &format!("inside {} elements", self.len)))
            }
        }
    }
}

impl<T> fmt::Debug for Symmetric<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Symmetric({} x {} at offset {:#x})", self.len, std::any::type_name::<T>(), self.block.offset)
    }
}
