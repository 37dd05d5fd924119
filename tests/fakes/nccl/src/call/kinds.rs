//! Kinds of functions: those whose failure fails the group, those that enqueue work.

/// Functions whose failure inside a group also fails the group.
const GROUPED: &[&str] = &[
    "AllGather",
    "AllReduce",
    "AlltoAll",
    "Bcast",
    "Broadcast",
    "CommGrow",
    "CommInitRank",
    "CommInitRankConfig",
    "CommInitRankScalable",
    "CommShrink",
    "CommSplit",
    "Gather",
    "PutSignal",
    "Recv",
    "Reduce",
    "ReduceScatter",
    "Scatter",
    "Send",
    "Signal",
    "WaitSignal",
];

/// Returns whether a failure of the function fails its group.
pub(super) fn is_grouped(function: &str) -> bool {
    let name = function.trim_start_matches("nccl");
    GROUPED.contains(&name.trim_end_matches("Config")) || GROUPED.contains(&name)
}

/// Returns whether the function enqueues work.
pub(super) fn is_enqueued(function: &str) -> bool {
    is_grouped(function) && !function.starts_with("ncclComm")
}
