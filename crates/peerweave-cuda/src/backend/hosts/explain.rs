//! Explains how this backend carries out the collectives of teams on several hosts. Also adjusts
//! the capabilities of the backend for such teams.

use peerweave_core::backend::{AccumulatorType, CollectiveKind, ReductionCaps, ReductionOrder};

use super::combine::is_gathered;
use crate::backend::teams::Span;
use crate::route::Query;

/// Returns a text that explains how this backend carries out a collective of a team on several
/// hosts.
pub(crate) fn how(span: &Span, query: &Query) -> &'static str {
    use CollectiveKind::{AllGather, AllReduce, Barrier, Broadcast, ReduceScatter, Sync};
    let has_several = span.shares_hosts();
    let is_short = is_gathered(query.dtype, query.count as usize);
    match query.kind {
        Barrier | Sync => "barriers within each host, and NCCL messages among the first ranks of the hosts",
        Broadcast => "an NCCL message to one rank of each host, then Peerweave's kernels within each host",
        AllReduce if is_short && has_several => {
            "Peerweave's kernels reduce within each host; NCCL then sends the result of each host; every rank combines these results"
        }
        AllReduce | ReduceScatter | AllGather if span.rails().is_some() => {
            "Peerweave's kernels within each host, and NCCL messages among the ranks that have the same position on their hosts"
        }
        CollectiveKind::Reduce if has_several => {
            "Peerweave's kernels reduce within each host; NCCL then sends the result of each host; the root combines these results"
        }
        AllReduce if is_short => {
            "Peerweave's kernels within hosts and NCCL messages between hosts gather all operands; every rank combines them"
        }
        AllReduce => {
            "each rank combines one part of the operands and sends the combined part to all ranks; Peerweave's kernels transfer data within hosts, and NCCL between hosts"
        }
        kind if kind.reduces() => {
            "Peerweave's kernels within hosts and NCCL messages between hosts move the operands to the ranks that combine them"
        }
        _ => "Peerweave's kernels within hosts, and NCCL messages between hosts",
    }
}

/// Adjusts `reductions` for a job on several hosts. Float all-reduces, reduces and reduce-scatters
/// may first combine the operands within each host. So the order of operands is unspecified, and
/// partial results are rounded to the element type.
pub(crate) fn describe(reductions: &mut [ReductionCaps]) {
    use CollectiveKind::{AllReduce, Reduce, ReduceScatter};
    let is_by_host = |caps: &ReductionCaps| matches!(caps.kind, AllReduce | Reduce | ReduceScatter) && !caps.dtype.is_integer();
    for caps in reductions.iter_mut().filter(|caps| is_by_host(caps)) {
        (caps.order, caps.accumulator) = (ReductionOrder::Unspecified, AccumulatorType::Element);
    }
}
