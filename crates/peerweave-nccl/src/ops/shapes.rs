//! Checks the lengths and roots of each call, and creates the operations of NCCL for the call.
//!
//! `check.rs` has checks common to all calls. This module does not issue calls.
//!
//! Invariant: on every rank, the operations that this module creates read and write only inside the
//! buffers of the call.

use peerweave_driver::{DeviceBuffer, DeviceBufferMut};
use peerweave_types::{Element, Rank};

use crate::library::error::{MisuseKind, NcclError};
use crate::ops::check::{CallBuilder, Checked, Operand, Prepared};
use crate::ops::operation::{Kind, Operation, Operations};
use crate::ops::reduction::Reduction;
use crate::sys::ncclDataType_t;

/// Address for a buffer that the caller did not pass and that NCCL does not access.
const NO_BUFFER: u64 = 0;

impl<'a> CallBuilder<'_, 'a> {
    /// Records one operation. `send` or `recv` is `None` if NCCL accesses no such buffer on this
    /// rank.
    ///
    /// If only the root has a send buffer, the other ranks pass the address of their receive buffer
    /// as both addresses. NCCL does not read from the send address on those ranks. However, NCCL
    /// checks whether both addresses are registered or in windows, and selects the algorithm
    /// accordingly. If the results of this check differ between ranks, the ranks use different
    /// algorithms. In 2.28.9 a broadcast then never completes. In 2.32.3 a scatter with
    /// [`CtaPolicy::Zero`](crate::CtaPolicy::Zero) then transfers no data.
    // `inline(always)`, so that the operation is written in place and not copied. Copies would take
    // most of a call's time.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "the function takes all arguments of one NCCL call")]
    fn one<T: Element>(
        &mut self,
        kind: Kind,
        count: usize,
        data_type: ncclDataType_t,
        send: Option<Operand>,
        recv: Option<Operand>,
    ) -> Checked<Prepared> {
        let address = |operand: &Option<Operand>| operand.as_ref().map_or(NO_BUFFER, |operand| operand.address);
        let (mut send_address, recv_address) = (address(&send), address(&recv));
        if matches!(kind, Kind::Broadcast(_) | Kind::Scatter(_)) && send.is_none() {
            send_address = recv_address;
        }
        let operation =
            Operation { kind, send: send_address, recv: recv_address, count, data_type, element_bytes: size_of::<T>() };
        self.finish(send, recv)?;
        Ok(self.prepared(Operations::One(operation)))
    }

    /// Records one operation that sends from and receives into the same buffer. The sent data
    /// starts at element `send` of the buffer. The received data starts at element `recv`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "the function takes all arguments of one NCCL call")]
    fn in_place<T: Element>(
        &mut self,
        kind: Kind,
        count: usize,
        data_type: ncclDataType_t,
        buffer: &'a mut (impl DeviceBufferMut<T> + ?Sized),
        [send, recv]: [usize; 2],
    ) -> Checked<Prepared> {
        let buffer = self.write("the buffer", buffer)?;
        let at = |element: usize| buffer.address + (element * size_of::<T>()) as u64;
        let operation = Operation { kind, send: at(send), recv: at(recv), count, data_type, element_bytes: size_of::<T>() };
        self.finish(None, Some(buffer))?;
        Ok(self.prepared(Operations::One(operation)))
    }

    /// Records several operations on a send buffer and a receive buffer. `operations` creates the
    /// operations from the addresses of the buffers and NCCL's number for the element type.
    fn many<T: Element>(
        &mut self,
        send: &'a (impl DeviceBuffer<T> + ?Sized),
        recv: &'a mut (impl DeviceBufferMut<T> + ?Sized),
        operations: impl FnOnce(u64, u64, ncclDataType_t) -> Vec<Operation>,
    ) -> Checked<Prepared> {
        let data_type = self.moved::<T>()?;
        let (send, recv) = (self.read("the send buffer", send)?, self.write("the receive buffer", recv)?);
        let operations = operations(send.address, recv.address, data_type);
        self.finish(Some(send), Some(recv))?;
        Ok(self.prepared(Operations::Many(operations)))
    }
}

#[inline]
pub(crate) fn all_reduce<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    send: &'a (impl DeviceBuffer<T> + ?Sized),
    recv: &'a mut (impl DeviceBufferMut<T> + ?Sized),
    op: impl Reduction<T>,
) -> Checked<Prepared> {
    let (count, (data_type, op)) = (send.len(), builder.reduced::<T>(&op)?);
    builder.length("the receive buffer", recv.len(), count)?;
    let (send, recv) = (builder.read("the send buffer", send)?, builder.write("the receive buffer", recv)?);
    builder.one::<T>(Kind::AllReduce(op), count, data_type, Some(send), Some(recv))
}

#[inline]
pub(crate) fn all_reduce_in_place<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    buffer: &'a mut (impl DeviceBufferMut<T> + ?Sized),
    op: impl Reduction<T>,
) -> Checked<Prepared> {
    let (count, (data_type, op)) = (buffer.len(), builder.reduced::<T>(&op)?);
    builder.in_place(Kind::AllReduce(op), count, data_type, buffer, [0, 0])
}

#[inline]
pub(crate) fn broadcast<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    send: Option<&'a dyn DeviceBuffer<T>>,
    recv: &'a mut (impl DeviceBufferMut<T> + ?Sized),
    root: Rank,
) -> Checked<Prepared> {
    let (count, data_type, raw_root) = (recv.len(), builder.moved::<T>()?, builder.rank("the root", root)?);
    let send = builder.sent_by_root(root, send, count)?;
    let recv = builder.write("the receive buffer", recv)?;
    builder.one::<T>(Kind::Broadcast(raw_root), count, data_type, send, Some(recv))
}

#[inline]
pub(crate) fn broadcast_in_place<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    buffer: &'a mut (impl DeviceBufferMut<T> + ?Sized),
    root: Rank,
) -> Checked<Prepared> {
    let (count, data_type, root) = (buffer.len(), builder.moved::<T>()?, builder.rank("the root", root)?);
    builder.in_place(Kind::Broadcast(root), count, data_type, buffer, [0, 0])
}

#[inline]
pub(crate) fn reduce<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    send: &'a (impl DeviceBuffer<T> + ?Sized),
    recv: Option<&'a mut (dyn DeviceBufferMut<T> + '_)>,
    op: impl Reduction<T>,
    root: Rank,
) -> Checked<Prepared> {
    let (count, (data_type, op)) = (send.len(), builder.reduced::<T>(&op)?);
    let raw_root = builder.rank("the root", root)?;
    let recv = builder.of_root(root, "the receive buffer", recv, count)?;
    let send = builder.read("the send buffer", send)?;
    builder.one::<T>(Kind::Reduce(op, raw_root), count, data_type, Some(send), recv)
}

#[inline]
pub(crate) fn reduce_in_place<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    buffer: &'a mut (impl DeviceBufferMut<T> + ?Sized),
    op: impl Reduction<T>,
    root: Rank,
) -> Checked<Prepared> {
    let (count, (data_type, op)) = (buffer.len(), builder.reduced::<T>(&op)?);
    let root = builder.rank("the root", root)?;
    builder.in_place(Kind::Reduce(op, root), count, data_type, buffer, [0, 0])
}

#[inline]
pub(crate) fn all_gather<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    send: &'a (impl DeviceBuffer<T> + ?Sized),
    recv: &'a mut (impl DeviceBufferMut<T> + ?Sized),
) -> Checked<Prepared> {
    let (count, data_type) = (send.len(), builder.moved::<T>()?);
    builder.length("the receive buffer", recv.len(), builder.of_all(count))?;
    let (send, recv) = (builder.read("the send buffer", send)?, builder.write("the receive buffer", recv)?);
    builder.one::<T>(Kind::AllGather, count, data_type, Some(send), Some(recv))
}

#[inline]
pub(crate) fn all_gather_in_place<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    buffer: &'a mut (impl DeviceBufferMut<T> + ?Sized),
) -> Checked<Prepared> {
    let (count, data_type) = (builder.part("the length of the buffer", buffer.len())?, builder.moved::<T>()?);
    let mine = builder.inner.rank.index() * count;
    builder.in_place(Kind::AllGather, count, data_type, buffer, [mine, 0])
}

#[inline]
pub(crate) fn reduce_scatter<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    send: &'a (impl DeviceBuffer<T> + ?Sized),
    recv: &'a mut (impl DeviceBufferMut<T> + ?Sized),
    op: impl Reduction<T>,
) -> Checked<Prepared> {
    let (count, (data_type, op)) = (recv.len(), builder.reduced::<T>(&op)?);
    builder.length("the send buffer", send.len(), builder.of_all(count))?;
    let (send, recv) = (builder.read("the send buffer", send)?, builder.write("the receive buffer", recv)?);
    builder.one::<T>(Kind::ReduceScatter(op), count, data_type, Some(send), Some(recv))
}

#[inline]
pub(crate) fn reduce_scatter_in_place<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    buffer: &'a mut (impl DeviceBufferMut<T> + ?Sized),
    op: impl Reduction<T>,
) -> Checked<Prepared> {
    let (count, (data_type, op)) = (builder.part("the length of the buffer", buffer.len())?, builder.reduced::<T>(&op)?);
    let mine = builder.inner.rank.index() * count;
    builder.in_place(Kind::ReduceScatter(op), count, data_type, buffer, [0, mine])
}

#[inline]
pub(crate) fn all_to_all<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    send: &'a (impl DeviceBuffer<T> + ?Sized),
    recv: &'a mut (impl DeviceBufferMut<T> + ?Sized),
) -> Checked<Prepared> {
    let (count, data_type) = (builder.part("the length of the send buffer", send.len())?, builder.moved::<T>()?);
    builder.length("the receive buffer", recv.len(), send.len())?;
    let (send, recv) = (builder.read("the send buffer", send)?, builder.write("the receive buffer", recv)?);
    builder.one::<T>(Kind::AllToAll, count, data_type, Some(send), Some(recv))
}

#[inline]
pub(crate) fn gather<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    send: &'a (impl DeviceBuffer<T> + ?Sized),
    recv: Option<&'a mut (dyn DeviceBufferMut<T> + '_)>,
    root: Rank,
) -> Checked<Prepared> {
    let (count, data_type, raw_root) = (send.len(), builder.moved::<T>()?, builder.rank("the root", root)?);
    let recv = match recv {
        // Without CTAs, NCCL's copy engines write to the root's window at the offset that this
        // rank's receive buffer has in its own window. So the receive buffer of a rank that is not
        // the root is passed to NCCL.
        Some(recv) if root != builder.inner.rank && recv.len() == builder.of_all(count) => {
            Some(builder.write("the receive buffer", recv)?)
        }
        recv => builder.of_root(root, "the receive buffer", recv, builder.of_all(count))?,
    };
    let send = builder.read("the send buffer", send)?;
    builder.one::<T>(Kind::Gather(raw_root), count, data_type, Some(send), recv)
}

#[inline]
pub(crate) fn gather_in_place<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    buffer: &'a mut (impl DeviceBufferMut<T> + ?Sized),
    root: Rank,
) -> Checked<Prepared> {
    let (data_type, raw_root) = (builder.moved::<T>()?, builder.rank("the root", root)?);
    if root != builder.inner.rank {
        let count = buffer.len();
        return builder.in_place(Kind::Gather(raw_root), count, data_type, buffer, [0, 0]);
    }
    let count = builder.part("the length of the buffer", buffer.len())?;
    builder.in_place(Kind::Gather(raw_root), count, data_type, buffer, [root.index() * count, 0])
}

#[inline]
pub(crate) fn scatter<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    send: Option<&'a dyn DeviceBuffer<T>>,
    recv: &'a mut (impl DeviceBufferMut<T> + ?Sized),
    root: Rank,
) -> Checked<Prepared> {
    let (count, data_type, raw_root) = (recv.len(), builder.moved::<T>()?, builder.rank("the root", root)?);
    let send = builder.sent_by_root(root, send, builder.of_all(count))?;
    let recv = builder.write("the receive buffer", recv)?;
    builder.one::<T>(Kind::Scatter(raw_root), count, data_type, send, Some(recv))
}

#[inline]
pub(crate) fn scatter_in_place<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    buffer: &'a mut (impl DeviceBufferMut<T> + ?Sized),
    root: Rank,
) -> Checked<Prepared> {
    let (data_type, raw_root) = (builder.moved::<T>()?, builder.rank("the root", root)?);
    if root != builder.inner.rank {
        let count = buffer.len();
        return builder.in_place(Kind::Scatter(raw_root), count, data_type, buffer, [0, 0]);
    }
    let count = builder.part("the length of the buffer", buffer.len())?;
    builder.in_place(Kind::Scatter(raw_root), count, data_type, buffer, [0, root.index() * count])
}

#[inline]
pub(crate) fn send<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    buffer: &'a (impl DeviceBuffer<T> + ?Sized),
    peer: Rank,
) -> Checked<Prepared> {
    let (count, data_type, peer) = (buffer.len(), builder.moved::<T>()?, builder.rank("the peer", peer)?);
    let buffer = builder.read("the buffer", buffer)?;
    builder.one::<T>(Kind::Send(peer), count, data_type, Some(buffer), None)
}

#[inline]
pub(crate) fn recv<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    buffer: &'a mut (impl DeviceBufferMut<T> + ?Sized),
    peer: Rank,
) -> Checked<Prepared> {
    let (count, data_type, peer) = (buffer.len(), builder.moved::<T>()?, builder.rank("the peer", peer)?);
    let buffer = builder.write("the buffer", buffer)?;
    builder.one::<T>(Kind::Recv(peer), count, data_type, None, Some(buffer))
}

#[inline]
pub(crate) fn all_to_all_v<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    send: &'a (impl DeviceBuffer<T> + ?Sized),
    send_counts: &[usize],
    recv: &'a mut (impl DeviceBufferMut<T> + ?Sized),
    recv_counts: &[usize],
) -> Checked<Prepared> {
    builder.counts(["the list of send counts", "the send buffer"], send_counts, send.len())?;
    builder.counts(["the list of receive counts", "the receive buffer"], recv_counts, recv.len())?;
    let (mine, element_bytes) = (builder.inner.rank.index(), size_of::<T>());
    builder.length("the data that this rank receives from itself", recv_counts[mine], send_counts[mine])?;
    builder.many(send, recv, |mut send, mut recv, data_type| {
        let mut operations = Vec::with_capacity(2 * send_counts.len());
        for (peer, (&to, &from)) in send_counts.iter().zip(recv_counts).enumerate() {
            let peer = peer as i32;
            let part = Operation { kind: Kind::Send(peer), send, recv: NO_BUFFER, count: to, data_type, element_bytes };
            // Both ranks omit an empty transfer, because both ranks know the count.
            operations.extend((to > 0).then_some(part));
            let part = Operation { kind: Kind::Recv(peer), send: NO_BUFFER, recv, count: from, data_type, element_bytes };
            operations.extend((from > 0).then_some(part));
            send += (to * element_bytes) as u64;
            recv += (from * element_bytes) as u64;
        }
        operations
    })
}

#[inline]
pub(crate) fn all_gather_v<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    send: &'a (impl DeviceBuffer<T> + ?Sized),
    recv: &'a mut (impl DeviceBufferMut<T> + ?Sized),
    counts: &[usize],
) -> Checked<Prepared> {
    builder.counts(["the counts", "the receive buffer"], counts, recv.len())?;
    let (mine, element_bytes) = (builder.inner.rank.index(), size_of::<T>());
    builder.length("the send buffer", send.len(), counts[mine])?;
    builder.many(send, recv, |send, mut recv, data_type| {
        let mut operations = Vec::with_capacity(counts.len());
        for (root, &count) in counts.iter().enumerate() {
            // On the other ranks both addresses are the receive address, as in `one`.
            let send = if root == mine { send } else { recv };
            let part = Operation { kind: Kind::Broadcast(root as i32), send, recv, count, data_type, element_bytes };
            operations.extend((count > 0).then_some(part));
            recv += (count * element_bytes) as u64;
        }
        operations
    })
}

impl<'a> CallBuilder<'_, 'a> {
    #[cold]
    fn missing(&self, what: &'static str) -> Box<NcclError> {
        NcclError::misuse(
            self.call.name(),
            MisuseKind::Text { what, why: "no buffer was passed, expected a buffer because this rank is the root" },
        )
        .into()
    }

    /// Acquires the send buffer of the root, in a call in which only the root sends. Fails if the
    /// buffer is missing or does not have `expected` elements. Returns `None` on the other ranks.
    #[inline]
    fn sent_by_root<T: Element>(
        &mut self,
        root: Rank,
        buffer: Option<&'a dyn DeviceBuffer<T>>,
        expected: usize,
    ) -> Checked<Option<Operand>> {
        const WHAT: &str = "the send buffer";
        match buffer {
            _ if root != self.inner.rank => Ok(None),
            None => Err(self.missing(WHAT)),
            Some(buffer) => {
                self.length(WHAT, buffer.len(), expected)?;
                self.read(WHAT, buffer).map(Some)
            }
        }
    }

    /// Acquires the receive buffer of the root, in a call in which only the root receives. Fails if
    /// the buffer is missing or does not have `expected` elements. Returns `None` on the other
    /// ranks.
    fn of_root<T: Element>(
        &mut self,
        root: Rank,
        what: &'static str,
        buffer: Option<&'a mut (dyn DeviceBufferMut<T> + '_)>,
        expected: usize,
    ) -> Checked<Option<Operand>> {
        match buffer {
            _ if root != self.inner.rank => Ok(None),
            None => Err(self.missing(what)),
            Some(buffer) => {
                self.length(what, buffer.len(), expected)?;
                self.write(what, buffer).map(Some)
            }
        }
    }

    /// Fails unless `counts` has one count for each rank. Also fails unless the sum of the counts
    /// is `len`, the length of the buffer. `what` and `buffer` name the counts and the buffer in
    /// errors.
    fn counts(&self, [what, buffer]: [&'static str; 2], counts: &[usize], len: usize) -> Checked<()> {
        if counts.len() != self.inner.n_ranks {
            let (found, expected) = (counts.len(), self.inner.n_ranks);
            let kind = MisuseKind::Length { what, found, expected, unit: "numbers" };
            return Err(NcclError::misuse(self.call.name(), kind).into());
        }
        self.length(buffer, len, counts.iter().fold(0, |sum, count| sum.saturating_add(*count)))
    }
}
