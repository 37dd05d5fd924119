//! All validation. Nothing is run here: a call that passes becomes a [`Prepared`] operation, which `call.rs` hands over.
//!
//! Invariant **\[C1\]**: a [`Prepared`] names only memory of its owners, or of borrows that outlive it, and only bytes inside of it; its ranks are ranks
//! of its team, its team is live, its reduction is defined for its type. Only this file makes one.

use crate::argument::{Held, Owner, Span, keep};
use crate::backend::{Collective, CollectiveKind, Keep, Op, TeamId, VectorCounts};
use crate::error::{Error, Misuse, MisuseKind};
use crate::reduction::ErasedReduction;
use crate::shared::Shared;
use crate::stream::Stream;
use crate::symmetric::Region;
use crate::team::Team;
use crate::{Result, backend};
use peerweave_types::{DType, Pe, Rank, ReduceOp, TeamShape};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

mod one_sided;
mod vector;

pub(crate) use one_sided::{Awaited, atomic, element, get, put, signal, strided, wait};

/// An operation that was checked.
pub(crate) struct Prepared<'a> {
    op: Op,
    /// Who keeps its memory alive.
    owners: [Owner<'a>; 3],
}

impl<'a> Prepared<'a> {
    #[inline(always)]
    fn new(op: Op, owners: [Owner<'a>; 3]) -> Self {
        Self { op, owners }
    }

    #[inline(always)]
    pub(crate) fn op(&self) -> &Op {
        &self.op
    }

    /// What a queue holds while it runs the operation.
    pub(crate) fn keep(&self) -> Keep {
        keep(self.owners)
    }

    /// The operation, and what holds its memory.
    pub(crate) fn into_held(self) -> (Op, [Held; 3]) {
        (self.op, self.owners.map(Owner::hold))
    }

    /// The operation, whose memory the caller answers for.
    pub(crate) fn into_op(self) -> Op {
        self.op
    }
}

// ---- the errors, out of line ----

#[cold]
#[inline(never)]
pub(crate) fn misuse(call: &'static str, kind: MisuseKind) -> Error {
    Error::Misuse(Misuse { call, kind })
}

#[cold]
#[inline(never)]
fn wrong_length(call: &'static str, argument: &'static str, found: usize, expected: usize) -> Error {
    misuse(call, MisuseKind::Length { argument, found, expected })
}

#[cold]
#[inline(never)]
fn wrong_rank(call: &'static str, argument: &'static str, rank: Rank, team_size: usize) -> Error {
    misuse(call, MisuseKind::Rank { argument, found: rank.get(), team_size })
}

#[cold]
#[inline(never)]
fn wrong_range(call: &'static str, argument: &'static str, start: usize, end: usize, len: usize) -> Error {
    misuse(call, MisuseKind::Range { argument, start, end, len })
}

#[cold]
#[inline(never)]
fn wrong_value(call: &'static str, argument: &'static str, found: impl ToString, expected: &'static str) -> Error {
    misuse(call, MisuseKind::Value { argument, found: found.to_string(), expected })
}

// ---- lengths, indices, ranges ----

#[inline(always)]
pub(crate) fn length(call: &'static str, argument: &'static str, found: usize, expected: usize) -> Result<()> {
    if found == expected { Ok(()) } else { Err(wrong_length(call, argument, found, expected)) }
}

#[inline(always)]
pub(crate) fn index(call: &'static str, argument: &'static str, index: usize, len: usize) -> Result<()> {
    if index < len { Ok(()) } else { Err(wrong_range(call, argument, index, index.saturating_add(1), len)) }
}

/// Start and length of a range of `len` elements.
pub(crate) fn range(call: &'static str, len: usize, range: &impl RangeBounds<usize>) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok((start, end - start)),
        _ => Err(wrong_range(call, "range", start.unwrap_or(usize::MAX), end.unwrap_or(usize::MAX), len)),
    }
}

pub(crate) fn positive(call: &'static str, argument: &'static str, value: usize) -> Result<()> {
    if value > 0 { Ok(()) } else { Err(wrong_value(call, argument, value, "at least 1")) }
}

/// The bytes of an allocation.
pub(crate) fn allocation(call: &'static str, elements: usize, dtype: DType, align: usize) -> Result<usize> {
    if !align.is_power_of_two() {
        return Err(wrong_value(call, "align_bytes", align, "a power of two"));
    }
    match elements.checked_mul(dtype.size_bytes()) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(bytes),
        _ => Err(wrong_value(call, "count", elements, "what fits an address space")),
    }
}

/// Whether a handle, to `len` elements from `start`, names its whole allocation.
pub(crate) fn whole(call: &'static str, start: usize, len: usize, elements: usize) -> Result<()> {
    if start == 0 && len == elements {
        return Ok(());
    }
    Err(misuse(call, MisuseKind::PartOfAllocation { argument: "self", start, end: start + len, len: elements }))
}

// ---- worlds, teams, streams, arguments ----

#[inline(always)]
pub(crate) fn same_world(call: &'static str, mine: &Arc<Shared>, theirs: &Arc<Shared>, what: &'static str) -> Result<()> {
    if Arc::ptr_eq(mine, theirs) { Ok(()) } else { Err(misuse(call, MisuseKind::ForeignQueue { what })) }
}

/// Whether operations of the team may run.
#[inline(always)]
pub(crate) fn team(call: &'static str, team: &Team) -> Result<()> {
    team.inner.shared.usable(call)?;
    if team.inner.is_destroyed() { Err(misuse(call, MisuseKind::TeamDestroyed)) } else { Ok(()) }
}

/// Whether the stream may take operations of the team.
#[inline(always)]
pub(crate) fn stream(call: &'static str, team: &Team, stream: &Stream) -> Result<()> {
    same_world(call, &team.inner.shared, &stream.shared, "stream")
}

#[inline(always)]
fn region(call: &'static str, shared: &Arc<Shared>, argument: &'static str, region: &Region) -> Result<()> {
    if !Arc::ptr_eq(shared, &region.shared) {
        return Err(misuse(call, MisuseKind::ForeignBuffer { argument }));
    }
    if region.is_released() { Err(misuse(call, MisuseKind::Released { argument })) } else { Ok(()) }
}

#[inline(always)]
fn argument(call: &'static str, shared: &Arc<Shared>, argument: &'static str, span: &Span<'_>) -> Result<()> {
    match span.owner {
        Owner::Region(owner) => region(call, shared, argument, owner),
        Owner::Caller | Owner::Memory(_) if shared.private_refused => Err(private_refused(call, shared)),
        Owner::Caller | Owner::Memory(_) => Ok(()),
    }
}

#[cold]
#[inline(never)]
fn private_refused(call: &'static str, shared: &Shared) -> Error {
    let why = "operations between PEs take symmetric buffers here: allocate with `World::alloc`";
    Error::Unsupported { call, backend: shared.backend.name(), why }
}

#[inline(always)]
fn apart(call: &'static str, names: [&'static str; 2], first: &Span<'_>, second: &Span<'_>) -> Result<()> {
    if first.overlaps(second) { Err(misuse(call, MisuseKind::Overlap { first: names[0], second: names[1] })) } else { Ok(()) }
}

/// The PE of a rank.
#[inline(always)]
pub(crate) fn rank(call: &'static str, team: &Team, argument: &'static str, rank: Rank) -> Result<Pe> {
    match team.inner.members.get(rank.index()) {
        Some(&pe) => Ok(pe),
        None => Err(wrong_rank(call, argument, rank, team.inner.members.len())),
    }
}

/// `count` elements for each rank of the team; what does not fit `usize` fits no buffer.
#[inline(always)]
fn times_ranks(team: &Team, count: usize) -> usize {
    count.saturating_mul(team.size())
}

/// What each rank gets of `len` elements.
#[inline(always)]
fn share(call: &'static str, team: &Team, argument: &'static str, len: usize) -> Result<usize> {
    let divisor = team.size();
    if len.is_multiple_of(divisor) {
        return Ok(len / divisor);
    }
    Err(misuse(call, MisuseKind::NotDivisible { argument, found: len, divisor }))
}

fn missing(call: &'static str, argument: &'static str) -> Error {
    misuse(call, MisuseKind::Missing { argument, why: "this rank is the root" })
}

/// The bits of the scalar, where the reduction is defined for the type.
#[inline(always)]
fn reduction(call: &'static str, reduction: ErasedReduction, dtype: DType) -> Result<u64> {
    if !reduction.op.accepts(dtype) {
        return Err(misuse(call, MisuseKind::Reduction { op: reduction.op, dtype }));
    }
    match (reduction.op, reduction.scalar) {
        (ReduceOp::PreMulSum, None) => {
            let why = "a premultiplied sum has a scalar: use `Reduction::pre_mul_sum`";
            Err(misuse(call, MisuseKind::Missing { argument: "op", why }))
        }
        (_, scalar) => Ok(scalar.unwrap_or(ErasedReduction::NO_SCALAR)),
    }
}

// ---- teams ----

/// The place of `rank` in the shape; `None` where it is not in it.
pub(crate) fn shape(call: &'static str, team: &Team, shape: TeamShape) -> Result<Option<u32>> {
    let size = team.size();
    if !u32::try_from(size).is_ok_and(|size| shape.fits(size)) {
        let found = format!("{} ranks from {} at stride {}", shape.size, shape.start, shape.stride);
        return Err(misuse(call, MisuseKind::Shape { found, team_size: size }));
    }
    Ok((0..shape.size).find(|&index| shape.member(index) == Some(team.my_rank().get())))
}

// ---- collectives ----

#[inline(always)]
fn collective<'a>(
    kind: CollectiveKind,
    team: &Team,
    dtype: DType,
    count: usize,
    send: Option<&Span<'a>>,
    recv: Option<&Span<'a>>,
    more: More,
) -> Prepared<'a> {
    let op = Op::Collective(Collective {
        kind,
        team: team.inner.id,
        dtype,
        op: more.op,
        scalar: more.scalar,
        root: more.root,
        count,
        send: send.map(|span| span.place),
        recv: recv.map(|span| span.place),
        counts: more.counts,
    });
    let owner = |span: Option<&Span<'a>>| span.map_or(Owner::Caller, |span| span.owner);
    Prepared::new(op, [owner(send), owner(recv), Owner::Caller])
}

/// What few collectives have.
struct More {
    op: ReduceOp,
    scalar: u64,
    root: Rank,
    counts: Option<Arc<VectorCounts>>,
}

impl More {
    const NONE: Self = Self { op: ReduceOp::Sum, scalar: ErasedReduction::NO_SCALAR, root: Rank::new(0), counts: None };

    #[inline(always)]
    fn root(root: Rank) -> Self {
        Self { root, ..Self::NONE }
    }

    #[inline(always)]
    fn reduction(op: ReduceOp, scalar: u64) -> Self {
        Self { op, scalar, ..Self::NONE }
    }
}

/// A barrier or sync.
#[inline(always)]
pub(crate) fn arrival(call: &'static str, of: &Team, kind: CollectiveKind) -> Result<Prepared<'static>> {
    team(call, of)?;
    Ok(collective(kind, of, DType::U8, 0, None, None, More::NONE))
}

/// Team, both arguments, and that they are apart.
#[inline(always)]
fn pair(call: &'static str, of: &Team, send: &Span<'_>, recv: &Span<'_>) -> Result<()> {
    team(call, of)?;
    argument(call, &of.inner.shared, "send", send)?;
    argument(call, &of.inner.shared, "recv", recv)?;
    apart(call, ["send", "recv"], send, recv)
}

/// Team and argument of an in-place form.
#[inline(always)]
fn single(call: &'static str, of: &Team, buffer: &Span<'_>) -> Result<()> {
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
    let more = More::reduction(op.op, scalar);
    Ok(collective(CollectiveKind::AllReduce, of, send.dtype, send.len, Some(&send), Some(&recv), more))
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
    let more = More::reduction(op.op, scalar);
    Ok(collective(CollectiveKind::AllReduce, of, buffer.dtype, buffer.len, Some(&buffer), Some(&buffer), more))
}

/// `recv` is what the root passed; it is `None` elsewhere.
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
    let recv = at_root(call, of, root, "recv", recv)?;
    if let Some(recv) = &recv {
        length(call, "recv", recv.len, send.len)?;
        apart(call, ["send", "recv"], &send, recv)?;
    }
    let more = More { root, ..More::reduction(op.op, scalar) };
    Ok(collective(CollectiveKind::Reduce, of, send.dtype, send.len, Some(&send), recv.as_ref(), more))
}

/// What only the root passes: checked there, ignored elsewhere.
fn at_root<'a>(
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
    let more = More { root, ..More::reduction(op.op, scalar) };
    Ok(collective(CollectiveKind::Reduce, of, buffer.dtype, buffer.len, Some(&buffer), recv, more))
}

/// `send` is what the root passed.
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
        apart(call, ["send", "recv"], send, &recv)?;
    }
    Ok(collective(CollectiveKind::Broadcast, of, recv.dtype, recv.len, send.as_ref(), Some(&recv), More::root(root)))
}

pub(crate) fn broadcast_in_place<'a>(call: &'static str, of: &Team, buffer: Span<'a>, root: Rank) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    rank(call, of, "root", root)?;
    let send = (of.my_rank() == root).then_some(&buffer);
    Ok(collective(CollectiveKind::Broadcast, of, buffer.dtype, buffer.len, send, Some(&buffer), More::root(root)))
}

#[inline(always)]
pub(crate) fn all_gather<'a>(call: &'static str, of: &Team, send: Span<'a>, recv: Span<'a>) -> Result<Prepared<'a>> {
    pair(call, of, &send, &recv)?;
    length(call, "recv", recv.len, times_ranks(of, send.len))?;
    Ok(collective(CollectiveKind::AllGather, of, send.dtype, send.len, Some(&send), Some(&recv), More::NONE))
}

#[inline(always)]
pub(crate) fn all_gather_in_place<'a>(call: &'static str, of: &Team, buffer: Span<'a>) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    let count = share(call, of, "buffer", buffer.len)?;
    let send = buffer.part(of.my_rank().index(), count);
    Ok(collective(CollectiveKind::AllGather, of, buffer.dtype, count, Some(&send), Some(&buffer), More::NONE))
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
    let more = More::reduction(op.op, scalar);
    Ok(collective(CollectiveKind::ReduceScatter, of, send.dtype, recv.len, Some(&send), Some(&recv), more))
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
    let more = More::reduction(op.op, scalar);
    Ok(collective(CollectiveKind::ReduceScatter, of, buffer.dtype, count, Some(&buffer), Some(&recv), more))
}

#[inline(always)]
pub(crate) fn all_to_all<'a>(call: &'static str, of: &Team, send: Span<'a>, recv: Span<'a>) -> Result<Prepared<'a>> {
    pair(call, of, &send, &recv)?;
    length(call, "recv", recv.len, send.len)?;
    let count = share(call, of, "send", send.len)?;
    Ok(collective(CollectiveKind::AllToAll, of, send.dtype, count, Some(&send), Some(&recv), More::NONE))
}

#[inline(always)]
pub(crate) fn all_to_all_in_place<'a>(call: &'static str, of: &Team, buffer: Span<'a>) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    let count = share(call, of, "buffer", buffer.len)?;
    Ok(collective(CollectiveKind::AllToAll, of, buffer.dtype, count, Some(&buffer), Some(&buffer), More::NONE))
}

pub(crate) fn all_to_all_v<'a>(
    call: &'static str,
    of: &Team,
    send: Span<'a>,
    recv: Span<'a>,
    counts: Arc<VectorCounts>,
) -> Result<Prepared<'a>> {
    pair(call, of, &send, &recv)?;
    vector::counts(call, of, &counts, send.len, recv.len)?;
    let more = More { counts: Some(counts), ..More::NONE };
    Ok(collective(CollectiveKind::AllToAllV, of, send.dtype, 0, Some(&send), Some(&recv), more))
}

pub(crate) fn all_to_all_v_in_place<'a>(
    call: &'static str,
    of: &Team,
    buffer: Span<'a>,
    counts: Arc<VectorCounts>,
) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    vector::counts(call, of, &counts, buffer.len, buffer.len)?;
    vector::symmetric(call, &counts)?;
    let more = More { counts: Some(counts), ..More::NONE };
    Ok(collective(CollectiveKind::AllToAllV, of, buffer.dtype, 0, Some(&buffer), Some(&buffer), more))
}

/// `recv` is what the root passed.
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
        apart(call, ["send", "recv"], &send, recv)?;
    }
    Ok(collective(CollectiveKind::Gather, of, send.dtype, send.len, Some(&send), recv.as_ref(), More::root(root)))
}

pub(crate) fn gather_in_place<'a>(call: &'static str, of: &Team, buffer: Span<'a>, root: Rank) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    rank(call, of, "root", root)?;
    if of.my_rank() != root {
        return Ok(collective(CollectiveKind::Gather, of, buffer.dtype, buffer.len, Some(&buffer), None, More::root(root)));
    }
    let count = share(call, of, "buffer", buffer.len)?;
    let send = buffer.part(root.index(), count);
    Ok(collective(CollectiveKind::Gather, of, buffer.dtype, count, Some(&send), Some(&buffer), More::root(root)))
}

/// `send` is what the root passed.
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
        apart(call, ["send", "recv"], send, &recv)?;
    }
    Ok(collective(CollectiveKind::Scatter, of, recv.dtype, recv.len, send.as_ref(), Some(&recv), More::root(root)))
}

pub(crate) fn scatter_in_place<'a>(call: &'static str, of: &Team, buffer: Span<'a>, root: Rank) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    rank(call, of, "root", root)?;
    if of.my_rank() != root {
        return Ok(collective(CollectiveKind::Scatter, of, buffer.dtype, buffer.len, None, Some(&buffer), More::root(root)));
    }
    let count = share(call, of, "buffer", buffer.len)?;
    let recv = buffer.part(root.index(), count);
    Ok(collective(CollectiveKind::Scatter, of, buffer.dtype, count, Some(&buffer), Some(&recv), More::root(root)))
}

// ---- sends, receives, groups ----

/// One send or receive; `grouped` where it may be to this rank itself.
pub(crate) fn point_to_point<'a>(
    call: &'static str,
    of: &Team,
    direction: backend::Direction,
    at: Span<'a>,
    peer: Rank,
    grouped: bool,
) -> Result<Prepared<'a>> {
    team(call, of)?;
    let name = if direction == backend::Direction::Send { "source" } else { "dest" };
    argument(call, &of.inner.shared, name, &at)?;
    rank(call, of, "peer", peer)?;
    if !grouped && peer == of.my_rank() {
        return Err(wrong_value(call, "peer", peer, "another rank: a rank sends to itself only inside a group"));
    }
    let (team, dtype, count) = (of.inner.id, at.dtype, at.len);
    let op = Op::PointToPoint(backend::PointToPoint { direction, team, peer, dtype, count, at: at.place });
    Ok(Prepared::new(op, [at.owner, Owner::Caller, Owner::Caller]))
}

/// A group: what it receives overlaps nothing that it sends or receives. `ops` were each prepared.
pub(crate) fn group(call: &'static str, of: &Team, ops: Vec<Op>) -> Result<Prepared<'static>> {
    team(call, of)?;
    vector::group(call, &ops)?;
    Ok(Prepared::new(Op::Group(ops.into()), [Owner::Caller; 3]))
}

/// An operation without memory: a fence or quiet.
#[inline(always)]
pub(crate) fn order(call: &'static str, shared: &Shared, op: Op) -> Result<Prepared<'static>> {
    debug_assert!(matches!(op, Op::Fence | Op::Quiet));
    shared.usable(call)?;
    Ok(Prepared::new(op, [Owner::Caller; 3]))
}

/// Whether the team may be destroyed.
pub(crate) fn destroyable(call: &'static str, of: &Team, owned_by_world: bool) -> Result<()> {
    team(call, of)?;
    if of.inner.id == TeamId::WORLD {
        return Err(misuse(call, MisuseKind::WorldTeam));
    }
    if owned_by_world { Err(misuse(call, MisuseKind::LocalTeam)) } else { Ok(()) }
}
