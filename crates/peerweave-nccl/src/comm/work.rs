//! Checks for the watchdog whether enqueued work completes in time.
//!
//! A query of the stream alone is not enough, because a busy stream may have received new work
//! since the last query. So at intervals the watchdog records an event in the stream, after the
//! enqueued work, and queries whether the stream has reached the event. The events add no cost to
//! calls, and most work is complete before an event is recorded.
//!
//! Invariant: no event is recorded in a stream that is being captured.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_driver::cudarc::driver::sys::CUevent;
use peerweave_driver::{CudaCode, CudaStream, is_capturing, relaxed};

use crate::member::membership::{Inner, set_current};

/// Divisor of the work deadline. Only after the quotient of this division has passed does the
/// watchdog record events to find out whether enqueued work is complete.
const PART: u32 = 8;

/// Flag `CU_EVENT_DISABLE_TIMING` of the driver. Events without timing have the lowest cost.
const DISABLE_TIMING: u32 = 2;

/// State that the watchdog keeps for one communicator. With this state, the watchdog checks whether
/// the enqueued work of the communicator completes in time.
#[derive(Default)]
pub(crate) struct Work {
    /// Number of the last call that is known to be complete.
    done: u64,
    /// Time from which the watchdog measures how long the calls after call `done` take. `None` if
    /// the watchdog measures no calls now.
    since: Option<Instant>,
    marks: Option<Marks>,
    /// Whether the watchdog has already reported that work of this communicator is late. The
    /// watchdog makes this report at most once.
    is_reported: bool,
}

/// One event for each stream, recorded after all work that the communicator had enqueued in the
/// stream.
struct Marks {
    /// Number of the last call that was issued before the events were recorded. This call is
    /// complete if every stream has reached its event.
    sequence: u64,
    /// Events that have not completed yet, because earlier work in their streams is still running.
    pending: Vec<Mark>,
    /// Whether an event was recorded in every stream. Streams that are being captured, and streams
    /// that return an error, get no event.
    is_complete: bool,
}

impl Work {
    /// Returns whether enqueued work is still not complete at its deadline. The watchdog calls this
    /// function at intervals. After a call of [`report`](Self::report), the result is always
    /// `false`.
    pub(crate) fn is_late(&mut self, inner: &Arc<Inner>, now: Instant) -> bool {
        let limit = inner.work_deadline();
        let (last, _) = inner.last();
        if self.is_reported || last == self.done || limit == Duration::MAX {
            self.since = None;
            return false;
        }
        let waited = now.duration_since(*self.since.get_or_insert(now));
        if waited < limit / PART {
            return false;
        }
        let marks = self.marks.get_or_insert_with(|| Marks::record(inner, last));
        marks.pending.retain(|mark| !mark.is_reached(inner));
        if !marks.pending.is_empty() {
            return waited >= limit;
        }
        // The work of a stream without an event is checked again from now on.
        if marks.is_complete {
            (self.done, self.since) = (marks.sequence, None);
        } else {
            self.since = Some(now);
        }
        self.marks = None;
        false
    }

    /// Records that the work was reported as late, so that it is not reported again.
    pub(crate) fn report(&mut self) {
        self.is_reported = true;
    }
}

impl Marks {
    /// Records an event in each stream that the communicator uses, after all work that is now
    /// enqueued there. `sequence` is the number of the last call on the communicator. A stream gets
    /// no event if it is being captured, or if the driver returns an error for it.
    fn record(inner: &Inner, sequence: u64) -> Self {
        if set_current(&inner.context).is_err() {
            return Self { sequence, pending: Vec::new(), is_complete: false };
        }
        let streams = inner.registered.streams();
        let pending: Vec<_> = relaxed(|| streams.iter().filter_map(|stream| Mark::behind(inner, stream)).collect());
        let is_complete = pending.len() == streams.len();
        Self { sequence, pending, is_complete }
    }
}

/// An event that was recorded in a stream, after all earlier work of the stream.
struct Mark(CUevent);

// SAFETY: the shared value is a handle that only the driver dereferences, on any thread. The handle
// is synchronised because only the watchdog's thread uses it. A failure would be caught by the test
// `stuck_work_is_aborted_at_the_work_deadline`.
unsafe impl Send for Mark {}

impl Mark {
    fn behind(inner: &Inner, stream: &CudaStream) -> Option<Self> {
        if !matches!(is_capturing(stream), Ok(false)) {
            return None;
        }
        let mut event: CUevent = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle, and the communicator's context is current.
        let made = unsafe { inner.driver.api().cuEventCreate(&raw mut event, DISABLE_TIMING) };
        let mark = (made == Ok(CudaCode::SUCCESS)).then_some(Self(event))?;
        // SAFETY: the event and the stream are live, and of the context that is current.
        let recorded = unsafe { inner.driver.api().cuEventRecord(mark.0, stream.cu_stream()) };
        if recorded == Ok(CudaCode::SUCCESS) {
            return Some(mark);
        }
        mark.destroy(inner);
        None
    }

    /// Returns whether the stream has reached the event, and destroys the event in this case. An
    /// event that cannot be queried counts as reached.
    fn is_reached(&self, inner: &Inner) -> bool {
        // SAFETY: the event is live.
        let code = relaxed(|| unsafe { inner.driver.api().cuEventQuery(self.0) });
        let is_reached = code != Ok(CudaCode::NOT_READY);
        if is_reached {
            self.destroy(inner);
        }
        is_reached
    }

    fn destroy(&self, inner: &Inner) {
        // SAFETY: no other thread has the event, and it is not used again. The driver keeps the
        // event until pending work in its stream has reached it.
        let _ = unsafe { inner.driver.api().cuEventDestroy_v2(self.0) };
    }
}
