//! Streams, which are ordered queues of operations, and events in streams. `ops/` defines the
//! operations that can be enqueued.

use crate::Result;
use crate::backend::{EventBackend, StreamBackend};
use crate::shared::Shared;
use std::sync::Arc;
use std::time::Duration;

/// An ordered queue of this PE's operations. Each operation starts when the operation before it is
/// complete.
///
/// [`World::stream`](crate::World::stream) creates a stream. A clone refers to the same queue.
/// Dropping a stream neither cancels its pending operations nor waits for them.
#[derive(Clone, Debug)]
pub struct Stream {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inner: Arc<dyn StreamBackend>,
}

impl Stream {
    /// Waits until all enqueued operations have completed or failed, at most until the world's
    /// deadline.
    ///
    /// # Errors
    /// The first failure of an operation on this stream since the last call of this method.
    /// [`Error::Timeout`](crate::Error::Timeout) if operations are still pending at the deadline.
    pub fn synchronize(&self) -> Result<()> {
        self.synchronize_within(self.shared.deadline)
    }

    /// Like [`Stream::synchronize`], but waits for at most `limit`.
    ///
    /// # Errors
    /// As for [`Stream::synchronize`].
    pub fn synchronize_within(&self, limit: Duration) -> Result<()> {
        self.shared.usable("synchronize")?;
        self.inner.synchronize(limit)
    }

    /// Returns whether all enqueued operations have completed or failed.
    pub fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }

    /// Records an event. The event is complete when all operations that were enqueued before this
    /// call have completed or failed.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize; errors of the backend.
    pub fn record(&self) -> Result<Event> {
        self.shared.usable("record")?;
        Ok(Event { shared: self.shared.clone(), inner: self.inner.record()? })
    }

    /// Makes this stream wait for `event`: operations that are enqueued after this call start only
    /// when `event` is complete. The call itself returns immediately.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the event belongs to another world; errors of the backend.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        self.shared.usable("wait_event")?;
        self.shared.same_world("wait_event", &event.shared, "event")?;
        self.inner.wait_event(&event.inner)
    }
}

/// An event in a stream, created by [`Stream::record`]. A clone refers to the same event.
///
/// ```
/// use peerweave::World;
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let stream = world.stream()?;
/// let before = stream.record()?;
/// world.team().barrier(&stream)?;
/// let after = stream.record()?;
/// after.wait()?;
/// assert!(after.elapsed_since(&before).is_some());
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Event {
    shared: Arc<Shared>,
    inner: Arc<dyn EventBackend>,
}

impl Event {
    /// Returns whether all operations that were enqueued before the event have completed or failed.
    pub fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    /// Waits until the event is complete, at most until the world's deadline.
    ///
    /// # Errors
    /// The failure of an operation that was enqueued before the event.
    /// [`Error::Timeout`](crate::Error::Timeout) if the event is not complete at the deadline.
    pub fn wait(&self) -> Result<()> {
        self.wait_within(self.shared.deadline)
    }

    /// Like [`Event::wait`], but waits for at most `limit`.
    ///
    /// # Errors
    /// As for [`Event::wait`].
    pub fn wait_within(&self, limit: Duration) -> Result<()> {
        self.shared.usable("wait")?;
        self.inner.wait(limit)
    }

    /// Returns the time from `earlier` to this event. Returns `None` if one of the events is not
    /// complete yet, or if this event became complete before `earlier`. Also returns `None` if the
    /// events belong to different worlds, because the clocks of two worlds may differ.
    pub fn elapsed_since(&self, earlier: &Event) -> Option<Duration> {
        if !Arc::ptr_eq(&self.shared, &earlier.shared) {
            return None;
        }
        self.inner.elapsed_since(&*earlier.inner)
    }
}
