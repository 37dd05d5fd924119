//! Implementations of the device buffer traits for all memory types of this crate, and
//! stream-ordered copies.

use std::sync::Arc;
use std::time::Instant;

use peerweave_driver::{
    CudaStream, DeviceBuffer, DeviceBufferMut, DriverError, check_copy, copy_from_host, copy_to_host, refuse_capture_begun,
};
use peerweave_types::Element;

use crate::memory::streams::timed_out;
use crate::raw;
use crate::{Misuse, VmmError};

/// Implements the device buffer traits for a memory type. The type must have a field `len` and the
/// methods `address`, `device_of`, `note` and `keep_alive`.
macro_rules! buffers {
    ($Memory:ident) => {
        impl<T> $Memory<T> {
            /// Returns the number of elements.
            pub fn len(&self) -> usize {
                self.len
            }

            /// Returns whether the memory has no elements.
            pub fn is_empty(&self) -> bool {
                self.len == 0
            }
        }

        impl<T> std::fmt::Debug for $Memory<T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let (name, element) = (stringify!($Memory), std::any::type_name::<T>());
                write!(f, "{name}({} x {element} at {:#x}, for device {})", self.len, self.address(), self.device_of())
            }
        }

        // SAFETY: [D1] ranges stay inside the memory, which its device may read and write. [D2] The
        // stream is recorded before work is enqueued, and freeing or unmapping the memory waits for
        // the recorded streams. [D3] `keep_alive` returns the owner of the mapping.
        unsafe impl<T> peerweave_driver::DeviceBuffer<T> for $Memory<T> {
            fn len(&self) -> usize {
                self.len
            }

            fn device(&self) -> usize {
                self.device_of()
            }

            fn read<'a>(
                &'a self,
                stream: &'a std::sync::Arc<peerweave_driver::CudaStream>,
            ) -> Result<peerweave_driver::Access<'a>, peerweave_driver::DriverError> {
                self.note(stream);
                Ok(peerweave_driver::Access::new(self.address()))
            }

            fn keep(&self) -> Option<(peerweave_driver::cudarc::driver::sys::CUdeviceptr, peerweave_driver::Keep)> {
                Some((self.address(), self.keep_alive()))
            }
        }

        // SAFETY: as for `DeviceBuffer`; only devices write the memory, and no Rust reference to it
        // exists.
        unsafe impl<T> peerweave_driver::DeviceBufferMut<T> for $Memory<T> {
            fn write<'a>(
                &'a mut self,
                stream: &'a std::sync::Arc<peerweave_driver::CudaStream>,
            ) -> Result<peerweave_driver::Access<'a>, peerweave_driver::DriverError> {
                peerweave_driver::DeviceBuffer::read(self, stream)
            }
        }
    };
}
pub(crate) use buffers;

/// Enqueues a copy from `source` to `target`, and returns without waiting. The two device buffers
/// must belong to the stream's device.
///
/// If `target` is a [`PeerMemory`](crate::PeerMemory), the copy is a put. If `source` is a
/// [`PeerMemory`](crate::PeerMemory), the copy is a get. A copy engine performs the put or the get.
///
/// # Errors
/// [`DriverError::WrongLength`] if the buffers have different numbers of elements.
/// [`DriverError::WrongDevice`] if a buffer belongs to another device. [`DriverError::Capturing`]
/// if the stream is being captured. [`DriverError::PerThreadStream`] if the stream is a per-thread
/// stream. [`VmmError::Driver`] if a driver call fails.
pub fn copy<T: Element>(
    stream: &Arc<CudaStream>,
    target: &mut impl DeviceBufferMut<T>,
    source: &impl DeviceBuffer<T>,
) -> Result<(), VmmError> {
    check_copy("copy", stream, target, source.len())?;
    check_copy("copy", stream, source, target.len())?;
    let bytes = source.len() * size_of::<T>();
    if bytes == 0 {
        return Ok(());
    }
    let from = source.read(stream)?;
    let to = target.write(stream)?;
    // Bind the context last, because a buffer type of another crate may have made another context
    // current.
    raw::bind(stream.context())?;
    // SAFETY: both ranges have `bytes` bytes. Their accesses keep them allocated until the stream
    // has completed the copy.
    raw::done("cuMemcpyAsync", unsafe { raw::api()?.cuMemcpyAsync(to.address(), from.address(), bytes, stream.cu_stream()) })?;
    Ok(refuse_capture_begun("copy", stream)?)
}

/// Copies `values` to a device buffer after the earlier work in `stream`, and waits until the copy
/// has completed.
///
/// The copy starts when the stream is idle. The deadline applies only until the copy starts,
/// because the driver cannot cancel a copy of pageable memory. If another thread enqueues work on
/// the stream during this call, the call waits for that work without a deadline.
///
/// # Errors
/// The errors of [`copy`](copy#errors). [`VmmError::Timeout`] if the stream is not idle by the
/// deadline; in that case no data is copied.
pub fn write<T: Element>(
    stream: &Arc<CudaStream>,
    target: &mut impl DeviceBufferMut<T>,
    values: &[T],
    deadline: Instant,
) -> Result<(), VmmError> {
    copy_from_host("write", stream, target, values, deadline).map_err(timed_out(stream))
}

/// Copies a device buffer to the host after the earlier work in `stream`, and waits until the copy
/// has completed. As in [`write()`], the deadline applies only until the copy starts.
///
/// A copy from a [`PeerMemory`](crate::PeerMemory) may never complete if peer access is broken. If
/// peer access is not known to work, [`copy`] the data to memory of this device first.
///
/// # Errors
/// The errors of [`write()`].
pub fn read<T: Element>(stream: &Arc<CudaStream>, source: &impl DeviceBuffer<T>, deadline: Instant) -> Result<Vec<T>, VmmError> {
    copy_to_host("read", stream, source, deadline).map_err(timed_out(stream))
}

/// Enqueues work that fills a device buffer with zero bytes, and returns without waiting.
///
/// # Errors
/// The errors of [`copy`](copy#errors).
pub fn zero<T: Element>(stream: &Arc<CudaStream>, target: &mut impl DeviceBufferMut<T>) -> Result<(), VmmError> {
    check_copy("zero", stream, target, target.len())?;
    let bytes = target.len() * size_of::<T>();
    if bytes == 0 {
        return Ok(());
    }
    let to = target.write(stream)?;
    raw::bind(stream.context())?;
    // SAFETY: the range has `bytes` bytes. Its access keeps it allocated until the stream has
    // completed the fill.
    raw::done("cuMemsetD8Async", unsafe { raw::api()?.cuMemsetD8Async(to.address(), 0, bytes, stream.cu_stream()) })?;
    Ok(refuse_capture_begun("zero", stream)?)
}

/// Returns how many bytes `count` elements of `T` occupy. Fails with [`DriverError::TooLarge`],
/// inside [`VmmError::Driver`], if the number exceeds `isize::MAX`.
pub(crate) fn bytes_of<T>(call: &'static str, count: usize) -> Result<usize, VmmError> {
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
    Ok(bytes.ok_or(DriverError::TooLarge { call, count, element_bytes: size_of::<T>() })?)
}

/// Returns the error for an invalid value of the argument `what`.
pub(crate) fn wrong_value(call: &'static str, what: &'static str, value: impl ToString, expected: &str) -> VmmError {
    Misuse::Value { call, what, value: value.to_string(), expected: expected.to_owned() }.into()
}
