//! Memory of one GPU alone that kernels write and the host reads: results, tables.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceMemory};
use peerweave_types::{DeviceSlice, Plain};

use crate::context::tables::{bytes_of, elements_of};
use crate::error::{CudaError, misuse};
use crate::gpu::Gpu;

/// `len` elements in memory of this GPU, not symmetric. Clones are handles of the same memory,
/// which is freed with the last of them, after the streams that use it.
///
/// A launch that takes its [`slice`](Self::slice) keeps it until the kernel has ended.
pub struct Local<T> {
    memory: Arc<DeviceMemory<u8>>,
    gpu: Gpu,
    len: usize,
    _elements: PhantomData<fn() -> T>,
}

impl Gpu {
    /// Allocates `len` elements of this GPU's own memory, filled with zeros. Not collective.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] for a number of elements beyond the address space; what the driver
    /// says.
    pub fn alloc_local<T: Plain>(&self, len: usize) -> Result<Local<T>, CudaError> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes =
            bytes.ok_or_else(|| misuse("Gpu::alloc_local", "len", len, "a number of elements that fits the address space"))?;
        let memory = Arc::new(DeviceMemory::zeroed(&self.0.stream, bytes)?);
        // Other streams may use it at once.
        self.wait(&self.0.stream)?;
        self.0.locals().insert(memory.address(), Arc::downgrade(&memory));
        Ok(Local { memory, gpu: self.clone(), len, _elements: PhantomData })
    }
}

impl<T: Plain> Local<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The view that kernels take.
    pub fn slice(&self) -> DeviceSlice<T> {
        // SAFETY: the elements are those of a live allocation of this GPU; a launch looks it up
        // again, and keeps it until the kernel has ended.
        unsafe { DeviceSlice::from_raw(self.memory.address(), self.len) }
    }

    /// Copies `values` to the first elements, after what the stream has before, and waits for it.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] for more values than elements; what the driver says.
    pub fn write(&self, stream: &Arc<CudaStream>, values: &[T]) -> Result<(), CudaError> {
        let bytes = bytes_of(values);
        if values.len() > self.len {
            return Err(misuse("Local::write", "the number of values", values.len(), &format!("at most {}", self.len)));
        }
        Ok(self.memory.slice(0..bytes.len())?.copy_from(stream, bytes)?)
    }

    /// Copies the elements to the host, after what the stream has before, for which it waits as
    /// [`Gpu::wait`] does.
    ///
    /// # Errors
    /// As [`Gpu::wait`].
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
