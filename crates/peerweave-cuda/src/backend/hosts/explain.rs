//! Describes how calls of teams on several hosts are carried out: as text for explanations, and as
//! capabilities.

use peerweave_core::backend::{AccumulatorType, CollectiveKind, ReductionCaps, ReductionOrder};

use super::combine::is_gathered;
use crate::backend::teams::Span;
use crate::route::Query;

/// Returns how a call of a team on several hosts is carried out.
pub(crate) fn how(span: &Span, query: &Query) -> &'static str {
    use CollectiveKind::{AllGather, AllReduce, Barrier, Broadcast, ReduceScatter, Sync};
    let has_several = span.shares_hosts();
    let is_short = is_gathered(query.dtype, query.count as usize);
    match query.kind {
        Barrier | Sync => "barriers within each host, and NCCL messages between hosts, by one rank of each host",
        Broadcast => "an NCCL message to one rank of each host, then Peerweave's kernels within each host",
        AllReduce if is_short && has_several => {
            "Peerweave's kernels reduce within each host; NCCL then sends the result of each host; every rank combines these results"
        }
        AllReduce | ReduceScatter | AllGather if span.rails().is_some() => {
            "Peerweave's kernels within each host, and NCCL messages among ranks at the same position within their hosts"
        }
        CollectiveKind::Reduce if has_several => {
            "Peerweave's kernels reduce within each host; NCCL then sends the result of each host; the root combines these results"
        }
        AllReduce if is_short => {
            "Peerweave's kernels within hosts and NCCL messages between hosts gather all operands; every rank combines them"
        }
        AllReduce => {
            "Peerweave's kernels within hosts and NCCL messages between hosts move the data; each rank combines one part and sends its result"
        }
        kind if kind.reduces() => {
            "Peerweave's kernels within hosts and NCCL messages between hosts move the operands to the ranks that combine them"
        }
        _ => "Peerweave's kernels within hosts, and NCCL messages between hosts",
    }
}

/// Sets order and accumulator in the descriptions of reductions that combine the operands of each
/// host first.
pub(crate) fn describe(reductions: &mut [ReductionCaps]) {
    use CollectiveKind::{AllReduce, Reduce, ReduceScatter};
    let is_by_host = |caps: &ReductionCaps| matches!(caps.kind, AllReduce | Reduce | ReduceScatter) && !caps.dtype.is_integer();
    for caps in reductions.iter_mut().filter(|caps| is_by_host(caps)) {
        (caps.order, caps.accumulator) = (ReductionOrder::Unspecified, AccumulatorType::Element);
    }
}
