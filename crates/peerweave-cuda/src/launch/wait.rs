//! Waits for kernels that wait for other PEs: bounded, and with an error that names the PE.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::Loss;
use peerweave_driver::{CudaStream, deadline_after, wait};
use peerweave_types::{FailureKind, Pe};

use crate::error::{CudaError, KernelFailure};
use crate::gpu::{Gpu, Inner};

/// How often the rendezvous is asked for losses while a stream is waited for.
const LOOK: Duration = Duration::from_millis(5);
/// How long kernels have to end after they were asked to.
const GRACE: Duration = Duration::from_secs(5);
/// How long after a kernel's failure the notice of a death may arrive.
const NOTICE: Duration = Duration::from_millis(1500);

impl Gpu {
    /// Waits until all work of the stream is done, at most for twice the deadline: kernels end by
    /// themselves when one of their waits takes longer than that.
    ///
    /// When a PE dies meanwhile, kernels that wait are ended at once. After an error the GPU can be
    /// used for everything but communication; for that see [`recover`](Self::recover).
    ///
    /// # Errors
    /// [`CudaError::PeLost`] names the PE that died; [`CudaError::Kernel`] has what a kernel
    /// reported, with the PE that did not do its part; [`CudaError::Stuck`] where kernels do not
    /// end; what the driver says.
    pub fn wait(&self, stream: &Arc<CudaStream>) -> Result<(), CudaError> {
        self.wait_within(stream, self.0.deadline.saturating_mul(2))
    }

    /// As [`wait`](Self::wait), with another longest time.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
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
    /// The PE that is known to be lost first.
    fn lost(&self) -> Option<(Pe, Loss)> {
        self.rendezvous.losses().into_iter().next()
    }

    /// The outcome of work that has ended.
    pub(crate) fn ended(&self, call: &'static str) -> Result<(), CudaError> {
        let Some(failure) = self.report.failure() else { return Ok(()) };
        let error = match self.death_behind(&failure) {
            Some((pe, cause)) => CudaError::PeLost { call, pe, cause, report: Some(failure) },
            None => CudaError::Kernel { call, failure },
        };
        self.failed().get_or_insert_with(|| error.to_string());
        Err(error)
    }

    /// The death that a failure may come from: its notice may be on its way.
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
