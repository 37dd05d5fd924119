//! Streams: queues of work, each with a thread that runs it in order. Invariant:
//! `completed <= submitted`, and the n-th submission is complete exactly when `completed >= n`.

use core::ffi::c_int;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::{self, ThreadId};

use crate::abi::{Code, CuStream, Result};
use crate::machine::context::Context;
use crate::machine::current::current;
use crate::machine::driver::driver;
use crate::sync::{lock, wait_while};
use crate::table::Table;
use crate::work::piece::Work;

/// All streams that are not destroyed.
pub(crate) static STREAMS: Table<Stream> = Table::new(0x52, Code::INVALID_HANDLE);

/// The streams of each context that is not destroyed, by the context's number.
static OF_CONTEXT: Mutex<BTreeMap<u64, Arc<ContextStreams>>> = Mutex::new(BTreeMap::new());

/// The greatest priority; lower numbers are more urgent.
pub(crate) const GREATEST_PRIORITY: c_int = -5;

/// Role of a stream in the implicit order of the legacy stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The context's stream 0: its work is ordered before and after all work of blocking streams.
    Legacy,
    Blocking,
    NonBlocking,
}

/// The streams of one context, which wait for each other.
#[derive(Default)]
pub(crate) struct ContextStreams {
    streams: Mutex<Vec<Weak<Stream>>>,
    /// Locked while a submission reads the state of other streams, until the submission is queued.
    submission: Mutex<()>,
    /// Handles of the legacy stream (`None`) and of each thread's default stream.
    implicit: Mutex<HashMap<Option<ThreadId>, usize>>,
}

/// One stream.
pub(crate) struct Stream {
    pub(crate) handle: usize,
    pub(crate) context: Arc<Context>,
    pub(crate) kind: Kind,
    pub(crate) priority: c_int,
    pub(crate) id: u64,
    /// All streams of the context, this one included.
    siblings: Arc<ContextStreams>,
    queue: Mutex<Queue>,
    changed: Condvar,
    gates: Mutex<Vec<Arc<Gate>>>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Submission>,
    submitted: u64,
    completed: u64,
    closing: bool,
    has_thread: bool,
}

struct Submission {
    /// Work of other streams that must complete first.
    after: Vec<(Arc<Stream>, u64)>,
    run: Run,
}

/// Kind of a submission.
pub(crate) enum Run {
    /// Work that is skipped if the context has failed. If the work fails, the context fails.
    Work(Work),
    /// A function that runs in any case, with the context's error (0 means none).
    Always(Box<dyn FnOnce(c_int) + Send>),
}

/// A gate, which blocks a stream until the gate is opened.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl ContextStreams {
    /// Returns the streams of a context.
    pub(crate) fn of(context: &Context) -> Arc<ContextStreams> {
        Arc::clone(lock(&OF_CONTEXT).entry(context.id).or_default())
    }

    /// Returns the streams that are alive.
    pub(crate) fn live(&self) -> Vec<Arc<Stream>> {
        let mut streams = lock(&self.streams);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Closes all streams of a context that is destroyed.
pub(crate) fn close_all(context: &Context) {
    for stream in ContextStreams::of(context).live() {
        STREAMS.remove(stream.handle);
        stream.close();
    }
    lock(&OF_CONTEXT).remove(&context.id);
}

impl Stream {
    /// Creates a stream.
    pub(crate) fn make(context: &Arc<Context>, kind: Kind, priority: c_int) -> Arc<Stream> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let handle = STREAMS.reserve();
        let siblings = ContextStreams::of(context);
        let stream = Arc::new(Stream {
            handle,
            context: Arc::clone(context),
            kind,
            priority,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            siblings: Arc::clone(&siblings),
            queue: Mutex::default(),
            changed: Condvar::new(),
            gates: Mutex::default(),
        });
        STREAMS.insert(handle, Arc::clone(&stream));
        lock(&siblings.streams).push(Arc::downgrade(&stream));
        stream
    }

    /// Returns all live streams of the context, including this one.
    pub(crate) fn live_of_context(&self) -> Vec<Arc<Stream>> {
        self.siblings.live()
    }

    pub(crate) fn submitted(&self) -> u64 {
        lock(&self.queue).submitted
    }

    pub(crate) fn is_idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.submitted == queue.completed
    }

    /// Waits until the n-th submission is complete.
    pub(crate) fn wait_until(&self, target: u64) {
        drop(wait_while(&self.changed, lock(&self.queue), |queue| queue.completed < target));
    }

    /// Enqueues work, even if the stream is captured, and returns the number of the submission.
    pub(crate) fn push(self: &Arc<Stream>, run: Run) -> u64 {
        let _order = lock(&self.siblings.submission);
        let others: Vec<Arc<Stream>> = match self.kind {
            Kind::NonBlocking => Vec::new(),
            Kind::Legacy => self.siblings.live().into_iter().filter(|other| other.kind == Kind::Blocking).collect(),
            Kind::Blocking => self.siblings.live().into_iter().filter(|other| other.kind == Kind::Legacy).collect(),
        };
        let after =
            others.into_iter().filter(|other| !other.is_idle()).map(|other| (Arc::clone(&other), other.submitted())).collect();
        let mut queue = lock(&self.queue);
        queue.waiting.push_back(Submission { after, run });
        queue.submitted += 1;
        let number = queue.submitted;
        if !queue.has_thread {
            queue.has_thread = true;
            let stream = Arc::clone(self);
            let spawned = thread::Builder::new().name("fake-cuda-stream".to_owned()).spawn(move || stream.serve());
            spawned.expect("the system can start a thread for the stream");
        }
        self.changed.notify_all();
        number
    }

    /// Makes the stream's thread end when the queue is empty.
    pub(crate) fn close(&self) {
        lock(&self.queue).closing = true;
        self.changed.notify_all();
    }

    /// Blocks the stream at this point until [`Stream::unblock`].
    pub(crate) fn block(self: &Arc<Stream>) {
        let gate = Arc::new(Gate::default());
        lock(&self.gates).push(Arc::clone(&gate));
        self.push(Run::Always(Box::new(move |_| drop(wait_while(&gate.opened, lock(&gate.open), |open| !*open)))));
    }

    /// Unblocks the stream.
    pub(crate) fn unblock(&self) {
        for gate in lock(&self.gates).drain(..) {
            *lock(&gate.open) = true;
            gate.opened.notify_all();
        }
    }

    fn serve(self: Arc<Stream>) {
        loop {
            let is_idle = |queue: &mut Queue| queue.waiting.is_empty() && !queue.closing;
            let mut queue = wait_while(&self.changed, lock(&self.queue), is_idle);
            let Some(next) = queue.waiting.pop_front() else { return };
            drop(queue);
            for (other, target) in next.after {
                other.wait_until(target);
            }
            match next.run {
                Run::Work(work) => {
                    if self.context.error() == 0
                        && let Err(code) = work.run(&self.context)
                    {
                        self.context.fail(code);
                    }
                }
                Run::Always(run) => run(self.context.error()),
            }
            lock(&self.queue).completed += 1;
            self.changed.notify_all();
        }
    }
}

/// Returns the stream of a handle, which may be null or one of the two special handles.
pub(crate) fn resolve(handle: CuStream) -> Result<Arc<Stream>> {
    driver()?;
    let thread = match handle.0 {
        0 | 1 => None,
        2 => Some(thread::current().id()),
        other => return STREAMS.find(other),
    };
    let context = current()?;
    let siblings = ContextStreams::of(&context);
    let mut implicit = lock(&siblings.implicit);
    if let Some(stream) = implicit.get(&thread).and_then(|handle| STREAMS.get(*handle)) {
        return Ok(stream);
    }
    let kind = if thread.is_none() { Kind::Legacy } else { Kind::Blocking };
    let stream = Stream::make(&context, kind, 0);
    implicit.insert(thread, stream.handle);
    Ok(stream)
}

/// Returns the legacy stream of the current context, which functions without a stream argument use.
pub(crate) fn legacy() -> Result<Arc<Stream>> {
    resolve(CuStream(0))
}
