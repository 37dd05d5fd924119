//! The order of a team's collectives, sends and receives.

use std::sync::{Arc, Mutex, MutexGuard};

use peerweave_core::Error;
use peerweave_driver::{CudaStream, is_capturing, join};

use crate::backend::error::driver;
use crate::backend::lock::lock;

/// Puts the work of a stream behind the last work of a team on another stream: its collectives,
/// sends and receives run one after the other, in the order in which they are enqueued while the
/// result lives.
///
/// Where one of the streams is being captured, the caller orders them.
pub(super) fn order<'a>(
    last: &'a Mutex<Option<Arc<CudaStream>>>,
    call: &'static str,
    stream: &Arc<CudaStream>,
    capturing: bool,
) -> Result<MutexGuard<'a, Option<Arc<CudaStream>>>, Error> {
    let mut last = lock(last);
    if capturing || last.as_ref().is_some_and(|other| Arc::ptr_eq(other, stream)) {
        return Ok(last);
    }
    if let Some(other) = &*last
        && other.cu_stream() != stream.cu_stream()
        && matches!(is_capturing(other), Ok(false))
    {
        join(stream, other).map_err(|error| driver(call, error))?;
    }
    *last = Some(Arc::clone(stream));
    Ok(last)
}
