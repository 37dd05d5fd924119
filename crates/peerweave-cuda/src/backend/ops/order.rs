//! Keeps the collectives, sends and receives of a team in order if they are enqueued on different
//! streams.

use std::sync::{Arc, Mutex, MutexGuard};

use peerweave_core::Error;
use peerweave_driver::{CudaStream, is_capturing, join};

use crate::backend::error::driver;
use crate::backend::lock::lock;

/// Makes a stream wait for the team's last collective, send or receive, if that operation was
/// enqueued on a different stream. So the collectives, sends and receives of a team run one after
/// the other, in the order in which this PE enqueues them. The caller enqueues the operation while
/// it holds the returned guard.
///
/// If one of the two streams is being captured, this function does not order their operations: the
/// application must order them.
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
