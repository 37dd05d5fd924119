//! Implements the streams of the portable API by CUDA streams.
//!
//! Invariant: the resources of an operation stay alive until the stream has completed the
//! operation. The [`Queue`] owns these resources. If a graph captured the operation, the graph owns
//! them. After the queue was dropped, the thread that frees device memory owns them.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use peerweave_core::Error;
use peerweave_core::backend::{EventBackend, Keep, Op, StreamBackend, Submitted};
use peerweave_driver::{CudaStream, PrivateStream, bind, is_capturing, keep_in_graph, retire};

use super::in_flight::{Held, InFlight, Made, hold_back, is_compared, team_of, uses_of};
use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::error::{driver, unsupported};
use crate::backend::lock::lock;
use crate::backend::ops;
use crate::backend::resources::{self, Copier, Recorded};
use crate::backend::state::{GRACE, State};

/// A stream of the portable API that this backend has created or wrapped.
#[derive(Debug)]
pub(crate) struct CudaQueue(pub(crate) Arc<Queue>);

pub(crate) struct Queue {
    state: Arc<State>,
    stream: Handle,
    inner: Mutex<InFlight>,
}

/// A CUDA stream, created by this backend or by the user.
enum Handle {
    Own(PrivateStream),
    Wrapped(Arc<CudaStream>),
}

impl CudaQueue {
    pub(crate) fn new(state: &Arc<State>) -> Result<Self, Error> {
        let stream = PrivateStream::new(&state.context).map_err(|error| driver("stream", error))?;
        Self::of(state, Handle::Own(stream), "stream")
    }

    /// Wraps a CUDA stream of the user, which must belong to the context of this PE's GPU.
    pub(crate) fn wrap(state: &Arc<State>, stream: Arc<CudaStream>) -> Result<Self, Error> {
        Self::of(state, Handle::Wrapped(stream), "wrap_stream")
    }

    fn of(state: &Arc<State>, stream: Handle, call: &'static str) -> Result<Self, Error> {
        let queue = Arc::new(Queue { state: Arc::clone(state), stream, inner: Mutex::default() });
        resources::note(&*state.gpu(call)?, queue.cuda());
        Ok(Self(queue))
    }

    /// Returns the CUDA stream to which this stream submits work.
    pub(crate) fn cuda(&self) -> &Arc<CudaStream> {
        self.0.cuda()
    }

    pub(crate) fn is_of(&self, state: &Arc<State>) -> bool {
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

    /// Waits until all operations that were enqueued before this call are complete, for at most
    /// `within`. Fails with the first failure of an operation since the last synchronisation.
    pub(crate) fn synchronize(&self, within: Duration) -> Result<(), Error> {
        let start = Instant::now();
        let last = lock(&self.inner).operations.back().map(|held| Arc::clone(&held.ticket));
        if let Some(last) = &last {
            // This waits only for the event of the last operation, because the outcome of that
            // operation does not contain failures of earlier operations.
            let within = if within >= self.state.deadline { within.saturating_add(GRACE) } else { within };
            let passed = self.state.wait_for(&last.event, within).map_err(|error| driver("synchronize", error))?;
            let is_by_nccl = |held: &Held| {
                held.ticket.source.waits_for_nccl(&self.state) && !held.ticket.event.is_complete().is_ok_and(|is| is)
            };
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

    pub(crate) fn pending(&self) -> usize {
        let mut inner = lock(&self.inner);
        inner.prune_all();
        inner.operations.len()
    }
}

// SAFETY: [B1] `Enqueue` accesses only the ranges of the operation. [B6] the value of `keep` is
// moved to the operations in flight before `submit` returns `Queued`, and is dropped when the
// stream has passed them or, after `drop`, by the thread that waits for that; during a capture, the
// graph gets the value. [B8] the owners of memory of devices are notified around `ops::enqueue`.
unsafe impl StreamBackend for CudaQueue {
    unsafe fn submit(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Submitted, Error> {
        let (queue, call) = (&*self.0, op.call_name());
        let (state, stream) = (&queue.state, queue.cuda());
        let gpu = state.gpu(call)?;
        let kept = keep();
        kept.device_owners(&mut |owner| owner.before(Some(self)))?;
        // The lock lets one thread at a time enqueue an operation, so that the parts of operations
        // do not mix.
        let mut inner = lock(&queue.inner);
        inner.prune();
        let capturing = is_capturing(stream).and_then(|capturing| bind(stream.context()).map(|()| capturing));
        let capturing = capturing.map_err(|error| driver(call, error))?;
        let mut enqueue = Enqueue::new(state, &gpu, stream, call, Copier::Stream, capturing);
        // SAFETY: the memory of the host is valid while `kept` lives, and `kept` lives until the
        // stream has passed the operation.
        let enqueued = unsafe { ops::enqueue(&mut enqueue, op) };
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
        let made = Made { call, team: team_of(state, op), is_compared: is_compared(op), source };
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
        let event = event.downcast_ref::<CudaEvent>().expect("peerweave-core bug: the event belongs to a different backend");
        event.recorded.hold_back(self.cuda()).map_err(|error| driver("wait_event", error))
    }
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

/// An event of the portable API that was recorded in a stream.
#[derive(Debug)]
pub(crate) struct CudaEvent {
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
        let earlier = earlier.downcast_ref::<Self>().expect("peerweave-core bug: the event belongs to a different backend");
        self.recorded.elapsed_since(&earlier.recorded)
    }
}
