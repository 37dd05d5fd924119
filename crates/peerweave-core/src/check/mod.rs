//! Checks the arguments of all operations. A valid call becomes a [`Prepared`] operation, which
//! `call.rs` passes to the backend.
//!
//! Invariant **\[C1\]**: a [`Prepared`] refers only to bytes that its owners keep allocated, or
//! that are borrowed for at least the lifetime of the [`Prepared`]. The ranks in a [`Prepared`] are
//! ranks of its team. The team has not been destroyed, and the reduction is defined for the element
//! type. Only this module makes a [`Prepared`].
//!
//! Functions on the path of small operations are always inlined, so that an [`Op`] is built in
//! place and never moved: a put of 8 bytes takes 6 ns instead of 19 ns
//! (benches/dispatch_overhead.rs).

use crate::arguments::span::{Owner, Span, keep};
use crate::arguments::symmetric::Region;
use crate::backend::error::{Error, MisuseKind, misuse};
use crate::backend::{Held, Keep, Op, Place, TeamId};
use crate::bounds::{length, wrong_value};
use crate::shared::Shared;
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::{Result, backend};
use peerweave_types::{Dim3, Pe, Rank, TeamShape};
use std::mem::{self, ManuallyDrop};
use std::sync::Arc;

mod collective;
mod one_sided;
mod parts;
mod rms_norm;
mod rotation;
mod scan;
mod vector;

pub(crate) use collective::{
    all_gather, all_gather_in_place, all_reduce, all_reduce_in_place, all_to_all, all_to_all_in_place, all_to_all_v,
    all_to_all_v_in_place, arrival, broadcast, broadcast_in_place, gather, gather_in_place, reduce, reduce_in_place,
    reduce_scatter, reduce_scatter_in_place, scatter, scatter_in_place,
};
pub(crate) use one_sided::{
    Awaited, atomic, get, get_element, get_value, peer_of, put, put_element, put_value, signal, strided, wait, wait_for_one,
};
pub(crate) use parts::{all_gather_v, all_gather_v_in_place, gather_v, gather_v_in_place, scatter_v, scatter_v_in_place};
pub(crate) use rms_norm::{NormCall, rms_norm};
pub(crate) use scan::{all_to_all_strided, by_function, reduce_with, scan, scan_in_place};
pub(crate) use vector::for_each_rank;

/// An operation whose arguments have been checked, and the owners of the operation's memory.
pub(crate) struct Prepared<'a> {
    /// The operation. The destructor drops the operation only if [`Op::owns_memory`] returns
    /// `true`. This test takes a few instructions, whereas dropping an `Op` takes a function call.
    op: ManuallyDrop<Op>,
    /// The owners that keep the memory of the operation alive.
    owners: [Owner<'a>; 3],
}

impl<'a> Prepared<'a> {
    #[inline(always)]
    fn new(op: Op, owners: [Owner<'a>; 3]) -> Self {
        Self { op: ManuallyDrop::new(op), owners }
    }

    #[inline(always)]
    pub(crate) fn op(&self) -> &Op {
        &self.op
    }

    /// Returns a value that keeps the memory of the operation alive. A stream holds this value
    /// while the operation is pending.
    pub(crate) fn keep(&self) -> Keep {
        keep(self.owners)
    }

    /// Converts `self` to the operation, and a handle to each owner of the operation's memory.
    pub(crate) fn into_held(mut self) -> (Op, [Held; 3]) {
        (self.take_op(), self.owners.map(Owner::hold))
    }

    /// Takes the operation out of `self` and returns it. Leaves [`Op::Quiet`] in its place: this
    /// operation owns no memory, so the destructor of `self` has nothing to drop.
    fn take_op(&mut self) -> Op {
        ManuallyDrop::into_inner(mem::replace(&mut self.op, ManuallyDrop::new(Op::Quiet)))
    }

    #[cold]
    #[inline(never)]
    fn free(&mut self) {
        drop(self.take_op());
    }
}

impl Drop for Prepared<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.op.owns_memory() {
            self.free();
        }
    }
}

// ---- worlds, teams, streams, arguments ----

#[cold]
#[inline(never)]
fn wrong_rank(call: &'static str, argument: &'static str, rank: Rank, team_size: usize) -> Error {
    misuse(call, MisuseKind::Rank { argument, found: rank.get(), team_size })
}

/// Checks that the world of the team can be used, and that the team has not been destroyed.
#[inline(always)]
pub(crate) fn team(call: &'static str, team: &Team) -> Result<()> {
    team.inner.shared.usable(call)?;
    if team.inner.is_destroyed() { Err(misuse(call, MisuseKind::TeamDestroyed)) } else { Ok(()) }
}

/// Checks that the closure of a group call has not exchanged its group for the group of another
/// team. `mine` is the team on which the group call was made. `theirs` is the team of the group
/// after the closure has returned.
pub(crate) fn same_team(call: &'static str, mine: &Team, theirs: &Team) -> Result<()> {
    if Arc::ptr_eq(&mine.inner, &theirs.inner) { Ok(()) } else { Err(misuse(call, MisuseKind::ForeignGroup)) }
}

/// Checks that the stream and the team belong to the same world.
#[inline(always)]
pub(crate) fn stream(call: &'static str, team: &Team, stream: &Stream) -> Result<()> {
    team.inner.shared.same_world(call, &stream.shared, "stream")
}

/// Checks that GPUs support the shape of a launch.
pub(crate) fn launch_shape(call: &'static str, grid: Dim3, block: Dim3, shared_bytes: usize) -> Result<()> {
    const SHARED_BYTES: usize = 227 << 10;
    if !grid.is_grid() {
        return Err(wrong_value(call, "grid", grid, "from (1, 1, 1) to (2147483647, 65535, 65535) blocks"));
    }
    if !block.is_block() {
        return Err(wrong_value(
            call,
            "block",
            block,
            "from (1, 1, 1) to (1024, 1024, 64) threads, and at most 1024 threads in total",
        ));
    }
    if shared_bytes > SHARED_BYTES {
        return Err(wrong_value(
            call,
            "shared_bytes",
            shared_bytes,
            "at most 232448 bytes for each block, the largest limit of any GPU",
        ));
    }
    Ok(())
}

#[inline(always)]
pub(crate) fn region(call: &'static str, shared: &Arc<Shared>, argument: &'static str, region: &Region) -> Result<()> {
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
        Owner::Device(_) => device(call, shared, argument, span),
    }
}

/// Checks that the device memory `span` belongs to the device of the backend. Fails with
/// [`Error::Unsupported`] if the backend accepts no device memory.
#[inline(never)]
fn device(call: &'static str, shared: &Shared, argument: &'static str, span: &Span<'_>) -> Result<()> {
    let Place::Device { ordinal, .. } = span.place else {
        unreachable!("peerweave-core bug: `{argument}` has a device owner, but is not in device memory")
    };
    match shared.device {
        Some(expected) if expected == ordinal => Ok(()),
        Some(expected) => Err(misuse(call, MisuseKind::WrongDevice { argument, found: ordinal, expected })),
        None => {
            let why = "the backend cannot access device memory: pass symmetric memory or host memory";
            Err(Error::Unsupported { call, backend: shared.backend.name(), why })
        }
    }
}

#[cold]
#[inline(never)]
fn private_refused(call: &'static str, shared: &Shared) -> Error {
    let why = "operations between PEs need symmetric buffers: allocate with `World::alloc`";
    Error::Unsupported { call, backend: shared.backend.name(), why }
}

#[inline(always)]
fn apart(call: &'static str, names: &'static [&'static str; 2], first: &Span<'_>, second: &Span<'_>) -> Result<()> {
    if first.overlaps(second) { Err(overlap(call, names, "use the in-place form, or separate buffers")) } else { Ok(()) }
}

/// Checks that two memory ranges do not overlap. The error advises the caller to pass separate
/// buffers, because the operation has no in-place form.
#[inline(always)]
fn separate(call: &'static str, names: &'static [&'static str; 2], first: &Span<'_>, second: &Span<'_>) -> Result<()> {
    if first.overlaps(second) { Err(overlap(call, names, "pass separate buffers")) } else { Ok(()) }
}

#[cold]
#[inline(never)]
fn overlap(call: &'static str, [first, second]: &'static [&'static str; 2], advice: &'static str) -> Error {
    misuse(call, MisuseKind::Overlap { first, second, advice })
}

/// Returns the PE that has rank `rank` in the team. Fails if the team has no such rank.
#[inline(always)]
pub(crate) fn rank(call: &'static str, team: &Team, argument: &'static str, rank: Rank) -> Result<Pe> {
    match team.inner.members.get(rank.index()) {
        Some(&pe) => Ok(pe),
        None => Err(wrong_rank(call, argument, rank, team.inner.members.len())),
    }
}

/// Returns `count` times the number of ranks of the team. On overflow, the product saturates. A
/// later check of a buffer's length then fails, because no buffer is that long.
#[inline(always)]
fn times_ranks(team: &Team, count: usize) -> usize {
    count.saturating_mul(team.size())
}

/// Divides `len` elements into one part for each rank, and returns the number of elements in a
/// part. Fails if the parts would have different lengths.
#[inline(always)]
fn share(call: &'static str, team: &Team, argument: &'static str, len: usize) -> Result<usize> {
    let divisor = team.size();
    if len.is_multiple_of(divisor) {
        return Ok(len / divisor);
    }
    Err(misuse(call, MisuseKind::NotDivisible { argument, found: len, divisor }))
}

// ---- teams ----

/// Returns this rank's index among the ranks of `shape`. Returns `None` if this rank is not in
/// `shape`. Fails if `shape` contains a rank that the team does not have, or contains a rank twice.
pub(crate) fn shape(call: &'static str, team: &Team, shape: TeamShape) -> Result<Option<u32>> {
    let size = team.size();
    if !u32::try_from(size).is_ok_and(|size| shape.fits(size)) {
        let TeamShape { start, stride, size: ranks } = shape;
        let found = format!("{ranks} ranks from rank {start} at stride {stride}");
        return Err(misuse(call, MisuseKind::Shape { found, team_size: size }));
    }
    Ok((0..shape.size).find(|&index| shape.member(index) == Some(team.my_rank().get())))
}

/// Checks the members of a new team. The list must contain this PE, only PEs of the job, and no PE
/// twice. Also checks that the world can be used.
pub(crate) fn members(call: &'static str, shared: &Shared, members: &[Pe]) -> Result<()> {
    let value = |found: String, expected| Err(wrong_value(call, "members", found, expected));
    shared.usable(call)?;
    if members.is_empty() {
        return value("empty".to_owned(), "a list that contains this PE");
    }
    let mut listed = vec![false; shared.n_pes];
    for pe in members {
        match listed.get_mut(pe.index()) {
            None => {
                return value(
                    format!("a list that contains {pe}"),
                    "a list of PEs of this job, whose numbers are below World::n_pes",
                );
            }
            Some(true) => return value(format!("a list that contains {pe} twice"), "a list that contains each PE at most once"),
            Some(listed) => *listed = true,
        }
    }
    if !listed[shared.my_pe.index()] {
        return value(format!("a list without {}", shared.my_pe), "a list that contains this PE (only members make the call)");
    }
    Ok(())
}

// ---- sends, receives, groups ----

/// Checks a send or receive, and returns the operation. If `grouped` is set, the peer may be this
/// rank itself.
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
        return Err(wrong_value(call, "peer", peer, "another rank: a rank can exchange data with itself only in a group"));
    }
    let (team, dtype, count) = (of.inner.id, at.dtype, at.len * at.parts);
    let op = Op::PointToPoint(backend::PointToPoint { direction, team, peer, dtype, count, at: at.place });
    Ok(Prepared::new(op, [at.owner, Owner::Caller, Owner::Caller]))
}

/// Checks a group of operations, and returns the group as one operation. No receive may overlap
/// another send or receive.
pub(crate) fn group(call: &'static str, of: &Team, ops: Vec<Op>) -> Result<Prepared<'static>> {
    team(call, of)?;
    let pools = &of.inner.shared.pools;
    pools.with_ranges(|ranges| vector::group(call, of.my_rank(), &ops, ranges))?;
    Ok(Prepared::new(Op::Group(pools.group(ops)), [Owner::Caller; 3]))
}

/// Checks a copy between two memory ranges of this PE, and returns the operation.
pub(crate) fn copy<'a>(call: &'static str, shared: &Arc<Shared>, source: Span<'a>, dest: Span<'a>) -> Result<Prepared<'a>> {
    shared.usable(call)?;
    argument(call, shared, "source", &source)?;
    argument(call, shared, "dest", &dest)?;
    length(call, "dest", dest.len, source.len)?;
    separate(call, &["source", "dest"], &source, &dest)?;
    let op = Op::Copy(backend::Copy { source: source.place, target: dest.place, bytes: source.bytes() });
    Ok(Prepared::new(op, [source.owner, dest.owner, Owner::Caller]))
}

/// Checks a fill, which sets all elements of `dest` to `bits`, and returns the operation.
pub(crate) fn fill<'a>(call: &'static str, shared: &Arc<Shared>, dest: Span<'a>, bits: u64) -> Result<Prepared<'a>> {
    shared.usable(call)?;
    argument(call, shared, "dest", &dest)?;
    let fill = backend::Fill { target: dest.place, bits, element_bytes: dest.element_bytes(), count: dest.len };
    Ok(Prepared::new(Op::Fill(fill), [dest.owner, Owner::Caller, Owner::Caller]))
}

/// Checks that the world can be used. Returns a fence operation.
#[inline(always)]
pub(crate) fn fence(call: &'static str, shared: &Shared) -> Result<Prepared<'static>> {
    shared.usable(call)?;
    Ok(Prepared::new(Op::Fence, [Owner::Caller; 3]))
}

/// Checks that the world can be used. Returns a quiet operation.
#[inline(always)]
pub(crate) fn quiet(call: &'static str, shared: &Shared) -> Result<Prepared<'static>> {
    shared.usable(call)?;
    Ok(Prepared::new(Op::Quiet, [Owner::Caller; 3]))
}

/// Checks that the program may destroy the team. The world owns two teams, which the program may
/// not destroy: the team of all PEs, and the team of this machine's PEs. `owned_by_world` says
/// whether the team is one of these two teams.
pub(crate) fn destroyable(call: &'static str, of: &Team, owned_by_world: bool) -> Result<()> {
    team(call, of)?;
    if of.inner.id == TeamId::WORLD {
        return Err(misuse(call, MisuseKind::WorldTeam));
    }
    if owned_by_world { Err(misuse(call, MisuseKind::LocalTeam)) } else { Ok(()) }
}
