//! Traits for device memory. Communication calls use these traits to access buffers of any owner.
//!
//! This module neither allocates nor copies memory. Invariant: an [`Access`] lives until the work
//! that uses its address is enqueued. From then on, the buffer's owner keeps the memory allocated
//! until the stream has completed that work.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cudarc::driver::sys::CUdeviceptr;
use crate::cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};
use crate::library::{is_current, with_context_kept};
use crate::streams::capture::cannot_be_asked;
use crate::streams::is_of_every_context;
use crate::streams::private::is_private;
use crate::streams::wait::wait_past_capture;
use crate::{DEADLINE, DriverError, Keep, deadline_after, join, wait, wait_until};

/// The address of a buffer, for work on one stream. Create an `Access`, enqueue the work, then drop
/// the `Access`.
///
/// If the buffer is a slice of cudarc, dropping the `Access` makes cudarc record that the stream
/// uses the slice. A library that enqueues work for its callers must not pass the `Access` to these
/// callers. Otherwise a caller could leak the `Access`, for example with `std::mem::forget`, and
/// cudarc would not record the use.
///
/// An `Access` is not `Send`: the thread that enqueues the work must also drop the `Access`. On
/// another thread, the handle of the per-thread stream would refer to a different stream. So this
/// code does not compile:
///
/// ```compile_fail
/// fn sent<T: Send>() {}
/// sent::<peerweave_driver::Access<'static>>();
/// ```
#[must_use = "this value must live until the work that uses the address has been enqueued"]
pub struct Access<'a> {
    address: CUdeviceptr,
    guard: Option<SyncOnDrop<'a>>,
    /// For a slice of cudarc: the slice's own stream, and the stream on which the work is enqueued.
    /// cudarc frees the slice in the order of its own stream. `None` for other memory.
    streams: Option<(Arc<CudaStream>, &'a Arc<CudaStream>)>,
    /// Whether dropping the access always makes the slice's own stream wait for the work. If
    /// `false`, dropping the access does so only if cudarc could not record that the work uses the
    /// slice.
    joins: bool,
    /// Makes the type `!Send`: the thread that enqueues the work must also drop the `Access`. On
    /// another thread, the handle of the per-thread stream would refer to a different stream.
    _this_thread: PhantomData<*const ()>,
}

impl<'a> Access<'a> {
    /// Creates an access to the memory at `address`. Dropping this access does not inform the owner
    /// of the memory. So an owner that tracks the streams must record the stream before it calls
    /// this function.
    #[inline]
    pub fn new(address: CUdeviceptr) -> Self {
        Self { address, guard: None, streams: None, joins: false, _this_thread: PhantomData }
    }

    /// Creates an access for work that reads a slice of cudarc. `own` is the slice's own stream.
    /// `stream` is the stream on which the work is enqueued. `ask` calls cudarc's `device_ptr`,
    /// which returns the address and a guard. The access contains the guard.
    ///
    /// The guard alone does not keep the memory allocated until the work has ended. cudarc records
    /// all reads of a slice in one event, and ignores events in a context that has only one stream.
    /// So dropping this access makes `own` wait for the work.
    ///
    /// # Errors
    /// [`DriverError::OwnerCapturing`] and [`DriverError::Timeout`], as described at
    /// [`DeviceBuffer::read`].
    pub fn reading(
        own: &Arc<CudaStream>,
        stream: &'a Arc<CudaStream>,
        ask: impl FnOnce() -> (CUdeviceptr, SyncOnDrop<'a>),
    ) -> Result<Self, DriverError> {
        let is_shared = is_shared(own, stream);
        Self::after("DeviceBuffer::read", is_shared, is_shared, own, stream, ask)
    }

    /// Like [`reading`](Self::reading), but for work that writes to the slice. cudarc records the
    /// write in an event, and in most cases makes `own` wait for this event. In the other cases,
    /// dropping this access makes `own` wait for the work.
    ///
    /// # Errors
    /// As for [`reading`](Self::reading).
    pub fn writing(
        own: &Arc<CudaStream>,
        stream: &'a Arc<CudaStream>,
        ask: impl FnOnce() -> (CUdeviceptr, SyncOnDrop<'a>),
    ) -> Result<Self, DriverError> {
        // The next access waits for a write, so one event is enough if cudarc waits for events.
        // cudarc waits for events if its context counts a stream that cudarc created: `own` lives
        // as long as the slice. cudarc does not count a private stream.
        let looks = |stream: &CudaStream| {
            stream.context().is_managing_stream_synchronization() && !is_of_every_context(stream) && !is_private(stream)
        };
        let is_kept = || looks(own) && looks(stream) && own.context() == stream.context();
        let is_shared = is_shared(own, stream);
        Self::after("DeviceBufferMut::write", is_shared, is_shared && !is_kept(), own, stream, ask)
    }

    fn after(
        call: &'static str,
        is_shared: bool,
        joins: bool,
        own: &Arc<CudaStream>,
        stream: &'a Arc<CudaStream>,
        ask: impl FnOnce() -> (CUdeviceptr, SyncOnDrop<'a>),
    ) -> Result<Self, DriverError> {
        if is_shared && cannot_be_asked(own)? {
            // The events of `own` are part of a graph. `own` cannot wait for the work before the
            // capture ends.
            return Err(DriverError::OwnerCapturing { call });
        }
        let ((address, guard), waits) = with_errors_aside(own, stream, ask);
        if !waits || joins && !own.context().is_in_multi_stream_mode() {
            // In this case cudarc did not make `stream` wait for the allocation of the memory, nor
            // for earlier work of `own` on the memory.
            with_context_kept(|| follow(call, stream, own))?;
        }
        let streams = Some((Arc::clone(own), stream));
        Ok(Self { address, guard: Some(guard), streams, joins, _this_thread: PhantomData })
    }

    /// Returns the device address of the first element.
    #[inline]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Returns whether this access contains a guard of cudarc. If so, cudarc must be notified after
    /// the work has been enqueued. Dropping the access notifies cudarc.
    #[inline]
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }
}

/// Returns whether this crate must order work on `stream` relative to work on `own`. `own` is the
/// slice's own stream: cudarc frees the slice in the order of this stream. Returns `false` if both
/// are the same stream, because a stream orders its own work. Also returns `false` if the caller
/// has disabled cudarc's event tracking. Disabling event tracking is `unsafe`, and makes the caller
/// responsible for the order.
fn is_shared(own: &CudaStream, stream: &CudaStream) -> bool {
    let is_other = own.cu_stream() != stream.cu_stream() || own.context().cu_ctx() != stream.context().cu_ctx();
    is_other && own.context().is_event_tracking()
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        let guard = self.guard.take();
        let Some((own, stream)) = self.streams.take() else { return };
        let tell = || {
            let ((), told) = with_errors_aside(&own, stream, || drop(guard));
            if self.joins || !told {
                hold_back(&own, stream, DEADLINE);
            }
        };
        // Restores the current contexts afterwards. Usually both streams have the same context,
        // which is current since the work was enqueued.
        if own.context().cu_ctx() == stream.context().cu_ctx() && is_current(own.context()) {
            tell();
        } else {
            with_context_kept(tell);
        }
    }
}

/// Calls `run` and returns its result. Also returns whether the contexts of `own` and `stream` are
/// without a new error after the call.
///
/// `run` calls a function of cudarc that returns no errors, but records them in a context. cudarc
/// does nothing if an earlier error is recorded in a context. So this function removes the recorded
/// errors of both contexts before the call, and restores them after the call.
fn with_errors_aside<R>(own: &CudaStream, stream: &CudaStream, run: impl FnOnce() -> R) -> (R, bool) {
    let contexts = [own.context(), stream.context()];
    let earlier = contexts.map(|context| context.check_err());
    let answer = run();
    // Both contexts may be the same, so all errors are read before an error is restored.
    let new = contexts.map(|context| context.check_err());
    let worked = new.iter().all(Result::is_ok);
    // A context keeps only the first error that is recorded.
    for errors in [new, earlier] {
        contexts.iter().zip(errors).for_each(|(context, error)| context.record_err(error));
    }
    (answer, worked)
}

/// Makes the stream `waiter` wait for the pending work of the stream `other`. If `waiter` cannot
/// wait, this thread waits instead, for at most [`DEADLINE`].
fn follow(call: &'static str, waiter: &Arc<CudaStream>, other: &Arc<CudaStream>) -> Result<(), DriverError> {
    // Waiting for an event of another stream would invalidate a capture of `waiter`.
    if matches!(cannot_be_asked(waiter), Ok(false)) && join(waiter, other).is_ok() {
        return Ok(());
    }
    let start = Instant::now();
    if wait(other, deadline_after(DEADLINE))? { Ok(()) } else { Err(DriverError::Timeout { call, waited: start.elapsed() }) }
}

/// Makes `own`, the own stream of a cudarc slice, wait for the work on `stream` that uses the
/// slice. cudarc frees the slice's memory in stream order on `own`, so the memory is freed after
/// the work. Another thread may have begun to capture `own`, and a captured stream cannot wait. In
/// this case, the calling thread waits until the capture or the work ends.
///
/// Aborts the process if neither the capture nor the work ends within `longest`. If this function
/// returned instead, the slice's owner could free the memory, and the work could access memory of
/// another owner.
fn hold_back(own: &Arc<CudaStream>, stream: &Arc<CudaStream>, longest: Duration) {
    let held = wait_until(deadline_after(longest), || {
        let cannot_wait = |stream| !matches!(cannot_be_asked(stream), Ok(false));
        if !cannot_wait(own) && !cannot_wait(stream) && join(own, stream).is_ok() {
            return Ok(true);
        }
        wait_past_capture(stream, Instant::now())
    });
    match held {
        Ok(true) => {}
        // The error shows that the work failed, so it has ended.
        Err(error) => tracing::error!(%error, "work that uses a cudarc slice failed on a stream other than the slice's own"),
        Ok(false) => {
            let why = "work on another stream uses the slice, and the slice's own stream cannot wait for that work during a \
                       stream capture; end the capture before the slice is used on other streams";
            tracing::error!(waited = ?longest, "aborting: memory of a cudarc slice is still in use: {why}");
            eprintln!("peerweave-driver: aborting: memory of a cudarc slice is still in use after a wait of {longest:?}: {why}");
            std::process::abort();
        }
    }
}

impl fmt::Debug for Access<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({:#x})", self.address)
    }
}

/// Device memory that can be read: `len` contiguous elements of `T` on one device.
///
/// Implemented for cudarc's `CudaSlice`, `CudaView`, `CudaViewMut`, for
/// [`DeviceMemory`](crate::DeviceMemory), and for [`Raw`]. Implement the trait for your framework's
/// tensor to pass the tensor to Peerweave without a copy.
///
/// If work on another stream reads a slice of cudarc, the slice's own stream waits for that work.
/// Without the wait, cudarc could free the memory before the work has ended. If the slice's own
/// stream must not wait, use `DeviceMemory`, which only delays freeing. Alternatively, disable the
/// context's event tracking and keep the slice alive yourself.
///
/// A stream cannot wait while it is being captured. So if a slice's own stream is being captured,
/// the slice cannot be used on other streams ([`DriverError::OwnerCapturing`]). `DeviceMemory` can
/// be used.
///
/// # Safety
/// An implementation guarantees:
/// - **\[D1\]** the access that [`read`](Self::read) returns has the address of at least `len`
///   allocated elements on the device with ordinal [`device`](Self::device);
/// - **\[D2\]** if work is enqueued on the stream while the access lives, the memory stays
///   allocated until that work is complete;
/// - **\[D3\]** if [`keep`](Self::keep) returns a value, the memory stays allocated while that
///   value lives, and `keep` returns the same address as `read`.
pub unsafe trait DeviceBuffer<T> {
    /// Returns the number of elements.
    fn len(&self) -> usize;

    /// Returns whether the memory has no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the ordinal of the memory's device.
    fn device(&self) -> usize;

    /// Returns an access with the address of the memory. Work that is enqueued on `stream` while
    /// the access lives may read the memory. Makes `stream` wait for earlier writes on other
    /// streams, if the owner tracks writes. May make the context of `stream` current.
    ///
    /// Do not call this function for a stream that is being captured. Call [`keep`](Self::keep)
    /// instead.
    ///
    /// # Errors
    /// Returns the reason why work on `stream` cannot use the memory. After an error, enqueue no
    /// work that uses the memory. A slice of cudarc returns [`DriverError::OwnerCapturing`] while
    /// the slice's own stream is being captured. If `stream` cannot wait for the slice's own
    /// stream, the calling thread waits instead. If the slice's own stream is still busy after
    /// [`DEADLINE`], this call returns [`DriverError::Timeout`].
    ///
    /// Another thread may begin to capture the slice's own stream while the access lives. In this
    /// case, dropping the access waits until the capture or the work ends. If neither the capture
    /// nor the work ends within [`DEADLINE`], dropping the access aborts the process.
    fn read<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError>;

    /// Returns the address of the memory, and a handle. The memory stays allocated while the handle
    /// or a clone of the handle lives. Captured graphs, registrations and windows hold such a
    /// handle, because they use the memory after the call has returned. Returns `None` for borrowed
    /// memory, which they cannot use.
    fn keep(&self) -> Option<(CUdeviceptr, Keep)>;
}

/// Device memory that work on a stream can read and write.
///
/// # Safety
/// As for [`DeviceBuffer`]. In addition, the implementation guarantees that the work may write to
/// the memory.
pub unsafe trait DeviceBufferMut<T>: DeviceBuffer<T> {
    /// Returns an access with the address of the memory. Work that is enqueued on `stream` while
    /// the access lives may read and write the memory. Makes `stream` wait for earlier reads and
    /// writes on other streams, if the owner tracks reads and writes.
    ///
    /// # Errors
    /// As for [`read`](DeviceBuffer::read).
    fn write<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError>;
}

macro_rules! of_cudarc {
    ($($Slice:ty),*; $($SliceMut:ty),*) => {
        $(
            // SAFETY: [D1] cudarc's slices and views have `len` elements on the device of their
            // stream. [D2] A slice is freed in the order of its own stream. When the access is
            // dropped, the guard or this crate makes that stream wait for the work. [D3] `keep`
            // returns `None`.
            unsafe impl<T> DeviceBuffer<T> for $Slice {
                fn len(&self) -> usize {
                    DeviceSlice::len(self)
                }

                fn device(&self) -> usize {
                    DeviceSlice::stream(self).context().ordinal()
                }

                fn read<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError> {
                    Access::reading(DeviceSlice::stream(self), stream, || self.device_ptr(stream))
                }

                fn keep(&self) -> Option<(CUdeviceptr, Keep)> {
                    None
                }
            }
        )*
        $(
            // SAFETY: as for reading. In addition, the slice is borrowed mutably, so no other work
            // that uses it is enqueued while the access lives.
            unsafe impl<T> DeviceBufferMut<T> for $SliceMut {
                fn write<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError> {
                    let own = Arc::clone(DeviceSlice::stream(self));
                    Access::writing(&own, stream, || self.device_ptr_mut(stream))
                }
            }
        )*
    };
}
of_cudarc!(CudaSlice<T>, CudaView<'_, T>, CudaViewMut<'_, T>; CudaSlice<T>, CudaViewMut<'_, T>);

/// Device memory that other code has allocated, identified by its address.
///
/// If this value has an owner that keeps the memory alive, the memory can be used in captured
/// graphs and can be registered. Without an owner, the memory is borrowed, and these uses are
/// refused.
///
/// ```
/// use std::sync::Arc;
/// use peerweave_driver::{DeviceBuffer, Keep, Raw};
///
/// let owner: Keep = Arc::new("what frees the memory when it is dropped");
/// // SAFETY: no work is enqueued with the memory, and no other code keeps it.
/// let (kept, borrowed) = unsafe { (Raw::<f32>::new(0x1000, 4, 0, Some(owner)), Raw::<f32>::new(0x1000, 4, 0, None)) };
/// assert!(kept.keep().is_some());
/// assert!(borrowed.keep().is_none());
/// ```
#[derive(Clone)]
pub struct Raw<T> {
    address: CUdeviceptr,
    len: usize,
    device: usize,
    keep: Option<Keep>,
    _elements: PhantomData<*mut T>,
}

// SAFETY: the shared value is an address that the host never dereferences; the caller of `new`
// guarantees that the memory is valid. Streams synchronise work of two threads, and elements are
// plain data. The test `raw_buffers_can_be_sent_to_other_threads` would catch a violation.
unsafe impl<T: Send> Send for Raw<T> {}
// SAFETY: the shared value is the same address; streams synchronise work as above. The test
// `raw_buffers_can_be_sent_to_other_threads` would catch a violation.
unsafe impl<T: Sync> Sync for Raw<T> {}

impl<T> Raw<T> {
    /// Creates a buffer of `len` elements at `address` on the device with ordinal `device`.
    ///
    /// # Safety
    /// `address` is the address of `len` elements of `T` on that device. These elements stay
    /// allocated
    /// - until all work that was enqueued with this value, or with a clone of this value, is
    ///   complete; and
    /// - if `keep` is given, while a clone of `keep` lives. A graph, a registration or a window
    ///   holds such a clone.
    ///
    /// If the memory is never freed, `keep` may be any value, for example `Arc::new(())`.
    pub unsafe fn new(address: CUdeviceptr, len: usize, device: usize, keep: Option<Keep>) -> Self {
        Self { address, len, device, keep, _elements: PhantomData }
    }
}

impl<T> fmt::Debug for Raw<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raw({} elements at {:#x} on device {})", self.len, self.address, self.device)
    }
}

// SAFETY: the caller of `Raw::new` promised [D1] to [D3].
unsafe impl<T> DeviceBuffer<T> for Raw<T> {
    fn len(&self) -> usize {
        self.len
    }

    fn device(&self) -> usize {
        self.device
    }

    fn read<'a>(&'a self, _stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError> {
        Ok(Access::new(self.address))
    }

    fn keep(&self) -> Option<(CUdeviceptr, Keep)> {
        self.keep.clone().map(|keep| (self.address, keep))
    }
}

// SAFETY: as for `DeviceBuffer`.
unsafe impl<T> DeviceBufferMut<T> for Raw<T> {
    fn write<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError> {
        self.read(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_buffers_can_be_sent_to_other_threads() {
        // SAFETY: nothing is enqueued.
        let raw = unsafe { Raw::<f32>::new(0x1000, 4, 0, None) };
        let (len, device) =
            std::thread::scope(|scope| scope.spawn(|| (raw.len(), raw.device())).join().expect("the thread does not panic"));
        assert_eq!((len, device), (4, 0));
    }

    #[test]
    fn raw_buffer_without_an_owner_yields_no_keep_alive_handle() {
        // SAFETY: nothing is enqueued.
        let raw = unsafe { Raw::<f32>::new(0x1000, 4, 0, None) };
        assert!(raw.keep().is_none(), "a window of the memory would dangle after the owner freed the memory");
    }

    #[test]
    fn raw_buffer_keeps_the_owner_alive() {
        let owner: Keep = Arc::new("memory");
        // SAFETY: nothing is enqueued.
        let raw = unsafe { Raw::<u8>::new(0x1000, 1, 0, Some(Arc::clone(&owner))) };
        let kept = raw.keep();
        drop(raw);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(kept);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn process_aborts_if_capture_and_work_on_the_slice_never_end() {
        use std::os::unix::process::ExitStatusExt;

        use crate::cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        const NAME: &str = "memory::buffer::tests::process_aborts_if_capture_and_work_on_the_slice_never_end";
        if peerweave_fakes::child().is_none() {
            let output = peerweave_fakes::Fakes::new().cuda().run_child(NAME);
            assert_eq!(output.status.signal(), Some(6 /* SIGABRT */), "{output}");
            assert!(output.stderr.contains("memory of a cudarc slice is still in use after a wait of 100ms"), "{output}");
            return;
        }
        let context = crate::context(0).expect("the device exists");
        let (own, other) =
            (context.new_stream().expect("the stream is created"), context.new_stream().expect("the stream is created"));
        peerweave_fakes::driver::block(other.cu_stream());
        own.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED).expect("the capture begins");
        hold_back(&own, &other, Duration::from_millis(100));
    }
}
