//! Streams of the no-op backend. The streams run operations immediately, or keep operations pending
//! until a test runs them.

use super::{Call, Noop};
use crate::backend::{EventBackend, Keep, Op, Outcome, Pending, StreamBackend, Submitted, TeamId};
use crate::{Error, Result, Timeout};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The pending operations and events of all streams, and the graph into which streams are captured.
#[derive(Debug, Default)]
pub(super) struct Queue {
    hold: AtomicBool,
    /// The number of entries in `waiting`. Threads change the number only while they hold the lock
    /// of `waiting`. A thread that checks whether the queue is empty reads the number without the
    /// lock.
    len: AtomicUsize,
    waiting: Mutex<VecDeque<Entry>>,
    capture: AtomicBool,
    graph: Mutex<Graph>,
    /// Values that keep the memory of timed-out operations allocated. The backend simulates that
    /// the work of these operations still runs. [`Queue::end_late`] drops the values.
    late: Mutex<Vec<Keep>>,
}

/// A graph: the operations that were captured, in order, and the owners of their memory.
#[derive(Default)]
struct Graph(Vec<(Op, Keep)>);

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} operations)", self.0.len())
    }
}

struct Entry {
    stream: u64,
    /// The operation and the owners of its memory; `None` for an event.
    work: Option<(Op, Keep)>,
    done: Arc<Done>,
    failure: Arc<Mutex<Option<Error>>>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("stream", &self.stream).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    pub(super) fn set_hold(&self, hold: bool) {
        self.hold.store(hold, Ordering::Relaxed);
    }

    pub(super) fn set_capture(&self, capture: bool) {
        self.capture.store(capture, Ordering::Relaxed);
    }

    pub(super) fn replay(&self, perform: impl Fn(&Op) -> Result<Outcome>) -> Result<()> {
        lock(&self.graph).0.iter().try_for_each(|(op, _)| perform(op).map(drop))
    }

    pub(super) fn drop_graph(&self) {
        let graph = std::mem::take(&mut *lock(&self.graph));
        drop(graph);
    }

    /// Simulates that an operation times out while its work still runs. Returns the timeout error.
    /// The memory of the operation stays allocated until [`Queue::end_late`] is called.
    pub(super) fn leave_running(&self, keep: Keep) -> Error {
        lock(&self.late).push(keep);
        let team = crate::TeamName { id: TeamId::WORLD, size: 1 };
        Error::from(Timeout::new("noop", team, Duration::ZERO, Vec::new()))
    }

    pub(super) fn end_late(&self) {
        let late = std::mem::take(&mut *lock(&self.late));
        drop(late);
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.waiting).iter().filter(|entry| entry.work.is_some()).count()
    }

    fn pop(&self) -> Option<Entry> {
        let mut waiting = lock(&self.waiting);
        let entry = waiting.pop_front()?;
        self.len.store(waiting.len(), Ordering::Relaxed);
        Some(entry)
    }

    /// Takes the oldest entry from the queue, and runs its operation or completes its event. If an
    /// earlier operation of the same stream has failed, the operation does not run, and the entry
    /// fails. Returns `false` if the queue is empty. The owners of the operation's memory are
    /// dropped after the operation has run, and before its ticket completes.
    pub(super) fn run_next(&self, perform: impl FnOnce(&Op) -> Result<Outcome>) -> bool {
        let Some(Entry { work, done, failure, .. }) = self.pop() else { return false };
        let before = lock(&failure).clone();
        let result = match (work, before) {
            (None, None) => Ok(Outcome::Done),
            (None, Some(error)) => Err(error),
            (Some(_), Some(because)) => Err(Error::Skipped { call: "noop", because: Arc::new(because) }),
            (Some((op, keep)), None) => {
                let result = perform(&op);
                drop(keep);
                result
            }
        };
        if let Err(error) = &result {
            lock(&failure).get_or_insert_with(|| error.clone());
        }
        done.set(result);
        true
    }
}

/// The state of a pending operation or event: the result, and the time when the result was set.
#[derive(Debug, Default)]
struct Done {
    result: Mutex<Option<Result<Outcome>>>,
    changed: Condvar,
    at: OnceLock<Duration>,
}

impl Done {
    fn set(&self, result: Result<Outcome>) {
        self.at.get_or_init(now);
        *lock(&self.result) = Some(result);
        self.changed.notify_all();
    }
}

/// Returns the current time of the clock that all events use.
fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

impl Pending for Done {
    fn is_complete(&self) -> bool {
        lock(&self.result).is_some()
    }

    fn wait(&self, within: Duration) -> Result<Outcome> {
        let waited = self.changed.wait_timeout_while(lock(&self.result), within, |result| result.is_none());
        let (result, _) = waited.unwrap_or_else(PoisonError::into_inner);
        result.clone().unwrap_or_else(|| {
            let team = crate::TeamName { id: TeamId::WORLD, size: 1 };
            Err(Error::from(Timeout::new("noop", team, within, Vec::new())))
        })
    }
}

/// A stream that belongs to a [`Noop`] backend.
#[derive(Debug)]
pub struct NoopStream {
    backend: Arc<Noop>,
    number: u64,
    /// The first failure on this stream since the last call of `synchronize`.
    failure: Arc<Mutex<Option<Error>>>,
}

impl NoopStream {
    pub(super) fn new(backend: Arc<Noop>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { backend, number: NEXT.fetch_add(1, Ordering::Relaxed), failure: Arc::default() }
    }

    pub(super) fn is_of(&self, backend: &Noop) -> bool {
        std::ptr::eq(&*self.backend, backend)
    }

    #[inline]
    fn submit_prepared(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Submitted> {
        self.backend.record(|| Call::Submit(op.clone()));
        if self.backend.queue.capture.load(Ordering::Relaxed) {
            lock(&self.backend.queue.graph).0.push((op.clone(), keep()));
            return Ok(Submitted::Captured);
        }
        if let Some(done) = self.enter(|| Some((op.clone(), keep())), false) {
            return Ok(Submitted::Queued(done));
        }
        if let Some(because) = lock(&self.failure).clone() {
            return Err(Error::Skipped { call: "noop", because: Arc::new(because) });
        }
        let result = self.backend.perform(op);
        if let Err(error) = &result {
            *lock(&self.failure) = Some(error.clone());
        }
        result.map(Submitted::Complete)
    }

    /// Adds an event to the queue if `mark` is `true`, and otherwise the operation that `work`
    /// returns. Returns the state of the new entry. Adds nothing and returns `None` if the
    /// operation can run at once, or if the event is already complete.
    fn enter(&self, work: impl FnOnce() -> Option<(Op, Keep)>, mark: bool) -> Option<Arc<Done>> {
        let queue = &self.backend.queue;
        let hold = queue.hold.load(Ordering::Relaxed) && !mark;
        if !hold && queue.len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut waiting = lock(&queue.waiting);
        if !hold && !waiting.iter().any(|entry| entry.stream == self.number) {
            return None;
        }
        let done = Arc::<Done>::default();
        let failure = Arc::clone(&self.failure);
        waiting.push_back(Entry { stream: self.number, work: work(), done: Arc::clone(&done), failure });
        queue.len.store(waiting.len(), Ordering::Relaxed);
        Some(done)
    }
}

#[allow(unsafe_code)]
// SAFETY: as for `Noop`. [B6]: the entry of an operation holds the value of `keep` until the
// operation has run. The graph holds that value until the graph is destroyed.
unsafe impl StreamBackend for NoopStream {
    unsafe fn submit(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Submitted> {
        if self.backend.is_inert() {
            self.backend.record(|| Call::Submit(op.clone()));
            return Ok(Submitted::Complete(Outcome::Done));
        }
        if self.backend.caps.device.is_none() {
            return self.submit_prepared(op, keep);
        }
        let owners = keep();
        owners.device_owners(&mut |owner| owner.before(Some(self)))?;
        let submitted = self.submit_prepared(op, keep);
        owners.device_owners(&mut |owner| {
            owner.after(self);
            Ok(())
        })?;
        submitted
    }

    fn synchronize(&self, within: Duration) -> Result<()> {
        let last = {
            let waiting = lock(&self.backend.queue.waiting);
            waiting.iter().rfind(|entry| entry.stream == self.number).map(|entry| Arc::clone(&entry.done))
        };
        let waited = last.map_or(Ok(Outcome::Done), |done| done.wait(within));
        match (lock(&self.failure).take(), waited) {
            (Some(error), _) | (None, Err(error)) => Err(error),
            (None, Ok(_)) => Ok(()),
        }
    }

    fn is_idle(&self) -> bool {
        !lock(&self.backend.queue.waiting).iter().any(|entry| entry.stream == self.number)
    }

    fn record(&self) -> Result<Arc<dyn EventBackend>> {
        let done = self.enter(|| None, true).unwrap_or_else(|| {
            let done = Arc::<Done>::default();
            done.set(lock(&self.failure).clone().map_or(Ok(Outcome::Done), Err));
            done
        });
        Ok(Arc::new(NoopEvent { done }))
    }

    fn wait_event(&self, _: &Arc<dyn EventBackend>) -> Result<()> {
        // All pending entries run in the order of their calls, so operations before the event run
        // before later operations of this stream.
        Ok(())
    }
}

/// An event that has been recorded in a [`NoopStream`].
#[derive(Debug)]
pub struct NoopEvent {
    done: Arc<Done>,
}

impl EventBackend for NoopEvent {
    fn is_complete(&self) -> bool {
        self.done.is_complete()
    }

    fn wait(&self, within: Duration) -> Result<()> {
        self.done.wait(within).map(|_| ())
    }

    fn elapsed_since(&self, earlier: &dyn EventBackend) -> Option<Duration> {
        let earlier: &dyn Any = earlier;
        let earlier = earlier.downcast_ref::<Self>().expect("peerweave-core bug: the event belongs to another backend");
        self.done.at.get()?.checked_sub(*earlier.done.at.get()?)
    }
}
