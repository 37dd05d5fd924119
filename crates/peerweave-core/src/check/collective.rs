//! Checks the arguments of collective calls, and converts each call to an [`Op`].
//! `backend/op/collective.rs` defines how counts and locations are stored.

use super::{Prepared, apart, argument, rank, share, team, times_ranks, vector};
use crate::Result;
use crate::arguments::reduction::ErasedReduction;
use crate::arguments::span::{Owner, Span};
use crate::backend::error::{Error, MisuseKind, misuse};
use crate::backend::{Collective, CollectiveKind, Op, Special, VectorCounts};
use crate::bounds::length;
use crate::world::team::Team;
use peerweave_types::{DType, Rank, ReduceOp};
use std::sync::Arc;

#[inline(always)]
pub(super) fn collective<'a>(
    kind: CollectiveKind,
    team: &Team,
    dtype: DType,
    count: usize,
    send: Option<&Span<'a>>,
    recv: Option<&Span<'a>>,
    extras: CollectiveExtras,
) -> Prepared<'a> {
    // Backends count values of `dtype`. If `special` contains the size of elements, backends count
    // elements instead. The product does not overflow: it is at most the size of a buffer.
    let parts = if extras.special.is_some() { 1 } else { send.or(recv).map_or(1, |span| span.parts) };
    let counts = if parts == 1 { extras.counts } else { extras.counts.map(|counts| vector::of_parts(team, &counts, parts)) };
    let op = Op::Collective(Collective {
        kind,
        team: team.inner.id,
        dtype,
        op: extras.op,
        scalar: extras.scalar,
        root: extras.root,
        count: count * parts,
        send: send.map(|span| span.place),
        recv: recv.map(|span| span.place),
        counts,
        special: extras.special,
    });
    let owner = |span: Option<&Span<'a>>| span.map_or(Owner::Caller, |span| span.owner);
    Prepared::new(op, [owner(send), owner(recv), Owner::Caller])
}

/// The fields of [`Collective`] that only some collectives use.
pub(super) struct CollectiveExtras {
    pub(super) op: ReduceOp,
    pub(super) scalar: u64,
    pub(super) root: Rank,
    pub(super) counts: Option<Arc<VectorCounts>>,
    pub(super) special: Option<Arc<Special>>,
}

impl CollectiveExtras {
    pub(super) const NONE: Self =
        Self { op: ReduceOp::Sum, scalar: ErasedReduction::NO_SCALAR, root: Rank::new(0), counts: None, special: None };

    #[inline(always)]
    fn root(root: Rank) -> Self {
        Self { root, ..Self::NONE }
    }

    #[inline(always)]
    pub(super) fn reduction(op: ReduceOp, scalar: u64) -> Self {
        Self { op, scalar, ..Self::NONE }
    }
}

/// Checks the team `of`, and returns a barrier or sync of the team, depending on `kind`.
#[inline(always)]
pub(crate) fn arrival(call: &'static str, of: &Team, kind: CollectiveKind) -> Result<Prepared<'static>> {
    team(call, of)?;
    Ok(collective(kind, of, DType::U8, 0, None, None, CollectiveExtras::NONE))
}

/// Checks the team `of` and the buffers `send` and `recv`. Fails if the buffers overlap.
#[inline(always)]
pub(super) fn pair(call: &'static str, of: &Team, send: &Span<'_>, recv: &Span<'_>) -> Result<()> {
    team(call, of)?;
    argument(call, &of.inner.shared, "send", send)?;
    argument(call, &of.inner.shared, "recv", recv)?;
    apart(call, &["send", "recv"], send, recv)
}

/// Checks the team `of`, and the only buffer of an in-place call.
#[inline(always)]
pub(super) fn single(call: &'static str, of: &Team, buffer: &Span<'_>) -> Result<()> {
    team(call, of)?;
    argument(call, &of.inner.shared, "buffer", buffer)
}

#[inline(always)]
pub(crate) fn all_reduce<'a>(
    call: &'static str,
    of: &Team,
    send: Span<'a>,
    recv: Span<'a>,
    op: ErasedReduction,
) -> Result<Prepared<'a>> {
    pair(call, of, &send, &recv)?;
    length(call, "recv", recv.len, send.len)?;
    let scalar = reduction(call, op, send.dtype)?;
    let extras = CollectiveExtras::reduction(op.op, scalar);
    Ok(collective(CollectiveKind::AllReduce, of, send.dtype, send.len, Some(&send), Some(&recv), extras))
}

#[inline(always)]
pub(crate) fn all_reduce_in_place<'a>(
    call: &'static str,
    of: &Team,
    buffer: Span<'a>,
    op: ErasedReduction,
) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    let scalar = reduction(call, op, buffer.dtype)?;
    let extras = CollectiveExtras::reduction(op.op, scalar);
    Ok(collective(CollectiveKind::AllReduce, of, buffer.dtype, buffer.len, Some(&buffer), Some(&buffer), extras))
}

/// Checks the receive buffer of a reduce. Returns the buffer on the root, and `None` on other
/// ranks.
pub(super) fn result_at_root<'a>(
    call: &'static str,
    of: &Team,
    root: Rank,
    send: &Span<'a>,
    recv: Option<Span<'a>>,
) -> Result<Option<Span<'a>>> {
    let recv = at_root(call, of, root, "recv", recv)?;
    if let Some(recv) = &recv {
        length(call, "recv", recv.len, send.len)?;
        apart(call, &["send", "recv"], send, recv)?;
    }
    Ok(recv)
}

/// Checks a reduce, and returns the operation. Only the root uses `recv`.
pub(crate) fn reduce<'a>(
    call: &'static str,
    of: &Team,
    send: Span<'a>,
    recv: Option<Span<'a>>,
    op: ErasedReduction,
    root: Rank,
) -> Result<Prepared<'a>> {
    team(call, of)?;
    argument(call, &of.inner.shared, "send", &send)?;
    rank(call, of, "root", root)?;
    let scalar = reduction(call, op, send.dtype)?;
    let recv = result_at_root(call, of, root, &send, recv)?;
    let extras = CollectiveExtras { root, ..CollectiveExtras::reduction(op.op, scalar) };
    Ok(collective(CollectiveKind::Reduce, of, send.dtype, send.len, Some(&send), recv.as_ref(), extras))
}

/// Checks a buffer that only the root uses. Returns the buffer on the root, and `None` on other
/// ranks.
#[inline(always)]
pub(super) fn at_root<'a>(
    call: &'static str,
    of: &Team,
    root: Rank,
    name: &'static str,
    span: Option<Span<'a>>,
) -> Result<Option<Span<'a>>> {
    if of.my_rank() != root {
        return Ok(None);
    }
    let span = span.ok_or_else(|| missing(call, name))?;
    argument(call, &of.inner.shared, name, &span)?;
    Ok(Some(span))
}

pub(crate) fn reduce_in_place<'a>(
    call: &'static str,
    of: &Team,
    buffer: Span<'a>,
    op: ErasedReduction,
    root: Rank,
) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    rank(call, of, "root", root)?;
    let scalar = reduction(call, op, buffer.dtype)?;
    let recv = (of.my_rank() == root).then_some(&buffer);
    let extras = CollectiveExtras { root, ..CollectiveExtras::reduction(op.op, scalar) };
    Ok(collective(CollectiveKind::Reduce, of, buffer.dtype, buffer.len, Some(&buffer), recv, extras))
}

/// Checks a broadcast, and returns the operation. Only the root uses `send`.
#[inline(always)]
pub(crate) fn broadcast<'a>(
    call: &'static str,
    of: &Team,
    send: Option<Span<'a>>,
    recv: Span<'a>,
    root: Rank,
) -> Result<Prepared<'a>> {
    team(call, of)?;
    argument(call, &of.inner.shared, "recv", &recv)?;
    rank(call, of, "root", root)?;
    let send = at_root(call, of, root, "send", send)?;
    if let Some(send) = &send {
        length(call, "recv", recv.len, send.len)?;
        apart(call, &["send", "recv"], send, &recv)?;
    }
    Ok(collective(CollectiveKind::Broadcast, of, recv.dtype, recv.len, send.as_ref(), Some(&recv), CollectiveExtras::root(root)))
}

#[inline(always)]
pub(crate) fn broadcast_in_place<'a>(call: &'static str, of: &Team, buffer: Span<'a>, root: Rank) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    rank(call, of, "root", root)?;
    let send = (of.my_rank() == root).then_some(&buffer);
    Ok(collective(CollectiveKind::Broadcast, of, buffer.dtype, buffer.len, send, Some(&buffer), CollectiveExtras::root(root)))
}

#[inline(always)]
pub(crate) fn all_gather<'a>(call: &'static str, of: &Team, send: Span<'a>, recv: Span<'a>) -> Result<Prepared<'a>> {
    pair(call, of, &send, &recv)?;
    length(call, "recv", recv.len, times_ranks(of, send.len))?;
    Ok(collective(CollectiveKind::AllGather, of, send.dtype, send.len, Some(&send), Some(&recv), CollectiveExtras::NONE))
}

#[inline(always)]
pub(crate) fn all_gather_in_place<'a>(call: &'static str, of: &Team, buffer: Span<'a>) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    let count = share(call, of, "buffer", buffer.len)?;
    let send = buffer.part(of.my_rank().index(), count);
    Ok(collective(CollectiveKind::AllGather, of, buffer.dtype, count, Some(&send), Some(&buffer), CollectiveExtras::NONE))
}

#[inline(always)]
pub(crate) fn reduce_scatter<'a>(
    call: &'static str,
    of: &Team,
    send: Span<'a>,
    recv: Span<'a>,
    op: ErasedReduction,
) -> Result<Prepared<'a>> {
    pair(call, of, &send, &recv)?;
    length(call, "send", send.len, times_ranks(of, recv.len))?;
    let scalar = reduction(call, op, send.dtype)?;
    let extras = CollectiveExtras::reduction(op.op, scalar);
    Ok(collective(CollectiveKind::ReduceScatter, of, send.dtype, recv.len, Some(&send), Some(&recv), extras))
}

#[inline(always)]
pub(crate) fn reduce_scatter_in_place<'a>(
    call: &'static str,
    of: &Team,
    buffer: Span<'a>,
    op: ErasedReduction,
) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    let count = share(call, of, "buffer", buffer.len)?;
    let scalar = reduction(call, op, buffer.dtype)?;
    let recv = buffer.part(of.my_rank().index(), count);
    let extras = CollectiveExtras::reduction(op.op, scalar);
    Ok(collective(CollectiveKind::ReduceScatter, of, buffer.dtype, count, Some(&buffer), Some(&recv), extras))
}

#[inline(always)]
pub(crate) fn all_to_all<'a>(call: &'static str, of: &Team, send: Span<'a>, recv: Span<'a>) -> Result<Prepared<'a>> {
    pair(call, of, &send, &recv)?;
    length(call, "recv", recv.len, send.len)?;
    let count = share(call, of, "send", send.len)?;
    Ok(collective(CollectiveKind::AllToAll, of, send.dtype, count, Some(&send), Some(&recv), CollectiveExtras::NONE))
}

#[inline(always)]
pub(crate) fn all_to_all_in_place<'a>(call: &'static str, of: &Team, buffer: Span<'a>) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    let count = share(call, of, "buffer", buffer.len)?;
    Ok(collective(CollectiveKind::AllToAll, of, buffer.dtype, count, Some(&buffer), Some(&buffer), CollectiveExtras::NONE))
}

#[inline(always)]
pub(crate) fn all_to_all_v<'a>(
    call: &'static str,
    of: &Team,
    send: Span<'a>,
    recv: Span<'a>,
    counts: Arc<VectorCounts>,
) -> Result<Prepared<'a>> {
    pair(call, of, &send, &recv)?;
    vector::counts(call, of, &counts, send.len, recv.len)?;
    let extras = CollectiveExtras { counts: Some(counts), ..CollectiveExtras::NONE };
    Ok(collective(CollectiveKind::AllToAllV, of, send.dtype, 0, Some(&send), Some(&recv), extras))
}

#[inline(always)]
pub(crate) fn all_to_all_v_in_place<'a>(
    call: &'static str,
    of: &Team,
    buffer: Span<'a>,
    counts: Arc<VectorCounts>,
) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    vector::counts(call, of, &counts, buffer.len, buffer.len)?;
    vector::symmetric(call, &counts)?;
    let extras = CollectiveExtras { counts: Some(counts), ..CollectiveExtras::NONE };
    Ok(collective(CollectiveKind::AllToAllV, of, buffer.dtype, 0, Some(&buffer), Some(&buffer), extras))
}

/// Checks a gather, and returns the operation. Only the root uses `recv`.
#[inline(always)]
pub(crate) fn gather<'a>(
    call: &'static str,
    of: &Team,
    send: Span<'a>,
    recv: Option<Span<'a>>,
    root: Rank,
) -> Result<Prepared<'a>> {
    team(call, of)?;
    argument(call, &of.inner.shared, "send", &send)?;
    rank(call, of, "root", root)?;
    let recv = at_root(call, of, root, "recv", recv)?;
    if let Some(recv) = &recv {
        length(call, "recv", recv.len, times_ranks(of, send.len))?;
        apart(call, &["send", "recv"], &send, recv)?;
    }
    Ok(collective(CollectiveKind::Gather, of, send.dtype, send.len, Some(&send), recv.as_ref(), CollectiveExtras::root(root)))
}

#[inline(always)]
pub(crate) fn gather_in_place<'a>(call: &'static str, of: &Team, buffer: Span<'a>, root: Rank) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    rank(call, of, "root", root)?;
    if of.my_rank() != root {
        return Ok(collective(
            CollectiveKind::Gather,
            of,
            buffer.dtype,
            buffer.len,
            Some(&buffer),
            None,
            CollectiveExtras::root(root),
        ));
    }
    let count = share(call, of, "buffer", buffer.len)?;
    let send = buffer.part(root.index(), count);
    Ok(collective(CollectiveKind::Gather, of, buffer.dtype, count, Some(&send), Some(&buffer), CollectiveExtras::root(root)))
}

/// Checks a scatter, and returns the operation. Only the root uses `send`.
#[inline(always)]
pub(crate) fn scatter<'a>(
    call: &'static str,
    of: &Team,
    send: Option<Span<'a>>,
    recv: Span<'a>,
    root: Rank,
) -> Result<Prepared<'a>> {
    team(call, of)?;
    argument(call, &of.inner.shared, "recv", &recv)?;
    rank(call, of, "root", root)?;
    let send = at_root(call, of, root, "send", send)?;
    if let Some(send) = &send {
        length(call, "send", send.len, times_ranks(of, recv.len))?;
        apart(call, &["send", "recv"], send, &recv)?;
    }
    Ok(collective(CollectiveKind::Scatter, of, recv.dtype, recv.len, send.as_ref(), Some(&recv), CollectiveExtras::root(root)))
}

#[inline(always)]
pub(crate) fn scatter_in_place<'a>(call: &'static str, of: &Team, buffer: Span<'a>, root: Rank) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    rank(call, of, "root", root)?;
    if of.my_rank() != root {
        return Ok(collective(
            CollectiveKind::Scatter,
            of,
            buffer.dtype,
            buffer.len,
            None,
            Some(&buffer),
            CollectiveExtras::root(root),
        ));
    }
    let count = share(call, of, "buffer", buffer.len)?;
    let recv = buffer.part(root.index(), count);
    Ok(collective(CollectiveKind::Scatter, of, buffer.dtype, count, Some(&buffer), Some(&recv), CollectiveExtras::root(root)))
}

#[cold]
#[inline(never)]
fn missing(call: &'static str, argument: &'static str) -> Error {
    misuse(call, MisuseKind::Missing { argument, why: "the root must pass this buffer" })
}

/// Checks that the reduction is defined for the element type. For a premultiplied sum
/// ([`ReduceOp::PreMulSum`]), returns the scalar as bits. For other reductions, returns
/// [`ErasedReduction::NO_SCALAR`].
#[inline(always)]
pub(super) fn reduction(call: &'static str, reduction: ErasedReduction, dtype: DType) -> Result<u64> {
    if !reduction.accepted {
        return Err(undefined(call, reduction, dtype));
    }
    match (reduction.op, reduction.scalar) {
        (ReduceOp::PreMulSum, None) => {
            let why = "a premultiplied sum needs a scalar: use `Reduction::pre_mul_sum`";
            Err(misuse(call, MisuseKind::Missing { argument: "op.scalar", why }))
        }
        (_, scalar) => Ok(scalar.unwrap_or(ErasedReduction::NO_SCALAR)),
    }
}

#[cold]
#[inline(never)]
fn undefined(call: &'static str, reduction: ErasedReduction, dtype: DType) -> Error {
    let ErasedReduction { op, element, .. } = reduction;
    let of_values = op.accepts(dtype);
    misuse(call, if of_values { MisuseKind::ElementReduction { op, element } } else { MisuseKind::Reduction { op, dtype } })
}
