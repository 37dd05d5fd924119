//! Layout of the buffers: which elements hold which values before and after an operation.
//!
//! Invariant: the parts that [`results`] returns contain every element of a result exactly once, so
//! that a check of these parts checks the whole result.

use super::op::{BenchOp, Counts, gathered_count, vector_count};
use peerweave::{Parts, Rank};

/// Number of guard elements. They follow the result in memory, and a call must not change them.
pub const GUARD: usize = 64;

/// Whether the input and the result of a call have separate buffers.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Input and result have separate buffers.
    OutOfPlace,
    /// The result overwrites the input.
    InPlace,
}

/// A range of a buffer. The range contains elements of a [`Tile`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Part {
    /// Index of the part's first element, counted from the start of the buffer.
    pub at: usize,
    /// Number of elements.
    pub len: usize,
    /// The sequence from which this range takes its elements, such as the input of one rank.
    pub of: Tile,
    /// Index of this range's first element in the sequence `of`. The sequence is periodic, so any
    /// index is valid.
    pub from: usize,
}

/// Identifies a sequence of elements. The module `pattern.rs` computes their values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tile {
    /// The input of one rank. The field is the rank.
    Input(usize),
    /// The elements at even indices are those of the input of one rank. The elements at odd indices
    /// have the value for unwritten elements. The field is the rank.
    EveryOther(usize),
    /// The reduction of all inputs.
    Reduced,
    /// The reduction of the inputs of ranks 0 to N - 1, as in a scan. The field is N.
    Prefix(usize),
}

/// Describes an operation on one rank. The lengths and the values of the rank's buffers are
/// computed from this description.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Operation to measure.
    pub op: BenchOp,
    /// Element counts of the operation.
    pub counts: Counts,
    /// Number of PEs.
    pub n_pes: usize,
    /// The rank to which the lengths and the elements belong.
    pub rank: usize,
    /// The root; 0 for operations without a root.
    pub root: usize,
    /// Whether the operation is in place.
    pub placement: Placement,
}

/// Returns the length of the input and the length of the result on one rank, in elements. If input
/// and result share one buffer ([`shares_buffer`]), the second length is the length of this buffer.
pub fn lengths(view: &View) -> (usize, usize) {
    let Counts { param, send, recv } = view.counts;
    let own = gathered_count(param, view.rank);
    let (send, recv) = match view.op {
        BenchOp::AllGatherV | BenchOp::GatherV => (own, recv),
        BenchOp::ScatterV => (send, own),
        _ => (send, recv),
    };
    match view.placement {
        Placement::OutOfPlace => (send, recv),
        Placement::InPlace if shares_buffer(view) => (0, send.max(recv)),
        Placement::InPlace => (send, recv),
    }
}

/// Returns whether input and result share one buffer on this rank. This is true in the in-place
/// form. Exception: in gather and scatter, it is true only on the root.
pub fn shares_buffer(view: &View) -> bool {
    let at_root = matches!(view.op, BenchOp::Gather | BenchOp::Scatter | BenchOp::GatherV | BenchOp::ScatterV);
    view.placement == Placement::InPlace && (!at_root || view.rank == view.root)
}

/// Returns the range of this rank's input. If input and result share one buffer, the range lies in
/// the shared buffer. Otherwise the range lies in the input buffer.
pub fn input(view: &View) -> Part {
    let Counts { param, send, .. } = view.counts;
    if matches!(view.op, BenchOp::AllGatherV | BenchOp::GatherV) {
        let parts = gathered_parts(param, view.n_pes);
        let at = if shares_buffer(view) { parts.offsets[view.rank] } else { 0 };
        return Part { at, len: parts.counts[view.rank], of: Tile::Input(view.rank), from: 0 };
    }
    let at = match view.op {
        BenchOp::AllGather | BenchOp::Gather if shares_buffer(view) => view.rank * param,
        _ => 0,
    };
    Part { at, len: send, of: Tile::Input(view.rank), from: 0 }
}

/// Returns the expected result of the call on this rank, as ranges of the buffer that contains the
/// result. Empty if this rank gets no result.
pub fn results(view: &View) -> Vec<Part> {
    let View { op, counts: Counts { param, recv, .. }, n_pes, rank, root, .. } = *view;
    let whole = |of| vec![Part { at: 0, len: recv, of, from: 0 }];
    match op {
        BenchOp::AllReduce => whole(Tile::Reduced),
        BenchOp::Reduce if rank == root => whole(Tile::Reduced),
        BenchOp::Scan => whole(Tile::Prefix(rank + 1)),
        BenchOp::ExclusiveScan if rank > 0 => whole(Tile::Prefix(rank)),
        BenchOp::Broadcast => whole(Tile::Input(root)),
        BenchOp::AllGather => gathered(param, n_pes),
        BenchOp::Gather if rank == root => gathered(param, n_pes),
        BenchOp::ReduceScatter => {
            let at = if shares_buffer(view) { rank * param } else { 0 };
            vec![Part { at, len: param, of: Tile::Reduced, from: rank * param }]
        }
        BenchOp::Scatter => {
            let at = if shares_buffer(view) { rank * param } else { 0 };
            vec![Part { at, len: param, of: Tile::Input(root), from: rank * param }]
        }
        BenchOp::AllToAll => {
            (0..n_pes).map(|from| Part { at: from * param, len: param, of: Tile::Input(from), from: rank * param }).collect()
        }
        BenchOp::AllToAllV => {
            let (receives, mut at) = (vector_receives(param, n_pes, rank), 0);
            let part = |(from, len): (usize, usize)| {
                let start: usize = vector_sends(param, n_pes, from)[..rank].iter().sum();
                let part = Part { at, len, of: Tile::Input(from), from: start };
                at += len;
                part
            };
            receives.into_iter().enumerate().map(part).collect()
        }
        BenchOp::ScatterV => {
            let range = gathered_parts(param, n_pes).range(Rank::new(rank as u32));
            let at = if shares_buffer(view) { range.start } else { 0 };
            vec![Part { at, len: range.len(), of: Tile::Input(root), from: range.start }]
        }
        BenchOp::AllToAllStrided => {
            let part = |from: usize| {
                let at = 2 * from * param;
                Part { at, len: (2 * param).min(recv - at), of: Tile::EveryOther(from), from: 2 * rank * param }
            };
            (0..n_pes).map(part).collect()
        }
        BenchOp::AllGatherV | BenchOp::GatherV if op == BenchOp::AllGatherV || rank == root => {
            let parts = gathered_parts(param, n_pes);
            let range = |from: usize| (from, parts.range(Rank::new(from as u32)));
            (0..n_pes).map(range).map(|(from, at)| Part { at: at.start, len: at.len(), of: Tile::Input(from), from: 0 }).collect()
        }
        // `pe/special.rs` computes the expected values of these operations.
        BenchOp::RmsNorm | BenchOp::Moe => whole(Tile::Input(rank)),
        BenchOp::SendRecv => whole(Tile::Input((rank + n_pes - 1) % n_pes)),
        BenchOp::Put | BenchOp::PutSignal if rank == 1 => whole(Tile::Input(0)),
        BenchOp::PutStrided if rank == 1 => whole(Tile::EveryOther(0)),
        BenchOp::Get if rank == 0 => whole(Tile::Input(1)),
        BenchOp::PingPong if rank < 2 => whole(Tile::Input(1 - rank)),
        _ => Vec::new(),
    }
}

fn gathered(param: usize, n_pes: usize) -> Vec<Part> {
    (0..n_pes).map(|from| Part { at: from * param, len: param, of: Tile::Input(from), from: 0 }).collect()
}

/// Returns the offsets and the lengths of the parts that form the result of an all-gather-v. Each
/// rank contributes one part. The part has `param` elements on even ranks, and a third less on odd
/// ranks ([`gathered_count`]).
pub fn gathered_parts(param: usize, n_pes: usize) -> Parts {
    Parts::packed((0..n_pes).map(|rank| gathered_count(param, rank)).collect::<Vec<_>>())
}

/// Returns the send counts of rank `rank` in an all-to-all-v: the number of elements for each
/// destination rank. Each count is `param` or a third less. [`vector_count`] chooses between the
/// two.
pub fn vector_sends(param: usize, n_pes: usize, rank: usize) -> Vec<usize> {
    (0..n_pes).map(|to| vector_count(param, (to + n_pes - rank) % n_pes, n_pes)).collect()
}

/// Returns the receive counts of rank `rank` in an all-to-all-v: the number of elements from each
/// source rank. Each count is `param` or a third less. [`vector_count`] chooses between the two.
pub fn vector_receives(param: usize, n_pes: usize, rank: usize) -> Vec<usize> {
    (0..n_pes).map(|from| vector_count(param, (rank + n_pes - from) % n_pes, n_pes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    fn views() -> Vec<View> {
        let mut views = Vec::new();
        for op in BenchOp::value_variants() {
            for n_pes in [2, 3, 8] {
                for (rank, root) in [(0, 0), (1, 0), (n_pes - 1, 1)] {
                    for placement in [Placement::OutOfPlace, Placement::InPlace] {
                        if placement == Placement::OutOfPlace || op.has_in_place() {
                            views.push(View { op: *op, counts: op.counts(1000, 4, n_pes), n_pes, rank, root, placement });
                        }
                    }
                }
            }
        }
        views
    }

    #[test]
    fn input_and_results_lie_in_buffers_and_results_are_disjoint() {
        for view in views() {
            let (send_len, recv_len) = lengths(&view);
            let input = input(&view);
            let room = if shares_buffer(&view) { recv_len } else { send_len };
            assert!(input.at + input.len <= room, "{view:?}");
            let mut last = 0;
            for part in results(&view) {
                assert!(part.at >= last && part.at + part.len <= recv_len, "{view:?}: {part:?}");
                last = part.at + part.len;
            }
        }
    }

    #[test]
    fn result_has_as_many_elements_as_the_rank_receives() {
        for view in views() {
            let total: usize = results(&view).iter().map(|part| part.len).sum();
            let due = match view.op {
                BenchOp::Reduce | BenchOp::Gather | BenchOp::GatherV if view.rank != view.root => 0,
                BenchOp::ExclusiveScan if view.rank == 0 => 0,
                BenchOp::ScatterV => gathered_count(view.counts.param, view.rank),
                BenchOp::Put | BenchOp::PutSignal | BenchOp::PutStrided if view.rank != 1 => 0,
                BenchOp::Get if view.rank != 0 => 0,
                BenchOp::PingPong if view.rank > 1 => 0,
                BenchOp::Barrier | BenchOp::Sync | BenchOp::P | BenchOp::G | BenchOp::Atomics => 0,
                _ => view.counts.recv,
            };
            assert_eq!(total, due, "{view:?}");
        }
    }

    #[test]
    fn all_to_all_v_send_counts_match_receive_counts() {
        for n_pes in [1, 2, 5] {
            for from in 0..n_pes {
                for to in 0..n_pes {
                    assert_eq!(vector_sends(7, n_pes, from)[to], vector_receives(7, n_pes, to)[from]);
                }
            }
        }
    }
}
