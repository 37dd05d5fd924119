//! Streams that a library creates for its own use.
//!
//! This module does not use cudarc's `new_stream`. The first `new_stream` in a context calls
//! `cuCtxSynchronize`, which waits for all work of the device without a deadline. Only from then on
//! does cudarc order streams by events.
//!
//! This module does not use cudarc's `fork` either. `fork` does not wait, but cudarc counts the new
//! stream. So a later `new_stream` of the user would not be the first, and would not wait. The
//! user's stream could then use memory that the default stream is still filling.
//!
//! Invariant: the driver's stream is destroyed once, when no handle to the stream remains.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cudarc::driver::sys::CUstream;
use crate::cudarc::driver::{CudaContext, CudaStream};
use crate::library::bind;
use crate::{CudaError, Driver, DriverError, relaxed};

/// A stream that is not ordered with any other stream, not even with the default stream.
///
/// Creating the stream does not wait. cudarc does not know this stream. So use cudarc's slices on
/// this stream only through [`DeviceBuffer`](crate::DeviceBuffer), which orders the work. This rule
/// also applies to slices that were allocated on this stream.
pub struct PrivateStream {
    /// `None` only after `drop` has taken the stream.
    stream: Option<Arc<CudaStream>>,
}

/// All private streams. The key is the driver's handle of a stream. The value is `None` as long as
/// the owner has the stream. After the owner has dropped the stream, the value is a handle that
/// keeps the stream until the stream is destroyed.
static MADE: Mutex<BTreeMap<usize, Option<Arc<CudaStream>>>> = Mutex::new(BTreeMap::new());

fn made() -> MutexGuard<'static, BTreeMap<usize, Option<Arc<CudaStream>>>> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether `stream` is a [`PrivateStream`], which cudarc does not count among the streams
/// of a context.
pub(crate) fn is_private(stream: &CudaStream) -> bool {
    made().contains_key(&stream.cu_stream().addr())
}

/// Returns whether [`MADE`] keeps a handle to `stream`: its owner has dropped the private stream,
/// but other code still has handles.
pub(crate) fn is_left(stream: &CudaStream) -> bool {
    matches!(made().get(&stream.cu_stream().addr()), Some(Some(_)))
}

impl PrivateStream {
    /// Creates a stream in a context.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        /// The flag `CU_STREAM_NON_BLOCKING`: the stream is not ordered with the default stream.
        const NON_BLOCKING: u32 = 1;
        sweep();
        let api = Driver::get()?.api();
        bind(context)?;
        let mut stream: CUstream = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        CudaError::check("cuStreamCreate", relaxed(|| unsafe { api.cuStreamCreate(&raw mut stream, NON_BLOCKING) })?)?;
        made().insert(stream.addr(), None);
        // SAFETY: the stream was just created in this context, no other code submits work to it,
        // and it is destroyed when no other handle to this `Arc` exists.
        let stream = unsafe { context.wrap_borrowed_stream(stream) };
        Ok(Self { stream: Some(stream) })
    }
}

impl Deref for PrivateStream {
    type Target = Arc<CudaStream>;

    fn deref(&self) -> &Arc<CudaStream> {
        self.stream.as_ref().expect("only `drop` takes the stream")
    }
}

impl Drop for PrivateStream {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        made().insert(stream.cu_stream().addr(), Some(stream));
        sweep();
    }
}

/// Destroys each private stream whose owner and all other users have dropped their handles. If
/// other code still has a handle, a later call destroys the stream. The driver still executes the
/// pending work of a destroyed stream.
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
        // SAFETY: this was the last handle, and cudarc does not destroy a stream that it only
        // wraps.
        let _ = relaxed(|| unsafe { driver.api().cuStreamDestroy_v2(stream.cu_stream()) });
    }
}

impl fmt::Debug for PrivateStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateStream(of device {})", self.context().ordinal())
    }
}
