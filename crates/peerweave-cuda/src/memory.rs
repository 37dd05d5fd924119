//! Typed symmetric memory of a GPU's heap.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use peerweave_driver::CudaStream;
use peerweave_types::{Plain, SymOffset, SymSlice};

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::heap::{Block, misuse};
use crate::tables::{bytes_of, elements_of};

/// `len` elements at the same offset of every PE's heap. Kernels get its [`slice`](Self::slice);
/// the host reads and writes this PE's part.
///
/// Freed by [`Gpu::free`], collectively.
pub struct Symmetric<T> {
    pub(crate) block: Arc<Block>,
    pub(crate) gpu: Gpu,
    len: usize,
    _elements: PhantomData<fn() -> T>,
}

impl<T: Plain> Symmetric<T> {
    pub(crate) fn new(gpu: &Gpu, block: Arc<Block>, len: usize) -> Self {
        Self { block, gpu: gpu.clone(), len, _elements: PhantomData }
    }

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
