//! The watchdog: one thread of the process that enforces the deadlines of blocked calls and of
//! enqueued work.
//!
//! The watchdog adds no cost to calls, because it only reads values that each call writes anyway.
//! These values are the owner of the communicator's lock (`state.rs`), the number of the last call,
//! and the streams with work. For each late call, a separate thread asks the other ranks for their
//! last calls. So the deadlines of other calls are not delayed.
//!
//! Invariant: the watchdog closes a communicator to new calls before the watchdog aborts the
//! communicator. For a late call, the watchdog closes the communicator only while the call is still
//! blocked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::{Duration, Instant};

use peerweave_driver::BeforeExit;

use crate::Call;
use crate::comm::abort::abort_together;
use crate::comm::siblings::{self, LeftOut};
use crate::comm::teardown;
use crate::comm::wait::{Watch, expired};
use crate::comm::work::Work;
use crate::library::error::NcclError;
use crate::member::membership::{self, Inner};
use crate::member::state::Gate;

/// Number of inspections within the shortest call deadline or work deadline of all communicators.
/// The interval between two inspections is this deadline divided by this number, limited to the
/// range [`BETWEEN_LOOKS`].
const LOOKS: u32 = 8;
/// Minimum and maximum interval between two inspections of the communicators by the watchdog.
const BETWEEN_LOOKS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];

/// Interval at which a late call is inspected.
const INSPECT_EVERY: Duration = Duration::from_millis(50);

/// Records whether the watchdog's thread is running. Also counts the requests to inspect all
/// communicators.
#[derive(Default)]
struct Thread {
    is_running: bool,
    /// Number of calls of [`watch`]. After such a call, the watchdog's thread inspects all
    /// communicators.
    changes: u64,
}

static THREAD: Mutex<Thread> = Mutex::new(Thread { is_running: false, changes: 0 });
static CHANGED: Condvar = Condvar::new();

/// Number of inspections by the watchdog that are running now. An inspection holds handles of
/// communicators.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// Returns whether the watchdog holds handles of communicators now. The watchdog may own the last
/// handle of a communicator that the program has dropped.
pub(crate) fn is_looking() -> bool {
    LOOKING.load(Ordering::Acquire) != 0
}

/// Marks an inspection of communicators by the watchdog as running, until this value is dropped. An
/// inspection must drop its handles of communicators before this value.
struct Look(BeforeExit);

impl Look {
    /// Begins an inspection of communicators. Returns `None` if the process is ending.
    fn begin() -> Option<Self> {
        let inside = BeforeExit::enter()?;
        LOOKING.fetch_add(1, Ordering::AcqRel);
        Some(Self(inside))
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        LOOKING.fetch_sub(1, Ordering::AcqRel);
    }
}

fn thread() -> MutexGuard<'static, Thread> {
    THREAD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the watchdog inspect all communicators now. Starts the watchdog's thread if the thread is
/// not running. Called after a communicator was created, and after a deadline was changed. Returns
/// `false` if the system cannot start the thread.
pub(crate) fn watch() -> bool {
    let mut thread = thread();
    thread.changes += 1;
    if !thread.is_running {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(BeforeExit::register);
        teardown::created();
        thread.is_running = std::thread::Builder::new().name("peerweave-watchdog".into()).spawn(run).is_ok();
    }
    CHANGED.notify_all();
    thread.is_running
}

fn run() {
    let mut seen = HashMap::new();
    loop {
        let changes = thread().changes;
        let next = look_at_all(&mut seen);
        let mut thread = thread();
        match next {
            // A communicator that is created from here on waits for the lock, and then starts a new
            // thread.
            None if thread.changes == changes => {
                thread.is_running = false;
                return;
            }
            next => {
                let next = next.unwrap_or_default();
                drop(CHANGED.wait_timeout_while(thread, next, |thread| thread.changes == changes));
            }
        }
    }
}

/// The state of one communicator at the last inspection.
#[derive(Default)]
struct Seen {
    call: Option<SeenCall>,
    work: Work,
}

struct SeenCall {
    acquisition: u64,
    since: Instant,
    is_inspected: bool,
}

/// Inspects every open communicator. Returns the time until the next inspection, or `None` if there
/// is no communicator or the process is ending.
fn look_at_all(seen: &mut HashMap<u64, Seen>) -> Option<Duration> {
    let _look = Look::begin()?;
    let mut open = membership::all();
    open.retain(|inner| !inner.gate.is_closed());
    seen.retain(|number, _| open.iter().any(|inner| inner.name.number == *number));
    let now = Instant::now();
    let mut shortest = None;
    for inner in &open {
        let seen = seen.entry(inner.name.number).or_default();
        seen.look_at_call(inner, now);
        if seen.work.is_late(inner, now) {
            let late = Arc::downgrade(inner);
            let thread = std::thread::Builder::new().name("peerweave-late".into());
            // If the system cannot start the thread, the next inspection tries again.
            if thread.spawn(move || abort_late_work(&late, now)).is_ok() {
                seen.work.report();
            }
        }
        let deadline = inner.deadline().min(inner.work_deadline());
        shortest = Some(shortest.map_or(deadline, |shortest: Duration| shortest.min(deadline)));
    }
    shortest.map(|deadline| (deadline / LOOKS).clamp(BETWEEN_LOOKS[0], BETWEEN_LOOKS[1]))
}

impl Seen {
    fn look_at_call(&mut self, inner: &Arc<Inner>, now: Instant) {
        match (inner.gate.stuck_in(), &mut self.call) {
            (None, call) => *call = None,
            (Some(acquisition), Some(call)) if call.acquisition == acquisition => {
                if !call.is_inspected {
                    let late = LateCall { inner: Arc::downgrade(inner), acquisition, since: call.since };
                    let thread = std::thread::Builder::new().name("peerweave-late".into());
                    call.is_inspected = thread.spawn(move || late.inspect()).is_ok();
                }
            }
            (Some(acquisition), call) => *call = Some(SeenCall { acquisition, since: now, is_inspected: false }),
        }
    }
}

/// A call that two consecutive inspections have found blocked. The call may be stuck.
struct LateCall {
    inner: Weak<Inner>,
    acquisition: u64,
    since: Instant,
}

impl LateCall {
    /// Watches a call that may be stuck. Repeats [`look`](Self::look) until the call has returned
    /// or was aborted.
    fn inspect(&self) {
        let (mut watch, mut left_out) = (Watch::default(), None);
        while let Some(pause) = self.look(&mut watch, &mut left_out) {
            std::thread::sleep(pause);
        }
    }

    /// Inspects the blocked call once. Aborts the call's communicators if the call's deadline has
    /// passed, if a rank is lost, or if the thread of the call has omitted one of its own ranks
    /// from a group. Returns the time until the next inspection. Returns `None` if the call has
    /// returned or its communicators were aborted.
    fn look(&self, watch: &mut Watch, left_out: &mut Option<LeftOut>) -> Option<Duration> {
        let _look = Look::begin()?;
        let inner = self.inner.upgrade()?;
        let goes_on = || !inner.gate.is_closed() && inner.gate.stuck_in() == Some(self.acquisition);
        if !goes_on() {
            return None;
        }
        let (together, waited) = (stuck_together(&inner), self.since.elapsed());
        let deadline = together.iter().map(|inner| inner.deadline()).max().unwrap_or_default();
        let left_out = left_out.get_or_insert_with(|| LeftOut::by_thread(inner.last_thread(), deadline));
        let answer = match waited < deadline {
            true if !self.needs_all_ranks(&inner) => Ok(()),
            true => watch.look(&inner, waited).and_then(|()| left_out.look("call", &inner, waited)),
            false => Err(expired(&inner, waited)),
        };
        match answer {
            Ok(()) => Some(INSPECT_EVERY.min(deadline.saturating_sub(waited))),
            // The call may have returned while the other ranks were queried.
            Err(error) if goes_on() => {
                abort_late(&together, &error);
                None
            }
            Err(_) => None,
        }
    }
}

impl LateCall {
    /// Returns whether the call waits for all ranks, including lost ranks. Shrink and revoke do not
    /// wait for lost ranks.
    fn needs_all_ranks(&self, inner: &Inner) -> bool {
        self.acquisition != Gate::READER && inner.last().1 != Call::Shrink.name()
    }
}

/// Returns the communicators that must be aborted together with this communicator. If the thread
/// that holds this communicator's lock is blocked in a group, these are all communicators of the
/// group. Otherwise this is only the communicator itself. The thread holds the locks of all these
/// communicators, and releases them at the same time.
pub(crate) fn stuck_together(inner: &Arc<Inner>) -> Vec<Arc<Inner>> {
    let group = inner.group.load(Ordering::Acquire);
    if group == 0 {
        return vec![Arc::clone(inner)];
    }
    let mut together = membership::all();
    together.retain(|other| {
        Arc::ptr_eq(other, inner) || other.group.load(Ordering::Acquire) == group && other.gate.stuck_in().is_some()
    });
    together
}

/// Aborts a communicator whose work is late: all ranks of the communicator in this process. Records
/// an error that names the missing ranks.
fn abort_late_work(inner: &Weak<Inner>, since: Instant) {
    let (Some(_look), Some(inner)) = (Look::begin(), inner.upgrade()) else { return };
    let error = expired(&inner, inner.work_deadline() + since.elapsed());
    abort_late(&siblings::of_process(&inner), &error);
}

/// Aborts communicators. Waits and blocked calls on these communicators then return `error`.
pub(crate) fn abort_late(communicators: &[Arc<Inner>], error: &NcclError) {
    tracing::error!(%error, count = communicators.len(), "aborting communicators on which a call is blocked or enqueued work is overdue");
    for inner in communicators {
        // An earlier reason is kept.
        let _ = inner.abort_reason.set(error.clone());
    }
    // This thread does not wait for the aborts. The aborting threads log their errors.
    let _ = abort_together(communicators, Duration::ZERO);
}
