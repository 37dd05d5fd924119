//! Checks all-gather-v, gather-v and scatter-v, and converts their parts to the counts of
//! `backend/op.rs`.

use super::collective::{CollectiveExtras, at_root, collective, pair, single};
use super::{Prepared, apart, argument, rank, team, vector};
use crate::Result;
use crate::arguments::Parts;
use crate::arguments::span::Span;
use crate::backend::{CollectiveKind, VectorCounts};
use crate::bounds::length;
use crate::world::team::Team;
use peerweave_types::Rank;
use std::sync::Arc;

/// Checks that there is a part for each rank, inside a buffer of `len` elements. Returns the length
/// of the part of `of_rank`.
fn parts_in(call: &'static str, of: &Team, name: &'static str, parts: &Parts, len: usize, of_rank: Rank) -> Result<usize> {
    vector::for_each_rank(call, of, "parts.counts", &parts.counts)?;
    vector::for_each_rank(call, of, "parts.offsets", &parts.offsets)?;
    vector::inside(call, name, &parts.offsets, &parts.counts, len)?;
    Ok(parts.counts[of_rank.index()])
}

/// Returns one count and a zero for each other rank.
fn only(of: &Team, rank: Rank, count: usize) -> Vec<usize> {
    let mut counts = vec![0; of.size()];
    counts[rank.index()] = count;
    counts
}

fn erased<'a>(
    kind: CollectiveKind,
    of: &Team,
    send: Option<&Span<'a>>,
    recv: Option<&Span<'a>>,
    root: Rank,
    counts: VectorCounts,
) -> Prepared<'a> {
    let buffer = send.or(recv).expect("every rank has one of the buffers");
    // The core has checked that the parts are disjoint ranges of a buffer, so the sum is small.
    let count = if kind == CollectiveKind::AllGatherV { counts.recv_counts.iter().sum() } else { 0 };
    let extras = CollectiveExtras { root, counts: Some(Arc::new(counts)), ..CollectiveExtras::NONE };
    collective(kind, of, buffer.dtype, count, send, recv, extras)
}

fn gathered_by_all<'a>(of: &Team, send: &Span<'a>, recv: &Span<'a>, parts: &Parts) -> Prepared<'a> {
    let counts = VectorCounts {
        send_counts: vec![send.len; of.size()],
        send_offsets: vec![0; of.size()],
        recv_counts: parts.counts.clone(),
        recv_offsets: parts.offsets.clone(),
    };
    erased(CollectiveKind::AllGatherV, of, Some(send), Some(recv), Rank::new(0), counts)
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
    vector::apart(call, "parts of `recv`", &parts.offsets, &parts.counts)?;
    length(call, "send", send.len, mine)?;
    Ok(gathered_by_all(of, &send, &recv, parts))
}

pub(crate) fn all_gather_v_in_place<'a>(call: &'static str, of: &Team, buffer: Span<'a>, parts: &Parts) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    let mine = parts_in(call, of, "buffer", parts, buffer.len, of.my_rank())?;
    vector::apart(call, "parts of `buffer`", &parts.offsets, &parts.counts)?;
    let send = buffer.range(parts.offsets[of.my_rank().index()], mine);
    Ok(gathered_by_all(of, &send, &buffer, parts))
}

fn gathered<'a>(of: &Team, send: &Span<'a>, recv: Option<(&Span<'a>, &Parts)>, root: Rank) -> Prepared<'a> {
    let (recv_counts, recv_offsets) = match recv {
        Some((_, parts)) => (parts.counts.clone(), parts.offsets.clone()),
        None => (vec![0; of.size()], vec![0; of.size()]),
    };
    let send_counts = only(of, root, send.len);
    let counts = VectorCounts { send_counts, send_offsets: vec![0; of.size()], recv_counts, recv_offsets };
    erased(CollectiveKind::GatherV, of, Some(send), recv.map(|(recv, _)| recv), root, counts)
}

/// Checks a gather-v; `recv` and `parts` are used at the root only.
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
        vector::apart(call, "parts of `recv`", &parts.offsets, &parts.counts)?;
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
    vector::apart(call, "parts of `buffer`", &parts.offsets, &parts.counts)?;
    let send = buffer.range(parts.offsets[root.index()], mine);
    Ok(gathered(of, &send, Some((&buffer, parts)), root))
}

fn scattered<'a>(of: &Team, send: Option<(&Span<'a>, &Parts)>, recv: &Span<'a>, root: Rank) -> Prepared<'a> {
    let (send_counts, send_offsets) = match send {
        Some((_, parts)) => (parts.counts.clone(), parts.offsets.clone()),
        None => (vec![0; of.size()], vec![0; of.size()]),
    };
    let recv_counts = only(of, root, recv.len);
    let counts = VectorCounts { send_counts, send_offsets, recv_counts, recv_offsets: vec![0; of.size()] };
    erased(CollectiveKind::ScatterV, of, send.map(|(send, _)| send), Some(recv), root, counts)
}

/// Checks a scatter-v; `send` and `parts` are used at the root only.
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
