//! Independent streams of one-sided operations. The atomic operations of a context are in
//! `atomic.rs`.

use crate::Result;
use crate::arguments::span::{StreamDest, StreamSource};
use crate::arguments::{SignalUpdate, Symmetric};
use crate::backend::Submitted;
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::Ticket;
use crate::{call, check};
use peerweave_types::{Element, Rank, Strides};

/// An independent stream of one-sided operations of a team, with a [`fence`](Context::fence) and a
/// [`quiet`](Context::quiet) of its own. [`Team::context`] creates it.
///
/// Its operations return when they are issued, and keep their memory alive themselves. A quiet
/// completes those of this context and waits for no others. So a program gives each thread, or each
/// set of data that it sends, a context, and needs no list of tickets. A clone refers to the same
/// context.
///
/// # Ordering
/// Operations of a context start in the order in which they were issued. Only a fence, a quiet or
/// [`put_signal`](Context::put_signal) determines the order in which a target sees them. Operations
/// of different contexts, and those of the team itself, are not ordered. On the `host` backend a
/// put is complete when it returns, unless an earlier operation of the context is pending.
///
/// # Threads
/// Several threads may issue operations of one context at the same time: there is no option for
/// contexts of one thread, because they would not be faster.
///
/// # Failures
/// A wrong call is refused at once. Errors name the operation as [`Team`] has it: those of
/// [`Context::put`], [`Context::get`] and [`Context::put_signal`] begin with `put_nbi`, `get_nbi`
/// and `put_signal_nbi`, those of the others with the name of the method.
///
/// An operation that fails after it was issued is reported by the next quiet. Dropping a context
/// waits for nothing; its operations complete as those of a [`Stream`] do.
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
/// data.quiet()?; // the rows have arrived; `counters` may be pending
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
    /// Creates a context for one-sided operations on the ranks of this team. Not collective.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize or if the team was destroyed; errors of the
    /// backend.
    pub fn context(&self) -> Result<Context> {
        check::team("context", self)?;
        let shared = &self.inner.shared;
        let stream = Stream { shared: shared.clone(), inner: shared.backend.stream()? };
        Ok(Context { team: self.clone(), stream })
    }
}

impl Context {
    /// Returns the team of the context: its operations take ranks of that team.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// Returns the stream of the operations, for events, and for other operations in order with
    /// these.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Orders puts, signals and atomics of this context: a target sees earlier ones before later
    /// ones. Completes nothing.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize; errors of the backend.
    pub fn fence(&self) -> Result<()> {
        const CALL: &str = "Context::fence";
        let shared = &self.stream.shared;
        call::submit_on(&self.stream, &check::fence(CALL, shared)?, |_| ()).map(drop)
    }

    /// Completes the operations of this context: waits until puts, signals and atomics are complete
    /// at their targets, and the data of gets is in its buffers, up to the deadline of the world.
    ///
    /// # Errors
    /// The first failure of an operation of this context since the last quiet;
    /// [`Error::Timeout`](crate::Error::Timeout); [`Error::Peer`](crate::Error::Peer) if a PE is
    /// known to have died: see [Dead targets](Team#dead-targets); [`Misuse`](crate::Misuse) after
    /// finalize.
    pub fn quiet(&self) -> Result<()> {
        const CALL: &str = "Context::quiet";
        let shared = &self.stream.shared;
        let prepared = check::quiet(CALL, shared)?;
        let enqueued = call::enqueue(&self.stream, &prepared, &|| prepared.keep());
        // A failure of an earlier operation is the reason of a failure of the quiet itself.
        let is_captured = matches!(enqueued, Ok(Submitted::Captured));
        if !is_captured {
            self.stream.inner.synchronize(shared.deadline)?;
        }
        enqueued.map(drop)
    }

    /// Copies `source` to `dest` of a rank, like [`Team::put_nbi`].
    ///
    /// # Shapes
    /// `source: n`, `dest: n` elements. `source` must not change before the next quiet.
    ///
    /// # Errors
    /// As for [`Team::put_nbi`].
    #[inline]
    pub fn put<T: Element>(&self, source: impl StreamSource<T>, dest: &Symmetric<T>, rank: Rank) -> Result<()> {
        self.team.put_nbi(&self.stream, source, dest, rank).map(drop)
    }

    /// Copies `source` of a rank to `dest`, like [`Team::get_nbi`]. The data is in `dest` after the
    /// next quiet.
    ///
    /// # Shapes
    /// `source: n`, `dest: n` elements.
    ///
    /// # Errors
    /// As for [`Team::get_nbi`].
    #[inline]
    pub fn get<T: Element>(&self, source: &Symmetric<T>, dest: impl StreamDest<T>, rank: Rank) -> Result<()> {
        self.team.get_nbi(&self.stream, source, dest, rank).map(drop)
    }

    /// Copies elements at strides to a rank, like [`Team::put_strided`].
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

    /// Copies elements at strides from a rank, like [`Team::get_strided`].
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

    /// Sets one element of a rank: `dest[index] = value` there.
    ///
    /// # Errors
    /// As for [`Team::p`].
    #[inline]
    pub fn p<T: Element>(&self, dest: &Symmetric<T>, index: usize, value: T, rank: Rank) -> Result<()> {
        self.team.p(&self.stream, dest, index, value, rank).map(drop)
    }

    /// Gets one element of a rank: `source[index]` there. The ticket has the value.
    ///
    /// # Errors
    /// As for [`Team::g`].
    #[inline]
    pub fn g<T: Element>(&self, source: &Symmetric<T>, index: usize, rank: Rank) -> Result<Ticket<T>> {
        self.team.g(&self.stream, source, index, rank)
    }

    /// Copies `source` to `dest` of a rank, then changes a signal word there, like
    /// [`Team::put_signal_nbi`]. A PE that waits for the word sees the data.
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

    /// Changes a signal word of a rank. A fence between a put and the signal makes a PE that waits
    /// for the word see the data.
    ///
    /// # Errors
    /// As for [`Team::signal`].
    #[inline]
    pub fn signal(&self, update: SignalUpdate<'_>, rank: Rank) -> Result<()> {
        self.team.signal(&self.stream, update, rank).map(drop)
    }
}
