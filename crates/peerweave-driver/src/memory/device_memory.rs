//! Owned device memory that can be shared, sliced, captured into graphs, and dropped at any time.
//!
//! Memory is allocated individually, not from a pool, so it can be registered with NCCL and shared
//! with other processes by legacy IPC. `peerweave-vmm` has symmetric memory.
//!
//! Invariant: the memory is freed only after all work that uses the memory has completed, on every
//! stream.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use peerweave_types::Element;

use crate::cudarc::driver::sys::CUdeviceptr;
use crate::cudarc::driver::{CudaContext, CudaStream};
use crate::library::bind;
use crate::streams::reaper;
use crate::{
    Access, CudaError, DeviceBuffer, DeviceBufferMut, Driver, DriverError, Keep, Retired, Streams, alloc_when_freed,
    copy_from_host, copy_to_host, deadline_after, free, is_capturing, refuse_capture_begun, refuse_per_thread, relaxed,
};

/// Default time limit for waiting for a stream, for example in a copy to or from the host.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Device memory of `len` elements. Clones and slices are handles to the same memory.
///
/// Work on different streams may use two handles to the same memory. If such work races, the values
/// of the elements are unspecified. Nothing else is affected, because the host never accesses the
/// elements through a reference.
///
/// The memory is freed when three conditions are true: the last handle was dropped, no graph uses
/// the memory, and all work that uses the memory has completed. If a per-thread stream has used the
/// memory, the memory is leaked, because no other thread can wait for the work on that stream.
pub struct DeviceMemory<T> {
    allocation: Arc<Allocation>,
    start: usize,
    len: usize,
    _elements: PhantomData<fn() -> T>,
}

struct Allocation {
    address: CUdeviceptr,
    context: Arc<CudaContext>,
    /// Function that frees the memory. `None` only after `drop` has taken the function.
    free: Mutex<Option<Retired>>,
    /// Streams with work on this memory.
    streams: Streams,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(free) = self.free.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            reaper::retire(&self.context, self.streams.all(), free);
        }
    }
}

impl<T: Element> DeviceMemory<T> {
    /// Allocates `len` elements, with unspecified values, on the device of `context`. `len` may be
    /// 0.
    ///
    /// # Errors
    /// [`DriverError::TooLarge`] if the length in bytes overflows. `CUDA_ERROR_OUT_OF_MEMORY` if
    /// the device has not enough memory. Before it returns this error, the call waits for at most a
    /// second until dropped memory has been freed, and tries again.
    pub fn alloc(context: &Arc<CudaContext>, len: usize) -> Result<Self, DriverError> {
        let api = Driver::get()?.api();
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or(DriverError::TooLarge { call: "DeviceMemory::alloc", count: len, element_bytes: size_of::<T>() })?;
        bind(context)?;
        let mut address: CUdeviceptr = 0;
        let allocate = || {
            // SAFETY: the pointer is to a live address. The driver refuses an allocation of zero
            // bytes, so at least one is requested.
            CudaError::check("cuMemAlloc_v2", relaxed(|| unsafe { api.cuMemAlloc_v2(&raw mut address, bytes.max(1)) })?)
                .map_err(DriverError::from)
        };
        alloc_when_freed(allocate, |error| matches!(error, DriverError::Cuda(error) if error.is_out_of_memory()))?;
        let owner = Arc::clone(context);
        let give_back = Box::new(move || {
            // SAFETY: the last handle was dropped, and the streams that used the memory have
            // completed.
            if let Err(error) = unsafe { free(&owner, address) } {
                tracing::warn!(%error, "cannot free device memory, so the memory is leaked");
            }
        });
        // SAFETY: the memory was just allocated for `len` elements, and `free` matches the
        // allocation.
        Ok(unsafe { Self::adopt(context, address, len, give_back) })
    }

    /// Takes ownership of memory from another allocator, such as a library or a mapping.
    ///
    /// `free` is called once, on a thread of this crate with `context` current. The call happens
    /// after the last handle has been dropped and all work that uses the memory has completed.
    ///
    /// # Safety
    /// `address` is the address of `len` elements on the device of `context`. No other code frees
    /// the elements. Calling `free` as described above is sound.
    pub unsafe fn adopt(context: &Arc<CudaContext>, address: CUdeviceptr, len: usize, free: Retired) -> Self {
        let allocation =
            Allocation { address, context: Arc::clone(context), free: Mutex::new(Some(free)), streams: Streams::new() };
        Self { allocation: Arc::new(allocation), start: 0, len, _elements: PhantomData }
    }

    /// Allocates memory, and enqueues work on `stream` that fills the memory with zeros.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc), and errors of filling the memory. [`DriverError::Capturing`]
    /// if `stream` is being captured, because a graph would fill the memory again at each replay.
    /// [`DriverError::PerThreadStream`] if `stream` is a per-thread stream.
    pub fn zeroed(stream: &Arc<CudaStream>, len: usize) -> Result<Self, DriverError> {
        refuse_per_thread("DeviceMemory::zeroed", stream)?;
        if is_capturing(stream)? {
            return Err(DriverError::Capturing { call: "DeviceMemory::zeroed" });
        }
        let memory = Self::alloc(stream.context(), len)?;
        let bytes = len * size_of::<T>();
        if bytes > 0 {
            memory.allocation.streams.note(stream);
            // SAFETY: the range was just allocated, and is freed after the work of this stream.
            let code = unsafe { Driver::get()?.api().cuMemsetD8Async(memory.address(), 0, bytes, stream.cu_stream()) }?;
            CudaError::check("cuMemsetD8Async", code)?;
            refuse_capture_begun("DeviceMemory::zeroed", stream)?;
        }
        Ok(memory)
    }

    /// Allocates memory and copies `values` to it, like [`copy_from`](Self::copy_from).
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc) and [`copy_from`](Self::copy_from).
    pub fn from_slice(stream: &Arc<CudaStream>, values: &[T]) -> Result<Self, DriverError> {
        let mut memory = Self::alloc(stream.context(), values.len())?;
        memory.copy_from(stream, values)?;
        Ok(memory)
    }

    /// Copies `values` to the memory after the earlier work on `stream`. Waits until the copy has
    /// completed, for at most [`DEADLINE`], like [`copy_from_host`].
    ///
    /// # Errors
    /// As for [`copy_from_host`](copy_from_host#errors).
    pub fn copy_from(&mut self, stream: &Arc<CudaStream>, values: &[T]) -> Result<(), DriverError> {
        copy_from_host("DeviceMemory::copy_from", stream, self, values, deadline_after(DEADLINE))
    }

    /// Copies the memory to the host after the earlier work on `stream`. Waits until the copy has
    /// completed, for at most [`DEADLINE`], like [`copy_to_host`].
    ///
    /// # Errors
    /// As for [`copy_to_host`](copy_to_host#errors).
    pub fn to_vec(&self, stream: &Arc<CudaStream>) -> Result<Vec<T>, DriverError> {
        self.to_vec_within(stream, DEADLINE)
    }

    /// Like [`to_vec`](Self::to_vec), but waits for at most `longest`.
    ///
    /// # Errors
    /// As for [`copy_to_host`](copy_to_host#errors).
    pub fn to_vec_within(&self, stream: &Arc<CudaStream>, longest: Duration) -> Result<Vec<T>, DriverError> {
        copy_to_host("DeviceMemory::to_vec", stream, self, deadline_after(longest))
    }

    /// Returns a handle to a range of the memory. `range` is a range of element indices.
    ///
    /// # Errors
    /// [`DriverError::OutOfRange`] if the range is not within the memory.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, DriverError> {
        if range.start > range.end || range.end > self.len {
            return Err(DriverError::OutOfRange {
                call: "DeviceMemory::slice",
                start: range.start,
                end: range.end,
                len: self.len,
            });
        }
        Ok(Self {
            allocation: Arc::clone(&self.allocation),
            start: self.start + range.start,
            len: range.end - range.start,
            _elements: PhantomData,
        })
    }
}

impl<T> DeviceMemory<T> {
    /// Returns the number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the memory has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the device address of the first element. The address is valid while a handle lives.
    /// Calls that access memory at an address are `unsafe`.
    #[inline]
    pub fn address(&self) -> CUdeviceptr {
        self.allocation.address + (self.start * size_of::<T>()) as u64
    }

    /// Returns the context in which the memory was allocated.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.allocation.context
    }
}

impl<T> Clone for DeviceMemory<T> {
    fn clone(&self) -> Self {
        Self { allocation: Arc::clone(&self.allocation), start: self.start, len: self.len, _elements: PhantomData }
    }
}

impl<T> fmt::Debug for DeviceMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, device) = (std::any::type_name::<T>(), self.allocation.context.ordinal());
        write!(f, "DeviceMemory({} x {name} at {:#x} on device {device})", self.len, self.address())
    }
}

// SAFETY: [D1] `slice` returns only ranges inside the allocation. [D2] The stream is recorded
// before work is enqueued, and the reaper frees the memory after that work. [D3] `keep` returns the
// allocation itself.
unsafe impl<T> DeviceBuffer<T> for DeviceMemory<T> {
    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn device(&self) -> usize {
        self.allocation.context.ordinal()
    }

    #[inline]
    fn read<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError> {
        self.allocation.streams.note(stream);
        Ok(Access::new(self.address()))
    }

    fn keep(&self) -> Option<(CUdeviceptr, Keep)> {
        Some((self.address(), Arc::<Allocation>::clone(&self.allocation)))
    }
}

// SAFETY: as for `DeviceBuffer`. Only devices write the memory, never through a reference.
unsafe impl<T> DeviceBufferMut<T> for DeviceMemory<T> {
    #[inline]
    fn write<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError> {
        self.read(stream)
    }
}
