//! Copies between the host and device buffers, which end by a deadline; and what every copy checks
//! first.
//!
//! Copies between devices are of the crates above. Invariant: the memory of the host that a copy
//! uses is of our own and outlives it: it is leaked where the copy may still come.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Instant;

use peerweave_types::Element;

use crate::cudarc::driver::CudaStream;
use crate::library::bind;
use crate::{
    CudaError, DeviceBuffer, DeviceBufferMut, Driver, DriverError, is_capturing, refuse_capture_begun, refuse_per_thread, wait,
};

/// That `count` elements can be copied to or from all of a buffer, in the order of `stream`, now.
///
/// # Errors
/// [`DriverError::WrongDevice`] for a buffer of another device's work,
/// [`DriverError::WrongLength`], [`DriverError::PerThreadStream`]; [`DriverError::Capturing`],
/// since a graph replays after the memory may have gone.
pub fn check_copy<T>(
    call: &'static str,
    stream: &CudaStream,
    buffer: &impl DeviceBuffer<T>,
    count: usize,
) -> Result<(), DriverError> {
    // Neither unmapping nor freeing, which other threads do, could wait for what it does.
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

/// Copies `values` to a device buffer after what `stream` has before, and waits until that is done.
///
/// The copy begins when the stream is idle, and then it is as long as it is: the driver ends no
/// copy of memory that is not pinned half way. Work that another thread enqueues there meanwhile is
/// waited for too. The values are copied on the host first. Errors name `call`.
///
/// # Errors
/// As [`check_copy`](check_copy#errors); [`DriverError::Timeout`] if the stream is not idle by the
/// deadline: then nothing is copied, unless others enqueued work meanwhile; what the driver says,
/// also of earlier work on the stream.
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
    // The caller's may be pinned: then it would be read when the stream comes to it, which may be
    // after this has returned.
    let values = ManuallyDrop::new(values.to_vec());
    let (api, bytes) = (Driver::get()?.api(), size_of_val(values.as_slice()));
    let to = target.write(stream)?;
    bind(stream.context())?;
    // SAFETY: both ranges have that many bytes, the stream is live, and the vector is dropped only
    // after the stream has passed the copy.
    let code = unsafe { api.cuMemcpyHtoDAsync_v2(to.address(), values.as_ptr().cast(), bytes, stream.cu_stream()) }?;
    drop(to);
    CudaError::check("cuMemcpyHtoDAsync_v2", code)?;
    refuse_capture_begun(call, stream)?;
    pass(call, stream, start, deadline)?;
    drop(ManuallyDrop::into_inner(values));
    Ok(())
}

/// Copies a device buffer to the host, after what `stream` has before, and waits for it, as
/// [`copy_from_host`] does.
///
/// # Errors
/// As [`copy_from_host`](copy_from_host#errors).
pub fn copy_to_host<T: Element>(
    call: &'static str,
    stream: &Arc<CudaStream>,
    source: &impl DeviceBuffer<T>,
    deadline: Instant,
) -> Result<Vec<T>, DriverError> {
    check_copy(call, stream, source, source.len())?;
    let mut values = ManuallyDrop::new(vec![T::default(); source.len()]);
    if !values.is_empty() {
        let start = Instant::now();
        pass(call, stream, start, deadline)?;
        let (api, bytes) = (Driver::get()?.api(), size_of_val(values.as_slice()));
        let from = source.read(stream)?;
        bind(stream.context())?;
        // SAFETY: both ranges have that many bytes and elements allow any bits; the rest is as for
        // `copy_from_host`.
        let code = unsafe { api.cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), from.address(), bytes, stream.cu_stream()) }?;
        drop(from);
        CudaError::check("cuMemcpyDtoHAsync_v2", code)?;
        refuse_capture_begun(call, stream)?;
        pass(call, stream, start, deadline)?;
    }
    Ok(ManuallyDrop::into_inner(values))
}

/// Waits until the stream has passed all that it has. A copy of memory that is not pinned is itself
/// ended by no deadline: so the stream is idle before it.
fn pass(call: &'static str, stream: &Arc<CudaStream>, start: Instant, deadline: Instant) -> Result<(), DriverError> {
    if wait(stream, deadline)? { Ok(()) } else { Err(DriverError::Timeout { call, waited: start.elapsed() }) }
}
