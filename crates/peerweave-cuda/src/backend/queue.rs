//! Streams of the portable API over CUDA streams.
//!
//! Invariant: the resources of an operation are held until the stream has passed the operation: by
//! the queue, by the graph that captured the operation, or, after the queue was dropped, by the
//! thread that frees device memory.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use peerweave_core::backend::{EventBackend, Keep, Op, Outcome, Pending, StreamBackend, Submitted, TeamId};
use peerweave_core::{Error, TeamName};
use peerweave_driver::{CudaStream, DriverError, PrivateStream, bind, is_capturing, keep_in_graph, retire};

use super::enqueue::Enqueue;
use super::error::{driver, unsupported};
use super::event::Recorded;
use super::kernels;
use super::pools::Few;
use super::staging::{Copier, Staged};
use super::state::{GRACE, Lane, State, lock};
use super::ticket::{Source, Ticket};

/// A stream of this backend.
#[derive(Debug)]
pub(crate) struct CudaQueue(pub(super) Arc<Queue>);

pub(super) struct Queue {
    state: Arc<State>,
    stream: Handle,
    inner: Mutex<InFlight>,
}

/// A CUDA stream, created by this backend or by the user.
enum Handle {
    Own(PrivateStream),
    Wrapped(Arc<CudaStream>),
}

#[derive(Default)]
struct InFlight {
    /// The operations that the stream may not have passed, oldest first.
    operations: VecDeque<Held>,
    /// Number of operations at which the driver is queried for the operations that the stream has
    /// passed.
    ask_at: usize,
    /// Bytes of pools that the operations use.
    held_bytes: usize,
    /// Tickets of ended operations without other handles, to be reused by later operations.
    free: Vec<Arc<Ticket>>,
    /// The first failure since the last synchronisation.
    failed: Option<Error>,
}

/// Number of further operations after which the driver is queried again.
const ASK_EACH: usize = 32;
/// Number of pool bytes in use above which each call queries the driver.
const HELD_BYTES: usize = 1 << 20;
/// Tickets that a queue keeps for later operations.
const FREE_TICKETS: usize = 2 * ASK_EACH + 1;

/// One operation, with the resources that it uses.
struct Held {
    ticket: Arc<Ticket>,
    /// Bytes of pools that the operation uses.
    bytes: usize,
    _kept: (Keep, Uses),
}

/// Resources that an operation uses besides the memory of its operands.
#[derive(Default)]
struct Uses {
    _keep: Few<peerweave_driver::Keep>,
    _staged: Few<Staged>,
}

impl InFlight {
    /// Drops the oldest operation, which the stream has passed.
    fn pop(&mut self) {
        let Some(Held { mut ticket, bytes, _kept }) = self.operations.pop_front() else { return };
        if let Err(error) = ticket.read() {
            self.failed.get_or_insert_with(|| error.clone());
        }
        self.held_bytes -= bytes;
        if self.free.len() < FREE_TICKETS
            && let Some(unused) = Arc::get_mut(&mut ticket)
        {
            (unused.source, unused.outcome) = (Source::Copy, OnceLock::new());
            self.free.push(ticket);
        }
    }

    /// Drops operations whose outcome is known and, if there are many operations, all that the
    /// stream has passed.
    fn prune(&mut self) {
        while self.operations.front().is_some_and(|first| first.ticket.outcome.get().is_some()) {
            self.pop();
        }
        if self.operations.len() < self.ask_at.max(ASK_EACH) && self.held_bytes <= HELD_BYTES {
            return;
        }
        // A stream passes operations in order.
        let half = self.operations.len() / 2;
        if self.operations.get(half).is_some_and(|middle| middle.ticket.poll()) {
            (0..=half).for_each(|_| self.pop());
        } else if self.held_bytes > HELD_BYTES {
            self.prune_all();
        }
        self.ask_at = self.operations.len() + ASK_EACH;
    }

    /// Drops all operations that the stream has passed.
    fn prune_all(&mut self) {
        while self.operations.front().is_some_and(|first| first.ticket.poll()) {
            self.pop();
        }
    }

    /// Drops the operations up to `last`, which the stream has passed.
    fn prune_up_to(&mut self, last: Arc<Ticket>) {
        let count = self.operations.iter().rposition(|held| Arc::ptr_eq(&held.ticket, &last)).map_or(0, |at| at + 1);
        drop(last);
        (0..count).for_each(|_| self.pop());
    }

    /// Creates the ticket of an operation that was just enqueued, with an event behind the
    /// operation.
    fn ticket(&mut self, state: &Arc<State>, stream: &Arc<CudaStream>, made: Made) -> Result<Arc<Ticket>, (Made, DriverError)> {
        let Some(mut ticket) = self.free.pop() else {
            return match Recorded::new(stream, false) {
                Ok(event) => {
                    let Made { call, team, is_collective, source } = made;
                    Ok(Arc::new(Ticket {
                        state: Arc::clone(state),
                        call,
                        team,
                        is_collective,
                        event,
                        source,
                        outcome: OnceLock::new(),
                    }))
                }
                Err(error) => Err((made, error)),
            };
        };
        let unused = Arc::get_mut(&mut ticket).unwrap_or_else(|| unreachable!("a free ticket has one handle"));
        if let Err(error) = unused.event.again(stream) {
            return Err((made, error));
        }
        Made { call: unused.call, team: unused.team, is_collective: unused.is_collective, source: unused.source } = made;
        Ok(ticket)
    }
}

/// The properties of an operation that its ticket stores.
struct Made {
    call: &'static str,
    team: TeamName,
    is_collective: bool,
    source: Source,
}

/// Returns the team of an operation; the team of all PEs for operations without a team.
pub(super) fn team_of(state: &State, op: &Op) -> TeamName {
    match op {
        Op::Collective(op) => state.team_name(op.team),
        Op::PointToPoint(op) => state.team_name(op.team),
        _ => state.team_name(TeamId::WORLD),
    }
}

/// Returns whether an operation is a collective call, which all ranks of a team make.
fn is_collective(op: &Op) -> bool {
    matches!(op, Op::Collective(_))
}

impl CudaQueue {
    pub(super) fn new(state: &Arc<State>) -> Result<Self, Error> {
        let stream = PrivateStream::new(&state.context).map_err(|error| driver("stream", error))?;
        Self::of(state, Handle::Own(stream), "stream")
    }

    /// Wraps a stream of the user, which must be in the context of this GPU.
    pub(super) fn wrap(state: &Arc<State>, stream: Arc<CudaStream>) -> Result<Self, Error> {
        Self::of(state, Handle::Wrapped(stream), "wrap_stream")
    }

    fn of(state: &Arc<State>, stream: Handle, call: &'static str) -> Result<Self, Error> {
        let queue = Arc::new(Queue { state: Arc::clone(state), stream, inner: Mutex::default() });
        kernels::note(&*state.gpu(call)?, queue.cuda());
        lock(&state.queues).push(Arc::downgrade(&queue));
        Ok(Self(queue))
    }

    /// Returns the CUDA stream.
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

    /// Waits until all operations that were enqueued so far are complete.
    pub(super) fn synchronize(&self, within: Duration) -> Result<(), Error> {
        let start = Instant::now();
        let last = lock(&self.inner).operations.back().map(|held| Arc::clone(&held.ticket));
        if let Some(last) = &last {
            // The outcome of the last operation does not contain failures of earlier operations.
            let within = if within >= self.state.deadline { within.saturating_add(GRACE) } else { within };
            let passed = self.state.wait_for(&last.event, within).map_err(|error| driver("synchronize", error))?;
            let is_by_nccl =
                |held: &Held| matches!(held.ticket.source, Source::Nccl) && !held.ticket.event.is_complete().is_ok_and(|is| is);
            if !passed && within >= self.state.deadline && lock(&self.inner).operations.iter().any(is_by_nccl) {
                return Err(self.state.nccl_is_late("synchronize", self.state.world(), start.elapsed()));
            }
            if !passed {
                return Err(self.state.timed_out("synchronize", self.state.world(), start.elapsed()));
            }
            self.state.compare_all()?;
        }
        let mut inner = lock(&self.inner);
        if let Some(last) = last {
            inner.prune_up_to(last);
        }
        inner.failed.take().map_or(Ok(()), Err)
    }

    pub(super) fn pending(&self) -> usize {
        let mut inner = lock(&self.inner);
        inner.prune_all();
        inner.operations.len()
    }
}

// SAFETY: [B1] `Enqueue` accesses the ranges of the operation. [B6] the value of `keep` is moved to
// the operations in flight before `submit` returns `Queued`, and is dropped when the stream has
// passed them or, after `drop`, by the thread that waits for that; during a capture, the graph gets
// the value. [B8] the owners of memory of devices are notified around `Enqueue::op`.
unsafe impl StreamBackend for CudaQueue {
    unsafe fn submit(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Submitted, Error> {
        let (queue, call) = (&*self.0, op.call_name());
        let (state, stream) = (&queue.state, queue.cuda());
        let gpu = state.gpu(call)?;
        let kept = keep();
        kept.device_owners(&mut |owner| owner.before(Some(self)))?;
        // A stream's operations are enqueued one at a time, so that their parts do not mix.
        let mut inner = lock(&queue.inner);
        inner.prune();
        let capturing = is_capturing(stream).and_then(|capturing| bind(stream.context()).map(|()| capturing));
        let capturing = capturing.map_err(|error| driver(call, error))?;
        let mut enqueue = Enqueue::new(state, &gpu, stream, call, Copier::Stream, capturing);
        // SAFETY: the memory of the host is valid while `kept` lives, and `kept` lives until the
        // stream has passed the operation.
        let enqueued = unsafe { enqueue.op(op) };
        let (bytes, mut uses) = (enqueue.held_bytes, uses_of(&mut enqueue));
        kept.device_owners(&mut |owner| {
            owner.after(self);
            Ok(())
        })?;
        if capturing {
            let source = enqueued?;
            let all: [peerweave_driver::Keep; 2] = [Arc::new(source), Arc::new(kept)];
            keep_in_graph(stream, std::mem::take(&mut uses._keep).into_iter().chain(all).collect())
                .map_err(|error| driver(call, error))?;
            return Ok(Submitted::Captured);
        }
        // A part of a failed operation may be enqueued, so its memory is held too. The error is
        // returned here and not by a later synchronisation.
        let (source, failed) = match enqueued {
            Ok(source) => (source, None),
            Err(error) => (Source::Copy, Some(error)),
        };
        let made = Made { call, team: team_of(state, op), is_collective: is_collective(op), source };
        let ticket = match inner.ticket(state, stream, made) {
            Ok(ticket) => ticket,
            Err((made, error)) => {
                hold_back(state, stream, (kept, uses, made.source));
                return Err(driver(call, error));
            }
        };
        inner.held_bytes += bytes;
        inner.operations.push_back(Held { ticket: Arc::clone(&ticket), bytes, _kept: (kept, uses) });
        failed.map_or(Ok(Submitted::Queued(ticket)), Err)
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
            return Err(unsupported(CALL, "events in streams that are being captured are not implemented yet"));
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

/// Takes the resources of an operation from the value that enqueued it.
fn uses_of(enqueue: &mut Enqueue<'_>) -> Uses {
    Uses { _keep: std::mem::take(&mut enqueue.keep), _staged: std::mem::take(&mut enqueue.staged) }
}

/// Holds the resources of a stream until the stream has completed its work.
fn hold_back(state: &State, stream: &Arc<CudaStream>, used: (Keep, Uses, Source)) {
    state.note_allocations(stream);
    retire(&state.context, [Arc::clone(stream)], Box::new(move || drop(used)));
}

impl Drop for Queue {
    fn drop(&mut self) {
        let stream = Arc::clone(self.cuda());
        let inner = self.inner.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let operations: Vec<Held> = std::mem::take(&mut inner.operations).into();
        if !operations.is_empty() {
            self.state.note_allocations(&stream);
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
        inner.prune_all();
        inner.failed.clone().map_or(Ok(()), Err)
    }

    fn elapsed_since(&self, earlier: &dyn EventBackend) -> Option<Duration> {
        let earlier: &dyn Any = earlier;
        let earlier = earlier.downcast_ref::<Self>().expect("peerweave-core bug: an event of another backend");
        self.recorded.elapsed_since(&earlier.recorded)
    }
}

/// Runs an operation on a separate stream and waits on the calling thread until it is complete.
///
/// # Safety
/// As for `Backend::run`.
pub(super) unsafe fn run(state: &Arc<State>, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Outcome, Error> {
    let call = op.call_name();
    let gpu = state.gpu(call)?;
    let kept = keep();
    kept.device_owners(&mut |owner| owner.before(None))?;
    let Lane { stream, event } = state.take_lane(call, &gpu)?;
    bind(stream.context()).map_err(|error| driver(call, error))?;
    let mut enqueue = Enqueue::new(state, &gpu, &stream, call, Copier::Caller, false);
    // SAFETY: the memory of the host is valid until this returns, and only this thread accesses it.
    let enqueued = unsafe { enqueue.op(op) };
    let (uses, results) = (uses_of(&mut enqueue), std::mem::take(&mut enqueue.results));
    let source = match (enqueued, event.again(&stream)) {
        (Ok(source), Ok(())) => source,
        (Ok(source), Err(error)) => {
            hold_back(state, &stream, (kept, uses, source));
            return Err(driver(call, error));
        }
        (Err(error), _) => {
            hold_back(state, &stream, (kept, uses, Source::Copy));
            return Err(error);
        }
    };
    let (team, is_collective) = (team_of(state, op), is_collective(op));
    let ticket = Ticket { state: Arc::clone(state), call, team, is_collective, event, source, outcome: OnceLock::new() };
    let outcome = ticket.wait(state.deadline);
    if !ticket.is_complete() {
        // The work continues, so its memory is held and its stream is not reused.
        hold_back(state, &stream, (kept, uses, ticket.source));
        return outcome;
    }
    if outcome.is_ok() {
        for staged in results.into_iter() {
            // SAFETY: the caller's memory is valid until this returns, and the work has ended.
            unsafe { staged.empty() };
        }
    }
    drop((kept, uses));
    state.give_back(Lane { stream, event: ticket.event });
    outcome
}
