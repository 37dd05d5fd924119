//! Arrays in memory that belongs to one GPU alone, for example for results that kernels write and
//! the host reads.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceBuffer as _, DeviceMemory, Keep};
use peerweave_types::{DeviceSlice, Plain};

use crate::context::tables::{bytes_of, elements_of};
use crate::error::{CudaError, misuse};
use crate::gpu::Gpu;

/// An array of elements in the memory of one GPU. The memory is not symmetric. Clones are handles
/// of the same memory. The memory is freed once the last handle has been dropped and the streams
/// that used the memory have completed their work.
///
/// A launch that takes the array's [`slice`](Self::slice) as an argument keeps the memory alive
/// until the kernel has ended.
pub struct Local<T> {
    memory: Arc<DeviceMemory<u8>>,
    gpu: Gpu,
    len: usize,
    _elements: PhantomData<fn() -> T>,
}

impl Gpu {
    /// Allocates an array of `len` elements in this GPU's own memory, and fills it with zeros. This
    /// call is not collective.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] if the elements exceed the address space; errors of the driver.
    pub fn alloc_local<T: Plain>(&self, len: usize) -> Result<Local<T>, CudaError> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes =
            bytes.ok_or_else(|| misuse("Gpu::alloc_local", "len", len, "a number of elements that fits the address space"))?;
        let memory = Arc::new(DeviceMemory::zeroed(&self.0.stream, bytes)?);
        // Waits until the memory is filled with zeros, because other streams may use the memory
        // immediately.
        self.wait(&self.0.stream)?;
        self.0.locals().insert(memory.address(), Arc::downgrade(&memory));
        Ok(Local { memory, gpu: self.clone(), len, _elements: PhantomData })
    }
}

impl<T: Plain> Local<T> {
    /// Returns the number of elements in the array.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a view of all elements, which can be passed to kernels.
    pub fn slice(&self) -> DeviceSlice<T> {
        // SAFETY: the elements are those of a live allocation of this GPU. A launch looks up the
        // allocation again, and keeps it alive until the kernel has ended.
        unsafe { DeviceSlice::from_raw(self.memory.address(), self.len) }
    }

    /// Records that work of the caller on `stream` uses the array. The array then stays allocated
    /// until the stream has completed that work.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        drop(self.memory.read(stream));
    }

    /// Returns a handle of the array's memory. A graph must own this handle, so that the memory
    /// stays allocated.
    pub(crate) fn keep(&self) -> Option<Keep> {
        self.memory.keep().map(|(_, keep)| keep)
    }

    /// Copies `values` to the first elements of the array, after the earlier work in the stream.
    /// Waits until the copy is complete.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] if there are more values than elements; errors of the driver.
    pub fn write(&self, stream: &Arc<CudaStream>, values: &[T]) -> Result<(), CudaError> {
        let bytes = bytes_of(values);
        if values.len() > self.len {
            return Err(misuse("Local::write", "the number of values", values.len(), &format!("at most {}", self.len)));
        }
        Ok(self.memory.slice(0..bytes.len())?.copy_from(stream, bytes)?)
    }

    /// Copies all elements to the host, after the earlier work in the stream. Waits for that work
    /// like [`Gpu::wait`].
    ///
    /// # Errors
    /// As for [`Gpu::wait`].
    pub fn read(&self, stream: &Arc<CudaStream>) -> Result<Vec<T>, CudaError> {
        self.gpu.wait(stream)?;
        Ok(elements_of(&self.memory.to_vec(stream)?))
    }
}

impl<T> Clone for Local<T> {
    fn clone(&self) -> Self {
        Self { memory: Arc::clone(&self.memory), gpu: self.gpu.clone(), len: self.len, _elements: PhantomData }
    }
}

impl<T> fmt::Debug for Local<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Local({} x {} at {:#x})", self.len, std::any::type_name::<T>(), self.memory.address())
    }
}
