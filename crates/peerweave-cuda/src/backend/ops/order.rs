//! Keeps the collectives, sends and receives of a team in order if they are enqueued on different
//! streams.

use std::sync::{Arc, Mutex, MutexGuard};

use peerweave_core::Error;
use peerweave_driver::{CudaStream, is_capturing, join};

use crate::backend::error::driver;
use crate::backend::lock::lock;

/// Makes `stream` wait for the team's last collective, send or receive, if that operation was
/// enqueued on another stream. So the collectives, sends and receives of a team run in the order in
/// which this PE enqueues them. The caller must enqueue the next operation before it drops the
/// returned guard.
///
/// If `stream` or the other stream is being captured, this function does not order their
/// operations. The application must order them.
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
