//! Checks arguments that are lists: the counts of an all-to-all-v, the parts of a buffer, and the
//! operations of a group.

use crate::Result;
use crate::backend::error::{MisuseKind, misuse};
use crate::backend::{Direction, Op, Place, VectorCounts};
use crate::bounds::{wrong_length, wrong_range, wrong_value};
use crate::pools::Range;
use crate::world::team::Team;
use peerweave_types::Rank;
use std::cmp::Ordering;
use std::sync::Arc;

/// Checks the counts and offsets of an all-to-all-v. Every part must lie in its buffer, and
/// received parts must not overlap. This rank must send to itself as many elements as it receives
/// from itself.
#[inline]
pub(super) fn counts(call: &'static str, of: &Team, counts: &VectorCounts, send_len: usize, recv_len: usize) -> Result<()> {
    if are_plain(of, counts, send_len, recv_len) { Ok(()) } else { check_counts(call, of, counts, send_len, recv_len) }
}

/// Returns `true` if the counts are valid and the received parts lie in rank order. One pass over
/// the lists is enough to detect this common case. If the result is `false`, the counts may still
/// be valid.
#[inline]
fn are_plain(of: &Team, counts: &VectorCounts, send_len: usize, recv_len: usize) -> bool {
    let (ranks, me) = (of.size(), of.my_rank().index());
    let VectorCounts { send_counts, send_offsets, recv_counts, recv_offsets } = counts;
    if [send_counts, send_offsets, recv_counts, recv_offsets].iter().any(|list| list.len() != ranks) {
        return false;
    }
    let mut end = 0;
    send_counts[me] == recv_counts[me]
        && (0..ranks).all(|rank| {
            let (sent, from) = (send_counts[rank], send_offsets[rank]);
            let (received, to) = (recv_counts[rank], recv_offsets[rank]);
            let follows = received == 0 || (to >= end && to <= recv_len && received <= recv_len - to);
            if received > 0 {
                end = to.wrapping_add(received);
            }
            follows && (sent == 0 || (from <= send_len && sent <= send_len - from))
        })
}

/// Like [`counts`], but checks one condition after the other. The error names the first condition
/// that is violated.
#[cold]
#[inline(never)]
fn check_counts(call: &'static str, of: &Team, counts: &VectorCounts, send_len: usize, recv_len: usize) -> Result<()> {
    for (name, list) in [
        ("counts.send_counts", &counts.send_counts),
        ("counts.send_offsets", &counts.send_offsets),
        ("counts.recv_counts", &counts.recv_counts),
        ("counts.recv_offsets", &counts.recv_offsets),
    ] {
        for_each_rank(call, of, name, list)?;
    }
    inside(call, "send", &counts.send_offsets, &counts.send_counts, send_len)?;
    inside(call, "recv", &counts.recv_offsets, &counts.recv_counts, recv_len)?;
    let me = of.my_rank().index();
    if counts.send_counts[me] != counts.recv_counts[me] {
        let expected = "the number of elements that this rank sends to itself (its entry in `send_counts`)";
        return Err(wrong_value(call, "counts.recv_counts", counts.recv_counts[me], expected));
    }
    apart(call, "the parts of `recv` for two ranks", &counts.recv_offsets, &counts.recv_counts)
}

/// Checks that `list`, which the caller passed as the parameter `name`, has one entry for each rank
/// of the team.
pub(crate) fn for_each_rank(call: &'static str, of: &Team, name: &'static str, list: &[usize]) -> Result<()> {
    if list.len() == of.size() { Ok(()) } else { Err(wrong_length(call, name, list.len(), of.size())) }
}

/// Checks that the parts of a buffer do not overlap. The caller has checked that the parts lie in
/// the buffer.
pub(super) fn apart(call: &'static str, what: &'static str, offsets: &[usize], counts: &[usize]) -> Result<()> {
    let parts = || std::iter::zip(offsets, counts).filter(|&(_, &count)| count > 0);
    // Parts are usually in rank order, and then no sorted list of them is needed.
    let mut end = 0;
    let in_order = parts().all(|(&offset, &count)| {
        let follows = offset >= end;
        end = offset + count;
        follows
    });
    if in_order {
        return Ok(());
    }
    let mut parts: Vec<_> = parts().collect();
    parts.sort_unstable();
    if parts.windows(2).any(|pair| pair[0].0 + pair[0].1 > *pair[1].0) {
        return Err(misuse(call, MisuseKind::OverlapWithin { what }));
    }
    Ok(())
}

/// Multiplies counts and offsets by `parts`, the number of values in an element. For example, an
/// element of type `[f32; 3]` consists of 3 values. Callers count elements, but backends count
/// values. The caller has checked the counts.
pub(super) fn of_parts(of: &Team, counts: &VectorCounts, parts: usize) -> Arc<VectorCounts> {
    of.inner.shared.pools.counts.take(|free| {
        for (list, counts) in [
            (&mut free.send_counts, &counts.send_counts),
            (&mut free.send_offsets, &counts.send_offsets),
            (&mut free.recv_counts, &counts.recv_counts),
            (&mut free.recv_offsets, &counts.recv_offsets),
        ] {
            list.clear();
            // The product saturates, because the offset of an empty part may be any number.
            list.extend(counts.iter().map(|&count| count.saturating_mul(parts)));
        }
    })
}

/// Checks that every part lies in a buffer of `len` elements.
pub(super) fn inside(call: &'static str, name: &'static str, offsets: &[usize], counts: &[usize], len: usize) -> Result<()> {
    for (&offset, &count) in std::iter::zip(offsets, counts) {
        let end = offset.saturating_add(count);
        if count > 0 && end > len {
            return Err(wrong_range(call, name, offset, end, len));
        }
    }
    Ok(())
}

/// Checks the counts of an in-place call. The lists for sending and for receiving must be equal,
/// because the part received from a rank replaces the part sent to that rank.
pub(super) fn symmetric(call: &'static str, counts: &VectorCounts) -> Result<()> {
    let equal_counts = "the same list as `send_counts`, because the call is in place";
    let equal_offsets = "the same list as `send_offsets`, because the call is in place";
    for (name, sent, received, expected) in [
        ("counts.recv_counts", &counts.send_counts, &counts.recv_counts, equal_counts),
        ("counts.recv_offsets", &counts.send_offsets, &counts.recv_offsets, equal_offsets),
    ] {
        if sent != received {
            return Err(wrong_value(call, name, format_args!("{received:?}"), expected));
        }
    }
    Ok(())
}

/// Checks that no receive of a group overlaps another send or receive, because the sends and
/// receives of a group run at the same time. Also checks that this rank, `me`, sends to itself as
/// often as it receives from itself. `ranges` is an empty list that this function uses as scratch
/// memory.
pub(super) fn group(call: &'static str, me: Rank, ops: &[Op], ranges: &mut Vec<Range>) -> Result<()> {
    for op in ops {
        if let Op::PointToPoint(op) = op {
            let bytes = (op.count * op.dtype.size_bytes()) as u64;
            let (kind, start) = match op.at {
                Place::Symmetric(at) => (0, at.0),
                Place::Private(at) => (1, at as u64),
                Place::Device { address, .. } => (2, address),
            };
            if bytes > 0 {
                ranges.push((kind, start, start + bytes, op.direction == Direction::Receive));
            }
        }
    }
    // The ranges are sorted by kind of memory and start. A range conflicts with an earlier range in
    // two cases: the range starts before the end of a written range, or it is written and starts
    // before the end of any range.
    ranges.sort_unstable();
    let (mut of_kind, mut any_end, mut written_end) = (0, 0, 0);
    for &(kind, start, end, written) in ranges.iter() {
        if kind != of_kind {
            (of_kind, any_end, written_end) = (kind, 0, 0);
        }
        if start < written_end || (written && start < any_end) {
            return Err(misuse(
                call,
                MisuseKind::OverlapWithin { what: "the buffer of a receive and the buffer of another operation in the group" },
            ));
        }
        any_end = any_end.max(end);
        if written {
            written_end = written_end.max(end);
        }
    }
    let with_itself = |direction| {
        let is = |op: &&Op| matches!(op, Op::PointToPoint(op) if op.peer == me && op.direction == direction);
        ops.iter().filter(is).count()
    };
    let missing = |argument, why| Err(misuse(call, MisuseKind::Missing { argument, why }));
    match with_itself(Direction::Send).cmp(&with_itself(Direction::Receive)) {
        Ordering::Less => missing("send", "the group receives from this rank itself, but has no matching send")?,
        Ordering::Greater => missing("recv", "the group sends to this rank itself, but has no matching receive")?,
        Ordering::Equal => {}
    }
    Ok(())
}
