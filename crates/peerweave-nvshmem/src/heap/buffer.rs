//! The caller's handles of symmetric memory: slices, copies from and to the host, addresses of
//! other PEs' memory.
//!
//! Invariant: memory is not freed while a handle to the memory exists.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use peerweave_driver::{
    Access, CudaStream, DeviceBuffer, DeviceBufferMut, DriverError, Keep, copy_from_host, copy_to_host, deadline_after,
    is_capturing,
};
use peerweave_types::{Element, Pe};

use super::handle::Handle;
use crate::comm::Comm;
use crate::comm::streams::wait_stream;
use crate::error::{MisuseKind, NvshmemError};

/// A handle to `len` elements of symmetric memory, which exist on every PE. As a device buffer, the
/// handle represents the elements of this PE. Clones and slices are further handles to the same
/// memory.
///
/// As the target of a put or the source of a get, the handle represents the elements of the other
/// PE at the same offset. Peers may write the memory at any time, so this type returns no Rust
/// references to the memory. Work on streams can access the memory, and the host can copy data from
/// and to the memory.
///
/// Dropping a handle does not free the memory, because freeing is collective.
/// [`Context::free`](crate::Context::free) frees the memory.
pub struct SymmetricBuffer<T> {
    pub(crate) allocation: Handle,
    start_bytes: usize,
    len: usize,
    _elements: PhantomData<fn() -> T>,
}

impl<T> SymmetricBuffer<T> {
    pub(crate) fn whole(allocation: Handle, len: usize) -> Self {
        Self { allocation, start_bytes: 0, len, _elements: PhantomData }
    }

    pub(crate) fn into_handle(self) -> Handle {
        self.allocation
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the device address of the first element on this PE. The address is valid while a
    /// handle to the memory lives. Only `unsafe` code can access the memory through the address.
    pub fn address(&self) -> u64 {
        self.allocation.address + self.start_bytes as u64
    }

    /// Returns a handle to the elements whose indices are in `range`.
    ///
    /// # Errors
    /// [`MisuseKind::OutOfRange`] if the range exceeds the buffer.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, NvshmemError> {
        let Range { start, end } = range;
        if start > end || end > self.len {
            let kind = MisuseKind::OutOfRange { what: "the slice", start, end, len: self.len };
            return Err(NvshmemError::misuse("SymmetricBuffer::slice", kind));
        }
        let allocation = self.allocation.clone();
        let start_bytes = self.start_bytes + start * size_of::<T>();
        Ok(Self { allocation, start_bytes, len: end - start, _elements: PhantomData })
    }

    pub(crate) fn keep_handle(&self) -> Keep {
        self.allocation.keep()
    }
}

impl<T: Element> SymmetricBuffer<T> {
    /// Waits until the earlier work on `stream` has completed, copies `values` to this PE's
    /// elements, and waits until the copy is complete. The context's deadline limits each of these
    /// waits.
    ///
    /// # Errors
    /// [`MisuseKind::Length`] unless the buffer and `values` have the same number of elements.
    /// [`NvshmemError::Timeout`] if a wait exceeds the deadline. [`NvshmemError::Cuda`] if `stream`
    /// is being captured, or if the driver returns an error. Such an error may come from earlier
    /// work on `stream`.
    pub fn copy_from(&self, stream: &Arc<CudaStream>, values: &[T]) -> Result<(), NvshmemError> {
        const CALL: &str = "SymmetricBuffer::copy_from";
        let comm = self.arrive(CALL, stream, values.len())?;
        let (start, deadline) = (Instant::now(), deadline_after(comm.deadline));
        copy_from_host(CALL, &comm.side, &mut self.clone(), values, deadline).map_err(|error| late(error, comm, CALL, start))
    }

    /// Waits until the earlier work on `stream` has completed, copies this PE's elements to the
    /// host, and waits until the copy is complete. The context's deadline limits each of these
    /// waits.
    ///
    /// # Errors
    /// Returns the same errors as [`copy_from`](Self::copy_from).
    pub fn to_vec(&self, stream: &Arc<CudaStream>) -> Result<Vec<T>, NvshmemError> {
        self.read_by("SymmetricBuffer::to_vec", stream)
    }

    pub(crate) fn read_by(&self, call: &'static str, stream: &Arc<CudaStream>) -> Result<Vec<T>, NvshmemError> {
        let comm = self.arrive(call, stream, self.len)?;
        let (start, deadline) = (Instant::now(), deadline_after(comm.deadline));
        copy_to_host(call, &comm.side, self, deadline).map_err(|error| late(error, comm, call, start))
    }

    /// Prepares a copy of `count` elements between the host and this buffer. Checks the arguments,
    /// and waits within the context's deadline until `stream` has completed its work. The copy that
    /// follows runs on a private stream of the context, which has no other work.
    fn arrive(&self, call: &'static str, stream: &Arc<CudaStream>, count: usize) -> Result<&Comm, NvshmemError> {
        let comm = &self.allocation.comm;
        comm.check_usable(call)?;
        comm.check_stream(call, stream)?;
        if count != self.len {
            let kind = MisuseKind::Length { what: "the slice", found: count, expected: self.len, unit: "elements" };
            return Err(NvshmemError::misuse(call, kind));
        }
        if is_capturing(stream)? {
            return Err(DriverError::Capturing { call }.into());
        }
        wait_stream(call, comm, stream)?;
        Ok(comm)
    }

    /// Returns the address at which this process has mapped the elements of `pe`. Kernels can use
    /// this address. Returns `None` if `pe` is reached only over the network.
    ///
    /// The address is valid while this PE has a handle to the memory. Puts and gets take buffers
    /// instead of addresses.
    ///
    /// # Errors
    /// [`MisuseKind::Pe`] if the job has no such PE. [`NvshmemError::Dead`] if NVSHMEM is unusable.
    pub fn peer_address(&self, pe: Pe) -> Result<Option<u64>, NvshmemError> {
        const CALL: &str = "nvshmem_ptr";
        let comm = &self.allocation.comm;
        let pe = comm.check_pe(CALL, "the PE", pe)?;
        let address = std::ptr::without_provenance(self.address() as usize);
        // SAFETY: the function only looks up the address in NVSHMEM's tables.
        let mapped = comm.issue(CALL, |api, _| unsafe { api.nvshmem_ptr(address, pe) })?;
        Ok(Some(mapped.addr() as u64).filter(|mapped| *mapped != 0))
    }
}

impl<T: Element> SymmetricBuffer<T> {
    /// Returns a handle to the same memory, as elements of type `U`. If the length in bytes is not
    /// a multiple of the size of `U`, the handle excludes the remaining bytes at the end.
    ///
    /// # Errors
    /// [`MisuseKind::Value`] if the address is not aligned for `U`.
    pub fn cast<U: Element>(&self) -> Result<SymmetricBuffer<U>, NvshmemError> {
        const CALL: &str = "SymmetricBuffer::cast";
        if !self.address().is_multiple_of(align_of::<U>() as u64) {
            let found = i64::try_from(self.address() % align_of::<U>() as u64).unwrap_or(i64::MAX);
            let kind = MisuseKind::Value { what: "the address modulo the alignment", found, expected: "0" };
            return Err(NvshmemError::misuse(CALL, kind));
        }
        let len = self.len * size_of::<T>() / size_of::<U>();
        let (allocation, start_bytes) = (self.allocation.clone(), self.start_bytes);
        Ok(SymmetricBuffer { allocation, start_bytes, len, _elements: PhantomData })
    }
}

/// Converts the driver's error for a copy to this crate's error type. The error for a timeout
/// includes the PEs that the rendezvous reports as lost.
fn late(error: DriverError, comm: &Comm, call: &'static str, start: Instant) -> NvshmemError {
    match error {
        DriverError::Timeout { .. } => comm.late(call, start.elapsed(), Vec::new()),
        error => error.into(),
    }
}

impl<T> Clone for SymmetricBuffer<T> {
    fn clone(&self) -> Self {
        let allocation = self.allocation.clone();
        Self { allocation, start_bytes: self.start_bytes, len: self.len, _elements: PhantomData }
    }
}

impl<T> fmt::Debug for SymmetricBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, id) = (std::any::type_name::<T>(), self.allocation.id());
        write!(f, "SymmetricBuffer({} x {name} at {:#x}, allocation #{id})", self.len, self.address())
    }
}

// SAFETY: [D1] `slice` keeps ranges inside the allocation, which lives while a handle lives. [D2]
// The stream is recorded before work is enqueued, and freeing waits for the stream. [D3]
// `keep_handle` returns a handle of the allocation.
unsafe impl<T> DeviceBuffer<T> for SymmetricBuffer<T> {
    fn len(&self) -> usize {
        self.len
    }

    fn device(&self) -> usize {
        self.allocation.comm.context.ordinal()
    }

    fn read<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError> {
        self.allocation.note(stream);
        Ok(Access::new(self.address()))
    }

    fn keep(&self) -> Option<(u64, Keep)> {
        Some((self.address(), self.keep_handle()))
    }
}

// SAFETY: as for `DeviceBuffer`; only devices write the memory, and no Rust reference to it exists.
unsafe impl<T> DeviceBufferMut<T> for SymmetricBuffer<T> {
    fn write<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError> {
        self.read(stream)
    }
}
