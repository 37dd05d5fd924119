//! Waits with a deadline, for a condition or for the work on a stream. The waits poll and sleep.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cudarc::driver::CudaStream;
use crate::library::bind;
use crate::streams::capture::cannot_be_asked;
use crate::{CudaCode, CudaError, Driver, DriverError, is_capturing, relaxed};

/// Returns the time `longest` from now. If the clock cannot represent that time, returns a time
/// about ten years from now. Unlike `Instant::now() + longest`, this function never panics.
pub fn deadline_after(longest: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);
    let now = Instant::now();
    now.checked_add(longest).unwrap_or(now + NEVER)
}

/// Polls `ready` until it returns `true` or the deadline has passed. At first, polls without
/// pauses. Later, polls with pauses of up to a millisecond.
///
/// Returns `false` at the deadline. Polls at least once, even if the deadline has already passed.
///
/// # Errors
/// Returns the first error of `ready`.
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
            // Most waits take microseconds, but the shortest pause takes about 50 µs.
            waited if waited < Duration::from_micros(100) => std::hint::spin_loop(),
            waited if waited < Duration::from_millis(1) => std::thread::yield_now(),
            waited => std::thread::sleep((waited / 16).min(Duration::from_millis(1)).min(deadline - now)),
        }
    }
}

/// Waits until the stream has no pending work. Returns `false` if work is still pending at the
/// deadline.
///
/// Polls the driver, so a stream that never completes does not block the caller beyond the
/// deadline. During the wait, other threads may capture other streams. For a per-thread stream,
/// waits for the per-thread stream of the calling thread.
///
/// # Errors
/// Errors of the pending work or of the driver's query. [`DriverError::Capturing`] if the stream is
/// being captured.
pub fn wait(stream: &Arc<CudaStream>, deadline: Instant) -> Result<bool, DriverError> {
    wait_until(deadline, || match is_capturing(stream)? {
        true => Err(DriverError::Capturing { call: "wait" }),
        false => is_idle(stream),
    })
}

/// Like [`wait`], but returns no error if the stream is being captured. Until the capture ends, the
/// work on the stream counts as pending, because the stream cannot be queried.
///
/// # Errors
/// Errors of the pending work or of the driver's query.
pub fn wait_past_capture(stream: &Arc<CudaStream>, deadline: Instant) -> Result<bool, DriverError> {
    wait_until(deadline, || Ok(!cannot_be_asked(stream)? && is_idle(stream)?))
}

/// Returns whether a stream has no pending work. The stream must not be in a capture, because the
/// query would invalidate the capture.
fn is_idle(stream: &CudaStream) -> Result<bool, DriverError> {
    let api = Driver::get()?.api();
    bind(stream.context())?;
    // SAFETY: the stream is live while it is borrowed.
    match relaxed(|| unsafe { api.cuStreamQuery(stream.cu_stream()) })? {
        CudaCode::SUCCESS => Ok(true),
        CudaCode::NOT_READY => Ok(false),
        code => Err(CudaError::new("cuStreamQuery", code).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_with_a_past_deadline_polls_once() {
        let mut asked = 0;
        let ready = wait_until::<()>(Instant::now(), || {
            asked += 1;
            Ok(true)
        });
        assert_eq!((ready, asked), (Ok(true), 1));
    }

    #[test]
    fn wait_for_a_condition_that_stays_false_ends_at_the_deadline() {
        let start = Instant::now();
        assert_eq!(wait_until::<()>(start + Duration::from_millis(20), || Ok(false)), Ok(false));
        assert!((Duration::from_millis(20)..Duration::from_secs(20)).contains(&start.elapsed()));
    }

    #[test]
    fn computing_a_deadline_for_duration_max_does_not_panic() {
        assert!(deadline_after(Duration::MAX) > Instant::now() + Duration::from_secs(1_000_000));
        assert!(deadline_after(Duration::ZERO) <= Instant::now());
    }

    #[test]
    fn error_of_the_polled_function_ends_the_wait() {
        assert_eq!(wait_until(Instant::now() + Duration::from_secs(60), || Err("broken")), Err("broken"));
    }
}
