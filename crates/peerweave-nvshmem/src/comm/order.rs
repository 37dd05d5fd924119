//! The order of a team's collectives in this process, across all streams.
//!
//! The order is not compared among PEs: all PEs must call the same collectives in the same order.
//!
//! NVSHMEM has one set of counters for each team, with which the PEs of the team synchronise. Two
//! collectives of a team that run concurrently on two streams corrupt these counters: both
//! collectives may hang or end too early. Therefore a collective waits for the team's previous
//! collective if that collective is on a different stream.
//!
//! # Invariant
//! - **\[O1\]** Each collective of a team in this process starts on the device after the team's
//!   previous collective has completed.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use peerweave_driver::{CudaStream, deadline_after, is_capturing, is_same_capture, join, relaxed, wait_until};

use crate::comm::Comm;
use crate::comm::streams::wait_stream;
use crate::error::{MisuseKind, NvshmemError};

/// The stream of the team's last collective. `None` before the first collective, and after the host
/// has waited for the last collective.
#[derive(Debug, Default)]
pub(crate) struct Order(Mutex<Option<Arc<CudaStream>>>);

/// The right to enqueue the team's next collective. Only one thread has this right at a time.
/// Dropping the value lets another thread acquire the right.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    _last: MutexGuard<'a, Option<Arc<CudaStream>>>,
}

/// Acquires `lock`. Returns an error if the lock is not free by the context's deadline. The wait
/// can be long, because another thread may hold the lock during a call that waits for other PEs.
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
    /// Makes later work on `stream` start only after the team's last collective has completed
    /// (invariant [O1]). Returns the right to enqueue the team's next collective.
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
                // A graph cannot wait for work outside of the graph, so the host waits for that
                // work.
                (false, true) => wait_stream(call, comm, former)?,
                (true, true) if is_same_capture(former, stream)? => join(stream, former)?,
                (true, _) => {
                    let why = "the team's last collective is on a stream that is being captured, and work outside of the captured graph cannot wait for that collective; end the capture first, or use another team";
                    return Err(NvshmemError::misuse(call, MisuseKind::Context { why }));
                }
            }
        }
        if last.as_ref().is_none_or(|former| !Arc::ptr_eq(former, stream)) {
            *last = Some(Arc::clone(stream));
        }
        Ok(Turn { _last: last })
    }

    /// Waits within the context's deadline until the team's last collective is complete. Returns
    /// the right to enqueue the team's next collective. This function is for setup calls, and for
    /// collectives that NVSHMEM runs on its own stream.
    pub(crate) fn drain(&self, call: &'static str, comm: &Comm) -> Result<Turn<'_>, NvshmemError> {
        let mut last = take(&self.0, call, comm)?;
        if let Some(stream) = &*last {
            wait_stream(call, comm, stream)?;
        }
        *last = None;
        Ok(Turn { _last: last })
    }
}

/// Returns whether both handles refer to the same stream of the driver. The default stream can have
/// several handles.
fn same(one: &Arc<CudaStream>, other: &Arc<CudaStream>) -> bool {
    Arc::ptr_eq(one, other) || one.cu_stream() == other.cu_stream() && one.context() == other.context()
}
