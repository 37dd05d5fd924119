//! Starts the creation of a communicator.
//!
//! Module `groups` runs the creation. Invariant: the handle is returned before the ranks have
//! connected, so that a non-blocking program can abort an initialization.

use std::time::Duration;

use super::runtime::start_runtime;
use crate::abi::{Code, Out, Result, fail};
use crate::comm::{Comm, CommPtr};
use crate::groups::{Job, group};
use crate::messages::{Members, mailbox, wire};
use crate::settings;

/// Applies the injected faults of this rank's initialization.
pub(super) fn init_faults(comm: &Comm, rank: i32) -> Result {
    let settings = settings::get();
    let stopped = || comm.stopped();
    if settings.init_slow_ms > 0 {
        mailbox::wait_until(&stopped, Some(Duration::from_millis(settings.init_slow_ms)));
    }
    if settings.init_stuck.is_some_and(|only| only.is_none_or(|only| only == rank)) {
        mailbox::wait_until(&stopped, None);
    }
    if comm.stopped() { fail(Code::InternalError, "initialisation was aborted") } else { Ok(()) }
}

/// Writes the handle of a new communicator, and submits the job that connects its ranks. In the
/// job, `find` determines the members.
pub(super) fn start(
    newcomm: *mut CommPtr,
    comm: &'static Comm,
    parent: Option<&'static Comm>,
    rank: i32,
    find: impl FnOnce(&'static Comm) -> Result<Members> + Send + 'static,
) -> Result {
    start_runtime();
    let handle = Out(newcomm);
    handle.set(comm.handle());
    let run = move || {
        init_faults(comm, rank)?;
        let members = find(comm)?;
        wire::flush(&members.addresses, &|| comm.stopped());
        let _ = comm.members.set(members);
        Ok(())
    };
    let job = Job { comm: Some(comm), parent, handle, run: Box::new(run) };
    // Like NCCL, returns the result of the job only if the communicator has no parent.
    if parent.is_some() { group::submit_job_silently(job) } else { group::submit_job(job) }
}
