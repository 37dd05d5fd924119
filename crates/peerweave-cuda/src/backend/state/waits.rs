//! Waits of the host for CUDA events. A wait ends early after a failure.

use std::time::{Duration, Instant};

use peerweave_core::{Error, TeamName, Timeout};
use peerweave_driver::{DriverError, deadline_after, wait_until};

use super::State;
use crate::backend::error::NAME;
use crate::backend::resources::Recorded;

/// Interval at which a wait for an event checks for lost PEs and for failures.
const LOOK: Duration = Duration::from_millis(5);

impl State {
    /// Waits until a stream has passed an event, for at most `within`. Returns whether the stream
    /// has passed the event. During the wait, aborts waiting kernels and NCCL if a PE is lost or
    /// calls `shrink`, if a kernel fails, or if the calls of ranks differ.
    pub(crate) fn wait_for(&self, event: &Recorded, within: Duration) -> Result<bool, DriverError> {
        let mut looked = Instant::now();
        let mut aborted = false;
        wait_until(deadline_after(within), || {
            if event.is_complete()? {
                return Ok(true);
            }
            if !aborted && looked.elapsed() >= LOOK {
                looked = Instant::now();
                // After a failure, later kernels would wait for ranks that do not arrive.
                if let Ok(gpu) = self.gpu(NAME)
                    && (gpu.0.lost().is_some()
                        || self.shrinks().is_some()
                        || gpu.0.report.failure().is_some()
                        || self.compare_all().is_err())
                {
                    gpu.0.report.abort();
                    self.nccl.abort();
                    aborted = true;
                }
            }
            Ok(false)
        })
    }

    /// Returns the error of a wait that has reached its deadline.
    pub(crate) fn timed_out(&self, call: &'static str, team: TeamName, waited: Duration) -> Error {
        Timeout::new(call, team, waited, Vec::new()).into()
    }
}
