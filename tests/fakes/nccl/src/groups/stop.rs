//! Launches that end early, and waits until a communicator is stopped.

use crate::comm::Comm;
use crate::messages::mailbox;
use crate::report::log;

/// Reason for an early end of a launch: an abort, a revocation, or an injected hang that an abort
/// ended.
pub(super) struct Stopped;

/// Result of a step of a launch.
pub(super) type Step<T = ()> = Result<T, Stopped>;

/// Waits until the communicator is stopped.
pub(super) fn stay(comm: &Comm) -> Step {
    mailbox::wait_until(&|| comm.stopped(), None);
    Err(Stopped)
}

/// Waits forever, as NCCL does if ranks disagree, and logs the reason.
pub(super) fn mismatch(comm: &Comm, what: &str) -> Step {
    log::line(&format!("mismatch at rank {}: {what}", comm.who().rank));
    stay(comm)
}
