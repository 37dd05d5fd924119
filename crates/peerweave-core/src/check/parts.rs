//! Checks the arguments of all-gather-v, gather-v and scatter-v, and creates the operations. The
//! caller passes [`Parts`]: the length and the offset of the part for each rank. The operation
//! contains `VectorCounts` instead, which are also the argument of an all-to-all-v.

use super::collective::{CollectiveExtras, at_root, collective, pair, single};
use super::{Prepared, apart, argument, rank, team, vector};
use crate::Result;
use crate::arguments::Parts;
use crate::arguments::span::Span;
use crate::backend::CollectiveKind;
use crate::bounds::length;
use crate::world::team::Team;
use peerweave_types::Rank;

/// Checks that `parts` contains one part for each rank, and that every part lies inside a buffer of
/// `len` elements. Returns the length of the part for rank `of_rank`.
fn parts_in(call: &'static str, of: &Team, name: &'static str, parts: &Parts, len: usize, of_rank: Rank) -> Result<usize> {
    vector::for_each_rank(call, of, "parts.counts", &parts.counts)?;
    vector::for_each_rank(call, of, "parts.offsets", &parts.offsets)?;
    vector::inside(call, name, &parts.offsets, &parts.counts, len)?;
    Ok(parts.counts[of_rank.index()])
}

/// One direction of a collective whose parts have different lengths. It has the lengths and offsets
/// of all parts that this rank sends, or of all parts that this rank receives.
#[derive(Clone, Copy)]
enum Side<'a> {
    /// The caller's [`Parts`]: the length and the offset of the part for each rank.
    Parts(&'a Parts),
    /// Every rank has a part of this length. All offsets are 0.
    Every(usize),
    /// Only this rank has a part, which has this length. The parts of all other ranks are empty.
    /// All offsets are 0.
    Only(Rank, usize),
    None,
}

impl Side<'_> {
    fn fill(self, of: &Team, counts: &mut Vec<usize>, offsets: &mut Vec<usize>) {
        counts.clear();
        offsets.clear();
        if let Self::Parts(parts) = self {
            counts.extend_from_slice(&parts.counts);
            offsets.extend_from_slice(&parts.offsets);
            return;
        }
        counts.resize(of.size(), if let Self::Every(count) = self { count } else { 0 });
        offsets.resize(of.size(), 0);
        if let Self::Only(rank, count) = self {
            counts[rank.index()] = count;
        }
    }
}

fn erased<'a>(
    kind: CollectiveKind,
    of: &Team,
    send: Option<&Span<'a>>,
    recv: Option<&Span<'a>>,
    root: Rank,
    sides: [Side<'_>; 2],
) -> Prepared<'a> {
    let buffer = send.or(recv).expect("each rank has a send buffer, a receive buffer or both");
    let counts = of.inner.shared.pools.counts.take(|counts| {
        sides[0].fill(of, &mut counts.send_counts, &mut counts.send_offsets);
        sides[1].fill(of, &mut counts.recv_counts, &mut counts.recv_offsets);
    });
    // The core has checked that the parts are disjoint ranges of a buffer, so the sum does not
    // overflow.
    let count = if kind == CollectiveKind::AllGatherV { counts.recv_counts.iter().sum() } else { 0 };
    let extras = CollectiveExtras { root, counts: Some(counts), ..CollectiveExtras::NONE };
    collective(kind, of, buffer.dtype, count, send, recv, extras)
}

fn gathered_by_all<'a>(of: &Team, send: &Span<'a>, recv: &Span<'a>, parts: &Parts) -> Prepared<'a> {
    let sides = [Side::Every(send.len), Side::Parts(parts)];
    erased(CollectiveKind::AllGatherV, of, Some(send), Some(recv), Rank::new(0), sides)
}

pub(crate) fn all_gather_v<'a>(
    call: &'static str,
    of: &Team,
    send: Span<'a>,
    recv: Span<'a>,
    parts: &Parts,
) -> Result<Prepared<'a>> {
    pair(call, of, &send, &recv)?;
    let mine = parts_in(call, of, "recv", parts, recv.len, of.my_rank())?;
    vector::apart(call, "the parts of `recv` for two ranks", &parts.offsets, &parts.counts)?;
    length(call, "send", send.len, mine)?;
    Ok(gathered_by_all(of, &send, &recv, parts))
}

pub(crate) fn all_gather_v_in_place<'a>(call: &'static str, of: &Team, buffer: Span<'a>, parts: &Parts) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    let mine = parts_in(call, of, "buffer", parts, buffer.len, of.my_rank())?;
    vector::apart(call, "the parts of `buffer` for two ranks", &parts.offsets, &parts.counts)?;
    let send = buffer.range(parts.offsets[of.my_rank().index()], mine);
    Ok(gathered_by_all(of, &send, &buffer, parts))
}

fn gathered<'a>(of: &Team, send: &Span<'a>, recv: Option<(&Span<'a>, &Parts)>, root: Rank) -> Prepared<'a> {
    let sides = [Side::Only(root, send.len), recv.map_or(Side::None, |(_, parts)| Side::Parts(parts))];
    erased(CollectiveKind::GatherV, of, Some(send), recv.map(|(recv, _)| recv), root, sides)
}

/// Checks a gather-v, and returns the operation. Only the root uses `recv` and `parts`.
pub(crate) fn gather_v<'a>(
    call: &'static str,
    of: &Team,
    send: Span<'a>,
    recv: Option<Span<'a>>,
    parts: &Parts,
    root: Rank,
) -> Result<Prepared<'a>> {
    team(call, of)?;
    argument(call, &of.inner.shared, "send", &send)?;
    rank(call, of, "root", root)?;
    let recv = at_root(call, of, root, "recv", recv)?;
    if let Some(recv) = &recv {
        let mine = parts_in(call, of, "recv", parts, recv.len, root)?;
        vector::apart(call, "the parts of `recv` for two ranks", &parts.offsets, &parts.counts)?;
        length(call, "send", send.len, mine)?;
        apart(call, &["send", "recv"], &send, recv)?;
    }
    Ok(gathered(of, &send, recv.as_ref().map(|recv| (recv, parts)), root))
}

pub(crate) fn gather_v_in_place<'a>(
    call: &'static str,
    of: &Team,
    buffer: Span<'a>,
    parts: &Parts,
    root: Rank,
) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    rank(call, of, "root", root)?;
    if of.my_rank() != root {
        return Ok(gathered(of, &buffer, None, root));
    }
    let mine = parts_in(call, of, "buffer", parts, buffer.len, root)?;
    vector::apart(call, "the parts of `buffer` for two ranks", &parts.offsets, &parts.counts)?;
    let send = buffer.range(parts.offsets[root.index()], mine);
    Ok(gathered(of, &send, Some((&buffer, parts)), root))
}

fn scattered<'a>(of: &Team, send: Option<(&Span<'a>, &Parts)>, recv: &Span<'a>, root: Rank) -> Prepared<'a> {
    let sides = [send.map_or(Side::None, |(_, parts)| Side::Parts(parts)), Side::Only(root, recv.len)];
    erased(CollectiveKind::ScatterV, of, send.map(|(send, _)| send), Some(recv), root, sides)
}

/// Checks a scatter-v, and returns the operation. Only the root uses `send` and `parts`.
pub(crate) fn scatter_v<'a>(
    call: &'static str,
    of: &Team,
    send: Option<Span<'a>>,
    recv: Span<'a>,
    parts: &Parts,
    root: Rank,
) -> Result<Prepared<'a>> {
    team(call, of)?;
    argument(call, &of.inner.shared, "recv", &recv)?;
    rank(call, of, "root", root)?;
    let send = at_root(call, of, root, "send", send)?;
    if let Some(send) = &send {
        let mine = parts_in(call, of, "send", parts, send.len, root)?;
        length(call, "recv", recv.len, mine)?;
        apart(call, &["send", "recv"], send, &recv)?;
    }
    Ok(scattered(of, send.as_ref().map(|send| (send, parts)), &recv, root))
}

pub(crate) fn scatter_v_in_place<'a>(
    call: &'static str,
    of: &Team,
    buffer: Span<'a>,
    parts: &Parts,
    root: Rank,
) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    rank(call, of, "root", root)?;
    if of.my_rank() != root {
        return Ok(scattered(of, None, &buffer, root));
    }
    let mine = parts_in(call, of, "buffer", parts, buffer.len, root)?;
    let recv = buffer.range(parts.offsets[root.index()], mine);
    Ok(scattered(of, Some((&buffer, parts)), &recv, root))
}
