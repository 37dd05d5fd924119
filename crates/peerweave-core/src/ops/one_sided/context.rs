//! Contexts, which are independent sequences of one-sided operations. `atomic.rs` contains the
//! atomic operations of a context.

use crate::Result;
use crate::arguments::span::{StreamDest, StreamSource};
use crate::arguments::{SignalUpdate, Symmetric};
use crate::backend::Submitted;
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::Ticket;
use crate::{call, check};
use peerweave_types::{Element, Rank, Strides};

/// An independent sequence of one-sided operations on the ranks of a team, with its own
/// [`fence`](Context::fence) and [`quiet`](Context::quiet). [`Team::context`] creates a context.
///
/// Calls return as soon as their operations have been issued. Each operation keeps its buffers
/// alive until the operation is complete. A quiet completes the operations of this context, and
/// does not wait for operations of other contexts. So a program can use one context for each
/// thread, or for each set of data. The program does not have to keep a list of tickets. A clone
/// refers to the same context.
///
/// # Ordering
/// Operations of a context start in the order in which they were issued. Only a fence, a quiet or
/// [`put_signal`](Context::put_signal) determines the order in which a target sees the operations.
/// Operations of different contexts are not ordered with each other, nor with operations of the
/// team itself. On the `host` backend, a put is complete when the call returns, unless an earlier
/// operation of the context is pending.
///
/// # Threads
/// Several threads may issue operations of one context at the same time. There is no option for
/// single-threaded contexts, because such contexts would not be faster.
///
/// # Failures
/// A call with wrong arguments fails at once. The errors of [`Context::put`], [`Context::get`] and
/// [`Context::put_signal`] begin with `put_nbi`, `get_nbi` and `put_signal_nbi`, because these are
/// the [`Team`] methods that run the operations. The errors of other methods begin with the name of
/// the method itself.
///
/// If an operation fails after it has been issued, the next quiet returns the error. As for a
/// [`Stream`], dropping a context neither cancels its operations nor waits for them.
///
/// # Example
/// ```
/// use peerweave::{Buffer, Rank, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let team = world.team();
/// let right = Rank::new((team.my_rank().get() + 1) % team.size() as u32);
/// let (rows, total) = (world.alloc_zeroed::<f32>(8)?, world.alloc_zeroed::<u64>(1)?);
///
/// let (data, counters) = (team.context()?, team.context()?);
/// data.put(&Buffer::from(vec![1.5; 8]), &rows, right)?; // the context holds the buffer
/// counters.atomic_add(&total, 0, 8, right)?;
/// data.quiet()?; // the rows have arrived; operations of `counters` may be pending
/// assert_eq!(data.g(&rows, 7, right)?.wait()?, 1.5);
/// counters.quiet()?;
/// team.barrier_blocking()?;
/// assert_eq!(total.load(0)?, 8);
/// rows.release()?; // collective, like the allocation
/// total.release()?;
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Context {
    team: Team,
    stream: Stream,
}

impl Team {
    /// Creates a context for one-sided operations on the ranks of this team. The call is not
    /// collective.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize, or if the team has been destroyed; errors of the
    /// backend.
    pub fn context(&self) -> Result<Context> {
        check::team("context", self)?;
        let shared = &self.inner.shared;
        let stream = Stream { shared: shared.clone(), inner: shared.backend.stream()? };
        Ok(Context { team: self.clone(), stream })
    }
}

impl Context {
    /// Returns the team of this context. The `rank` parameters of the methods of the context are
    /// ranks of that team.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// Returns the stream of this context. Use the stream for events, and for other operations that
    /// must run in order with the operations of the context.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Orders the puts, signals and atomics of this context. If a target sees an operation that was
    /// issued after the fence, the target also sees all operations on this target that were issued
    /// before the fence. The fence does not complete any operation.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize; errors of the backend.
    pub fn fence(&self) -> Result<()> {
        const CALL: &str = "Context::fence";
        let shared = &self.stream.shared;
        call::submit_on(&self.stream, &check::fence(CALL, shared)?, |_| ()).map(drop)
    }

    /// Completes the operations of this context. The call waits until puts, signals and atomics are
    /// complete at their targets, and until the data of gets is in the destination buffers. The
    /// call waits at most until the deadline of the world. If the stream of the context is being
    /// captured into a graph, the call captures the quiet, and does not wait.
    ///
    /// # Errors
    /// - The error of the first operation of this context that has failed since the last quiet.
    /// - [`Error::Timeout`](crate::Error::Timeout) at the deadline.
    /// - [`Error::Peer`](crate::Error::Peer) if any PE of the job is known to have died: see
    ///   [Dead targets](Team#dead-targets).
    /// - [`Misuse`](crate::Misuse) after finalize.
    pub fn quiet(&self) -> Result<()> {
        const CALL: &str = "Context::quiet";
        let shared = &self.stream.shared;
        let prepared = check::quiet(CALL, shared)?;
        let enqueued = call::enqueue(&self.stream, &prepared, &|| prepared.keep());
        // If an earlier operation has failed, its error is returned instead of the error of the
        // quiet.
        let is_captured = matches!(enqueued, Ok(Submitted::Captured));
        if !is_captured {
            self.stream.inner.synchronize(shared.deadline)?;
        }
        enqueued.map(drop)
    }

    /// Copies `source` to `dest` on rank `rank`, like [`Team::put_nbi`]. `source` must not change
    /// before the next quiet.
    ///
    /// # Shapes
    /// `source` and `dest` have `n` elements each.
    ///
    /// # Errors
    /// As for [`Team::put_nbi`].
    #[inline]
    pub fn put<T: Element>(&self, source: impl StreamSource<T>, dest: &Symmetric<T>, rank: Rank) -> Result<()> {
        self.team.put_nbi(&self.stream, source, dest, rank).map(drop)
    }

    /// Copies `source` on rank `rank` to `dest`, like [`Team::get_nbi`]. The data is in `dest`
    /// after the next quiet.
    ///
    /// # Shapes
    /// `source` and `dest` have `n` elements each.
    ///
    /// # Errors
    /// As for [`Team::get_nbi`].
    #[inline]
    pub fn get<T: Element>(&self, source: &Symmetric<T>, dest: impl StreamDest<T>, rank: Rank) -> Result<()> {
        self.team.get_nbi(&self.stream, source, dest, rank).map(drop)
    }

    /// Copies strided elements of `source` to strided elements of `dest` on rank `rank`, like
    /// [`Team::put_strided`].
    ///
    /// # Errors
    /// As for [`Team::put_strided`].
    pub fn put_strided<T: Element>(
        &self,
        source: impl StreamSource<T>,
        dest: &Symmetric<T>,
        strides: Strides,
        rank: Rank,
    ) -> Result<()> {
        self.team.put_strided(&self.stream, source, dest, strides, rank).map(drop)
    }

    /// Copies strided elements of `source` on rank `rank` to strided elements of `dest`, like
    /// [`Team::get_strided`].
    ///
    /// # Errors
    /// As for [`Team::get_strided`].
    pub fn get_strided<T: Element>(
        &self,
        source: &Symmetric<T>,
        dest: impl StreamDest<T>,
        strides: Strides,
        rank: Rank,
    ) -> Result<()> {
        self.team.get_strided(&self.stream, source, dest, strides, rank).map(drop)
    }

    /// Sets element `index` of `dest` on rank `rank` to `value`.
    ///
    /// # Errors
    /// As for [`Team::p`].
    #[inline]
    pub fn p<T: Element>(&self, dest: &Symmetric<T>, index: usize, value: T, rank: Rank) -> Result<()> {
        self.team.p(&self.stream, dest, index, value, rank).map(drop)
    }

    /// Gets element `index` of `source` on rank `rank`. The ticket returns the value of the
    /// element.
    ///
    /// # Errors
    /// As for [`Team::g`].
    #[inline]
    pub fn g<T: Element>(&self, source: &Symmetric<T>, index: usize, rank: Rank) -> Result<Ticket<T>> {
        self.team.g(&self.stream, source, index, rank)
    }

    /// Copies `source` to `dest` on rank `rank`, then changes a signal word on that rank, like
    /// [`Team::put_signal_nbi`]. A PE that has waited for the new value of the word sees the data.
    ///
    /// # Shapes
    /// As for [`Team::put_signal`].
    ///
    /// # Errors
    /// As for [`Team::put_signal`].
    #[inline]
    pub fn put_signal<T: Element>(
        &self,
        source: impl StreamSource<T>,
        dest: &Symmetric<T>,
        update: SignalUpdate<'_>,
        rank: Rank,
    ) -> Result<()> {
        self.team.put_signal_nbi(&self.stream, source, dest, update, rank).map(drop)
    }

    /// Changes a signal word on rank `rank`. If a [`fence`](Context::fence) separates an earlier
    /// put from this signal, a PE that has waited for the word's new value sees the data of the
    /// put.
    ///
    /// # Errors
    /// As for [`Team::signal`].
    #[inline]
    pub fn signal(&self, update: SignalUpdate<'_>, rank: Rank) -> Result<()> {
        self.team.signal(&self.stream, update, rank).map(drop)
    }
}
