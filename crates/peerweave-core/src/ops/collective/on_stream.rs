//! Stream-ordered collective operations, sends and receives. The forms that run on the calling
//! thread are in `blocking.rs`.
//!
//! `check/` checks the arguments. This file documents both forms.

use crate::arguments::reduction::Reduction;
use crate::arguments::span::{MaybeDest, MaybeSource, StreamDest, StreamSource, maybe_span};
use crate::backend::{CollectiveKind, Direction, VectorCounts};
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call, check};
use peerweave_types::{Element, Number, Rank};
use std::sync::Arc;

/// Stream-ordered collective operations.
///
/// Each call enqueues the operation on `stream`, after earlier operations of the stream, and
/// returns a [`Ticket`]. The queue holds the buffers until the operation is complete. Until then,
/// the caller may drop the buffers, but must not change them.
///
/// # Collective
/// Every rank of the team must make the same call: the same operation, element type, count,
/// reduction and root. All ranks must make the collective calls of a team in the same order. Each
/// rank may use any of its streams.
///
/// # Ordering
/// A collective is complete on a rank when the results of that rank are complete. It may still run
/// on other ranks. Only [`barrier`](Team::barrier) and [`sync`](Team::sync) order the operations of
/// different ranks.
///
/// On the host backend, the collectives of a team run one after another. Sends and receives are not
/// ordered with collectives: each waits only for its stream and its peer.
///
/// On GPUs, all collectives, sends and receives of a team run one after another on each rank. Their
/// order is the order in which this PE enqueues them, even on different streams. For example, if
/// rank 0 receives from rank 1 before a barrier, and rank 1 sends after that barrier, GPUs wait
/// until the deadline. So a program for both backends makes calls that depend on each other in the
/// same order on all ranks, or puts them into one [`group`](Team::group).
///
/// Calls of different teams, and captured calls, are not ordered.
///
/// # Errors
/// Before anything is enqueued: [`Misuse`](crate::Misuse) for a wrong length, rank or root, for
/// buffers that overlap, and for a team, stream or buffer that belongs to another world or is no
/// longer valid.
///
/// Later:
/// - [`Error::Mismatch`](crate::Error::Mismatch) if ranks made different calls and the backend
///   compares calls.
/// - [`Error::Peer`](crate::Error::Peer) if a rank died or left.
/// - [`Error::Timeout`](crate::Error::Timeout) at the deadline, with the ranks that did not arrive.
/// - [`Error::Poisoned`](crate::Error::Poisoned) if the team had failed before.
///
/// The ticket and [`Stream::synchronize`] return the later errors. The call itself may return them
/// too, because an operation that finds its stream idle may run on the calling thread. So treat an
/// error of the call like an error of the ticket.
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
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
impl Team {
    /// Completes the puts and signals of this PE, then waits until every rank has called: a
    /// [`quiet`](crate::World::quiet) followed by a [`sync`](Team::sync). After the barrier, all
    /// ranks see the earlier puts of every rank.
    ///
    /// # Errors
    /// Before anything is enqueued: [`Misuse`](crate::Misuse) for a team or stream that belongs to
    /// another world or is no longer valid.
    ///
    /// Later, from the ticket, from [`Stream::synchronize`], or from this call if the operation
    /// runs during the call:
    /// - [`Error::Mismatch`](crate::Error::Mismatch) if ranks made different calls and the backend
    ///   compares calls.
    /// - [`Error::Peer`](crate::Error::Peer) if a rank died or left.
    /// - [`Error::Timeout`](crate::Error::Timeout) at the deadline, with the ranks that did not
    ///   arrive.
    /// - [`Error::Poisoned`](crate::Error::Poisoned) if the team had failed before.
    pub fn barrier(&self, stream: &Stream) -> Result<Ticket> {
        const CALL: &str = "barrier";
        call::submit(CALL, self, stream, check::arrival(CALL, self, CollectiveKind::Barrier)?, decode::nothing)
    }

    /// Waits until every rank has called, without completing puts. After the sync, all ranks see
    /// earlier writes of each rank to its own symmetric memory, and puts that a
    /// [`quiet`](crate::World::quiet) has completed.
    ///
    /// # Errors
    /// As for [`Team::barrier`].
    pub fn sync(&self, stream: &Stream) -> Result<Ticket> {
        const CALL: &str = "sync";
        call::submit(CALL, self, stream, check::arrival(CALL, self, CollectiveKind::Sync)?, decode::nothing)
    }

    /// Reduces the elements of all ranks, and stores the result on every rank. All ranks get the
    /// same bits.
    ///
    /// # Shapes
    /// `send: n`, `recv: n` elements, which do not overlap.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, for buffers that
    /// overlap, belong to another world or were released, and for a reduction that is not defined
    /// for `T`.
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

    /// Like [`Team::all_reduce`], with the result replacing the elements in `buffer`.
    ///
    /// # Shapes
    /// `buffer: n` elements.
    ///
    /// # Errors
    /// As for [`Team::all_reduce`].
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

    /// Reduces the elements of all ranks, and stores the result on the root.
    ///
    /// # Shapes
    /// `send: n` elements; `recv: n` at the root. Other ranks may pass a buffer, which is ignored,
    /// or [`none()`](crate::none).
    ///
    /// # Errors
    /// As for [`Team::all_reduce`]; [`Misuse`](crate::Misuse) if the team does not have the root,
    /// or if the root passes no `recv`.
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

    /// Like [`Team::reduce`], with the result replacing the elements in `buffer` at the root.
    ///
    /// # Shapes
    /// `buffer: n` elements, which change at the root only.
    ///
    /// # Errors
    /// As for [`Team::all_reduce`]; [`Misuse`](crate::Misuse) if the team does not have the root.
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

    /// Copies the elements of the root to every rank, including the root.
    ///
    /// # Shapes
    /// `send: n` elements at the root, which do not overlap `recv: n`. Other ranks may pass a
    /// buffer, which is ignored, or [`none()`](crate::none).
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length or root, for buffers
    /// that overlap, belong to another world or were released, and if the root passes no `send`.
    #[inline]
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

    /// Like [`Team::broadcast`], from `buffer` of the root to `buffer` of the other ranks.
    ///
    /// # Shapes
    /// `buffer: n` elements.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong root, and for a buffer that
    /// belongs to another world or was released.
    #[inline]
    pub fn broadcast_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>, root: Rank) -> Result<Ticket> {
        const CALL: &str = "broadcast_in_place";
        let prepared = check::broadcast_in_place(CALL, self, buffer.span(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Copies the elements of all ranks to every rank, in rank order.
    ///
    /// # Shapes
    /// `send: n` elements, which do not overlap `recv: n × size`.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, and for buffers that
    /// overlap, belong to another world or were released.
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

    /// Like [`Team::all_gather`], with the elements of this rank already in their part of `buffer`.
    ///
    /// # Shapes
    /// `buffer: n × size` elements; this rank contributes elements `rank × n .. (rank + 1) × n`.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a length that is not a multiple of
    /// the number of ranks, and for a buffer that belongs to another world or was released.
    #[inline]
    pub fn all_gather_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>) -> Result<Ticket> {
        const CALL: &str = "all_gather_in_place";
        let prepared = check::all_gather_in_place(CALL, self, buffer.span())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Reduces the elements of all ranks, and stores one part of the result on each rank.
    ///
    /// # Shapes
    /// `send: n × size` elements, which do not overlap `recv: n`. Rank `r` gets the
    /// reduction of elements `r × n .. (r + 1) × n` of all ranks.
    ///
    /// # Errors
    /// As for [`Team::all_reduce`].
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

    /// Like [`Team::reduce_scatter`], with the result in the part of `buffer` that belongs to this
    /// rank.
    ///
    /// # Shapes
    /// `buffer: n × size` elements; the result is in elements `rank × n .. (rank + 1) × n`. The
    /// other elements are unspecified afterwards.
    ///
    /// # Errors
    /// As for [`Team::all_reduce`].
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

    /// Sends part `r` of the elements to rank `r`, and receives one part from every rank, in rank
    /// order.
    ///
    /// # Shapes
    /// `send: n × size` elements, which do not overlap `recv: n × size`.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length, and for buffers that
    /// overlap, belong to another world or were released.
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

    /// Like [`Team::all_to_all`], with each received part replacing the part that was sent to the
    /// same rank.
    ///
    /// # Shapes
    /// `buffer: n × size` elements.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a length that is not a multiple of
    /// the number of ranks, and for a buffer that belongs to another world or was released.
    #[inline]
    pub fn all_to_all_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>) -> Result<Ticket> {
        const CALL: &str = "all_to_all_in_place";
        let prepared = check::all_to_all_in_place(CALL, self, buffer.span())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::all_to_all`], with parts of any length at any offset of the buffers.
    ///
    /// # Shapes
    /// Rank `r` gets `send_counts[r]` elements from `send_offsets[r]` of `send`. The
    /// `recv_counts[r]` elements from rank `r` arrive at `recv_offsets[r]` of `recv`. Each list has
    /// one entry per rank. Parts of `recv` do not overlap, and `recv` does not overlap `send`. Rank
    /// `r` must send as many elements as this rank expects from rank `r`; only backends that
    /// compare calls check that.
    ///
    /// `counts` may be an `Arc`, which saves an allocation if the counts are used again.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for lists of a wrong length, for parts
    /// outside their buffer, for parts of `recv` that overlap, for different counts of this rank to
    /// and from itself, and for buffers that overlap, belong to another world or were released.
    #[inline]
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

    /// Like [`Team::all_to_all_v`], with each received part replacing the part that was sent to the
    /// same rank.
    ///
    /// # Shapes
    /// As for [`Team::all_to_all_v`], with the same counts and offsets on both sides.
    ///
    /// # Errors
    /// As for [`Team::all_to_all_v`]; [`Misuse`](crate::Misuse) if the two sides differ.
    #[inline]
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

    /// Copies the elements of all ranks to the root, in rank order.
    ///
    /// # Shapes
    /// `send: n` elements, which do not overlap `recv: n × size` at the root. Other ranks may pass
    /// a buffer, which is ignored, or [`none()`](crate::none).
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length or root, for buffers
    /// that overlap, belong to another world or were released, and if the root passes no `recv`.
    #[inline]
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

    /// Like [`Team::gather`], with the elements of the root already in their part of `buffer`.
    ///
    /// # Shapes
    /// `buffer: n × size` elements at the root; `n` elements, which are only read, on other ranks.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length or root, and for a
    /// buffer that belongs to another world or was released.
    #[inline]
    pub fn gather_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>, root: Rank) -> Result<Ticket> {
        const CALL: &str = "gather_in_place";
        let prepared = check::gather_in_place(CALL, self, buffer.span(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Sends one part of the elements of the root to each rank.
    ///
    /// # Shapes
    /// `send: n × size` elements at the root, which do not overlap `recv: n`. Other ranks may pass
    /// a buffer, which is ignored, or [`none()`](crate::none).
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length or root, for buffers
    /// that overlap, belong to another world or were released, and if the root passes no `send`.
    #[inline]
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

    /// Like [`Team::scatter`], but the part of the root stays at its offset in `buffer`.
    ///
    /// # Shapes
    /// `buffer: n × size` elements, which are only read, at the root; `n` elements on other ranks.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length or root, and for a
    /// buffer that belongs to another world or was released.
    #[inline]
    pub fn scatter_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>, root: Rank) -> Result<Ticket> {
        const CALL: &str = "scatter_in_place";
        let prepared = check::scatter_in_place(CALL, self, buffer.span(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Sends elements to `peer`, which calls [`recv`](Team::recv) for the same number of elements
    /// of the same type. Sends to a rank match its receives from this rank in order.
    ///
    /// The call is not collective. A send may complete before the peer has called, or may wait for
    /// the peer. So two ranks that send to each other before they receive may wait for each other
    /// until the deadline. Put such calls into a [`group`](Team::group).
    ///
    /// # Shapes
    /// `source: n` elements here, `dest: n` elements on the peer.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) if the team does not have the peer, if
    /// the peer is this rank (outside of a group), and for a buffer that belongs to another world
    /// or was released.
    ///
    /// If the counts or types of a send and its receive differ, the receive fails with
    /// [`Error::Mismatch`](crate::Error::Mismatch), and its buffer is unchanged. The send fails too
    /// if it waited for the receive; the send of a small message may already have succeeded. Both
    /// ranks can continue.
    #[inline]
    pub fn send<T: Element>(&self, stream: &Stream, mut source: impl StreamSource<T>, peer: Rank) -> Result<Ticket> {
        const CALL: &str = "send";
        let prepared = check::point_to_point(CALL, self, Direction::Send, source.span(), peer, false)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Receives the elements that `peer` sends to this rank with [`send`](Team::send).
    ///
    /// # Shapes
    /// `dest: n` elements here, `source: n` elements on the peer.
    ///
    /// # Errors
    /// As for [`Team::send`].
    #[inline]
    pub fn recv<T: Element>(&self, stream: &Stream, mut dest: impl StreamDest<T>, peer: Rank) -> Result<Ticket> {
        const CALL: &str = "recv";
        let prepared = check::point_to_point(CALL, self, Direction::Receive, dest.span(), peer, false)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }
}
