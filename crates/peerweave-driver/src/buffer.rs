//! Device memory by trait: what a communication call needs to know of a buffer, whoever owns it.
//!
//! Neither allocates nor copies. Invariant: an [`Access`] lives until the work that uses its address is enqueued; from then on the buffer's
//! owner keeps the memory until the stream has passed that work.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::cudarc::driver::sys::CUdeviceptr;
use crate::cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};

/// Something that keeps memory alive while it lives.
pub type Keep = Arc<dyn Any + Send + Sync>;

/// The address of a buffer, for work that is about to be enqueued on the stream that it was asked for.
///
/// Drop it after enqueuing: then cudarc's buffers record that the stream uses them. Leaking it can only be done inside the library that asked.
#[must_use = "work that uses the address is enqueued while this lives"]
pub struct Access<'a> {
    address: CUdeviceptr,
    _guard: Option<SyncOnDrop<'a>>,
}

impl<'a> Access<'a> {
    /// An address whose owner needs no word when the work is enqueued.
    pub fn new(address: CUdeviceptr) -> Self {
        Self { address, _guard: None }
    }

    /// An address with cudarc's guard.
    pub fn guarded((address, guard): (CUdeviceptr, SyncOnDrop<'a>)) -> Self {
        Self { address, _guard: Some(guard) }
    }

    /// The device address of the first element.
    #[inline]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl fmt::Debug for Access<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({:#x})", self.address)
    }
}

/// Device memory that can be read: `len` elements of `T`, one after the other, on one device.
///
/// Implemented for cudarc's `CudaSlice`, `CudaView`, `CudaViewMut`, for [`DeviceMemory`](crate::DeviceMemory), and for [`Raw`]. Implement it for your
/// framework's tensor to hand it to Peerweave without a copy.
///
/// # Safety
/// Implementations promise:
/// - **\[D1\]** the address of [`read`](Self::read) is that of at least `len` initialised or at least allocated elements on device
///   [`device`](Self::device);
/// - **\[D2\]** the memory stays allocated until all work is done that was enqueued on the stream while the access lived;
/// - **\[D3\]** where [`keep`](Self::keep) gives a value, the memory stays allocated while that value lives, and its address is the one of `read`.
pub unsafe trait DeviceBuffer<T> {
    /// Number of elements.
    fn len(&self) -> usize;

    /// Whether there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ordinal of the device that the memory is on.
    fn device(&self) -> usize;

    /// The address, for reading by work that is enqueued on `stream` while the result lives. Makes the stream wait for earlier writes
    /// on other streams, where the owner tracks them.
    ///
    /// Not for a stream that is being captured: see [`keep`](Self::keep).
    fn read<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Access<'a>;

    /// The address and what keeps it, for memory that a captured graph may own: a replay uses it long after the call. `None` for memory
    /// that is only borrowed.
    fn keep(&self) -> Option<(CUdeviceptr, Keep)>;
}

/// Device memory that can be written.
///
/// # Safety
/// As [`DeviceBuffer`], and the work may write to the memory.
pub unsafe trait DeviceBufferMut<T>: DeviceBuffer<T> {
    /// The address, for reading and writing by work that is enqueued on `stream` while the result lives. Makes the stream wait for earlier
    /// reads and writes on other streams, where the owner tracks them.
    fn write<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Access<'a>;
}

macro_rules! of_cudarc {
    ($($Slice:ty),*; $($SliceMut:ty),*) => {
        $(
            // SAFETY: [D1] cudarc's slices and views stand for `len` elements on the device of their stream; [D2] their guard records an event when it
            // is dropped, and a slice is freed in its own stream's order after it; [D3] none is given.
            unsafe impl<T> DeviceBuffer<T> for $Slice {
                fn len(&self) -> usize {
                    DeviceSlice::len(self)
                }

                fn device(&self) -> usize {
                    DeviceSlice::stream(self).context().ordinal()
                }

                fn read<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Access<'a> {
                    Access::guarded(self.device_ptr(stream))
                }

                fn keep(&self) -> Option<(CUdeviceptr, Keep)> {
                    None
                }
            }
        )*
        $(
            // SAFETY: as for reading; these are borrowed mutably, so nobody else enqueues work on them meanwhile.
            unsafe impl<T> DeviceBufferMut<T> for $SliceMut {
                fn write<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Access<'a> {
                    Access::guarded(self.device_ptr_mut(stream))
                }
            }
        )*
    };
}
of_cudarc!(CudaSlice<T>, CudaView<'_, T>, CudaViewMut<'_, T>; CudaSlice<T>, CudaViewMut<'_, T>);

/// Device memory of somebody else, by its address.
///
/// With something that keeps it alive it may be captured into graphs; without, the maker answers for its life.
#[derive(Clone)]
pub struct Raw<T> {
    address: CUdeviceptr,
    len: usize,
    device: usize,
    keep: Option<Keep>,
    _elements: PhantomData<*mut T>,
}

// SAFETY: shared is an address that the host never dereferences; who made it answers for the memory. Work that two threads enqueue is
// synchronised by the streams they choose, and elements are plain data. Would be caught by the test `raw_buffers_cross_threads`.
unsafe impl<T: Send> Send for Raw<T> {}
// SAFETY: shared is the same address, and `&Raw` gives no more than it; synchronised by streams, as above. Would be caught by the test
// `raw_buffers_cross_threads`.
unsafe impl<T: Sync> Sync for Raw<T> {}

impl<T> Raw<T> {
    /// Memory of `len` elements at `address` on device `device`.
    ///
    /// # Safety
    /// The address is that of `len` elements of `T` on that device, and they stay allocated until all work that this value is given to has run. For a
    /// call that is captured into a graph: until the graph is destroyed, unless `keep` does that.
    pub unsafe fn new(address: CUdeviceptr, len: usize, device: usize, keep: Option<Keep>) -> Self {
        Self { address, len, device, keep, _elements: PhantomData }
    }
}

impl<T> fmt::Debug for Raw<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raw({} elements at {:#x} on device {})", self.len, self.address, self.device)
    }
}

// SAFETY: [D1], [D2] and [D3] are what the caller of `Raw::new` promised.
unsafe impl<T> DeviceBuffer<T> for Raw<T> {
    fn len(&self) -> usize {
        self.len
    }

    fn device(&self) -> usize {
        self.device
    }

    fn read<'a>(&'a self, _stream: &'a Arc<CudaStream>) -> Access<'a> {
        Access::new(self.address)
    }

    fn keep(&self) -> Option<(CUdeviceptr, Keep)> {
        // Without a keeper the maker promised to outlive the graph.
        Some((self.address, self.keep.clone().unwrap_or_else(|| Arc::new(()))))
    }
}

// SAFETY: as above.
unsafe impl<T> DeviceBufferMut<T> for Raw<T> {
    fn write<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Access<'a> {
        self.read(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_buffers_cross_threads() {
        // SAFETY: nothing is enqueued.
        let raw = unsafe { Raw::<f32>::new(0x1000, 4, 0, None) };
        let (len, address) = std::thread::scope(|scope| {
            scope.spawn(|| (raw.len(), raw.keep().map(|(address, _)| address))).join().expect("it ends")
        });
        assert_eq!((len, address), (4, Some(0x1000)));
    }

    #[test]
    fn keeper_lives_as_long_as_what_was_kept() {
        let owner: Keep = Arc::new("memory");
        // SAFETY: nothing is enqueued.
        let raw = unsafe { Raw::<u8>::new(0x1000, 1, 0, Some(Arc::clone(&owner))) };
        let kept = raw.keep();
        drop(raw);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(kept);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
