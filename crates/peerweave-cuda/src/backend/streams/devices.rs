//! Lets operations use device memory of other libraries as operands.

use std::fmt;
use std::sync::Arc;

use peerweave_core::backend::{DeviceOwner, StreamBackend};
use peerweave_core::{Error, OnDevice};
use peerweave_driver::cudarc::driver::DevicePtr;
use peerweave_driver::{CudaSlice, CudaStream, DEADLINE, DeviceBuffer, deadline_after, join, wait};
use peerweave_types::Element;

use super::queue::CudaQueue;
use crate::backend::error::{driver, unsupported};

/// The owner of a device buffer. Operations keep the owner alive, but do not wait for other work on
/// the buffer. The caller must order this other work with the operations.
struct Kept(peerweave_driver::Keep);

impl DeviceOwner for Kept {}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({} handles)", Arc::strong_count(&self.0))
    }
}

/// Returns the elements of a device buffer as an operand. Operations keep the owner of the buffer
/// alive, so `buffer` must have an owner. Examples are a
/// [`DeviceMemory`](peerweave_driver::DeviceMemory), a DLPack tensor with its owner, and memory of
/// `peerweave-vmm`.
///
/// The caller must order other work that uses the buffer, because the stream of an operation does
/// not wait for work in other streams.
///
/// # Errors
/// [`Error::Unsupported`] if the buffer has no owner, for example if it is a borrowed slice of
/// cudarc. Pass a slice of cudarc to [`of_cudarc`] instead.
///
/// ```no_run
/// # use peerweave_driver::DeviceMemory;
/// # fn f(world: &peerweave_core::World, memory: &DeviceMemory<f32>) -> peerweave_core::Result<()> {
/// let (stream, operand) = (world.stream()?, peerweave_cuda::on_device(memory)?);
/// let x = world.alloc::<f32>(operand.len())?;
/// stream.copy(&operand, &x)?.wait()
/// # }
/// ```
pub fn on_device<T: Element>(buffer: &impl DeviceBuffer<T>) -> Result<OnDevice<T>, Error> {
    let Some((address, keep)) = buffer.keep() else {
        return Err(unsupported(
            "on_device",
            "the buffer is only borrowed, expected a buffer with an owner, such as DeviceMemory",
        ));
    };
    // SAFETY: [D1] and [D3] of the buffer guarantee `len` elements at this address of this device
    // while `keep` lives.
    Ok(unsafe { OnDevice::from_raw(address, buffer.len(), buffer.device() as u32, Arc::new(Kept(keep))) })
}

/// A cudarc slice (device memory) that operations of this backend use. cudarc gives each slice a
/// stream, and all uses of the slice are ordered on that stream.
struct Slice<T> {
    slice: Arc<CudaSlice<T>>,
}

impl<T: Send + Sync + 'static> DeviceOwner for Slice<T> {
    fn before(&self, stream: Option<&dyn StreamBackend>) -> Result<(), Error> {
        const CALL: &str = "of_cudarc";
        let own = self.slice.stream();
        match stream.and_then(stream_of) {
            Some(stream) => join(stream, own).map_err(|error| driver(CALL, error)),
            None => match wait(own, deadline_after(DEADLINE)) {
                Ok(true) => Ok(()),
                Ok(false) => Err(Error::system(CALL, std::io::Error::from(std::io::ErrorKind::TimedOut))),
                Err(error) => Err(driver(CALL, error)),
            },
        }
    }

    fn after(&self, stream: &dyn StreamBackend) {
        if let Some(stream) = stream_of(stream)
            && let Err(error) = join(self.slice.stream(), stream)
        {
            tracing::warn!(%error, "cannot make the stream of a cudarc slice wait for an operation on the slice");
        }
    }
}

impl<T> fmt::Debug for Slice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({} elements)", self.slice.len())
    }
}

fn stream_of(stream: &dyn StreamBackend) -> Option<&Arc<CudaStream>> {
    let stream: &dyn std::any::Any = stream;
    stream.downcast_ref::<CudaQueue>().map(CudaQueue::cuda)
}

/// Returns a slice of cudarc as an operand. Operations on the operand wait for earlier work in the
/// slice's own stream. Later work in the slice's own stream waits for these operations.
/// [`OnDevice::slice`] returns a part of the operand.
pub fn of_cudarc<T: Element>(slice: Arc<CudaSlice<T>>) -> OnDevice<T> {
    let (address, len, ordinal) = {
        let own = slice.stream();
        let (address, guard) = slice.device_ptr(own);
        drop(guard);
        (address, slice.len(), own.context().ordinal() as u32)
    };
    // SAFETY: the slice has `len` elements at `address`, and frees them when its last handle is
    // dropped.
    unsafe { OnDevice::from_raw(address, len, ordinal, Arc::new(Slice { slice })) }
}
