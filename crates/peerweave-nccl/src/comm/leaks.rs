//! Leaks: NCCL's resources that a process has not freed, as a value and as a report at process
//! exit.
//!
//! This module frees nothing. Invariant: the report at exit calls neither NCCL nor the driver,
//! because both may have shut down already.

use std::fmt;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Once};

use crate::comm::teardown;
use crate::library::error::{CommunicatorName, NcclError};
use crate::library::loading;
use crate::member::membership::{self, Inner};
use crate::{DeadState, Nccl};

/// Number of allocations of NCCL's memory that are not freed, and their bytes.
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Counts an allocation until it is dropped, when the memory is freed.
pub(crate) struct CountedAllocation(u64);

impl CountedAllocation {
    pub(crate) fn new(bytes: usize) -> Self {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
        Self(bytes as u64)
    }
}

impl Drop for CountedAllocation {
    fn drop(&mut self) {
        ALLOCATIONS.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// NCCL's resources that this process holds now. At the end of a program they are leaks.
///
/// `Display` prints a line for each resource; nothing if there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leaks {
    /// Communicators that were not finalized, aborted, or dropped with their last handle, graph,
    /// window and operation.
    pub communicators: Vec<LeakedCommunicator>,
    /// Number of communicators that are still being ended in the background:
    /// [`Communicator::wait_for_dropped`](crate::Communicator::wait_for_dropped) waits for them.
    pub ending: usize,
    /// Number of allocations of [`NcclMem`](crate::NcclMem) that are not freed.
    pub allocations: usize,
    /// Requested size of these allocations in bytes.
    pub allocated_bytes: u64,
}

/// A communicator that was not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeakedCommunicator {
    /// Name of the communicator in errors.
    pub name: Arc<CommunicatorName>,
    /// The reason why the communicator cannot be used, if any: revoked, suspended or failed.
    pub state: Option<DeadState>,
    /// Number of windows and buffers registered with it.
    pub registrations: usize,
    /// Number of captured calls whose graphs were not destroyed.
    pub captured_calls: usize,
}

impl LeakedCommunicator {
    fn of(inner: &Inner) -> Self {
        Self {
            name: Arc::clone(&inner.name),
            state: inner.gate.state().dead_unless_live(),
            registrations: inner.registered.count(),
            captured_calls: inner.graphs.load(Ordering::Acquire),
        }
    }
}

impl Leaks {
    /// Returns whether there are no leaks.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn of(communicators: &[Arc<Inner>]) -> Self {
        let open = communicators.iter().filter(|inner| !inner.gate.is_closed());
        Self {
            communicators: open.map(|inner| LeakedCommunicator::of(inner)).collect(),
            ending: teardown::count(),
            allocations: ALLOCATIONS.load(Ordering::Relaxed),
            allocated_bytes: BYTES.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for leaked in &self.communicators {
            write!(f, "{} was neither finalized nor aborted", leaked.name)?;
            if let Some(state) = leaked.state {
                write!(f, "; {state}")?;
            }
            if leaked.registrations > 0 {
                write!(f, "; {} registered windows and buffers", leaked.registrations)?;
            }
            if leaked.captured_calls > 0 {
                write!(f, "; {} calls in captured graphs", leaked.captured_calls)?;
            }
            writeln!(f)?;
        }
        if self.ending > 0 {
            writeln!(f, "{} communicators are still being ended; Communicator::wait_for_dropped waits for them", self.ending)?;
        }
        if self.allocations > 0 {
            writeln!(f, "{} allocations of NCCL's memory ({} bytes) were not freed", self.allocations, self.allocated_bytes)?;
        }
        Ok(())
    }
}

impl Nccl {
    /// Returns the NCCL resources that this process holds now, from every loaded NCCL library.
    ///
    /// ```
    /// assert!(peerweave_nccl::Nccl::leaks().is_empty());
    /// ```
    pub fn leaks() -> Leaks {
        Leaks::of(&membership::all())
    }

    /// Prints leaked resources to standard error when the process ends (by return from `main` or
    /// `exit`), one line for each. The report is printed once, even if requested several times.
    ///
    /// The end of the process waits up to 10 s for communicators that were dropped and are still
    /// being ended. A communicator that takes longer is reported as such.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if the system accepts no more functions for the end of the process.
    pub fn report_leaks_at_exit() -> Result<(), NcclError> {
        static ONCE: Once = Once::new();
        let mut refused = false;
        ONCE.call_once(|| {
            // SAFETY: the function lives as long as the process, and uses nothing that may have
            // been destroyed before it runs.
            refused = unsafe { libc::atexit(report) } != 0;
        });
        if !refused {
            return Ok(());
        }
        let why = "atexit failed: the system accepts no more functions";
        Err(NcclError::misuse("report_leaks_at_exit", crate::MisuseKind::Context { why }))
    }
}

extern "C" fn report() {
    // A forked child must not end its parent's communicators. If another thread holds the list for
    // long, the report is omitted.
    let Some(communicators) = loading::not_forked("report").ok().and_then(|()| membership::all_if_free()) else { return };
    let text = Leaks::of(&communicators).to_string();
    // Dropping the last handle would end a communicator on a background thread, which ends with the
    // process.
    std::mem::forget(communicators);
    let mut stderr = std::io::stderr().lock();
    for line in text.lines() {
        let _ = writeln!(stderr, "peerweave-nccl: leaked: {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rank;

    #[test]
    fn each_leak_is_reported_on_its_own_line() {
        let name = |number| Arc::new(CommunicatorName { name: None, rank: Rank::new(1), ranks: 2, number });
        let leaked = |number, state, registrations, captured_calls| LeakedCommunicator {
            name: name(number),
            state,
            registrations,
            captured_calls,
        };
        let leaks = Leaks {
            communicators: vec![leaked(3, None, 0, 0), leaked(4, Some(DeadState::Revoked), 2, 1)],
            ending: 1,
            allocations: 2,
            allocated_bytes: 4096,
        };
        let lines = [
            "communicator #3 (rank 1 of 2) was neither finalized nor aborted",
            "communicator #4 (rank 1 of 2) was neither finalized nor aborted; the communicator was revoked, and can only be split, shrunk or destroyed; \
             2 registered windows and buffers; 1 calls in captured graphs",
            "1 communicators are still being ended; Communicator::wait_for_dropped waits for them",
            "2 allocations of NCCL's memory (4096 bytes) were not freed",
        ];
        assert_eq!(leaks.to_string().lines().collect::<Vec<_>>(), lines);
        assert!(!leaks.is_empty());
        assert_eq!(Leaks::default().to_string(), "");
    }
}
