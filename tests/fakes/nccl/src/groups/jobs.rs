//! The creation of communicators in a group.
//!
//! Module `api` defines what a job does. Invariant: every job ends, with a connected communicator
//! or with an aborted one.

use crate::abi::{Out, Result};
use crate::comm::{Comm, CommPtr};

/// The creation of a communicator.
pub(crate) struct Job {
    /// The new communicator; `None` for a rank that takes part, but gets no communicator.
    pub(crate) comm: Option<&'static Comm>,
    /// The communicator from which the new communicator is derived.
    pub(crate) parent: Option<&'static Comm>,
    /// Output for the handle.
    pub(crate) handle: Out<CommPtr>,
    /// Connects to the other ranks.
    pub(crate) run: Box<dyn FnOnce() -> Result + Send>,
}

/// Cancels a job: its communicator is never created.
pub(super) fn give_up(job: Job) {
    if let Some(comm) = job.comm {
        job.handle.set(CommPtr::NULL);
        comm.abort();
        comm.release();
    }
}

/// Runs every job in its own thread, because one thread may create several ranks of a communicator.
pub(super) fn run_jobs(jobs: Vec<Job>, blocking: bool) -> Result {
    let mut running = Vec::new();
    for job in jobs {
        let (comm, handle) = (job.comm, job.handle);
        running.push((comm, handle, std::thread::spawn(job.run)));
    }
    let mut result = Ok(());
    for (comm, handle, thread) in running {
        let done = thread.join().unwrap_or_else(|_| {
            eprintln!("fake nccl: a job panicked");
            std::process::abort()
        });
        if done.is_err()
            && blocking
            && let Some(comm) = comm
        {
            handle.set(CommPtr::NULL);
            comm.abort();
            comm.release();
        }
        result = result.and(done);
    }
    result
}
