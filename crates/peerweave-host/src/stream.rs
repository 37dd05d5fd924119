//! Streams: ordered queues of operations. Each stream has its own thread, which starts when the
//! first operation is queued.
//!
//! An operation that finds its stream idle runs on the thread of the caller. If the caller would
//! wait for peers for longer than [`CALLER_BUDGET`], the thread of the stream continues the
//! operation.
//!
//! Invariants: at most one operation of a stream runs at a time, on the thread that has set `busy`.
//! An operation starts on the thread of the caller only if the queue is empty and `busy` was not
//! set. If operations of a stream use the same team, their order in the team is their order in the
//! queue.

use crate::ops::queues::{Failure, Queue};
use crate::ops::shared::{COMPLETION_GRACE, Shared};
use crate::ops::{self, Task};
use crate::sync::wait::{Limit, Stop};
use peerweave_core::Error;
use peerweave_core::backend::{EventBackend, Keep, Op, Outcome, Pending, StreamBackend, Submitted, TeamId};
use peerweave_core::{TeamName, Timeout};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// Maximum time for which a stream-ordered call blocks its caller while it waits for other PEs.
/// After this time, the thread of the stream continues the operation, and the call returns.
const CALLER_BUDGET: Duration = Duration::from_millis(1);

/// The handle of a stream.
#[derive(Debug)]
pub(crate) struct HostStream {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    /// Whether a thread is running an operation of this stream.
    busy: AtomicBool,
    /// Whether `synchronize` may have something to do. `false` means that no operation is queued,
    /// that the thread of the stream runs no operation, and that every failure has been returned.
    /// Changed only while `queue` is locked.
    pending: AtomicBool,
    queue: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Jobs {
    jobs: VecDeque<Job>,
    has_worker: bool,
    /// Name of the call whose job the thread of the stream is running.
    running: Option<&'static str>,
    /// The first failure that `synchronize` has not returned yet.
    failed: Option<Failure>,
}

#[allow(
    clippy::large_enum_variant,
    reason = "almost all jobs are `Run`, and a box would cost one more allocation for each of them"
)]
enum Job {
    Run { call: &'static str, task: Task<'static>, done: Arc<Completion>, keep: Keep },
    Record(Arc<HostEvent>),
    WaitEvent(Arc<HostEvent>),
}

impl Job {
    fn call(&self) -> &'static str {
        match self {
            Self::Run { call, .. } => call,
            Self::Record(_) => "record",
            Self::WaitEvent(_) => "wait_event",
        }
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.call())
    }
}

impl Queue for Inner {
    fn pending_call(&self) -> Option<&'static str> {
        let queue = lock(&self.queue);
        queue.running.or_else(|| queue.jobs.front().map(Job::call))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that holds one of these locks panics.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl HostStream {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let inner = Arc::new(Inner {
            shared,
            busy: AtomicBool::new(false),
            pending: AtomicBool::new(false),
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let queue: Weak<Inner> = Arc::downgrade(&inner);
        inner.shared.queues.add(queue);
        Self { inner }
    }

    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.inner.shared, shared)
    }
}

// SAFETY: [B1], [B6]: if `Queued` is returned, `keep` was called, and its result was moved into the
// queue with the task. The result is dropped after the task has ended. In all other cases the task
// has ended before `submit` returns.
unsafe impl StreamBackend for HostStream {
    #[inline]
    unsafe fn submit(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Submitted, Error> {
        let inner = &*self.inner;
        let shared = &*inner.shared;
        if !ops::waits(op) && !inner.pending.load(Ordering::Acquire) && !inner.busy.swap(true, Ordering::Acquire) {
            // The operation needs no place among other operations, so it takes no lock.
            let _release = Release(&inner.busy);
            return shared.run_one_sided(op).map(Submitted::Complete);
        }
        let call = op.call_name();
        // Taking a place in the team and taking a place in the queue is one step under this lock.
        // So of the operations of two threads, the first in the team is also the first in the
        // queue.
        let mut queue = lock(&inner.queue);
        // The threads of a grid cannot move to another host thread and may run for a long
        // time. So launches always run on the thread of the stream.
        let inline = ops::waits(op) && !matches!(op, Op::Launch(_));
        if !inline || inner.pending.load(Ordering::Acquire) || inner.busy.swap(true, Ordering::Acquire) {
            self.need_worker(&mut queue, call)?;
            return Ok(self.push(queue, call, Task::start(shared, op)?.into_owned(), keep(), End::Back));
        }
        let release = Release(&inner.busy);
        let mut task = Task::start(shared, op)?;
        drop(queue);
        match task.drive(shared, Limit::Budget(CALLER_BUDGET)) {
            Ok(outcome) => return Ok(Submitted::Complete(outcome)),
            Err(Stop::Failed(error)) => return Err(*error),
            Err(Stop::BudgetSpent) => {}
        }
        let mut queue = lock(&inner.queue);
        if self.need_worker(&mut queue, call).is_err() {
            // The thread of the stream could not be started, so the caller waits.
            drop(queue);
            let outcome = task.drive(shared, Limit::Deadline(shared.peers.deadline)).map_err(Stop::into_error)?;
            return Ok(Submitted::Complete(outcome));
        }
        // The task is queued before all operations that were queued in the meantime, and before
        // `busy` is released. So no operation overtakes the task.
        let submitted = self.push(queue, call, task.into_owned(), keep(), End::Front);
        drop(release);
        inner.changed.notify_all();
        Ok(submitted)
    }

    fn synchronize(&self, within: Duration) -> Result<(), Error> {
        let inner = &*self.inner;
        if !inner.pending.load(Ordering::Acquire) && !inner.busy.load(Ordering::Acquire) {
            return Ok(());
        }
        let started = Instant::now();
        let mut queue = lock(&inner.queue);
        loop {
            let idle = queue.jobs.is_empty() && queue.running.is_none() && !inner.busy.load(Ordering::Acquire);
            if idle {
                inner.pending.store(false, Ordering::Release);
                return queue.failed.take().map_or(Ok(()), |failure| Err(failure.report()));
            }
            let rest = match left(started, within) {
                Some(rest) => rest,
                None => {
                    let call = queue.running.unwrap_or("synchronize");
                    // The lock is released, because the error names the running call, which is read
                    // under this lock.
                    drop(queue);
                    let rest = extension(&inner.shared, call, started, within)?;
                    queue = lock(&inner.queue);
                    rest
                }
            };
            // A caller that runs an operation does not notify this condition, so the wait is short.
            let soon = rest.min(Duration::from_millis(5));
            queue = inner.changed.wait_timeout(queue, soon).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    fn is_idle(&self) -> bool {
        let inner = &*self.inner;
        if inner.busy.load(Ordering::Acquire) {
            return false;
        }
        if !inner.pending.load(Ordering::Acquire) {
            return true;
        }
        let queue = lock(&inner.queue);
        queue.jobs.is_empty() && queue.running.is_none()
    }

    fn record(&self) -> Result<Arc<dyn EventBackend>, Error> {
        let event = Arc::new(HostEvent::new(self.inner.shared.clone()));
        let mut queue = lock(&self.inner.queue);
        if queue.jobs.is_empty() && queue.running.is_none() && !self.inner.busy.load(Ordering::Acquire) {
            event.pass(queue.failed.clone().map_or(Ok(()), Err));
        } else {
            self.need_worker(&mut queue, "record")?;
            self.enqueue(queue, Job::Record(event.clone()), End::Back);
        }
        Ok(event)
    }

    fn wait_event(&self, event: &Arc<dyn EventBackend>) -> Result<(), Error> {
        let event: Arc<dyn Any + Send + Sync> = event.clone();
        let event = event.downcast::<HostEvent>().expect("peerweave-core bug: the event belongs to another backend");
        if !event.has_succeeded() {
            let mut queue = lock(&self.inner.queue);
            self.need_worker(&mut queue, "wait_event")?;
            self.enqueue(queue, Job::WaitEvent(event), End::Back);
        }
        Ok(())
    }
}

/// Where a job is added to the queue: at the front or at the back.
#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

impl HostStream {
    /// Starts the thread of the stream if it is not running.
    fn need_worker(&self, queue: &mut Jobs, call: &'static str) -> Result<(), Error> {
        if !queue.has_worker {
            let worker = self.inner.clone();
            let spawned = std::thread::Builder::new().name("peerweave-stream".into()).spawn(move || worker.work());
            spawned.map_err(|error| Error::system(call, error))?;
            queue.has_worker = true;
        }
        Ok(())
    }

    /// Adds a job to the queue. The thread of the stream must be running.
    fn enqueue(&self, mut queue: MutexGuard<'_, Jobs>, job: Job, end: End) {
        self.inner.pending.store(true, Ordering::Release);
        self.inner.shared.queues.queued.fetch_add(1, Ordering::AcqRel);
        match end {
            End::Front => queue.jobs.push_front(job),
            End::Back => queue.jobs.push_back(job),
        }
        drop(queue);
        self.inner.changed.notify_all();
    }

    fn push(&self, queue: MutexGuard<'_, Jobs>, call: &'static str, task: Task<'static>, keep: Keep, end: End) -> Submitted {
        let done = Arc::new(Completion::new(call, self.inner.shared.clone()));
        self.enqueue(queue, Job::Run { call, task, done: done.clone(), keep }, end);
        Submitted::Queued(done)
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        // The thread of the stream is notified. It runs the operations in the queue, and then ends.
        let _queue = lock(&self.inner.queue);
        self.inner.changed.notify_all();
    }
}

/// Guard that clears `busy` when it is dropped.
struct Release<'a>(&'a AtomicBool);

impl Drop for Release<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Inner {
    /// Runs the queued jobs on the thread of the stream. Returns when the stream was dropped and
    /// the queue is empty.
    fn work(self: Arc<Self>) {
        while self.wait_for_job() {
            // A caller that is running an operation finishes first, or queues the rest of the
            // operation at the front.
            let mut waits = 0u32;
            while self.busy.swap(true, Ordering::Acquire) {
                waits += 1;
                if waits < 100 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(50)) }
            }
            let release = Release(&self.busy);
            let mut queue = lock(&self.queue);
            let Some(job) = queue.jobs.pop_front() else { continue };
            queue.running = Some(job.call());
            let earlier = queue.failed.clone();
            drop(queue);
            let failed = self.run(job, earlier);
            drop(release);
            let mut queue = lock(&self.queue);
            queue.running = None;
            if let Some(failure) = failed {
                queue.failed.get_or_insert(failure);
            }
            if queue.jobs.is_empty() && queue.failed.is_none() {
                self.pending.store(false, Ordering::Release);
            }
            self.shared.queues.queued.fetch_sub(1, Ordering::AcqRel);
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// Waits until the queue contains a job, and returns `true`. Returns `false` if the stream was
    /// dropped and the queue is empty.
    fn wait_for_job(self: &Arc<Self>) -> bool {
        let mut queue = lock(&self.queue);
        while queue.jobs.is_empty() {
            // Only this thread has a reference to the stream, so no handle exists that could
            // enqueue a job.
            if Arc::strong_count(self) == 1 {
                queue.has_worker = false;
                return false;
            }
            let waited = self.changed.wait_timeout(queue, Duration::from_millis(200));
            queue = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        true
    }

    /// Runs one job of the queue. Returns the failure of the job. Returns `None` if the job
    /// succeeds or is skipped. `earlier` is the failure of an earlier job of this stream, if there
    /// is one. After such a failure, an operation is skipped, unless the failure is a mismatch of
    /// calls.
    fn run(&self, job: Job, earlier: Option<Failure>) -> Option<Failure> {
        let deadline = Limit::Deadline(self.shared.peers.deadline);
        match job {
            Job::Run { call, mut task, done, keep } => {
                let _kernel = matches!(task, Task::Launch(_)).then(|| self.shared.kernels.start_on_stream());
                // After a mismatch, no rank has run the operation and the team is usable. So later
                // operations still run.
                let because = earlier.filter(|failure| !matches!(failure.error, Error::Mismatch(_)));
                let run = || match &because {
                    // The operation has a place in the order of its team's operations, which it
                    // must take and leave. A collective that only some ranks skip would block the
                    // other ranks, so its team fails.
                    Some(because) => {
                        let skipped = Error::Skipped { call, because: Arc::new(because.error.clone()) };
                        task.skip(&self.shared, &skipped);
                        Err(skipped)
                    }
                    None => task.drive(&self.shared, deadline).map_err(Stop::into_error),
                };
                // After a panic, the ticket must still complete, and the thread of the stream must
                // continue.
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
                    .unwrap_or_else(|_| Err(Error::system(call, std::io::Error::other("the operation panicked"))));
                let outcome = outcome.map_err(|error| match &because {
                    Some(because) => because.followed_by(error),
                    None => Failure::new(error),
                });
                let failed = outcome.as_ref().err().filter(|_| because.is_none()).cloned();
                if let Some(failure) = &failed {
                    self.shared.queues.note(failure.clone());
                }
                drop(task);
                drop(keep);
                done.complete(outcome);
                failed
            }
            Job::Record(event) => {
                event.pass(earlier.map_or(Ok(()), Err));
                None
            }
            Job::WaitEvent(event) => {
                let failed = event.passed_within(self.shared.peers.deadline).err();
                // A failure that the event passes on was already recorded by its own stream. This
                // second record shares the flag that shows whether the failure was returned.
                failed.inspect(|failure| self.shared.queues.note(failure.clone()))
            }
        }
    }
}

/// Returns the remaining time of a wait that started at `started` and may take the time `within`.
/// Returns `None` if no time remains.
fn left(started: Instant, within: Duration) -> Option<Duration> {
    within.checked_sub(started.elapsed()).filter(|rest| !rest.is_zero())
}

/// Decides whether a wait for a stream or a ticket continues after its time limit. `within` is the
/// time limit, which has passed. Returns the time for which the wait continues, or the timeout
/// error if the wait must end. The caller must hold no lock of a queue.
fn extension(shared: &Shared, call: &'static str, started: Instant, within: Duration) -> Result<Duration, Error> {
    let waited = started.elapsed();
    let missing = shared.teams.missing(&shared.peers);
    // A wait with the deadline of the world gets a grace time, if the deadline of the operation has
    // just passed too. It then ends with the error of the operation, which names the cause. If only
    // one PE is missing, the cause is known already. A shorter limit of a caller gets no grace
    // time.
    if missing.len() != 1 && within == shared.peers.deadline && waited < within + COMPLETION_GRACE {
        return Ok(Duration::from_millis(1));
    }
    // A kernel has its own deadline, which may have begun later, and will report the PE that was
    // missing.
    let deadline = shared.peers.deadline;
    if missing.is_empty() && within >= deadline && shared.kernels.will_report(started + within, deadline) {
        return Ok(Duration::from_millis(1));
    }
    let running = missing.is_empty().then(|| shared.queues.pending_call()).flatten();
    let team = TeamName { id: TeamId::WORLD, size: shared.n_pes() };
    Err(Timeout { running, ..Timeout::new(call, team, waited, missing) }.into())
}

/// Waits until `slot` has a value, and returns a copy of the value. The thread that stores the
/// value must notify `changed`. If `slot` has no value after the time `within`, this function calls
/// [`extension`]. That function either extends the wait or returns the error that ends the wait.
fn wait_for<T: Clone>(
    slot: &Mutex<Option<T>>,
    changed: &Condvar,
    shared: &Shared,
    call: &'static str,
    within: Duration,
) -> Result<T, Error> {
    let started = Instant::now();
    let mut value = lock(slot);
    loop {
        if let Some(value) = &*value {
            return Ok(value.clone());
        }
        let rest = match left(started, within) {
            Some(rest) => rest,
            None => {
                // The lock is released, because `extension` locks the queues.
                drop(value);
                let rest = extension(shared, call, started, within)?;
                value = lock(slot);
                if value.is_some() {
                    continue;
                }
                rest
            }
        };
        value = changed.wait_timeout(value, rest).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
    }
}

/// The completion of a queued operation.
#[derive(Debug)]
struct Completion {
    call: &'static str,
    shared: Arc<Shared>,
    complete: AtomicBool,
    outcome: Mutex<Option<Result<Outcome, Failure>>>,
    changed: Condvar,
}

impl Completion {
    fn new(call: &'static str, shared: Arc<Shared>) -> Self {
        Self { call, shared, complete: AtomicBool::new(false), outcome: Mutex::new(None), changed: Condvar::new() }
    }

    fn complete(&self, outcome: Result<Outcome, Failure>) {
        *lock(&self.outcome) = Some(outcome);
        self.complete.store(true, Ordering::Release);
        self.changed.notify_all();
    }
}

impl Pending for Completion {
    fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    fn wait(&self, within: Duration) -> Result<Outcome, Error> {
        let outcome = wait_for(&self.outcome, &self.changed, &self.shared, self.call, within)?;
        outcome.map_err(|failure| failure.report())
    }
}

/// An event that was recorded in a stream.
#[derive(Debug)]
pub(crate) struct HostEvent {
    shared: Arc<Shared>,
    state: Mutex<Option<(Duration, Result<(), Failure>)>>,
    changed: Condvar,
}

/// Returns the time since the first call of this function in the process.
fn clock() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

impl HostEvent {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared, state: Mutex::new(None), changed: Condvar::new() }
    }

    /// Returns whether the stream has reached this event, and no earlier operation of the stream
    /// has failed.
    fn has_succeeded(&self) -> bool {
        matches!(&*lock(&self.state), Some((_, Ok(()))))
    }

    /// Returns the time at which the stream passed the event, as measured by [`clock`]. Returns
    /// `None` if the stream has not passed the event.
    fn passed_at(&self) -> Option<Duration> {
        lock(&self.state).as_ref().map(|(at, _)| *at)
    }

    /// Waits until the stream has passed the event. Fails if an operation before the event has
    /// failed, or if the stream has not passed the event after the time `within`.
    fn passed_within(&self, within: Duration) -> Result<(), Failure> {
        wait_for(&self.state, &self.changed, &self.shared, "wait_event", within).map_err(Failure::new)?.1
    }

    fn pass(&self, outcome: Result<(), Failure>) {
        *lock(&self.state) = Some((clock(), outcome));
        self.changed.notify_all();
    }
}

impl EventBackend for HostEvent {
    fn is_complete(&self) -> bool {
        lock(&self.state).is_some()
    }

    fn wait(&self, within: Duration) -> Result<(), Error> {
        self.passed_within(within).map_err(|failure| failure.report())
    }

    fn elapsed_since(&self, earlier: &dyn EventBackend) -> Option<Duration> {
        let earlier: &dyn Any = earlier;
        let earlier = earlier.downcast_ref::<Self>().expect("peerweave-core bug: the event belongs to another backend");
        self.passed_at()?.checked_sub(earlier.passed_at()?)
    }
}
