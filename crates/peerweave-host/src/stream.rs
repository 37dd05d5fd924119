//! Streams: ordered queues, each with a thread of its own that starts when it is first needed.
//!
//! An operation that finds its stream idle runs on the thread of the caller. If the caller would
//! wait for peers longer than [`CALLER_BUDGET`], the thread of the stream continues it. Invariant:
//! at most one operation of a stream runs at a time, on the thread that holds `busy`; an operation
//! starts on the thread of the caller only if the queue is empty and `busy` was free; operations
//! take their places in their teams in the order in which they stand in the queue.

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

/// The time that a stream-ordered call may run on the thread of its caller.
const CALLER_BUDGET: Duration = Duration::from_millis(1);

/// The handle of a stream.
#[derive(Debug)]
pub(crate) struct HostStream {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    /// Whether a thread runs an operation of this stream.
    busy: AtomicBool,
    /// Whether an operation was queued whose end was not noticed yet. It is set only while `queue`
    /// is locked.
    pending: AtomicBool,
    queue: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Jobs {
    jobs: VecDeque<Job>,
    has_worker: bool,
    /// The call that runs now on the thread of the stream.
    running: Option<&'static str>,
    /// The first failure that `synchronize` has not returned yet.
    failed: Option<Failure>,
}

#[allow(clippy::large_enum_variant, reason = "almost every job is a run, and a box would be one more allocation for each")]
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

// SAFETY: [B1], [B6]: if `Queued` is returned, `keep` was called and its result moved into the
// queue with the task, and it is dropped after the task has ended; otherwise the task has ended
// before `submit` returns.
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
        // Taking a place in the team and one in the queue is one step: of the operations of two
        // threads, the first in the team is the first in the queue.
        let mut queue = lock(&inner.queue);
        // The threads of a grid do not move to another thread of the host and may take long, so
        // launches run on the thread of the stream.
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
        // The task is queued before all operations that were queued meanwhile, and before `busy` is
        // released, so that no operation overtakes it.
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
                    // The error names the call that runs, which this lock protects.
                    drop(queue);
                    let rest = extension(&inner.shared, call, started, within)?;
                    queue = lock(&inner.queue);
                    rest
                }
            };
            // A caller that runs an operation does not notify this condition: look again soon.
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
        let event = Arc::new(HostEvent::new());
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

/// An end of the queue.
#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

impl HostStream {
    /// Starts the thread of the stream if there is none.
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
        // The thread of the stream runs the operations in the queue, and then ends.
        let _queue = lock(&self.inner.queue);
        self.inner.changed.notify_all();
    }
}

/// Releases `busy` when dropped.
struct Release<'a>(&'a AtomicBool);

impl Drop for Release<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Inner {
    /// Runs the thread of the stream.
    fn work(self: Arc<Self>) {
        while self.wait_for_job() {
            // A caller that runs an operation finishes first, or queues the rest of it in front.
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

    /// Waits for a job. Returns `false` if no more jobs can arrive.
    fn wait_for_job(self: &Arc<Self>) -> bool {
        let mut queue = lock(&self.queue);
        while queue.jobs.is_empty() {
            // Only this thread holds the stream: no handle is left that could enqueue.
            if Arc::strong_count(self) == 1 {
                queue.has_worker = false;
                return false;
            }
            let waited = self.changed.wait_timeout(queue, Duration::from_millis(200));
            queue = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        true
    }

    /// Runs one job after the failure `earlier`, if any; returns a new failure.
    fn run(&self, job: Job, earlier: Option<Failure>) -> Option<Failure> {
        let deadline = Limit::Deadline(self.shared.peers.deadline);
        match job {
            Job::Run { call, mut task, done, keep } => {
                let _kernel = matches!(task, Task::Launch(_)).then(|| self.shared.kernels.start_on_stream());
                // A mismatch has run nothing and leaves its team usable, so later operations still
                // run.
                let because = earlier.filter(|failure| !matches!(failure.error, Error::Mismatch(_)));
                let run = || match &because {
                    // The operation has a place in its team, which it must take and leave. A
                    // collective that some ranks skip would block the others, so its team fails.
                    Some(because) => {
                        let skipped = Error::Skipped { call, because: Arc::new(because.error.clone()) };
                        task.skip(&self.shared, &skipped);
                        Err(skipped)
                    }
                    None => task.drive(&self.shared, deadline).map_err(Stop::into_error),
                };
                // After a panic the ticket must complete, and the stream must keep its thread.
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
                // A failure that the event passes on was recorded by its own stream. The second
                // record shares the flag that says whether it was returned.
                failed.inspect(|failure| self.shared.queues.note(failure.clone()))
            }
        }
    }
}

/// Returns the time that is left of a wait; `None` if its limit has passed.
fn left(started: Instant, within: Duration) -> Option<Duration> {
    within.checked_sub(started.elapsed()).filter(|rest| !rest.is_zero())
}

/// Returns the time by which a wait for a stream or a ticket goes on although its limit has passed,
/// or the error of the limit. The caller holds no lock of a queue.
fn extension(shared: &Shared, call: &'static str, started: Instant, within: Duration) -> Result<Duration, Error> {
    let waited = started.elapsed();
    let missing = shared.teams.missing(&shared.peers);
    // A wait up to the deadline of the world ends with the error of the operation, which names what
    // it waits for, if its own deadline has just passed too. A caller's limit is no deadline.
    if missing.is_empty() && within == shared.peers.deadline && waited < within + COMPLETION_GRACE {
        return Ok(Duration::from_millis(1));
    }
    // A kernel waits by its own deadline, which may have begun later, and reports what it missed.
    let deadline = shared.peers.deadline;
    if missing.is_empty() && within >= deadline && shared.kernels.will_report(started + within, deadline) {
        return Ok(Duration::from_millis(1));
    }
    let running = missing.is_empty().then(|| shared.queues.pending_call()).flatten();
    let team = TeamName { id: TeamId::WORLD, size: shared.n_pes() };
    Err(Error::Timeout(Box::new(Timeout { call, team, waited, missing, running, holder: None, word: None })))
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
        let started = Instant::now();
        let mut outcome = lock(&self.outcome);
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone().map_err(|failure| failure.report());
            }
            let rest = match left(started, within) {
                Some(rest) => rest,
                None => {
                    // No lock is held while the queues are asked which call they run.
                    drop(outcome);
                    let rest = extension(&self.shared, self.call, started, within)?;
                    outcome = lock(&self.outcome);
                    if outcome.is_some() {
                        continue;
                    }
                    rest
                }
            };
            outcome = self.changed.wait_timeout(outcome, rest).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}

/// An event in a stream.
#[derive(Debug)]
pub(crate) struct HostEvent {
    state: Mutex<Option<(Duration, Result<(), Failure>)>>,
    changed: Condvar,
}

/// Returns the time since the first event of the process.
fn clock() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

impl HostEvent {
    fn new() -> Self {
        Self { state: Mutex::new(None), changed: Condvar::new() }
    }

    /// Returns whether the stream has passed the event without an earlier failure.
    fn has_succeeded(&self) -> bool {
        matches!(&*lock(&self.state), Some((_, Ok(()))))
    }

    /// Returns the time at which the stream passed the event.
    fn passed_at(&self) -> Option<Duration> {
        lock(&self.state).as_ref().map(|(at, _)| *at)
    }

    /// Waits until the stream has passed the event.
    fn passed_within(&self, within: Duration) -> Result<(), Failure> {
        let started = Instant::now();
        let mut state = lock(&self.state);
        loop {
            if let Some((_, outcome)) = &*state {
                return outcome.clone();
            }
            let waited = started.elapsed();
            if waited >= within {
                let team = TeamName { id: TeamId::WORLD, size: 1 };
                let timeout =
                    Timeout { call: "wait_event", team, waited, missing: Vec::new(), running: None, holder: None, word: None };
                return Err(Failure::new(Error::Timeout(Box::new(timeout))));
            }
            state = self.changed.wait_timeout(state, within - waited).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
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
