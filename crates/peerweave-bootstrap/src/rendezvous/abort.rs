//! Ends all PEs of a job. One PE calls `abort`, and every process is notified, even if the
//! process is busy.
//!
//! The server decides which call was first. In each process, a thread waits for the notification on
//! the connection, because other threads may never call this crate again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use peerweave_types::Pe;

use super::connection::NotAborted;
use super::{Link, Rendezvous};
use crate::error::BootstrapError;
use crate::wire::proto::Frame;

/// An abort of the job: the PE that ended the job, and the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aborted {
    /// The PE that was first to end the job.
    pub by: Pe,
    /// The exit code that the PE `by` passed.
    pub code: u8,
}

/// Maximum time for which [`Rendezvous::abort`] waits until the server has reported the first abort
/// of the job. `yield_to_abort` sleeps for the same time.
const NOTIFIED: Duration = Duration::from_secs(1);

/// Time limit of one wait for an abort of the job. The thread of [`Rendezvous::when_aborted`]
/// repeats the wait.
const WATCH: Duration = Duration::from_secs(3600);

impl Rendezvous {
    /// Ends the job: notifies every PE that called [`when_aborted`](Self::when_aborted), even if
    /// the PE is busy. Returns the first abort of the job, which another PE may have requested.
    /// After this call, the caller must end its own process, for example by
    /// [`end_process`](crate::end_process).
    ///
    /// Waits for the server for at most a second. In a job of one PE, and in a forked child of the
    /// process that joined, this call notifies no process and returns the caller's own abort.
    ///
    /// ```
    /// use peerweave_bootstrap::{Job, Options, Pe, Rendezvous};
    ///
    /// let rendezvous = Rendezvous::join(&Job::single(), Options::default())?;
    /// let first = rendezvous.abort(3);
    /// assert_eq!((first.by, first.code), (Pe::new(0), 3));
    /// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
    /// ```
    pub fn abort(&self, code: u8) -> Aborted {
        let mine = Aborted { by: self.pe, code };
        let Link::Joined { connection, .. } = &self.link else { return mine };
        if self.check_process("abort").is_err() {
            return mine;
        }
        let until = Instant::now() + NOTIFIED;
        connection.send_only(&Frame::Abort { code }, until);
        let first = connection.wait_for_abort(until).map_or(mine, |(pe, code)| Aborted { by: Pe::new(pe), code });
        self.finish_notifying();
        first
    }

    /// Calls `then` on a separate thread when a PE has ended the job by [`abort`](Self::abort). If
    /// this PE leaves the job first, or if its connection closes first, the thread ends without
    /// calling `then`. A job of one PE starts no thread.
    ///
    /// # Errors
    /// [`BootstrapError::Io`] if the thread cannot be started. [`BootstrapError::Forked`] in a
    /// forked child of the process that joined.
    pub fn when_aborted(self: &Arc<Self>, then: impl FnOnce(Aborted) + Send + 'static) -> Result<(), BootstrapError> {
        self.check_process("when_aborted")?;
        let Link::Joined { connection, .. } = &self.link else { return Ok(()) };
        let (connection, this) = (connection.clone(), Arc::downgrade(self));
        let watch = move || {
            let (pe, code) = loop {
                match connection.wait_for_abort(Instant::now() + WATCH) {
                    Ok(aborted) => break aborted,
                    Err(NotAborted::Late) => {}
                    Err(NotAborted::Closed) => return,
                }
            };
            // `then` may end the process, and with it the server of PE 0.
            if let Some(this) = this.upgrade() {
                this.finish_notifying();
            }
            then(Aborted { by: Pe::new(pe), code });
        };
        let started = thread::Builder::new().name("peerweave-abort".to_owned()).stack_size(256 << 10).spawn(watch);
        started.map_err(|error| BootstrapError::io("when_aborted", &error))?;
        self.watched.store(true, Ordering::Release);
        Ok(())
    }

    /// Sleeps for a second if the job was aborted and this PE has called
    /// [`when_aborted`](Self::when_aborted). During the sleep, the function that was passed to
    /// `when_aborted` can end this process. Without the sleep, the caller could first get an error
    /// that reports another PE as lost, although that PE has ended because of the abort.
    pub(super) fn yield_to_abort(&self) {
        if let Link::Joined { connection, .. } = &self.link
            && self.watched.load(Ordering::Acquire)
            && connection.is_aborted()
        {
            thread::sleep(NOTIFIED);
        }
    }

    /// Waits until the server has notified all PEs. Returns immediately if this PE does not run the
    /// server.
    fn finish_notifying(&self) {
        if let Some(server) = &self.server {
            server.sync();
        }
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        // A forked child has a copy of the socket, but the connection belongs to the parent.
        if let Link::Joined { connection, .. } = &self.link
            && self.watched.load(Ordering::Acquire)
            && self.check_process("drop").is_ok()
        {
            // Makes the thread end that waits on the connection.
            connection.shut_down();
        }
    }
}
