//! The watchdog: one thread of the process, which gives deadlines to calls that NCCL keeps on the
//! host and to work that is enqueued.
//!
//! A call pays nothing for it: the watchdog reads what a call writes anyway: the owner of the gate
//! (`state.rs`), the number of the last call, the streams that got work. A separate thread for each
//! long call asks where other ranks are, so that no query delays the deadline of another call.
//!
//! Invariant: a communicator is closed before it is aborted, as by every other abort, and only
//! while the call that is late is the same one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::Call;
use crate::comm::abort::abort_together;
use crate::comm::siblings::{self, LeftOut};
use crate::comm::wait::{Watch, expired};
use crate::comm::work::Work;
use crate::library::error::NcclError;
use crate::member::membership::{self, Inner};
use crate::member::state::Gate;

/// How often communicators are inspected: this often within the shortest deadline, and within these
/// bounds.
const LOOKS: u32 = 8;
const BETWEEN_LOOKS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];

/// How often a call that takes long is looked at.
const INSPECT_EVERY: Duration = Duration::from_millis(50);

/// The one thread.
#[derive(Default)]
struct Thread {
    is_running: bool,
    /// How often there was something new to watch.
    changes: u64,
}

static THREAD: Mutex<Thread> = Mutex::new(Thread { is_running: false, changes: 0 });
static CHANGED: Condvar = Condvar::new();

/// How many inspections hold communicators now.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// Returns whether the watchdog holds communicators now. Then the last handle of a communicator may
/// be the watchdog's, for a moment.
pub(crate) fn is_looking() -> bool {
    LOOKING.load(Ordering::Acquire) != 0
}

/// An inspection of communicators. The handles that it took are dropped before it.
struct Look;

impl Look {
    fn begin() -> Self {
        LOOKING.fetch_add(1, Ordering::AcqRel);
        Self
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

/// Makes the watchdog inspect all communicators, after one was created or a deadline has changed.
/// Returns `false` if the system has no thread for it.
pub(crate) fn watch() -> bool {
    let mut thread = thread();
    thread.changes += 1;
    if !thread.is_running {
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
            // A communicator that is made from here on waits for the lock, and finds that a new
            // thread is needed.
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

/// What was seen of one communicator.
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

/// Looks at every communicator that is open. Gives when to look again; `None` where there is none.
fn look_at_all(seen: &mut HashMap<u64, Seen>) -> Option<Duration> {
    let _look = Look::begin();
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
            // Its deadline is long, so that a thread that the system does not give is asked for
            // again.
            drop(std::thread::Builder::new().name("peerweave-late".into()).spawn(move || abort_late_work(&late, now)));
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

/// A call that was seen twice, and may be stuck.
struct LateCall {
    inner: Weak<Inner>,
    acquisition: u64,
    since: Instant,
}

impl LateCall {
    /// Waits until the call is over, or it has to be ended.
    fn inspect(&self) {
        let (mut watch, mut left_out) = (Watch::default(), None);
        while let Some(pause) = self.look(&mut watch, &mut left_out) {
            std::thread::sleep(pause);
        }
    }

    /// Gives when to look again; `None` where the call is over, or was ended.
    fn look(&self, watch: &mut Watch, left_out: &mut Option<LeftOut>) -> Option<Duration> {
        let _look = Look::begin();
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
            // Asking the others takes a moment, in which the call may have come to its end.
            Err(error) if goes_on() => {
                abort_late(&together, &error);
                None
            }
            Err(_) => None,
        }
    }
}

impl LateCall {
    /// Whether the call waits for every rank. A communicator is shrunk, and revoked, because some
    /// are gone.
    fn needs_all_ranks(&self, inner: &Inner) -> bool {
        self.acquisition != Gate::READER && inner.last().1 != Call::Shrink.name()
    }
}

/// The communicators whose calls the thread that is inside of this one makes together: it leaves
/// NCCL with all of them.
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

/// Ends work that is late, unless it was completed meanwhile.
fn abort_late_work(inner: &Weak<Inner>, since: Instant) {
    let _look = Look::begin();
    let Some(inner) = inner.upgrade() else { return };
    let error = expired(&inner, inner.work_deadline() + since.elapsed());
    abort_late(&siblings::of_process(&inner), &error);
}

/// Aborts communicators, and records the reason for their waits and blocked calls.
pub(crate) fn abort_late(communicators: &[Arc<Inner>], error: &NcclError) {
    tracing::error!(%error, count = communicators.len(), "what is late is aborted");
    for inner in communicators {
        // The first reason stays.
        let _ = inner.abort_reason.set(error.clone());
    }
    // Not waited for: the threads that abort say what goes wrong.
    let _ = abort_together(communicators, Duration::ZERO);
}
