//! Waiting with a deadline for what only a question can tell.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cudarc::driver::CudaStream;
use crate::cudarc::driver::sys::CUresult;
use crate::{CudaError, Driver, DriverError};

/// Asks `ready` until it says yes or the deadline has passed: at first in a row, then with pauses that grow to a millisecond.
///
/// Gives whether it became ready. A deadline that has passed already still asks once.
///
/// # Errors
/// The first error of `ready`.
pub fn wait_until<E>(deadline: Instant, mut ready: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
    let start = Instant::now();
    loop {
        if ready()? {
            return Ok(true);
        }
        let now = Instant::now();
        if now >= deadline {
            return Ok(false);
        }
        match now - start {
            // Most calls take microseconds, and a pause costs fifty of them.
            waited if waited < Duration::from_micros(100) => std::hint::spin_loop(),
            waited if waited < Duration::from_millis(1) => std::thread::yield_now(),
            waited => std::thread::sleep((waited / 16).min(Duration::from_millis(1)).min(deadline - now)),
        }
    }
}

/// Waits until all work is done that the stream has now, or the deadline has passed. Gives whether it is done.
///
/// Asks the driver again and again, so that a stream that never ends does not keep the caller. Units: `deadline` is a moment.
///
/// # Errors
/// What the work failed with, or why the driver cannot be asked (the stream is being captured, for instance).
pub fn wait(stream: &Arc<CudaStream>, deadline: Instant) -> Result<bool, DriverError> {
    let driver = Driver::get()?;
    stream.context().bind_to_thread().map_err(CudaError::of("cuCtxSetCurrent"))?;
    wait_until(deadline, || {
        // SAFETY: the stream lives as long as the `Arc` that holds it.
        match unsafe { driver.api().cuStreamQuery(stream.cu_stream()) }? {
            CUresult::CUDA_SUCCESS => Ok(true),
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => Err(CudaError::new("cuStreamQuery", code).into()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_in_the_past_still_asks_once() {
        let mut asked = 0;
        let ready = wait_until::<()>(Instant::now(), || {
            asked += 1;
            Ok(true)
        });
        assert_eq!((ready, asked), (Ok(true), 1));
    }

    #[test]
    fn what_never_comes_ends_at_the_deadline() {
        let start = Instant::now();
        assert_eq!(wait_until::<()>(start + Duration::from_millis(20), || Ok(false)), Ok(false));
        assert!((Duration::from_millis(20)..Duration::from_secs(2)).contains(&start.elapsed()));
    }

    #[test]
    fn error_ends_the_wait() {
        assert_eq!(wait_until(Instant::now() + Duration::from_secs(60), || Err("broken")), Err("broken"));
    }
}
