//! Copies data between the host and device buffers. Each copy is checked first, and its wait for
//! the stream has a deadline.
//!
//! This module does not copy data between devices. Invariant: this crate owns the host memory of a
//! copy, and frees it only after the copy has ended. Otherwise the memory is leaked.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Instant;

use peerweave_types::Element;

use crate::cudarc::driver::CudaStream;
use crate::library::bind;
use crate::{
    CudaError, DeviceBuffer, DeviceBufferMut, Driver, DriverError, is_capturing, refuse_capture_begun, refuse_per_thread, wait,
};

/// Checks that `count` elements can be copied on `stream` to or from a whole buffer, and that the
/// copy would not be captured.
///
/// # Errors
/// [`DriverError::WrongDevice`] if the buffer and `stream` are on different devices.
/// [`DriverError::WrongLength`] if the buffer does not have `count` elements.
/// [`DriverError::PerThreadStream`] if `stream` is a per-thread stream. [`DriverError::Capturing`]
/// if `stream` is being captured, because a graph could replay the copy after the memory has been
/// freed.
pub fn check_copy<T>(
    call: &'static str,
    stream: &CudaStream,
    buffer: &impl DeviceBuffer<T>,
    count: usize,
) -> Result<(), DriverError> {
    // Threads that later unmap or free the memory could not wait for the work of a per-thread
    // stream.
    refuse_per_thread(call, stream)?;
    let ordinal = stream.context().ordinal();
    if buffer.device() != ordinal {
        return Err(DriverError::WrongDevice { call, found: buffer.device(), expected: ordinal });
    }
    if buffer.len() != count {
        return Err(DriverError::WrongLength { call, found: count, expected: buffer.len() });
    }
    if buffer.len() > 0 && is_capturing(stream)? {
        return Err(DriverError::Capturing { call });
    }
    Ok(())
}

/// Copies `values` to a device buffer after the earlier work on `stream`, and waits until the copy
/// has completed.
///
/// The copy starts when the stream is idle. The copy itself has no deadline, because the driver
/// does not cancel copies of pageable memory. If another thread enqueues work on the stream during
/// the call, this call waits for that work too. The values are first copied to host memory that
/// this crate owns. Errors name `call`.
///
/// # Errors
/// As for [`check_copy`](check_copy#errors), and errors of the driver, including errors of earlier
/// work on the stream. [`DriverError::Timeout`] if the stream is not idle by the deadline. After a
/// timeout, nothing has been copied, unless the deadline passed during the copy, or other threads
/// enqueued work on the stream during the call.
pub fn copy_from_host<T: Element>(
    call: &'static str,
    stream: &Arc<CudaStream>,
    target: &mut impl DeviceBufferMut<T>,
    values: &[T],
    deadline: Instant,
) -> Result<(), DriverError> {
    check_copy(call, stream, target, values.len())?;
    if values.is_empty() {
        return Ok(());
    }
    let start = Instant::now();
    pass(call, stream, start, deadline)?;
    // The caller's memory may be pinned. Then the stream would read the memory when it executes the
    // copy, possibly after this call has returned.
    let values = ManuallyDrop::new(values.to_vec());
    let (api, bytes) = (Driver::get()?.api(), size_of_val(values.as_slice()));
    let to = target.write(stream)?;
    bind(stream.context())?;
    // SAFETY: both ranges have `bytes` bytes, the stream is live, and the vector is dropped only
    // after the stream has completed the copy.
    let code = unsafe { api.cuMemcpyHtoDAsync_v2(to.address(), values.as_ptr().cast(), bytes, stream.cu_stream()) }?;
    drop(to);
    CudaError::check("cuMemcpyHtoDAsync_v2", code)?;
    refuse_capture_begun(call, stream)?;
    pass(call, stream, start, deadline)?;
    drop(ManuallyDrop::into_inner(values));
    Ok(())
}

/// Copies a device buffer to the host after the earlier work on `stream`, and waits until the copy
/// has completed, like [`copy_from_host`].
///
/// # Errors
/// As for [`copy_from_host`](copy_from_host#errors).
pub fn copy_to_host<T: Element>(
    call: &'static str,
    stream: &Arc<CudaStream>,
    source: &impl DeviceBuffer<T>,
    deadline: Instant,
) -> Result<Vec<T>, DriverError> {
    check_copy(call, stream, source, source.len())?;
    let mut values = ManuallyDrop::new(vec![T::zeroed(); source.len()]);
    if !values.is_empty() {
        let start = Instant::now();
        pass(call, stream, start, deadline)?;
        let (api, bytes) = (Driver::get()?.api(), size_of_val(values.as_slice()));
        let from = source.read(stream)?;
        bind(stream.context())?;
        // SAFETY: both ranges have `bytes` bytes, and elements allow any bits. The stream and the
        // vector live as long as in `copy_from_host`.
        let code = unsafe { api.cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), from.address(), bytes, stream.cu_stream()) }?;
        drop(from);
        CudaError::check("cuMemcpyDtoHAsync_v2", code)?;
        refuse_capture_begun(call, stream)?;
        pass(call, stream, start, deadline)?;
    }
    Ok(ManuallyDrop::into_inner(values))
}

/// Waits until the stream is idle, or returns [`DriverError::Timeout`] at the deadline. A copy
/// calls this function before and after it calls the driver, because the driver's copy of pageable
/// memory has no deadline.
fn pass(call: &'static str, stream: &Arc<CudaStream>, start: Instant, deadline: Instant) -> Result<(), DriverError> {
    if wait(stream, deadline)? { Ok(()) } else { Err(DriverError::Timeout { call, waited: start.elapsed() }) }
}
