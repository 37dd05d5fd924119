//! Streams that a library makes for itself.
//!
//! Not by cudarc's `new_stream`: the first one of a context waits, without a deadline, for everything that the device has to do (`cuCtxSynchronize`),
//! since from then on cudarc orders streams by events that it did not record before. And not by its `fork`, which counts as such a first stream without
//! that wait, so that the user's own next stream would run into memory that the default stream is still filling.
//!
//! Invariant: the driver's stream is destroyed once, when no handle of it is left.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cudarc::driver::sys::CUstream;
use crate::cudarc::driver::{CudaContext, CudaStream};
use crate::driver::bind;
use crate::{CudaError, Driver, DriverError, relaxed};

/// A stream of one's own, in no order with any other, the default stream included.
///
/// Making it waits for nothing. cudarc does not know of it: a slice of cudarc's is not to be used on it but through
/// [`DeviceBuffer`](crate::DeviceBuffer), which orders by itself.
pub struct PrivateStream {
    /// Taken when this is dropped.
    stream: Option<Arc<CudaStream>>,
}

/// Streams whose makers have dropped them while others have handles.
static LEFT: Mutex<Vec<Arc<CudaStream>>> = Mutex::new(Vec::new());

impl PrivateStream {
    /// Makes a stream in a context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        /// `CU_STREAM_NON_BLOCKING`: in no order with the default stream.
        const NON_BLOCKING: u32 = 1;
        sweep();
        let api = Driver::get()?.api();
        bind(context)?;
        let mut stream: CUstream = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        CudaError::check("cuStreamCreate", relaxed(|| unsafe { api.cuStreamCreate(&raw mut stream, NON_BLOCKING) })?)?;
        // SAFETY: it was just made in this context, nobody else submits work to it, and it is destroyed when this `Arc` has no other handle.
        let stream = unsafe { context.wrap_borrowed_stream(stream) };
        Ok(Self { stream: Some(stream) })
    }
}

impl Deref for PrivateStream {
    type Target = Arc<CudaStream>;

    fn deref(&self) -> &Arc<CudaStream> {
        self.stream.as_ref().expect("it is taken in `drop` only")
    }
}

impl Drop for PrivateStream {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        if let Err(stream) = destroy(stream) {
            LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        }
        sweep();
    }
}

/// Destroys a stream, or gives it back where somebody else has a handle. What it has to do is still done.
fn destroy(stream: Arc<CudaStream>) -> Result<(), Arc<CudaStream>> {
    let stream = Arc::try_unwrap(stream)?;
    if let Ok(driver) = Driver::get() {
        // SAFETY: this was the last handle, and cudarc does not destroy what it only wraps.
        let _ = relaxed(|| unsafe { driver.api().cuStreamDestroy_v2(stream.cu_stream()) });
    }
    Ok(())
}

/// Destroys those that nobody has any more.
pub(crate) fn sweep() {
    let left = std::mem::take(&mut *LEFT.lock().unwrap_or_else(PoisonError::into_inner));
    if left.is_empty() {
        return;
    }
    let still: Vec<Arc<CudaStream>> = left.into_iter().filter_map(|stream| destroy(stream).err()).collect();
    LEFT.lock().unwrap_or_else(PoisonError::into_inner).extend(still);
}

impl fmt::Debug for PrivateStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateStream(of device {})", self.context().ordinal())
    }
}
