//! Lists the NCCL resources that a process has not freed, as a value and in a report at process
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

/// Number of `ncclMemAlloc` allocations that have not been freed.
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Total requested size, in bytes, of the `ncclMemAlloc` allocations that have not been freed.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// An `ncclMemAlloc` allocation that is counted until this value is dropped. The value is dropped
/// when the memory is freed.
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

/// NCCL resources that this process has not freed yet. Resources that the process has not freed
/// when it ends are leaks.
///
/// `Display` prints one line for each communicator, one line for all communicators that are still
/// being ended, and one line for all allocations. `Display` prints no line for a number that is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leaks {
    /// Communicators that have been neither finalized nor aborted. A handle, graph, window or
    /// reduction still keeps each of these communicators alive.
    pub communicators: Vec<LeakedCommunicator>,
    /// Number of communicators that are still being ended in the background.
    /// [`Communicator::wait_for_dropped`](crate::Communicator::wait_for_dropped) waits for these
    /// communicators.
    pub ending: usize,
    /// Number of [`NcclMem`](crate::NcclMem) allocations that have not been freed.
    pub allocations: usize,
    /// Total requested size, in bytes, of the [`NcclMem`](crate::NcclMem) allocations that have not
    /// been freed.
    pub allocated_bytes: u64,
}

/// A communicator that has been neither finalized nor aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeakedCommunicator {
    /// Name that identifies the communicator in error messages.
    pub name: Arc<CommunicatorName>,
    /// State in which no work can be enqueued: revoked, suspended or failed. `None` if work can be
    /// enqueued.
    pub state: Option<DeadState>,
    /// Number of windows and buffers registered with the communicator.
    pub registrations: usize,
    /// Number of captured calls whose graphs have not been destroyed.
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
    /// Returns whether this process has freed all NCCL resources.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn of(communicators: &[Arc<Inner>]) -> Self {
        let open = communicators.iter().filter(|inner| !inner.gate.is_closed());
        Self {
            communicators: open.map(|inner| LeakedCommunicator::of(inner)).collect(),
            ending: teardown::communicators(),
            allocations: ALLOCATIONS.load(Ordering::Relaxed),
            allocated_bytes: BYTES.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for leaked in &self.communicators {
            write!(f, "{name} was neither finalized nor aborted", name = leaked.name)?;
            if let Some(state) = leaked.state {
                write!(f, "; {state}")?;
            }
            if leaked.registrations > 0 {
                write!(f, "; registered windows and buffers: {count}", count = leaked.registrations)?;
            }
            if leaked.captured_calls > 0 {
                write!(f, "; calls in captured graphs: {count}", count = leaked.captured_calls)?;
            }
            writeln!(f)?;
        }
        if self.ending > 0 {
            let ending = self.ending;
            writeln!(
                f,
                "communicators that are still being finalized or aborted: {ending}; call Communicator::wait_for_dropped to wait for them"
            )?;
        }
        if self.allocations > 0 {
            let (allocations, bytes) = (self.allocations, self.allocated_bytes);
            writeln!(f, "ncclMemAlloc allocations that have not been freed: {allocations} ({bytes} bytes)")?;
        }
        Ok(())
    }
}

impl Nccl {
    /// Returns the NCCL resources that this process currently holds, in all loaded NCCL libraries.
    ///
    /// ```
    /// assert!(peerweave_nccl::Nccl::leaks().is_empty());
    /// ```
    pub fn leaks() -> Leaks {
        Leaks::of(&membership::all())
    }

    /// Makes the process print its leaked resources to standard error when `main` returns or `exit`
    /// is called. The report consists of the lines that [`Leaks`] displays. The process prints the
    /// report once, even if this function is called several times.
    ///
    /// At exit the process first waits up to 10 s until dropped communicators have been freed. The
    /// report states how many dropped communicators have not been freed by then.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if the system cannot register the function that prints the report at
    /// exit.
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
        let why = "atexit failed: the system accepts no further function to run at exit";
        Err(NcclError::misuse("report_leaks_at_exit", crate::MisuseKind::Context { why }))
    }
}

extern "C" fn report() {
    // A forked child must not end its parent's communicators. If another thread holds the lock of
    // the list for long, the report is omitted.
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
            "communicator #4 (rank 1 of 2) was neither finalized nor aborted; the communicator was revoked, and can only be split, shrunk, aborted or dropped; \
             registered windows and buffers: 2; calls in captured graphs: 1",
            "communicators that are still being finalized or aborted: 1; call Communicator::wait_for_dropped to wait for them",
            "ncclMemAlloc allocations that have not been freed: 2 (4096 bytes)",
        ];
        assert_eq!(leaks.to_string().lines().collect::<Vec<_>>(), lines);
        assert!(!leaks.is_empty());
        assert_eq!(Leaks::default().to_string(), "");
    }
}
