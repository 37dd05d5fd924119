//! Memory that NCCL allocates: what windows, and the fastest ways of its collectives, need.
//!
//! Registering it is `window.rs`. Invariant: it is freed after all work on every stream that it was handed to.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use peerweave_driver::cudarc::driver::sys::CUdeviceptr;
use peerweave_driver::{Access, CudaContext, CudaError, CudaStream, DeviceBuffer, DeviceBufferMut, DriverError, Keep, retire};
use peerweave_types::Element;

use crate::Nccl;
use crate::error::{MisuseKind, NcclError};

/// Device memory of `len` elements from NCCL's own allocator. Clones and slices are handles of the same memory.
///
/// Used as any other device memory: see [`DeviceMemory`](peerweave_driver::DeviceMemory), whose rules hold here.
pub struct NcclMem<T> {
    allocation: Arc<Allocation>,
    start: usize,
    len: usize,
    _elements: PhantomData<fn() -> T>,
}

struct Allocation {
    nccl: Nccl,
    address: CUdeviceptr,
    context: Arc<CudaContext>,
    /// Streams that work on this memory was enqueued on.
    streams: Mutex<Vec<Arc<CudaStream>>>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.nccl.not_forked("drop").is_err() {
            return;
        }
        let streams = std::mem::take(self.streams.get_mut().unwrap_or_else(PoisonError::into_inner));
        let (nccl, address) = (self.nccl, self.address);
        let free = move || {
            let pointer = std::ptr::with_exposed_provenance_mut(address as usize);
            // SAFETY: the last handle is gone, and the streams that used the memory have passed that work.
            if let Err(error) = nccl.call("ncclMemFree", |api| unsafe { api.ncclMemFree(pointer) }) {
                tracing::warn!(%error, "while memory was freed");
            }
        };
        retire(&self.context, streams, Box::new(free));
    }
}

impl<T: Element> NcclMem<T> {
    /// Allocates `len` elements, with unspecified values, on the device of `context`. Zero elements are allowed. NCCL 2.19.1.
    ///
    /// NCCL rounds up to whole pages of the device, 2 MiB and more.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] before 2.19.1; [`NcclError::Misuse`] for more than the address space; NCCL's own where memory runs out.
    pub fn alloc(nccl: Nccl, context: &Arc<CudaContext>, len: usize) -> Result<Self, NcclError> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or_else(|| {
            let (found, expected) = (i64::try_from(len).unwrap_or(i64::MAX), "as many elements as fit in the address space");
            NcclError::misuse("NcclMem::alloc", MisuseKind::Value { what: "the length", found, expected })
        })?;
        context.bind_to_thread().map_err(CudaError::of("cuCtxSetCurrent"))?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the pointer is to a live pointer. An allocation of nothing is an error of NCCL's, so at least one byte.
        nccl.call("ncclMemAlloc", |api| unsafe { api.ncclMemAlloc(&raw mut pointer, bytes.max(1)) })?;
        let address = pointer.expose_provenance() as CUdeviceptr;
        let allocation = Allocation { nccl, address, context: Arc::clone(context), streams: Mutex::new(Vec::new()) };
        Ok(Self { allocation: Arc::new(allocation), start: 0, len, _elements: PhantomData })
    }

    /// Allocates and copies `values` there; waits until they are there.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); what the driver says of the copy.
    pub fn from_slice(nccl: Nccl, stream: &Arc<CudaStream>, values: &[T]) -> Result<Self, NcclError> {
        let memory = Self::alloc(nccl, stream.context(), values.len())?;
        memory.allocation.note(stream);
        // SAFETY: the range was just allocated for as many elements; the values are borrowed until the stream has passed the copy, below.
        let copied = unsafe {
            let api = peerweave_driver::Driver::get()?.api();
            api.cuMemcpyHtoDAsync_v2(memory.address(), values.as_ptr().cast(), size_of_val(values), stream.cu_stream())
        };
        let done = stream.synchronize();
        CudaError::check("cuMemcpyHtoDAsync_v2", copied.map_err(DriverError::from)?)?;
        done.map_err(CudaError::of("cuStreamSynchronize"))?;
        Ok(memory)
    }

    /// Copies the memory to the host, after what `stream` has before; waits for it.
    ///
    /// # Errors
    /// What the driver says, also of earlier work on the stream.
    pub fn to_vec(&self, stream: &Arc<CudaStream>) -> Result<Vec<T>, NcclError> {
        let mut values = vec![T::default(); self.len];
        let bytes = size_of_val(values.as_slice());
        if bytes == 0 {
            return Ok(values);
        }
        self.allocation.note(stream);
        stream.context().bind_to_thread().map_err(CudaError::of("cuCtxSetCurrent"))?;
        // SAFETY: both ranges have that many bytes; elements allow any bits; the vector lives until the stream has passed the copy, below.
        let copied = unsafe {
            let api = peerweave_driver::Driver::get()?.api();
            api.cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), self.address(), bytes, stream.cu_stream())
        };
        let done = stream.synchronize();
        if done.is_err() {
            // The copy may still come: the vector must outlive it.
            std::mem::forget(std::mem::take(&mut values));
        }
        CudaError::check("cuMemcpyDtoHAsync_v2", copied.map_err(DriverError::from)?)?;
        done.map_err(CudaError::of("cuStreamSynchronize"))?;
        Ok(values)
    }

    /// A handle of a part of the memory. `range` counts elements.
    ///
    /// # Errors
    /// [`NcclError::Cuda`] for a range that is not inside.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, NcclError> {
        if range.start > range.end || range.end > self.len {
            let (found, expected) = (i64::try_from(range.end.max(range.start)).unwrap_or(i64::MAX), "a range inside the memory");
            return Err(NcclError::misuse("NcclMem::slice", MisuseKind::Value { what: "the end of the range", found, expected }));
        }
        let (start, len) = (self.start + range.start, range.end - range.start);
        Ok(Self { allocation: Arc::clone(&self.allocation), start, len, _elements: PhantomData })
    }
}

impl<T> NcclMem<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device address of the first element. Using it is `unsafe` elsewhere; it is valid while a handle lives.
    pub fn address(&self) -> CUdeviceptr {
        self.allocation.address + (self.start * size_of::<T>()) as u64
    }

    /// The context that the memory was allocated in.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.allocation.context
    }
}

impl Allocation {
    /// Notes that work on this memory is enqueued on a stream.
    fn note(&self, stream: &Arc<CudaStream>) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.iter().any(|known| Arc::ptr_eq(known, stream)) {
            streams.push(Arc::clone(stream));
        }
    }
}

impl<T> Clone for NcclMem<T> {
    fn clone(&self) -> Self {
        Self { allocation: Arc::clone(&self.allocation), start: self.start, len: self.len, _elements: PhantomData }
    }
}

impl<T> fmt::Debug for NcclMem<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, device) = (std::any::type_name::<T>(), self.allocation.context.ordinal());
        write!(f, "NcclMem({} x {name} at {:#x} on device {device})", self.len, self.address())
    }
}

// SAFETY: [D1] `slice` keeps ranges inside the allocation; [D2] the stream is noted before work is enqueued, and the memory is freed after it;
// [D3] the allocation itself is what keeps it.
unsafe impl<T> DeviceBuffer<T> for NcclMem<T> {
    fn len(&self) -> usize {
        self.len
    }

    fn device(&self) -> usize {
        self.allocation.context.ordinal()
    }

    fn read<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Access<'a> {
        self.allocation.note(stream);
        Access::new(self.address())
    }

    fn keep(&self) -> Option<(CUdeviceptr, Keep)> {
        Some((self.address(), Arc::<Allocation>::clone(&self.allocation)))
    }
}

// SAFETY: as above; the memory is written by devices alone, never through a reference.
unsafe impl<T> DeviceBufferMut<T> for NcclMem<T> {
    fn write<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Access<'a> {
        self.read(stream)
    }
}
