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
/// returns a [`Ticket`]. The stream keeps the buffers alive until the operation is complete. Until
/// the operation is complete, the caller may drop the buffers, but must not change them.
///
/// # Collective
/// Every rank of the team must make the same call: the same operation, element type, count,
/// reduction and root. All ranks must make the collective calls of a team in the same order. Each
/// rank may use any of its streams.
///
/// # Ordering
/// A collective is complete on a rank when the results of that rank are complete. The collective
/// may still run on other ranks. Only [`barrier`](Team::barrier) and [`sync`](Team::sync) order the
/// operations of different ranks.
///
/// On the host backend, the collectives of a team run one after another. Sends and receives are not
/// ordered with collectives: each waits only for earlier operations of its stream, and for its
/// peer.
///
/// On GPUs, each rank runs all collectives, sends and receives of a team one after another. A rank
/// runs these operations in the order in which it enqueued them, even on different streams. For
/// example, if rank 0 receives from rank 1 before a barrier, and rank 1 sends after that barrier,
/// GPUs wait until the deadline. A program for both backends therefore makes calls that depend on
/// each other in the same order on all ranks. Alternatively, the program puts such calls into one
/// [`group`](Team::group).
///
/// Calls on different teams are ordered only if they are on the same stream. Captured calls are
/// also ordered only if they are on the same stream.
///
/// # Errors
/// Before anything is enqueued: [`Misuse`](crate::Misuse) for a wrong length, rank or root, and for
/// buffers that overlap. Also [`Misuse`](crate::Misuse) for a team, stream or buffer that belongs
/// to another world or is no longer valid.
///
/// Later:
/// - [`Error::Mismatch`](crate::Error::Mismatch) if ranks have made different calls and the backend
///   compares calls.
/// - [`Error::Peer`](crate::Error::Peer) if a rank has died or left the job.
/// - [`Error::Timeout`](crate::Error::Timeout) at the deadline. The error names the ranks that did
///   not arrive.
/// - [`Error::Poisoned`](crate::Error::Poisoned) if the team has failed before.
///
/// The ticket and [`Stream::synchronize`] return the later errors. The call itself may return these
/// errors too, because an operation that finds its stream idle may run on the calling thread. So
/// treat an error of the call like an error of the ticket.
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
    /// Completes the puts, signals and atomics of this PE, then waits until every rank has made
    /// this call. A barrier is equivalent to a [`quiet`](crate::World::quiet) followed by a
    /// [`sync`](Team::sync). After the barrier, all ranks see the earlier puts of every rank.
    ///
    /// # Errors
    /// Before anything is enqueued: [`Misuse`](crate::Misuse) for a team or stream that belongs to
    /// another world or is no longer valid.
    ///
    /// Later, from the ticket, from [`Stream::synchronize`], or from this call itself if the
    /// operation runs during the call:
    /// - [`Error::Mismatch`](crate::Error::Mismatch) if ranks have made different calls and the
    ///   backend compares calls.
    /// - [`Error::Peer`](crate::Error::Peer) if a rank has died or left the job.
    /// - [`Error::Timeout`](crate::Error::Timeout) at the deadline. The error names the ranks that
    ///   did not arrive.
    /// - [`Error::Poisoned`](crate::Error::Poisoned) if the team has failed before.
    pub fn barrier(&self, stream: &Stream) -> Result<Ticket> {
        const CALL: &str = "barrier";
        call::submit(CALL, self, stream, check::arrival(CALL, self, CollectiveKind::Barrier)?, decode::nothing)
    }

    /// Waits until every rank has made this call. Does not complete puts. After the sync, all ranks
    /// see the earlier writes of each rank to its own symmetric memory. All ranks also see the puts
    /// that a [`quiet`](crate::World::quiet) has completed before the sync.
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
    /// `send` and `recv` have `n` elements each. The two buffers do not overlap.
    ///
    /// # Errors
    /// As for [`Team::barrier`]. Also [`Misuse`](crate::Misuse) for a wrong length; for buffers
    /// that overlap, belong to another world or have been released; and for a reduction that is not
    /// defined for `T`.
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

    /// Like [`Team::all_reduce`], but the result replaces the elements in `buffer`.
    ///
    /// # Shapes
    /// `buffer` has `n` elements on every rank.
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
    /// `send` has `n` elements on every rank. `recv` has `n` elements on the root. On the root, the
    /// two buffers do not overlap. On the other ranks, `recv` is ignored, and may be
    /// [`none()`](crate::none).
    ///
    /// # Errors
    /// As for [`Team::all_reduce`]; [`Misuse`](crate::Misuse) if `root` is not a rank of the team,
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

    /// Like [`Team::reduce`], but on the root, the result replaces the elements in `buffer`.
    ///
    /// # Shapes
    /// `buffer` has `n` elements on every rank, and changes on the root only.
    ///
    /// # Errors
    /// As for [`Team::all_reduce`]; [`Misuse`](crate::Misuse) if `root` is not a rank of the team.
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

    /// Copies `send` on the root to `recv` on every rank, including the root.
    ///
    /// A broadcast is not a barrier. On the `host` backend, a broadcast of at most 64 bytes can
    /// complete before all ranks have made the call. The root waits for no other rank, and the
    /// other ranks wait only for the root. A rank can complete at most three such calls of a team
    /// before it waits for all ranks. If ranks make different calls, a rank that did not wait gets
    /// [`Error::Mismatch`](crate::Error::Mismatch) from a later call: the call in which the rank
    /// first waits for all ranks of the team.
    ///
    /// # Shapes
    /// `send` has `n` elements on the root. `recv` has `n` elements on every rank. On the root, the
    /// two buffers do not overlap. On the other ranks, `send` is ignored, and may be
    /// [`none()`](crate::none).
    ///
    /// # Errors
    /// As for [`Team::barrier`]. Also [`Misuse`](crate::Misuse) for a wrong length or root; for
    /// buffers that overlap, belong to another world or have been released; and if the root passes
    /// no `send`.
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

    /// Like [`Team::broadcast`], but copies `buffer` on the root to `buffer` on the other ranks.
    ///
    /// # Shapes
    /// `buffer` has `n` elements on every rank.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong root, and for a buffer that
    /// belongs to another world or has been released.
    #[inline]
    pub fn broadcast_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>, root: Rank) -> Result<Ticket> {
        const CALL: &str = "broadcast_in_place";
        let prepared = check::broadcast_in_place(CALL, self, buffer.span(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Copies the elements of all ranks to every rank, in rank order.
    ///
    /// # Shapes
    /// `send` has `n` elements. `recv` has `n × size` elements, where `size` is the number of
    /// ranks. The two buffers do not overlap.
    ///
    /// # Errors
    /// As for [`Team::barrier`]. Also [`Misuse`](crate::Misuse) for a wrong length; and for buffers
    /// that overlap, belong to another world or have been released.
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

    /// Like [`Team::all_gather`], but `buffer` contains the result, and already contains the
    /// elements of this rank before the call.
    ///
    /// # Shapes
    /// `buffer` has `n × size` elements, where `size` is the number of ranks. Rank `r` contributes
    /// elements `r × n .. (r + 1) × n`.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a length that is not a multiple of
    /// the number of ranks. Also [`Misuse`](crate::Misuse) for a buffer that belongs to another
    /// world or has been released.
    #[inline]
    pub fn all_gather_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>) -> Result<Ticket> {
        const CALL: &str = "all_gather_in_place";
        let prepared = check::all_gather_in_place(CALL, self, buffer.span())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Reduces the elements of all ranks, and stores part `r` of the result on rank `r`.
    ///
    /// # Shapes
    /// `send` has `n × size` elements, where `size` is the number of ranks. `recv` has `n`
    /// elements. The two buffers do not overlap. Rank `r` gets the reduction of elements
    /// `r × n .. (r + 1) × n` of all ranks.
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

    /// Like [`Team::reduce_scatter`], but stores the result of rank `r` in part `r` of `buffer`.
    ///
    /// # Shapes
    /// `buffer` has `n × size` elements, where `size` is the number of ranks. On rank `r`, the
    /// result is in elements `r × n .. (r + 1) × n`. The values of the other elements are
    /// unspecified afterwards.
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

    /// Sends part `r` of `send` to rank `r`, for every rank. `recv` gets the parts that this rank
    /// receives, in the rank order of the senders.
    ///
    /// # Shapes
    /// `send` and `recv` have `n × size` elements each, where `size` is the number of ranks. Each
    /// part has `n` elements. The two buffers do not overlap.
    ///
    /// # Errors
    /// As for [`Team::barrier`]. Also [`Misuse`](crate::Misuse) for a wrong length; and for buffers
    /// that overlap, belong to another world or have been released.
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

    /// Like [`Team::all_to_all`], but the part received from a rank replaces the part sent to that
    /// rank.
    ///
    /// # Shapes
    /// `buffer` has `n × size` elements, where `size` is the number of ranks. Each part has `n`
    /// elements.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a length that is not a multiple of
    /// the number of ranks. Also [`Misuse`](crate::Misuse) for a buffer that belongs to another
    /// world or has been released.
    #[inline]
    pub fn all_to_all_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>) -> Result<Ticket> {
        const CALL: &str = "all_to_all_in_place";
        let prepared = check::all_to_all_in_place(CALL, self, buffer.span())?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Like [`Team::all_to_all`], but each part may have any length, and any offset in its buffer.
    ///
    /// # Shapes
    /// The argument `counts`, a [`VectorCounts`](crate::VectorCounts), contains four lists. Each
    /// list has one entry per rank. This rank sends `send_counts[r]` elements to rank `r`, starting
    /// at index `send_offsets[r]` of `send`. This rank receives `recv_counts[r]` elements from rank
    /// `r`, and stores them at index `recv_offsets[r]` of `recv`. Parts of `recv` do not overlap
    /// each other, and `recv` does not overlap `send`.
    ///
    /// Rank `r` must send as many elements to this rank as this rank expects from rank `r`. The
    /// `host` backend checks these numbers, and fails with
    /// [`Error::Mismatch`](crate::Error::Mismatch) if they differ. The `cuda` backend does not
    /// check these numbers.
    ///
    /// The caller may pass the [`VectorCounts`](crate::VectorCounts) in an `Arc`. This saves an
    /// allocation if the same counts are used again.
    ///
    /// # Errors
    /// As for [`Team::barrier`]. Also [`Misuse`](crate::Misuse) for:
    /// - a list whose length is not the number of ranks,
    /// - a part that is not inside its buffer,
    /// - parts of `recv` that overlap,
    /// - lists `send_counts` and `recv_counts` that have different entries for this rank itself,
    /// - buffers that overlap, belong to another world or have been released.
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

    /// Like [`Team::all_to_all_v`], but the part received from a rank replaces the part sent to
    /// that rank.
    ///
    /// # Shapes
    /// As for [`Team::all_to_all_v`]. `recv_counts` equals `send_counts`, and `recv_offsets` equals
    /// `send_offsets`.
    ///
    /// # Errors
    /// As for [`Team::all_to_all_v`]; [`Misuse`](crate::Misuse) if the receive lists differ from
    /// the send lists.
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
    /// `send` has `n` elements on every rank. `recv` has `n × size` elements on the root, where
    /// `size` is the number of ranks. On the root, the two buffers do not overlap. On the other
    /// ranks, `recv` is ignored, and may be [`none()`](crate::none).
    ///
    /// # Errors
    /// As for [`Team::barrier`]. Also [`Misuse`](crate::Misuse) for a wrong length or root; for
    /// buffers that overlap, belong to another world or have been released; and if the root passes
    /// no `recv`.
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

    /// Like [`Team::gather`], but each rank passes one buffer. On the root, `buffer` receives the
    /// result, and already contains the root's own elements before the call.
    ///
    /// # Shapes
    /// On the root, `buffer` has `n × size` elements, where `size` is the number of ranks. On the
    /// other ranks, `buffer` has `n` elements. The other ranks only read `buffer`.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length or root, and for a
    /// buffer that belongs to another world or has been released.
    #[inline]
    pub fn gather_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>, root: Rank) -> Result<Ticket> {
        const CALL: &str = "gather_in_place";
        let prepared = check::gather_in_place(CALL, self, buffer.span(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Sends part `r` of the root's `send` to rank `r`, for every rank. Each rank stores its part
    /// in `recv`.
    ///
    /// # Shapes
    /// `send` has `n × size` elements on the root, where `size` is the number of ranks. `recv` has
    /// `n` elements on every rank. Each part has `n` elements. On the root, the two buffers do not
    /// overlap. On the other ranks, `send` is ignored, and may be [`none()`](crate::none).
    ///
    /// # Errors
    /// As for [`Team::barrier`]. Also [`Misuse`](crate::Misuse) for a wrong length or root; for
    /// buffers that overlap, belong to another world or have been released; and if the root passes
    /// no `send`.
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

    /// Like [`Team::scatter`], but each rank passes one buffer. On the root, `buffer` contains all
    /// parts, and the root's own part is not moved.
    ///
    /// # Shapes
    /// On the root, `buffer` has `n × size` elements, where `size` is the number of ranks. On the
    /// other ranks, `buffer` has `n` elements. The root only reads `buffer`.
    ///
    /// # Errors
    /// As for [`Team::barrier`]; [`Misuse`](crate::Misuse) for a wrong length or root, and for a
    /// buffer that belongs to another world or has been released.
    #[inline]
    pub fn scatter_in_place<T: Element>(&self, stream: &Stream, mut buffer: impl StreamDest<T>, root: Rank) -> Result<Ticket> {
        const CALL: &str = "scatter_in_place";
        let prepared = check::scatter_in_place(CALL, self, buffer.span(), root)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Sends `source` to `peer`, which must call [`recv`](Team::recv) for the same number of
    /// elements of the same type. The sends of this rank to `peer` match the receives of `peer`
    /// from this rank, in order.
    ///
    /// The call is not collective. A send may complete before the peer has called `recv`, or may
    /// wait for the peer. So two ranks that send to each other before they receive may wait for
    /// each other until the deadline. Put such calls into a [`group`](Team::group).
    ///
    /// # Shapes
    /// `source` on this rank and `dest` on the peer have `n` elements each.
    ///
    /// # Errors
    /// As for [`Team::barrier`]. Also [`Misuse`](crate::Misuse) if `peer` is not a rank of the
    /// team; if `peer` is this rank and the call is not in a group; and for a buffer that belongs
    /// to another world or has been released.
    ///
    /// On the `host` backend, the counts and types of a send and its receive are compared. If they
    /// differ, the receive fails with [`Error::Mismatch`](crate::Error::Mismatch), and does not
    /// change `dest`. If the send waited for the receive, the send fails too. The send of a small
    /// message may already have succeeded. Both ranks can still use the team.
    ///
    /// The `cuda` backend does not compare the counts and types of sends and receives.
    #[inline]
    pub fn send<T: Element>(&self, stream: &Stream, mut source: impl StreamSource<T>, peer: Rank) -> Result<Ticket> {
        const CALL: &str = "send";
        let prepared = check::point_to_point(CALL, self, Direction::Send, source.span(), peer, false)?;
        call::submit(CALL, self, stream, prepared, decode::nothing)
    }

    /// Receives the elements that `peer` sends to this rank with [`send`](Team::send).
    ///
    /// # Shapes
    /// `dest` on this rank and `source` on the peer have `n` elements each.
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
