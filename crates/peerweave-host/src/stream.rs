//! Streams: ordered queues, each with a thread of its own that is started when it is first needed.
//!
//! An operation that finds its stream idle runs on the calling thread, and moves to the stream's thread only where it would keep the
//! caller waiting for peers longer than [`CALLER_WAITS`]. Invariant: at most one operation of a stream runs at a time, by whoever holds `busy`; an
//! operation starts on the caller's thread only when the queue is empty and `busy` was free; operations that take turns in their teams do so in
//! the order in which they stand in the queue.

use crate::ops::collective::Progress;
use crate::ops::shared::Shared;
use crate::ops::{Task, run_plain};
use crate::sync::wait::Limit;
use peerweave_core::Error;
use peerweave_core::backend::{EventBackend, Keep, Op, Outcome, Pending, StreamBackend, Submitted, TeamId};
use peerweave_core::{TeamName, Timeout};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long an asynchronous call may keep its caller.
pub(crate) const CALLER_WAITS: Duration = Duration::from_millis(1);

/// A stream, as its users hold it.
#[derive(Debug)]
pub(crate) struct HostStream {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    /// Somebody runs an operation of this stream.
    busy: AtomicBool,
    /// Something was queued that has not been seen to be over. Only set under `queue`.
    pending: AtomicBool,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    has_worker: bool,
    /// What runs now on the worker.
    running: Option<&'static str>,
    /// The first failure that `synchronize` has not returned yet.
    failed: Option<Error>,
}

enum Job {
    Run { call: &'static str, task: Task, done: Arc<Completion>, keep: Keep },
    Mark(Arc<HostEvent>),
    Await(Arc<HostEvent>),
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Run { call, .. } => call,
            Self::Mark(_) => "record",
            Self::Await(_) => "wait_event",
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds one of these locks can panic half way.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The name of the call that makes an operation.
pub(crate) fn call_name(op: &Op) -> &'static str {
    match op {
        Op::Collective(op) => op.kind.name(),
        Op::PointToPoint(op) => match op.direction {
            peerweave_core::backend::Direction::Send => "send",
            peerweave_core::backend::Direction::Receive => "recv",
        },
        Op::Group(_) => "group",
        Op::Put(_) => "put",
        Op::Get(_) => "get",
        Op::Strided(_) => "put_strided",
        Op::Signal(_) => "signal",
        Op::Wait(_) => "wait_until",
        Op::Atomic(_) => "atomic",
        Op::Launch(launch) => launch.kernel.name(),
        Op::Fence => "fence",
        Op::Quiet => "quiet",
    }
}

impl HostStream {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            inner: Arc::new(Inner {
                shared,
                busy: AtomicBool::new(false),
                pending: AtomicBool::new(false),
                queue: Mutex::default(),
                changed: Condvar::new(),
            }),
        }
    }
}

// SAFETY: [B1], [B6]: `keep` is called and its result moved into the queue with the task wherever `Queued` is returned, and dropped after
// the task is over; otherwise the task is over before `submit` returns.
unsafe impl StreamBackend for HostStream {
    #[inline]
    unsafe fn submit(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Submitted, Error> {
        let inner = &*self.inner;
        if !matches!(op, Op::Collective(_) | Op::PointToPoint(_) | Op::Group(_) | Op::Wait(_) | Op::Launch(_)) {
            // Waits for nobody and takes no turn: no lock.
            if !inner.pending.load(Ordering::Acquire) && !inner.busy.swap(true, Ordering::Acquire) {
                let _release = Busy(&inner.busy);
                return Ok(Submitted::Complete(run_plain(&inner.shared, op)));
            }
            let mut queue = lock(&inner.queue);
            self.need_worker(&mut queue, call_name(op))?;
            return Ok(self.push(queue, call_name(op), Task::begin(&inner.shared, op)?, keep(), End::Back));
        }
        if let Op::Launch(launch) = op {
            // The threads of a grid do not change threads of the host, and may take long: the stream's own runs them.
            let mut queue = lock(&inner.queue);
            let call = launch.kernel.name();
            self.need_worker(&mut queue, call)?;
            return Ok(self.push(queue, call, Task::begin(&inner.shared, op)?, keep(), End::Back));
        }
        // Taking a turn and taking a place in the queue are one step: of two threads' operations the first in its team is first here.
        let mut queue = lock(&inner.queue);
        if inner.pending.load(Ordering::Acquire) || inner.busy.swap(true, Ordering::Acquire) {
            self.need_worker(&mut queue, call_name(op))?;
            return Ok(self.push(queue, call_name(op), Task::begin(&inner.shared, op)?, keep(), End::Back));
        }
        let release = Busy(&inner.busy);
        let (outcome, unfinished) = inner.run_inline(op, queue)?;
        let Some(mut task) = unfinished else { return Ok(Submitted::Complete(outcome)) };
        let mut queue = lock(&inner.queue);
        if self.need_worker(&mut queue, call_name(op)).is_err() {
            // Without a thread the caller waits after all.
            drop(queue);
            let done = task.drive(&inner.shared, Limit::Deadline(inner.shared.deadline))?;
            return Ok(Submitted::Complete(done.expect("a deadline is no budget")));
        }
        // In front of whatever was queued meanwhile; and before `busy` is given up, so that nobody overtakes.
        let submitted = self.push(queue, call_name(op), task, keep(), End::Front);
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
                return queue.failed.take().map_or(Ok(()), Err);
            }
            let rest = rest(&inner.shared, queue.running.unwrap_or("synchronize"), started, within)?;
            // Someone who runs an operation inline tells nobody when it is done: look again soon.
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
            self.enqueue(queue, Job::Mark(event.clone()), End::Back);
        }
        Ok(event)
    }

    fn wait_event(&self, event: &Arc<dyn EventBackend>) -> Result<(), Error> {
        let event: Arc<dyn Any + Send + Sync> = event.clone();
        let event = event.downcast::<HostEvent>().expect("peerweave-core bug: an event of another backend");
        if !event.has_passed_well() {
            let mut queue = lock(&self.inner.queue);
            self.need_worker(&mut queue, "wait_event")?;
            self.enqueue(queue, Job::Await(event), End::Back);
        }
        Ok(())
    }
}

/// Which end of the queue.
#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

impl HostStream {
    /// Starts the stream's thread where it has none.
    fn need_worker(&self, queue: &mut Queue, call: &'static str) -> Result<(), Error> {
        if !queue.has_worker {
            let worker = self.inner.clone();
            let spawned = std::thread::Builder::new().name("peerweave-stream".into()).spawn(move || worker.work());
            spawned.map_err(|error| Error::system(call, error))?;
            queue.has_worker = true;
        }
        Ok(())
    }

    /// Only where there is a worker.
    fn enqueue(&self, mut queue: MutexGuard<'_, Queue>, job: Job, end: End) {
        self.inner.pending.store(true, Ordering::Release);
        self.inner.shared.queued.fetch_add(1, Ordering::AcqRel);
        match end {
            End::Front => queue.jobs.push_front(job),
            End::Back => queue.jobs.push_back(job),
        }
        drop(queue);
        self.inner.changed.notify_all();
    }

    fn push(&self, queue: MutexGuard<'_, Queue>, call: &'static str, task: Task, keep: Keep, end: End) -> Submitted {
        let done = Arc::new(Completion::new(call, self.inner.shared.clone()));
        self.enqueue(queue, Job::Run { call, task, done: done.clone(), keep }, end);
        Submitted::Queued(done)
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        // The worker finishes what is queued, and then ends.
        let _queue = lock(&self.inner.queue);
        self.inner.changed.notify_all();
    }
}

/// Gives `busy` back.
struct Busy<'a>(&'a AtomicBool);

impl Drop for Busy<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Inner {
    /// Runs an operation on the caller's thread, for as long as a caller can be expected to wait; what is left of it is given back. `queue` is held
    /// until it has its turn.
    #[inline]
    fn run_inline(&self, op: &Op, queue: MutexGuard<'_, Queue>) -> Result<(Outcome, Option<Task>), Error> {
        let shared = &*self.shared;
        let limit = Limit::Budget(CALLER_WAITS);
        if let Op::Collective(op) = op {
            // The commonest by far: no clone, no allocation.
            let call = op.kind.name();
            let mut progress = shared.teams.with(call, op.team, Progress::begin)?;
            drop(queue);
            let done = shared.teams.with(call, op.team, |team| progress.drive(shared, team, op, limit))?;
            return match done.map_err(|failure| *failure)? {
                Some(()) => Ok((Outcome::Done, None)),
                None => {
                    let team = shared.teams.get(call, op.team)?;
                    Ok((Outcome::NotYet, Some(Task::Collective { op: op.clone(), team, progress })))
                }
            };
        }
        let mut task = Task::begin(shared, op)?;
        drop(queue);
        match task.drive(shared, limit)? {
            Some(outcome) => Ok((outcome, None)),
            None => Ok((Outcome::NotYet, Some(task))),
        }
    }

    /// The stream's thread.
    fn work(self: Arc<Self>) {
        while self.wait_for_job() {
            // Whoever runs an operation inline finishes first, or puts the rest of it in front.
            let mut waits = 0u32;
            while self.busy.swap(true, Ordering::Acquire) {
                waits += 1;
                if waits < 100 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(50)) }
            }
            let release = Busy(&self.busy);
            let mut queue = lock(&self.queue);
            let Some(job) = queue.jobs.pop_front() else { continue };
            queue.running = Some(match &job {
                Job::Run { call, .. } => call,
                Job::Mark(_) => "record",
                Job::Await(_) => "wait_event",
            });
            let earlier = queue.failed.clone();
            drop(queue);
            let failed = self.run(job, earlier);
            drop(release);
            let mut queue = lock(&self.queue);
            queue.running = None;
            if let Some(error) = failed {
                queue.failed.get_or_insert(error);
            }
            if queue.jobs.is_empty() && queue.failed.is_none() {
                self.pending.store(false, Ordering::Release);
            }
            self.shared.queued.fetch_sub(1, Ordering::AcqRel);
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// Waits until there is something to do; `false` where nothing will come any more.
    fn wait_for_job(self: &Arc<Self>) -> bool {
        let mut queue = lock(&self.queue);
        while queue.jobs.is_empty() {
            // This thread and the handle hold it; without the handle nobody can enqueue any more.
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
    fn run(&self, job: Job, earlier: Option<Error>) -> Option<Error> {
        let deadline = Limit::Deadline(self.shared.deadline);
        match job {
            Job::Run { call, mut task, done, keep } => {
                // A mismatch has run nothing and broken nothing: what follows does not depend on it more than on any other error of a call.
                let because = earlier.filter(|error| !matches!(error, Error::Mismatch(_)));
                let run = || match because {
                    // It may have its turn in a team, which it must take and leave; but a collective that some ranks skip would stop the others, so
                    // its team is given up.
                    Some(because) => {
                        let skipped = Error::Skipped { call, because: Arc::new(because) };
                        task.skip(&self.shared, &skipped);
                        Err(skipped)
                    }
                    None => task.drive(&self.shared, deadline).map(|outcome| outcome.expect("a deadline is no budget")),
                };
                // A panic must not leave the ticket waiting and the stream without its thread.
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
                    .unwrap_or_else(|_| Err(Error::system(call, std::io::Error::other("the operation panicked"))));
                let failed = outcome.as_ref().err().filter(|error| !matches!(error, Error::Skipped { .. })).cloned();
                drop(task);
                drop(keep);
                done.complete(outcome);
                failed
            }
            Job::Mark(event) => {
                event.pass(earlier.map_or(Ok(()), Err));
                None
            }
            Job::Await(event) => event.wait(self.shared.deadline).err(),
        }
    }
}

/// How long an operation may take to say how it ended, after the deadline of who waits for it.
const ENDING: Duration = Duration::from_millis(200);

/// How long a wait for a stream or a ticket may go on, or the error of its deadline.
fn rest(shared: &Shared, call: &'static str, started: Instant, within: Duration) -> Result<Duration, Error> {
    let waited = started.elapsed();
    if let Some(rest) = within.checked_sub(waited).filter(|rest| !rest.is_zero()) {
        return Ok(rest);
    }
    let missing = shared.teams.missing(shared);
    // Where nobody is missing, the operation is ending, most likely because its own deadline has expired just now; and it knows who was.
    if missing.is_empty() && waited < within + ENDING {
        return Ok(Duration::from_millis(1));
    }
    let team = TeamName { id: TeamId::WORLD, size: shared.n_pes() };
    Err(Error::Timeout(Box::new(Timeout { call, team, waited, missing })))
}

/// The end of a queued operation.
#[derive(Debug)]
struct Completion {
    call: &'static str,
    shared: Arc<Shared>,
    complete: AtomicBool,
    outcome: Mutex<Option<Result<Outcome, Error>>>,
    changed: Condvar,
}

impl Completion {
    fn new(call: &'static str, shared: Arc<Shared>) -> Self {
        Self { call, shared, complete: AtomicBool::new(false), outcome: Mutex::new(None), changed: Condvar::new() }
    }

    fn complete(&self, outcome: Result<Outcome, Error>) {
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
                return outcome.clone();
            }
            let rest = rest(&self.shared, self.call, started, within)?;
            outcome = self.changed.wait_timeout(outcome, rest).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}

/// A mark in a stream.
#[derive(Debug)]
pub(crate) struct HostEvent {
    state: Mutex<Option<(Duration, Result<(), Error>)>>,
    changed: Condvar,
}

/// Where the clock of all events starts.
fn clock() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

impl HostEvent {
    fn new() -> Self {
        Self { state: Mutex::new(None), changed: Condvar::new() }
    }

    /// Whether the mark was passed, with nothing failed before it.
    fn has_passed_well(&self) -> bool {
        matches!(&*lock(&self.state), Some((_, Ok(()))))
    }

    fn pass(&self, outcome: Result<(), Error>) {
        *lock(&self.state) = Some((clock(), outcome));
        self.changed.notify_all();
    }
}

impl EventBackend for HostEvent {
    fn is_complete(&self) -> bool {
        lock(&self.state).is_some()
    }

    fn wait(&self, within: Duration) -> Result<(), Error> {
        let started = Instant::now();
        let mut state = lock(&self.state);
        loop {
            if let Some((_, outcome)) = &*state {
                return outcome.clone();
            }
            let waited = started.elapsed();
            if waited >= within {
                let team = TeamName { id: TeamId::WORLD, size: 1 };
                return Err(Error::Timeout(Box::new(Timeout { call: "wait_event", team, waited, missing: Vec::new() })));
            }
            state = self.changed.wait_timeout(state, within - waited).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    fn passed_at(&self) -> Option<Duration> {
        lock(&self.state).as_ref().map(|(at, _)| *at)
    }
}
