//! One order for the collectives of a team in this process, whatever streams they are on.
//!
//! Does not know what the other PEs do: that everybody calls the same ones, in the same order, is
//! theirs to hold.
//!
//! NVSHMEM keeps one set of counters for each team, by which its PEs find each other. Two
//! collectives of a team that run at once, on two streams, use the same counters, and corrupt each
//! other: both may hang, or end before everybody came. So a collective on another stream than the
//! last one waits for it.
//!
//! # Invariant
//! - **\[O1\]** Of the collectives of a team that this process has enqueued and that are not done,
//!   each waits for the one before.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use peerweave_driver::{CudaStream, deadline_after, is_capturing, is_same_capture, join, relaxed, wait_until};

use crate::comm::Comm;
use crate::comm::streams::pass;
use crate::error::{MisuseKind, NvshmemError};

/// The last stream that a collective of a team was enqueued on.
#[derive(Debug, Default)]
pub(crate) struct Order(Mutex<Option<Arc<CudaStream>>>);

/// The right to call the team's next collective, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    _last: MutexGuard<'a, Option<Arc<CudaStream>>>,
}

/// Takes a lock, at most for the context's deadline: another thread may be in a call with it that
/// waits for other PEs.
pub(crate) fn take<'a, T>(lock: &'a Mutex<T>, call: &'static str, comm: &Comm) -> Result<MutexGuard<'a, T>, NvshmemError> {
    let try_take = || match lock.try_lock() {
        Ok(taken) => Some(taken),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    if let Some(taken) = try_take() {
        return Ok(taken);
    }
    let (start, mut found) = (Instant::now(), None);
    let _ = wait_until(deadline_after(comm.deadline), || {
        found = try_take();
        Ok::<_, Infallible>(found.is_some())
    });
    found.ok_or_else(|| comm.late(call, start.elapsed(), Vec::new()))
}

impl Order {
    /// Makes the stream the team's: its next work comes after the team's last collective [O1].
    pub(crate) fn follow(
        &self,
        call: &'static str,
        comm: &Comm,
        stream: &Arc<CudaStream>,
        capturing: bool,
    ) -> Result<Turn<'_>, NvshmemError> {
        let mut last = take(&self.0, call, comm)?;
        if let Some(former) = last.as_ref().filter(|former| !same(former, stream)) {
            match (is_capturing(former)?, capturing) {
                (false, false) => relaxed(|| join(stream, former))?,
                // A graph cannot wait for what is outside of it, so that must be over.
                (false, true) => pass(call, comm, former)?,
                (true, true) if is_same_capture(former, stream)? => join(stream, former)?,
                (true, _) => {
                    let why = "the team's last collective is on a stream that is being captured, which nothing outside of that graph can wait for: end the capture first, or use another team";
                    return Err(NvshmemError::misuse(call, MisuseKind::Context { why }));
                }
            }
        }
        if last.as_ref().is_none_or(|former| !Arc::ptr_eq(former, stream)) {
            *last = Some(Arc::clone(stream));
        }
        Ok(Turn { _last: last })
    }

    /// Waits until the team's last collective is done, at most for the context's deadline: for what
    /// NVSHMEM does on a stream of its own.
    pub(crate) fn drain(&self, call: &'static str, comm: &Comm) -> Result<Turn<'_>, NvshmemError> {
        let mut last = take(&self.0, call, comm)?;
        if let Some(stream) = &*last {
            pass(call, comm, stream)?;
        }
        *last = None;
        Ok(Turn { _last: last })
    }
}

/// Whether both are one stream of the driver's: handles of the default stream are many.
fn same(one: &Arc<CudaStream>, other: &Arc<CudaStream>) -> bool {
    Arc::ptr_eq(one, other) || one.cu_stream() == other.cu_stream() && one.context() == other.context()
}
