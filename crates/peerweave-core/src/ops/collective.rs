//! Collective operations, sends and receives, stream-ordered. The forms that run on the calling thread are in `collective_blocking.rs`.
//!
//! Nothing is checked here: `check/` does. The documentation of both forms is here.

use crate::arguments::reduction::Reduction;
use crate::arguments::span::{MaybeDest, MaybeSource, StreamDest, StreamSource, maybe_span};
use crate::backend::{CollectiveKind, Direction, VectorCounts};
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call, check};
use peerweave_types::{Element, Number, Rank};
use std::sync::Arc;

/// Collective operations, stream-ordered.
///
/// Each returns as soon as the operation is enqueued on `stream`, where it runs after what was enqueued there before it, and yields a
/// [`Ticket`]. Buffers are held by the queue until then: dropping them is harmless, changing them is not.
///
/// # Collective
/// Every rank of the team calls, with the same operation, element type, count, reduction and root, in the same order as the other collective calls
/// of this team, on whatever stream of its own.
///
/// # Ordering
/// A rank's part is complete when its own results are there. Of the others it says nothing, but for [`barrier`](Team::barrier) and
/// [`sync`](Team::sync).
///
/// # Errors
/// Each call fails with [`Misuse`](crate::Misuse), before anything is enqueued, where a length, rank or root is wrong, buffers overlap, or team, stream or a buffer is
/// of another world or gone. Later, from the ticket or [`Stream::synchronize`]: [`Error::Mismatch`](crate::Error::Mismatch) where ranks called different things
/// and the backend compares calls, [`Error::Peer`](crate::Error::Peer), [`Error::Timeout`](crate::Error::Timeout) naming who did not arrive.
///
/// # Example
/// ```
/// use peerweave::{Rank, ReduceOp, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let (team, stream) = (world.team(), world.stream()?);
/// let (x, y, z) = (world.alloc_zeroed::<f32>(4)?, world.alloc_zeroed::<f32>(4)?, world.alloc_zeroed::<f32>(4)?);
/// x.fill(2.0)?;
/// team.all_reduce(&stream, &x, &y, ReduceOp::Sum)?;
/// team.broadcast(&stream, &y, &z, Rank::new(0))?;
/// team.barrier(&stream)?;
/// stream.synchronize()?;
/// assert_eq!(z.to_vec()?, [2.0 * team.size() as f32; 4]);
/// for buffer in [x, y, z] {
///     buffer.release()?; // collective, like the allocation
/// }
/// world.finalize()?;
/// # Ok(())
/// # }
/// ```
impl Team {
    /// Completes this PE's puts and signals, and waits until every rank has arrived here: quiet, then [`sync`](Team::sync). What any rank put before it is
    /// visible to all after it.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse), before anything is enqueued, for team or stream that are of another world or gone. Later, from the ticket or
    /// [`Stream::synchronize`]: [`Error::Mismatch`](crate::Error::Mismatch) where ranks called different things and the backend compares calls;
    /// [`Error::Peer`](crate::Error::Peer) where a rank died or left; [`Error::Timeout`](crate::Error::Timeout), with the ranks that did not arrive.
    pub fn barrier(&self, stream: &Stream) -> Result<Ticket> {
        const CALL: &str = "barrier";
        call::submit(CALL, self, stream, check::arrival(CALL, self, CollectiveKind::Barrier)?, decode::nothing)
    }

    /// Waits until every rank has arrived here; completes nothing. What a rank wrote to its own symmetric memory before it is visible to all after it; puts
    /// are not, unless completed by [`quiet`](crate::World::quiet).
    ///
    /// # Errors
    /// As [`Team::barrier`].
    pub fn sync(&self, stream: &Stream) -> Result<Ticket> {
        const CALL: &str = "sync";
        call::submit(CALL, self, stream, check::arrival(CALL, self, CollectiveKind::Sync)?, decode::nothing)
    }

    /// Combines the elements of all ranks, and gives every rank the result: the same bits on each.
    ///
    /// # Shapes
    /// `send: n`, `recv: n` elements, apart.
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for buffers that overlap or are of another world or gone;
    /// [`Misuse`](crate::Misuse) where the reduction is not defined for `T`.
    #[inline]
    pub fn all_reduce<T: Number>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        mut recv: impl StreamDest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<Ticket> {
        const CALL: &str = "all_reduce";
        let prepared = check::all_reduce(CALL, self, send.span(), recv.span(), op.into().into())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// As [`Team::all_reduce`], where `buffer` gives the elements and takes the result.
    ///
    /// # Shapes
    /// `buffer: n` elements.
    ///
    /// # Errors
    /// As [`Team::all_reduce`].
    #[inline]
    pub fn all_reduce_in_place<T: Number>(
        &self,
        stream: &Stream,
        mut buffer: impl StreamDest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<Ticket> {
        const CALL: &str = "all_reduce_in_place";
        let prepared = check::all_reduce_in_place(CALL, self, buffer.span(), op.into().into())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Combines the elements of all ranks, and gives the result to the root.
    ///
    /// # Shapes
    /// `send: n` elements; `recv: n` at the root. Elsewhere `recv` is ignored: pass the same, or [`none()`](crate::none).
    ///
    /// # Errors
    /// As [`Team::all_reduce`]; [`Misuse`](crate::Misuse) where the root has no `recv`.
    pub fn reduce<T: Number>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        recv: impl MaybeDest<T, Argument: StreamDest<T>>,
        op: impl Into<Reduction<T>>,
        root: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "reduce";
        let mut recv = recv.into_option();
        let prepared = check::reduce(CALL, self, send.span(), maybe_span(&mut recv), op.into().into(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// As [`Team::reduce`], where `buffer` gives the elements and, at the root, takes the result.
    ///
    /// # Shapes
    /// `buffer: n` elements. It is changed at the root alone.
    ///
    /// # Errors
    /// As [`Team::all_reduce`].
    pub fn reduce_in_place<T: Number>(
        &self,
        stream: &Stream,
        mut buffer: impl StreamDest<T>,
        op: impl Into<Reduction<T>>,
        root: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "reduce_in_place";
        let prepared = check::reduce_in_place(CALL, self, buffer.span(), op.into().into(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Gives every rank, the root included, the elements of the root.
    ///
    /// # Shapes
    /// `send: n` elements at the root, apart from `recv: n`. Elsewhere `send` is ignored: pass the same, or [`none()`](crate::none).
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for buffers that overlap or are of another world or gone;
    /// [`Misuse`](crate::Misuse) where the root has no `send`.
    pub fn broadcast<T: Element>(
        &self,
        stream: &Stream,
        send: impl MaybeSource<T, Argument: StreamSource<T>>,
        mut recv: impl StreamDest<T>,
        root: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "broadcast";
        let mut send = send.into_option();
        let prepared = check::broadcast(CALL, self, maybe_span(&mut send), recv.span(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// As [`Team::broadcast`], where `buffer` gives the elements at the root and takes them elsewhere.
    ///
    /// # Shapes
    /// `buffer: n` elements.
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for buffers that overlap or are of another world or gone.
    pub fn broadcast_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>, root: Rank) -> Result<Ticket> {
        const CALL: &str = "broadcast_in_place";
        let prepared = check::broadcast_in_place(CALL, self, buffer.span(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Gives every rank the elements of all, in rank order.
    ///
    /// # Shapes
    /// `send: n` elements, apart from `recv: n × size`.
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for buffers that overlap or are of another world or gone.
    #[inline]
    pub fn all_gather<T: Element>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        mut recv: impl StreamDest<T>,
    ) -> Result<Ticket> {
        const CALL: &str = "all_gather";
        let prepared = check::all_gather(CALL, self, send.span(), recv.span())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// As [`Team::all_gather`], where this rank's elements already lie in their part of `buffer`.
    ///
    /// # Shapes
    /// `buffer: n × size` elements; this rank gives elements `rank × n .. (rank + 1) × n`.
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for buffers that overlap or are of another world or gone.
    #[inline]
    pub fn all_gather_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>) -> Result<Ticket> {
        const CALL: &str = "all_gather_in_place";
        let prepared = check::all_gather_in_place(CALL, self, buffer.span())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Combines the elements of all ranks, and gives each rank its part of the result.
    ///
    /// # Shapes
    /// `send: n × size` elements, apart from `recv: n`. Rank `r` gets what elements `r × n .. (r + 1) × n` of all ranks combine to.
    ///
    /// # Errors
    /// As [`Team::all_reduce`].
    #[inline]
    pub fn reduce_scatter<T: Number>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        mut recv: impl StreamDest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<Ticket> {
        const CALL: &str = "reduce_scatter";
        let prepared = check::reduce_scatter(CALL, self, send.span(), recv.span(), op.into().into())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// As [`Team::reduce_scatter`], where the result goes to this rank's part of `buffer`.
    ///
    /// # Shapes
    /// `buffer: n × size` elements; the result lies in elements `rank × n .. (rank + 1) × n`. What the others hold afterwards is not said.
    ///
    /// # Errors
    /// As [`Team::all_reduce`].
    #[inline]
    pub fn reduce_scatter_in_place<T: Number>(
        &self,
        stream: &Stream,
        mut buffer: impl StreamDest<T>,
        op: impl Into<Reduction<T>>,
    ) -> Result<Ticket> {
        const CALL: &str = "reduce_scatter_in_place";
        let prepared = check::reduce_scatter_in_place(CALL, self, buffer.span(), op.into().into())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Gives part `r` of every rank's elements to rank `r`, which gets them in rank order.
    ///
    /// # Shapes
    /// `send: n × size` elements, apart from `recv: n × size`.
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for buffers that overlap or are of another world or gone.
    #[inline]
    pub fn all_to_all<T: Element>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        mut recv: impl StreamDest<T>,
    ) -> Result<Ticket> {
        const CALL: &str = "all_to_all";
        let prepared = check::all_to_all(CALL, self, send.span(), recv.span())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// As [`Team::all_to_all`], where each part of `buffer` is replaced by what comes from the rank it went to.
    ///
    /// # Shapes
    /// `buffer: n × size` elements.
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for buffers that overlap or are of another world or gone.
    #[inline]
    pub fn all_to_all_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>) -> Result<Ticket> {
        const CALL: &str = "all_to_all_in_place";
        let prepared = check::all_to_all_in_place(CALL, self, buffer.span())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// As [`Team::all_to_all`], with parts of any length anywhere in the buffers.
    ///
    /// # Shapes
    /// To rank `r` go elements `send_offsets[r] .. + send_counts[r]` of `send`; from it come `recv_counts[r]`, to `recv_offsets[r]` of `recv`. Each list has
    /// one entry per rank. Parts of `recv` do not overlap, nor does `recv` with `send`. What `r` sends here is what is expected here from `r`: that is
    /// the caller's to see to, and compared where the backend compares calls.
    ///
    /// `counts` may be an `Arc`, which saves an allocation where one is used again.
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for buffers that overlap or are of another world or gone;
    /// [`Misuse`](crate::Misuse) for lists of another length, parts outside of their buffer, parts that overlap.
    pub fn all_to_all_v<T: Element>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        mut recv: impl StreamDest<T>,
        counts: impl Into<Arc<VectorCounts>>,
    ) -> Result<Ticket> {
        const CALL: &str = "all_to_all_v";
        let prepared = check::all_to_all_v(CALL, self, send.span(), recv.span(), counts.into())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// As [`Team::all_to_all_v`], where each part of `buffer` is replaced by what comes from the rank it went to.
    ///
    /// # Shapes
    /// As [`Team::all_to_all_v`], with the same counts and offsets on both sides.
    ///
    /// # Errors
    /// As [`Team::all_to_all_v`]; [`Misuse`](crate::Misuse) where the sides differ.
    pub fn all_to_all_v_in_place<T: Element>(
        &self,
        stream: &Stream,
        mut buffer: impl StreamDest<T>,
        counts: impl Into<Arc<VectorCounts>>,
    ) -> Result<Ticket> {
        const CALL: &str = "all_to_all_v_in_place";
        let prepared = check::all_to_all_v_in_place(CALL, self, buffer.span(), counts.into())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Gives the root the elements of all ranks, in rank order.
    ///
    /// # Shapes
    /// `send: n` elements; `recv: n × size` at the root, apart. Elsewhere `recv` is ignored: pass the same, or [`none()`](crate::none).
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for buffers that overlap or are of another world or gone;
    /// [`Misuse`](crate::Misuse) where the root has no `recv`.
    pub fn gather<T: Element>(
        &self,
        stream: &Stream,
        mut send: impl StreamSource<T>,
        recv: impl MaybeDest<T, Argument: StreamDest<T>>,
        root: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "gather";
        let mut recv = recv.into_option();
        let prepared = check::gather(CALL, self, send.span(), maybe_span(&mut recv), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// As [`Team::gather`], where the root's elements already lie in their part of `buffer`.
    ///
    /// # Shapes
    /// `buffer: n × size` elements at the root, `n` elsewhere, where they are only read.
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for buffers that overlap or are of another world or gone.
    pub fn gather_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>, root: Rank) -> Result<Ticket> {
        const CALL: &str = "gather_in_place";
        let prepared = check::gather_in_place(CALL, self, buffer.span(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Gives each rank its part of the root's elements.
    ///
    /// # Shapes
    /// `send: n × size` elements at the root, apart from `recv: n`. Elsewhere `send` is ignored: pass the same, or [`none()`](crate::none).
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for buffers that overlap or are of another world or gone;
    /// [`Misuse`](crate::Misuse) where the root has no `send`.
    pub fn scatter<T: Element>(
        &self,
        stream: &Stream,
        send: impl MaybeSource<T, Argument: StreamSource<T>>,
        mut recv: impl StreamDest<T>,
        root: Rank,
    ) -> Result<Ticket> {
        const CALL: &str = "scatter";
        let mut send = send.into_option();
        let prepared = check::scatter(CALL, self, maybe_span(&mut send), recv.span(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// As [`Team::scatter`], where the root's part stays in its place in `buffer`.
    ///
    /// # Shapes
    /// `buffer: n × size` elements at the root, where they are only read; `n` elsewhere.
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for buffers that overlap or are of another world or gone.
    pub fn scatter_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>, root: Rank) -> Result<Ticket> {
        const CALL: &str = "scatter_in_place";
        let prepared = check::scatter_in_place(CALL, self, buffer.span(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Sends elements to one rank, which calls [`recv`](Team::recv) for as many of the same type. Sends to one rank match its receives in their order.
    ///
    /// Not collective. It may complete before the peer has called, or only then: two ranks that send to each other before they receive may wait for each
    /// other until the deadline. Put such calls in a [`group`](Team::group).
    ///
    /// # Shapes
    /// `source: n` elements, `dest: n` there.
    ///
    /// # Errors
    /// As [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for buffers that overlap or are of another world or gone;
    /// [`Misuse`](crate::Misuse) where the peer is this rank itself, outside of a group.
    #[inline]
    pub fn send<T: Element>(&self, stream: &Stream, mut source: impl StreamSource<T>, peer: Rank) -> Result<Ticket> {
        const CALL: &str = "send";
        let prepared = check::point_to_point(CALL, self, Direction::Send, source.span(), peer, false)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Receives the elements that a rank sends here with [`send`](Team::send).
    ///
    /// # Shapes
    /// `dest: n` elements, `source: n` there.
    ///
    /// # Errors
    /// As [`Team::send`].
    #[inline]
    pub fn recv<T: Element>(&self, stream: &Stream, mut dest: impl StreamDest<T>, peer: Rank) -> Result<Ticket> {
        const CALL: &str = "recv";
        let prepared = check::point_to_point(CALL, self, Direction::Receive, dest.span(), peer, false)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }
}
