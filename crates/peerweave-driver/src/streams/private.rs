//! Streams that a library makes for itself.
//!
//! Not by cudarc's `new_stream`: the first one of a context waits, without a deadline, for
//! everything that the device has to do (`cuCtxSynchronize`), since from then on cudarc orders
//! streams by events that it did not record before. And not by its `fork`, which counts as such a
//! first stream without that wait, so that the user's own next stream would run into memory that
//! the default stream is still filling.
//!
//! Invariant: the driver's stream is destroyed once, when no handle of it is left.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cudarc::driver::sys::CUstream;
use crate::cudarc::driver::{CudaContext, CudaStream};
use crate::library::bind;
use crate::{CudaError, Driver, DriverError, relaxed};

/// A stream of one's own, in no order with any other, the default stream included.
///
/// Making it waits for nothing. cudarc does not know of it: a slice of cudarc's is not to be used
/// on it but through [`DeviceBuffer`](crate::DeviceBuffer), which orders by itself; nor allocated
/// on it where it is used elsewhere in any other way.
pub struct PrivateStream {
    /// Taken when this is dropped.
    stream: Option<Arc<CudaStream>>,
}

/// All there are, by the driver's handle; with the last handle of those whose makers have dropped
/// them while others had one.
static MADE: Mutex<BTreeMap<usize, Option<Arc<CudaStream>>>> = Mutex::new(BTreeMap::new());

fn made() -> MutexGuard<'static, BTreeMap<usize, Option<Arc<CudaStream>>>> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether it is one of these: cudarc does not count it among the streams of its context.
pub(crate) fn is_private(stream: &CudaStream) -> bool {
    made().contains_key(&stream.cu_stream().addr())
}

/// Whether its maker has dropped it, so that one handle is kept here until nobody else has one.
pub(crate) fn is_left(stream: &CudaStream) -> bool {
    matches!(made().get(&stream.cu_stream().addr()), Some(Some(_)))
}

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
        made().insert(stream.addr(), None);
        // SAFETY: it was just made in this context, nobody else submits work to it, and it is
        // destroyed when this `Arc` has no other handle.
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
        made().insert(stream.cu_stream().addr(), Some(stream));
        sweep();
    }
}

/// Destroys those that nobody has any more. What they have to do is still done.
pub(crate) fn sweep() {
    let mut last = Vec::new();
    made().retain(|_, left| match left.take().map(Arc::try_unwrap) {
        Some(Ok(stream)) => {
            last.push(stream);
            false
        }
        others => {
            *left = others.and_then(Result::err);
            true
        }
    });
    let Ok(driver) = Driver::get() else { return };
    for stream in last {
        // SAFETY: this was the last handle, and cudarc does not destroy what it only wraps.
        let _ = relaxed(|| unsafe { driver.api().cuStreamDestroy_v2(stream.cu_stream()) });
    }
}

impl fmt::Debug for PrivateStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateStream(of device {})", self.context().ordinal())
    }
}
