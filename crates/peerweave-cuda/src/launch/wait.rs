//! Waits for kernels that wait for other PEs. Each wait has a deadline, and its error names the PE.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::Loss;
use peerweave_driver::{CudaStream, deadline_after, wait};
use peerweave_types::{FailureKind, Pe};

use crate::error::{CudaError, KernelFailure};
use crate::gpu::{Gpu, Inner};

/// Interval at which a wait for a stream checks for lost PEs.
const LOOK: Duration = Duration::from_millis(5);
/// Time within which kernels must end after the request to end.
const GRACE: Duration = Duration::from_secs(5);
/// Time after a kernel's failure within which the notice of a PE's death may arrive.
const NOTICE: Duration = Duration::from_millis(1500);

impl Gpu {
    /// Waits until all work of the stream is complete, for at most twice the deadline. Kernels fail
    /// by themselves if one of their waits exceeds the deadline.
    ///
    /// If a PE dies meanwhile, kernels that wait are ended immediately. After an error the GPU can
    /// be used for everything except communication; [`recover`](Self::recover) restores that.
    ///
    /// # Errors
    /// [`CudaError::PeLost`] names the PE that died. [`CudaError::Kernel`] has the report of a
    /// kernel, with the PE that it waited for. [`CudaError::Stuck`] if kernels do not end. Errors
    /// of the driver.
    pub fn wait(&self, stream: &Arc<CudaStream>) -> Result<(), CudaError> {
        self.wait_within(stream, self.0.deadline.saturating_mul(2))
    }

    /// Like [`wait`](Self::wait), with another time limit.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_within(&self, stream: &Arc<CudaStream>, longest: Duration) -> Result<(), CudaError> {
        const CALL: &str = "wait";
        let inner = &*self.0;
        let start = Instant::now();
        let deadline = deadline_after(longest);
        loop {
            if wait(stream, deadline.min(deadline_after(LOOK)))? {
                return inner.ended(CALL);
            }
            let lost = inner.lost();
            if lost.is_some() || Instant::now() >= deadline {
                inner.report.abort();
                if !wait(stream, deadline_after(GRACE))? {
                    *inner.failed() = Some(format!("{CALL}: the stream was still busy"));
                    return Err(match lost {
                        Some((pe, cause)) => CudaError::PeLost { call: CALL, pe, cause, report: inner.report.failure() },
                        None => CudaError::Stuck { call: CALL, waited: start.elapsed() },
                    });
                }
                return inner.ended(CALL);
            }
        }
    }
}

impl Inner {
    /// Returns the PE that was lost first, if any.
    pub(crate) fn lost(&self) -> Option<(Pe, Loss)> {
        self.rendezvous.losses().into_iter().next()
    }

    /// Returns the outcome of completed work.
    pub(crate) fn ended(&self, call: &'static str) -> Result<(), CudaError> {
        let Some(failure) = self.report.failure() else { return Ok(()) };
        let error = match self.death_behind(&failure) {
            Some((pe, cause)) => CudaError::PeLost { call, pe, cause, report: Some(failure) },
            None => CudaError::Kernel { call, failure },
        };
        self.failed().get_or_insert_with(|| error.to_string());
        Err(error)
    }

    /// Returns the loss of a PE that may have caused a failure. Waits for the notice of the loss,
    /// which may arrive late.
    fn death_behind(&self, failure: &KernelFailure) -> Option<(Pe, Loss)> {
        if !matches!(failure.kind, Some(FailureKind::Deadline | FailureKind::Aborted)) {
            return None;
        }
        let until = Instant::now() + NOTICE;
        loop {
            match self.lost() {
                None if Instant::now() < until => std::thread::sleep(LOOK),
                lost => return lost,
            }
        }
    }
}
