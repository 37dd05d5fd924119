//! Waits until kernels have ended. These kernels may themselves wait for other PEs. Each wait of
//! the host has a deadline, and its error names the PE that is lost or missing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::Loss;
use peerweave_driver::{CudaStream, deadline_after, wait};
use peerweave_types::{FailureKind, Pe};

use crate::error::{CudaError, KernelFailure};
use crate::gpu::{Gpu, Inner};

/// Interval at which a wait for a stream checks for lost PEs.
const LOOK: Duration = Duration::from_millis(5);
/// Maximum time for which the host waits until kernels end, after it has requested them to end.
const GRACE: Duration = Duration::from_secs(5);
/// Maximum time for which the host waits to learn that a PE is lost, after a kernel has failed.
const NOTICE: Duration = Duration::from_millis(1500);

impl Gpu {
    /// Waits until all work in the stream is complete, for at most twice the deadline of the GPU.
    /// If kernels still run after this time, requests them to end, and waits for up to 5 s more.
    /// Normally this request is not needed, because a kernel fails when one of its waits exceeds
    /// the deadline.
    ///
    /// If a PE is lost during the wait, the call immediately requests waiting kernels to end. After
    /// an error, the GPU can be used for everything except communication.
    /// [`recover`](Self::recover) makes communication possible again, unless a PE has been lost.
    ///
    /// # Errors
    /// [`CudaError::PeLost`] if a PE has been lost. [`CudaError::Kernel`] if a kernel has failed.
    /// This error names the PE for which the kernel waited. [`CudaError::Stuck`] if kernels do not
    /// end. Errors of the driver.
    pub fn wait(&self, stream: &Arc<CudaStream>) -> Result<(), CudaError> {
        self.wait_within(stream, self.0.deadline.saturating_mul(2))
    }

    /// Like [`wait`](Self::wait), but with the time limit `longest`.
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
                    *inner.failed() = Some(format!("{CALL}: a stream did not complete after an abort was requested"));
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
    /// Returns the lost PE that [`first_loss`] considers the cause of all losses, and the reason
    /// why this PE is lost. Returns `None` if no PE is lost.
    pub(crate) fn lost(&self) -> Option<(Pe, Loss)> {
        first_loss(&self.rendezvous.losses(), self.rendezvous.pe())
    }

    /// Returns an error if a kernel has reported a failure. The error is [`CudaError::PeLost`] if a
    /// lost PE may have caused the failure. Also records the error as the failure of the GPU,
    /// unless an earlier failure is recorded. Called after work on the GPU has ended.
    pub(crate) fn ended(&self, call: &'static str) -> Result<(), CudaError> {
        let Some(failure) = self.report.failure() else { return Ok(()) };
        let error = match self.death_that_caused(&failure) {
            Some((pe, cause)) => CudaError::PeLost { call, pe, cause, report: Some(failure) },
            None => CudaError::Kernel { call, failure },
        };
        self.failed().get_or_insert_with(|| error.to_string());
        Err(error)
    }

    /// Returns a lost PE that may be the cause of a kernel's failure, and the cause of its loss.
    /// Returns `None` if there is no such PE. Waits for up to [`NOTICE`], because the notice of a
    /// loss may arrive after the failure.
    fn death_that_caused(&self, failure: &KernelFailure) -> Option<(Pe, Loss)> {
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

/// Returns the loss that caused the other losses, and its PE. Begins with the first loss in
/// `losses`. If the PE of a loss gave up because of a missing PE, and `losses` contains the missing
/// PE, continues with the loss of the missing PE.
///
/// `me` is this PE. If the returned PE gave up because this PE was late, the result does not name
/// `me` as missing, because this PE is not lost.
fn first_loss(losses: &[(Pe, Loss)], me: Pe) -> Option<(Pe, Loss)> {
    let mut found = losses.first()?;
    for _ in losses {
        let Loss::GaveUp { missing } = &found.1 else { break };
        let Some(next) = losses.iter().find(|(pe, _)| missing.contains(pe)) else { break };
        found = next;
    }
    Some(match found {
        (pe, Loss::GaveUp { missing }) => {
            (*pe, Loss::GaveUp { missing: missing.iter().copied().filter(|missing| *missing != me).collect() })
        }
        other => other.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_cause_of_the_failures_of_several_pes_is_found() {
        let [a, b, c, me] = [0, 1, 2, 3].map(Pe::new);
        let gave_up = |missing: &[Pe]| Loss::GaveUp { missing: missing.to_vec() };
        assert_eq!(first_loss(&[], me), None);
        assert_eq!(first_loss(&[(a, Loss::Left), (b, Loss::Disconnected)], me), Some((a, Loss::Left)));
        let chain = [(a, gave_up(&[b])), (b, gave_up(&[c])), (c, Loss::Disconnected)];
        assert_eq!(first_loss(&chain, me), Some((c, Loss::Disconnected)));
        assert_eq!(first_loss(&chain[..2], me), Some((b, gave_up(&[c]))), "c is late, but not lost");
        assert_eq!(first_loss(&[(a, gave_up(&[me]))], me), Some((a, gave_up(&[]))));
        let circle = [(a, gave_up(&[b])), (b, gave_up(&[a]))];
        assert!(first_loss(&circle, me).is_some());
    }
}
