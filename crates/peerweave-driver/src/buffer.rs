//! Device memory by trait: what a communication call needs to know of a buffer, whoever owns it.
//!
//! Neither allocates nor copies. Invariant: an [`Access`] lives until the work that uses its address is enqueued; from then on the buffer's
//! owner keeps the memory until the stream has passed that work.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::cudarc::driver::sys::{CUdeviceptr, CUevent};
use crate::cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};
use crate::driver::{bind, with_context_kept};
use crate::private::is_private;
use crate::streams::is_of_every_context;
use crate::{CudaError, DEADLINE, Driver, DriverError, deadline_after, is_capturing, wait};

/// Something that keeps memory alive while it lives.
pub type Keep = Arc<dyn Any + Send + Sync>;

/// The address of a buffer, for work that is about to be enqueued on the stream that it was asked for.
///
/// Drop it after enqueuing: then cudarc's buffers learn that the stream uses them. Leaking it can only be done inside the library that asked.
///
/// It stays on its thread, since a per-thread stream is another one elsewhere:
///
/// ```compile_fail
/// fn sent<T: Send>() {}
/// sent::<peerweave_driver::Access<'static>>();
/// ```
#[must_use = "work that uses the address is enqueued while this lives"]
pub struct Access<'a> {
    address: CUdeviceptr,
    guard: Option<SyncOnDrop<'a>>,
    /// The stream in whose order the memory is freed, and the stream of the work.
    streams: Option<(Arc<CudaStream>, &'a Arc<CudaStream>)>,
    /// Whether the first must wait for the second.
    joins: bool,
    /// Dropped by the thread that enqueues: a per-thread stream is another one elsewhere.
    _this_thread: PhantomData<*const ()>,
}

impl<'a> Access<'a> {
    /// An address whose owner needs no word when the work is enqueued.
    pub fn new(address: CUdeviceptr) -> Self {
        Self { address, guard: None, streams: None, joins: false, _this_thread: PhantomData }
    }

    /// The address of a slice of cudarc's with its guard, for reading. `own` is the slice's stream, `stream` the one it was asked for.
    ///
    /// The guard alone does not keep the memory: a slice has one event for all reads, and a context that knows of no other stream looks at none.
    /// So `own` is made to wait for the work when this is dropped.
    pub fn reading(own: &Arc<CudaStream>, stream: &'a Arc<CudaStream>, (address, guard): (CUdeviceptr, SyncOnDrop<'a>)) -> Self {
        Self::after(is_tracked(own) && is_other(own, stream), own, stream, address, guard)
    }

    /// As [`reading`](Self::reading), for writing. `own` only waits where cudarc's own event for writes does not do.
    pub fn writing(own: &Arc<CudaStream>, stream: &'a Arc<CudaStream>, (address, guard): (CUdeviceptr, SyncOnDrop<'a>)) -> Self {
        // What is written is waited for by whoever comes next, so that one event is enough; if it is looked at. A stream that cudarc made counts in its
        // context as long as it lives, and `own` lives as long as the slice. A private one does not count.
        let looks = |stream: &CudaStream| {
            stream.context().is_managing_stream_synchronization() && !is_of_every_context(stream) && !is_private(stream)
        };
        let is_kept = || looks(own) && looks(stream) && own.context() == stream.context();
        Self::after(is_tracked(own) && is_other(own, stream) && !is_kept(), own, stream, address, guard)
    }

    fn after(
        joins: bool,
        own: &Arc<CudaStream>,
        stream: &'a Arc<CudaStream>,
        address: CUdeviceptr,
        guard: SyncOnDrop<'a>,
    ) -> Self {
        if joins && !own.context().is_in_multi_stream_mode() {
            // Then cudarc did not make the stream wait for what `own` did to the memory, nor for its allocation.
            join_or_wait(stream, own);
        }
        Self { address, guard: Some(guard), streams: Some((Arc::clone(own), stream)), joins, _this_thread: PhantomData }
    }

    /// The device address of the first element.
    #[inline]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Whether its owner made the stream wait for something, and is told when the work is enqueued.
    #[inline]
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }
}

/// Whether cudarc has been left in charge of the order of streams. Who took that over, which is `unsafe`, promised what is done here.
fn is_tracked(own: &CudaStream) -> bool {
    own.context().is_event_tracking()
}

fn is_other(own: &CudaStream, stream: &CudaStream) -> bool {
    own.cu_stream() != stream.cu_stream() || own.context().cu_ctx() != stream.context().cu_ctx()
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        let guard = self.guard.take();
        let Some((own, stream)) = self.streams.take() else { return };
        let ((), told) = with_errors_aside(&own, stream, || drop(guard));
        if self.joins {
            join_or_wait(&own, stream);
        } else if !told {
            wait_instead(stream);
        }
    }
}

/// The address of a slice of cudarc's with its guard, where cudarc really made the stream wait.
fn ordered<'a>(
    own: &Arc<CudaStream>,
    stream: &Arc<CudaStream>,
    ask: impl FnOnce() -> (CUdeviceptr, SyncOnDrop<'a>),
) -> (CUdeviceptr, SyncOnDrop<'a>) {
    let (answer, waits) = with_errors_aside(own, stream, ask);
    if !waits {
        join_or_wait(stream, own);
    }
    answer
}

/// Runs something of cudarc's that tells nobody whether it worked. cudarc does nothing where an earlier error is noted in a context, whoever left it:
/// so such an error is put aside meanwhile. Gives also whether no new one came.
fn with_errors_aside<R>(own: &CudaStream, stream: &CudaStream, run: impl FnOnce() -> R) -> (R, bool) {
    let contexts = [own.context(), stream.context()];
    let earlier = contexts.map(|context| context.check_err());
    let answer = run();
    // Both may be the same one: all are asked before any gets its error back.
    let new = contexts.map(|context| context.check_err());
    let worked = new.iter().all(Result::is_ok);
    // What was there first is what is seen.
    for errors in [new, earlier] {
        contexts.iter().zip(errors).for_each(|(context, error)| context.record_err(error));
    }
    (answer, worked)
}

/// Makes a stream wait for what another one has to do now; where that cannot be, this thread waits.
fn join_or_wait(waiter: &Arc<CudaStream>, other: &Arc<CudaStream>) {
    with_context_kept(|| {
        // An event of another stream would spoil a capture.
        let joined = matches!(is_capturing(waiter), Ok(false)) && join(waiter, other).is_ok();
        if !joined {
            wait_instead(other);
        }
    });
}

/// Not by cudarc's function of this name, which gives an error that others have left in the context, and does nothing then.
fn join(waiter: &CudaStream, other: &CudaStream) -> Result<(), DriverError> {
    /// `CU_EVENT_DISABLE_TIMING`: the cheapest event there is.
    const DISABLE_TIMING: u32 = 2;
    let api = Driver::get()?.api();
    bind(other.context())?;
    let mut event: CUevent = std::ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    CudaError::check("cuEventCreate", unsafe { api.cuEventCreate(&raw mut event, DISABLE_TIMING) }?)?;
    let join = || {
        // SAFETY: the event and the stream are live, and the stream's context is current.
        CudaError::check("cuEventRecord", unsafe { api.cuEventRecord(event, other.cu_stream()) }?)?;
        bind(waiter.context())?;
        // SAFETY: the same of the other stream.
        CudaError::check("cuStreamWaitEvent", unsafe { api.cuStreamWaitEvent(waiter.cu_stream(), event, 0) }?)?;
        Ok(())
    };
    let joined = join();
    // SAFETY: nobody else has the event; a stream that waits for it goes on waiting.
    let _ = unsafe { api.cuEventDestroy_v2(event) };
    joined
}

/// Where a stream cannot be made to wait for another, this thread does; without a deadline, since the slice's owner may free it as soon as this
/// returns.
#[cold]
fn wait_instead(stream: &Arc<CudaStream>) {
    loop {
        match wait(stream, deadline_after(DEADLINE)) {
            Ok(true) => return,
            Ok(false) => tracing::error!("still waiting for the work of another stream on memory of a cudarc slice"),
            // Work that failed has ended, and there is nobody else to ask.
            Err(error) => return tracing::error!(%error, "memory of a cudarc slice may be freed while another stream uses it"),
        }
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
/// A slice of cudarc's that is **read** on a stream other than its own makes its own stream wait for that work, since cudarc could free the memory
/// under it otherwise. Where computing must go on meanwhile, use `DeviceMemory`, which waits for nothing but to be freed; or, where the context's
/// event tracking was switched off, keep the slice yourself until the work is done: that is what switching it off promises. Where its own stream
/// cannot be made to wait, as while that is being captured, the thread that drops the [`Access`] waits for the work instead, as long as that takes:
/// `DeviceMemory` has no such wait either.
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
    /// on other streams, where the owner tracks them. May make the context of `stream` the thread's current one.
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
            // SAFETY: [D1] cudarc's slices and views stand for `len` elements on the device of their stream; [D2] a slice is freed in the order of its own
            // stream, which has been made to wait for the work when the access is gone, by the guard or by us; [D3] none is given.
            unsafe impl<T> DeviceBuffer<T> for $Slice {
                fn len(&self) -> usize {
                    DeviceSlice::len(self)
                }

                fn device(&self) -> usize {
                    DeviceSlice::stream(self).context().ordinal()
                }

                fn read<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Access<'a> {
                    let own = DeviceSlice::stream(self);
                    Access::reading(own, stream, ordered(own, stream, || self.device_ptr(stream)))
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
                    let own = Arc::clone(DeviceSlice::stream(self));
                    Access::writing(&own, stream, ordered(&own, stream, || self.device_ptr_mut(stream)))
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
