//! Streams of the portable API over CUDA streams.
//!
//! Invariant: what an operation uses is held until the stream has passed it: here, by the graph
//! that captured it, or, when this is dropped before that, by the thread that frees memory of the
//! device.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use peerweave_core::backend::{EventBackend, Keep, Op, Outcome, Pending, StreamBackend, Submitted, TeamId};
use peerweave_core::{Error, TeamName};
use peerweave_driver::{CudaStream, PrivateStream, is_capturing, keep_in_graph, retire};

use super::enqueue::Enqueue;
use super::error::{driver, unsupported};
use super::event::Recorded;
use super::staging::Copier;
use super::state::{GRACE, State, lock};
use super::ticket::Ticket;

/// A stream of this backend.
#[derive(Debug)]
pub(crate) struct CudaQueue(pub(super) Arc<Queue>);

pub(super) struct Queue {
    state: Arc<State>,
    stream: Handle,
    inner: Mutex<InFlight>,
}

/// The stream, made here or by the user.
enum Handle {
    Own(PrivateStream),
    Wrapped(Arc<CudaStream>),
}

#[derive(Default)]
struct InFlight {
    /// The operations that the stream may not have passed, oldest first.
    operations: VecDeque<Held>,
    /// The first failure since the last synchronisation.
    failed: Option<Error>,
}

/// One operation, with what it uses.
struct Held {
    ticket: Arc<Ticket>,
    _kept: (Keep, Vec<peerweave_driver::Keep>),
}

/// The team of an operation; that of all PEs for operations that have none.
pub(super) fn team_of(state: &State, op: &Op) -> TeamName {
    match op {
        Op::Collective(op) => state.team_name(op.team),
        Op::PointToPoint(op) => state.team_name(op.team),
        _ => state.team_name(TeamId::WORLD),
    }
}

impl CudaQueue {
    pub(super) fn new(state: &Arc<State>) -> Result<Self, Error> {
        let stream = PrivateStream::new(&state.context).map_err(|error| driver("stream", error))?;
        Ok(Self::of(state, Handle::Own(stream)))
    }

    /// A stream of the user, in the context of this GPU.
    pub(super) fn wrap(state: &Arc<State>, stream: Arc<CudaStream>) -> Self {
        Self::of(state, Handle::Wrapped(stream))
    }

    fn of(state: &Arc<State>, stream: Handle) -> Self {
        let queue = Arc::new(Queue { state: Arc::clone(state), stream, inner: Mutex::default() });
        lock(&state.queues).push(Arc::downgrade(&queue));
        Self(queue)
    }

    /// The CUDA stream.
    pub(super) fn cuda(&self) -> &Arc<CudaStream> {
        self.0.cuda()
    }

    pub(super) fn is_of(&self, state: &Arc<State>) -> bool {
        Arc::ptr_eq(&self.0.state, state)
    }
}

impl Queue {
    fn cuda(&self) -> &Arc<CudaStream> {
        match &self.stream {
            Handle::Own(stream) => stream,
            Handle::Wrapped(stream) => stream,
        }
    }

    /// Lets go of what the stream has passed.
    fn prune(&self, inner: &mut InFlight) {
        while let Some(first) = inner.operations.front()
            && let Some(outcome) = first.ticket.poll()
        {
            if let Err(error) = outcome {
                inner.failed.get_or_insert(error);
            }
            inner.operations.pop_front();
        }
    }

    /// Waits until all operations that were enqueued so far are complete.
    pub(super) fn synchronize(&self, within: Duration) -> Result<(), Error> {
        let start = Instant::now();
        let last = lock(&self.inner).operations.back().map(|held| Arc::clone(&held.ticket));
        if let Some(last) = last {
            // The outcome of the last one says nothing of those before it.
            let within = if within >= self.state.deadline { within.saturating_add(GRACE) } else { within };
            let passed = self.state.wait_for(&last.event, within).map_err(|error| driver("synchronize", error))?;
            if !passed {
                return Err(self.state.timed_out("synchronize", self.state.world(), start.elapsed()));
            }
        }
        let mut inner = lock(&self.inner);
        self.prune(&mut inner);
        inner.failed.take().map_or(Ok(()), Err)
    }

    pub(super) fn pending(&self) -> usize {
        let mut inner = lock(&self.inner);
        self.prune(&mut inner);
        inner.operations.len()
    }
}

// SAFETY: [B1] `Enqueue` accesses the ranges of the operation. [B6] what `keep` gave is moved to
// the operations in flight before `submit` returns `Queued`, and is dropped when the stream has
// passed them or, from `drop`, by the thread that waits for that; a graph gets it where the stream
// is captured. [B8] the owners of memory of devices are notified around `Enqueue::op`.
unsafe impl StreamBackend for CudaQueue {
    unsafe fn submit(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Submitted, Error> {
        let (queue, call) = (&*self.0, op.call_name());
        let (state, stream) = (&queue.state, queue.cuda());
        let gpu = state.gpu(call)?;
        let kept = keep();
        kept.device_owners(&mut |owner| owner.before(Some(self)))?;
        // Operations of one stream are enqueued one at a time, so that their parts stay together.
        let mut inner = lock(&queue.inner);
        queue.prune(&mut inner);
        let capturing = is_capturing(stream).map_err(|error| driver(call, error))?;
        let mut enqueue =
            Enqueue { state, gpu: &gpu, stream, call, copier: Copier::Stream, capturing, keep: Vec::new(), results: Vec::new() };
        // SAFETY: the memory of the host is valid while `kept` lives, which is until the stream has
        // passed the operation.
        let enqueued = unsafe { enqueue.op(op) };
        let uses = std::mem::take(&mut enqueue.keep);
        kept.device_owners(&mut |owner| {
            owner.after(self);
            Ok(())
        })?;
        if capturing {
            let source = enqueued?;
            drop(source);
            let kept: peerweave_driver::Keep = Arc::new(kept);
            keep_in_graph(stream, uses.into_iter().chain([kept]).collect()).map_err(|error| driver(call, error))?;
            return Ok(Submitted::Captured);
        }
        // A part of the operation may be enqueued even if it failed: its memory is held as well.
        let event = match Recorded::new(stream, false) {
            Ok(event) => event,
            Err(error) => {
                hold_back(state, stream, (kept, uses));
                return Err(driver(call, error));
            }
        };
        let (source, outcome) = match &enqueued {
            Ok(source) => (source.clone(), std::sync::OnceLock::new()),
            // Its outcome is known; it is not a failure of a later synchronisation.
            Err(_) => (super::ticket::Source::Copy, std::sync::OnceLock::from(Ok(Outcome::Done))),
        };
        let ticket = Arc::new(Ticket { state: Arc::clone(state), call, team: team_of(state, op), event, source, outcome });
        inner.operations.push_back(Held { ticket: Arc::clone(&ticket), _kept: (kept, uses) });
        enqueued?;
        Ok(Submitted::Queued(ticket))
    }

    fn synchronize(&self, within: Duration) -> Result<(), Error> {
        self.0.synchronize(within)
    }

    fn is_idle(&self) -> bool {
        self.0.pending() == 0
    }

    fn record(&self) -> Result<Arc<dyn EventBackend>, Error> {
        const CALL: &str = "record";
        let stream = self.cuda();
        if is_capturing(stream).map_err(|error| driver(CALL, error))? {
            return Err(unsupported(CALL, "events in streams that are being captured are not built yet"));
        }
        let recorded = Recorded::new(stream, true).map_err(|error| driver(CALL, error))?;
        Ok(Arc::new(CudaEvent { state: Arc::clone(&self.0.state), queue: Arc::downgrade(&self.0), recorded }))
    }

    fn wait_event(&self, event: &Arc<dyn EventBackend>) -> Result<(), Error> {
        let event: &dyn Any = &**event;
        let event = event.downcast_ref::<CudaEvent>().expect("peerweave-core bug: an event of another backend");
        event.recorded.hold_back(self.cuda()).map_err(|error| driver("wait_event", error))
    }
}

/// Holds what a stream uses until it has completed its work.
pub(super) fn hold_back(state: &State, stream: &Arc<CudaStream>, used: (Keep, Vec<peerweave_driver::Keep>)) {
    retire(&state.context, [Arc::clone(stream)], Box::new(move || drop(used)));
}

impl Drop for Queue {
    fn drop(&mut self) {
        let stream = Arc::clone(self.cuda());
        let inner = self.inner.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let operations: Vec<Held> = std::mem::take(&mut inner.operations).into();
        if !operations.is_empty() {
            retire(&self.state.context, [stream], Box::new(move || drop(operations)));
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({:?})", self.state)
    }
}

/// An event in a stream.
#[derive(Debug)]
pub(super) struct CudaEvent {
    state: Arc<State>,
    queue: std::sync::Weak<Queue>,
    recorded: Recorded,
}

impl EventBackend for CudaEvent {
    fn is_complete(&self) -> bool {
        !matches!(self.recorded.is_complete(), Ok(false))
    }

    fn wait(&self, within: Duration) -> Result<(), Error> {
        const CALL: &str = "wait_event";
        let start = Instant::now();
        if !self.state.wait_for(&self.recorded, within).map_err(|error| driver(CALL, error))? {
            return Err(self.state.timed_out(CALL, self.state.world(), start.elapsed()));
        }
        let Some(queue) = self.queue.upgrade() else { return Ok(()) };
        let mut inner = lock(&queue.inner);
        queue.prune(&mut inner);
        inner.failed.clone().map_or(Ok(()), Err)
    }

    fn elapsed_since(&self, earlier: &dyn EventBackend) -> Option<Duration> {
        let earlier: &dyn Any = earlier;
        let earlier = earlier.downcast_ref::<Self>().expect("peerweave-core bug: an event of another backend");
        self.recorded.elapsed_since(&earlier.recorded)
    }
}

/// Runs an operation on the calling thread: on a stream of its own, until it is complete.
///
/// # Safety
/// As `Backend::run`.
pub(super) unsafe fn run(state: &Arc<State>, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Outcome, Error> {
    let call = op.call_name();
    let gpu = state.gpu(call)?;
    let kept = keep();
    kept.device_owners(&mut |owner| owner.before(None))?;
    let stream = state.take_stream(call)?;
    let mut enqueue = Enqueue {
        state,
        gpu: &gpu,
        stream: &stream,
        call,
        copier: Copier::Caller,
        capturing: false,
        keep: Vec::new(),
        results: Vec::new(),
    };
    // SAFETY: the memory of the host is valid until this returns, and only this thread accesses it.
    let enqueued = unsafe { enqueue.op(op) };
    let (uses, results) = (std::mem::take(&mut enqueue.keep), std::mem::take(&mut enqueue.results));
    let event = Recorded::new(&stream, false);
    let ticket = match (enqueued, event) {
        (Ok(source), Ok(event)) => {
            let (state, team) = (Arc::clone(state), team_of(state, op));
            Ticket { state, call, team, event, source, outcome: std::sync::OnceLock::new() }
        }
        (enqueued, event) => {
            hold_back(state, &stream, (kept, uses));
            return Err(enqueued
                .err()
                .or_else(|| event.err().map(|error| driver(call, error)))
                .unwrap_or_else(|| unreachable!("one of the two failed")));
        }
    };
    let outcome = ticket.wait(state.deadline);
    if !ticket.is_complete() {
        // The work goes on: its memory is held, and its stream is not used again.
        hold_back(state, &stream, (kept, uses));
        return outcome;
    }
    let outcome = outcome?;
    for staged in results {
        // SAFETY: the caller's memory is valid until this returns, and the work has ended.
        unsafe { staged.empty() };
    }
    drop((kept, uses));
    state.give_back(stream);
    Ok(outcome)
}
