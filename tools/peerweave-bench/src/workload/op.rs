//! Operations of `bench`: names, meaning of counts, computation of bandwidths.
//!
//! Invariant: sizes, counts and bandwidths have the same meaning as in nccl-tests, so that results
//! can be compared. One exception: if a size is less than 16 bytes per rank, nccl-tests uses a
//! count of 0, while this module uses a count of at least 1.

use clap::ValueEnum;
use peerweave_types::{DType, ReduceOp};
use serde::{Deserialize, Serialize};

/// Number of times that each PE arrives late when a barrier is checked. Once is not enough: if a
/// barrier releases a PE too early, the operating system may suspend the released PE until the late
/// PE has arrived. Then the check does not detect the wrong barrier.
pub(crate) const ROUNDS_LATE: usize = 8;

/// An operation that `bench` can measure.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum BenchOp {
    /// Every PE gets the reduction of all inputs
    AllReduce,
    /// The root gets the reduction of all inputs
    Reduce,
    /// Every PE gets the root's input
    Broadcast,
    /// Every PE gets all inputs
    AllGather,
    /// Every PE gets its part of the reduction
    ReduceScatter,
    /// Every PE gets its part of every input
    AllToAll,
    /// All-to-all with different counts for different peers
    AllToAllV,
    /// All-gather with different counts for different PEs
    AllGatherV,
    /// Every PE gets the reduction of its own input and the inputs of all PEs with a lower index
    Scan,
    /// Every PE gets the reduction of the inputs of all PEs with a lower index
    ExclusiveScan,
    /// Gather with different counts for different PEs
    GatherV,
    /// Scatter with different counts for different PEs
    ScatterV,
    /// All-to-all that sends only every second element
    AllToAllStrided,
    /// All-reduce, addition of a residual, and RMSNorm; rows have up to 1024 elements
    RmsNorm,
    /// Mixture of experts: dispatch and combine; each row has up to 1024 elements and goes to 2
    /// experts
    Moe,
    /// Every PE acquires and releases the same lock
    Lock,
    /// The root gets all inputs
    Gather,
    /// Every PE gets its part of the root's input
    Scatter,
    /// No PE continues before all PEs have arrived and all puts are complete
    Barrier,
    /// No PE continues before all PEs have arrived; puts may still be pending
    Sync,
    /// Every PE sends to the next PE and receives from the previous one
    SendRecv,
    /// PE 0 writes into the memory of PE 1
    Put,
    /// PE 0 reads from the memory of PE 1
    Get,
    /// PE 0 writes into the memory of PE 1, then sets a signal there
    PutSignal,
    /// PE 0 writes every other element of its input to every other element of a buffer of PE 1
    PutStrided,
    /// PE 0 writes one element into the memory of PE 1
    P,
    /// PE 0 reads one element from the memory of PE 1
    G,
    /// PE 0 adds to a word of PE 1 and gets the old value
    Atomics,
    /// PE 0 and PE 1 alternately send a put with a signal to each other; the time is half a round
    /// trip
    PingPong,
}

/// Numbers of elements in one call, computed from the size in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Counts {
    /// Count passed to the call; printed in the column `count`.
    pub param: usize,
    /// Length of one PE's input in elements, including the gaps of strided operations. If the
    /// lengths differ among PEs, this is the largest length.
    pub send: usize,
    /// Length of one PE's result in elements, including the gaps of strided operations. If the
    /// lengths differ among PEs, this is the largest length.
    pub recv: usize,
}

impl BenchOp {
    /// Returns the name of the operation on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllToAll => "all-to-all",
            Self::AllToAllV => "all-to-all-v",
            Self::AllGatherV => "all-gather-v",
            Self::Scan => "scan",
            Self::ExclusiveScan => "exclusive-scan",
            Self::GatherV => "gather-v",
            Self::ScatterV => "scatter-v",
            Self::AllToAllStrided => "all-to-all-strided",
            Self::RmsNorm => "rms-norm",
            Self::Moe => "moe",
            Self::Lock => "lock",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Barrier => "barrier",
            Self::Sync => "sync",
            Self::SendRecv => "send-recv",
            Self::Put => "put",
            Self::Get => "get",
            Self::PutSignal => "put-signal",
            Self::PutStrided => "put-strided",
            Self::P => "p",
            Self::G => "g",
            Self::Atomics => "atomics",
            Self::PingPong => "ping-pong",
        }
    }

    /// Returns whether the operation reduces elements, and therefore needs a [`ReduceOp`].
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter | Self::Scan | Self::ExclusiveScan)
    }

    /// Returns whether the operation has a root.
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter | Self::GatherV | Self::ScatterV)
    }

    /// Returns whether the operation only synchronises PEs: barrier and sync.
    pub const fn is_synchronization(self) -> bool {
        matches!(self, Self::Barrier | Self::Sync)
    }

    /// Returns whether the operation can be measured with different sizes.
    pub const fn has_size(self) -> bool {
        !matches!(self, Self::Barrier | Self::Sync | Self::P | Self::G | Self::Atomics | Self::Lock)
    }

    /// Returns whether the operation has an in-place form.
    pub const fn has_in_place(self) -> bool {
        matches!(
            self,
            Self::AllReduce
                | Self::Reduce
                | Self::Broadcast
                | Self::AllGather
                | Self::ReduceScatter
                | Self::AllToAll
                | Self::AllToAllV
                | Self::AllGatherV
                | Self::Gather
                | Self::Scatter
                | Self::Scan
                | Self::ExclusiveScan
                | Self::GatherV
                | Self::ScatterV
        )
    }

    /// Returns whether the operation has an element type.
    pub const fn has_type(self) -> bool {
        !matches!(self, Self::Barrier | Self::Sync | Self::Atomics | Self::Lock)
    }

    /// Returns whether the operation is defined for an element type. Ignores whether the reduction
    /// is defined for the type.
    pub const fn takes(self, dtype: DType) -> bool {
        !matches!(self, Self::RmsNorm | Self::Moe) || matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
    }

    /// Returns whether the operation can use the reduction `redop`.
    pub const fn accepts(self, redop: ReduceOp) -> bool {
        !matches!((self, redop), (Self::Scan | Self::ExclusiveScan, ReduceOp::Avg))
    }

    /// Returns whether `pe/special.rs` measures the operation. Such an operation needs several
    /// kinds of calls, or buffers in addition to the input and the result.
    pub const fn is_special(self) -> bool {
        matches!(self, Self::RmsNorm | Self::Moe | Self::Lock)
    }

    /// Returns whether only the portable API supports the operation.
    pub const fn is_portable_only(self) -> bool {
        self.is_special()
            || matches!(self, Self::Scan | Self::ExclusiveScan | Self::GatherV | Self::ScatterV | Self::AllToAllStrided)
    }

    /// Returns whether the operation has an input that `--dirty` can rewrite.
    pub const fn has_input(self) -> bool {
        !matches!(self, Self::Barrier | Self::Sync | Self::P | Self::G | Self::Atomics | Self::PingPong | Self::Moe | Self::Lock)
    }

    /// Returns whether the operation has a stream-ordered form that can be timed in batches.
    pub const fn has_stream_form(self) -> bool {
        !matches!(self, Self::PingPong | Self::Lock)
    }

    /// Returns whether the operation is one-sided: PE 0 accesses the memory of PE 1.
    pub const fn is_one_sided(self) -> bool {
        matches!(
            self,
            Self::Put | Self::Get | Self::PutSignal | Self::PutStrided | Self::P | Self::G | Self::Atomics | Self::PingPong
        )
    }

    /// Returns whether the operation supports `--nbi`: one quiet completes all calls of a batch.
    /// `put`, `get` and `put-signal` then use their nonblocking forms. `p` and `put-strided` have
    /// no nonblocking form, but one quiet can also complete several of their calls.
    pub const fn has_nbi(self) -> bool {
        matches!(self, Self::Put | Self::Get | Self::PutSignal | Self::PutStrided | Self::P)
    }

    /// Returns whether the backend for GPUs has more than one method to carry out the operation.
    pub const fn has_route(self) -> bool {
        matches!(
            self,
            Self::AllReduce
                | Self::Reduce
                | Self::Broadcast
                | Self::AllGather
                | Self::ReduceScatter
                | Self::AllToAll
                | Self::Gather
                | Self::Scatter
        )
    }

    /// Returns the minimum number of PEs that the operation needs.
    pub const fn least_pes(self) -> usize {
        if self.is_one_sided() { 2 } else { 1 }
    }

    /// Returns the element counts of a call, as in nccl-tests. `bytes` is the size of the larger
    /// buffer of a PE.
    pub fn counts(self, bytes: usize, element_bytes: usize, n_pes: usize) -> Counts {
        let whole = (bytes / element_bytes).max(1);
        // A part of at least 16 bytes is rounded down to a multiple of 16 bytes.
        let part = {
            let (part, multiple) = ((whole / n_pes).max(1), 16 / element_bytes);
            if part >= multiple { part / multiple * multiple } else { part }
        };
        match self {
            Self::AllGather | Self::Gather => Counts { param: part, send: part, recv: part * n_pes },
            Self::ReduceScatter | Self::Scatter => Counts { param: part, send: part * n_pes, recv: part },
            Self::AllToAll => Counts { param: part, send: part * n_pes, recv: part * n_pes },
            Self::AllToAllV => {
                let total: usize = (0..n_pes).map(|distance| vector_count(part, distance, n_pes)).sum();
                Counts { param: part, send: total, recv: total }
            }
            Self::AllGatherV => {
                let total = (0..n_pes).map(|rank| gathered_count(part, rank)).sum();
                Counts { param: part, send: part, recv: total }
            }
            Self::GatherV | Self::ScatterV => {
                let total = (0..n_pes).map(|rank| gathered_count(part, rank)).sum();
                let (send, recv) = if self == Self::GatherV { (part, total) } else { (total, part) };
                Counts { param: part, send, recv }
            }
            Self::AllToAllStrided => {
                let reach = 2 * part * n_pes - 1;
                Counts { param: part, send: reach, recv: reach }
            }
            Self::RmsNorm | Self::Moe => {
                let hidden = row_len(whole, element_bytes);
                let all = (whole / hidden).max(1) * hidden;
                Counts { param: all, send: all, recv: all }
            }
            Self::PutStrided => Counts { param: whole, send: 2 * whole - 1, recv: 2 * whole - 1 },
            Self::Barrier | Self::Sync | Self::Lock => Counts { param: 0, send: 0, recv: 0 },
            Self::P | Self::G | Self::Atomics => Counts { param: 1, send: 1, recv: 1 },
            _ => Counts { param: whole, send: whole, recv: whole },
        }
    }

    /// Returns the size of a call in elements. Usually the size is the length of the input or of
    /// the result, whichever is larger. For operations with strides, the size includes only the
    /// elements that the call moves.
    pub fn size_count(self, counts: Counts) -> usize {
        match self {
            Self::PutStrided => counts.param,
            Self::AllToAllStrided => counts.recv.div_ceil(2),
            _ => counts.send.max(counts.recv),
        }
    }

    /// Returns the algorithm bandwidth and the bus bandwidth, as defined by nccl-tests, in GB/s
    /// (10^9 bytes per second).
    pub fn bandwidth(self, counts: Counts, element_bytes: usize, seconds: f64, n_pes: usize) -> (f64, f64) {
        let base_bytes = self.size_count(counts) * element_bytes;
        let n = n_pes as f64;
        let factor = match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather
            | Self::ReduceScatter
            | Self::AllToAll
            | Self::AllToAllV
            | Self::AllGatherV
            | Self::GatherV
            | Self::ScatterV
            | Self::AllToAllStrided
            | Self::Gather
            | Self::Scatter => (n - 1.0) / n,
            _ => 1.0,
        };
        let algbw = if seconds > 0.0 { base_bytes as f64 / 1e9 / seconds } else { 0.0 };
        (algbw, algbw * factor)
    }
}

/// Returns the length of a row of `rms-norm` and `moe`, in elements. The length is the smaller of
/// `count` and 1024, rounded down to a multiple of 16 bytes. The minimum is 16 bytes.
pub fn row_len(count: usize, element_bytes: usize) -> usize {
    let line = 16 / element_bytes;
    (count.min(1024) / line).max(1) * line
}

/// Returns the number of elements that a rank sends to another rank in an all-to-all-v. `distance`
/// is the destination rank minus the source rank, modulo `n_pes`. The number is `param` if the
/// shorter distance on the ring of ranks is even, and a third less if it is odd. So any two ranks
/// send each other the same number of elements, as the in-place form requires.
pub fn vector_count(param: usize, distance: usize, n_pes: usize) -> usize {
    if distance.min(n_pes - distance).is_multiple_of(2) { param } else { param - param / 3 }
}

/// Returns the number of elements that a rank contributes to an all-gather-v: `param` on even
/// ranks, a third less on odd ranks.
pub fn gathered_count(param: usize, rank: usize) -> usize {
    if rank.is_multiple_of(2) { param } else { param - param / 3 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_counts_follow_the_rules_of_the_tool_nccl_tests() {
        let counts = |op: BenchOp, bytes, element, n| {
            let Counts { param, send, recv } = op.counts(bytes, element, n);
            (param, send, recv)
        };
        assert_eq!(counts(BenchOp::AllReduce, 1 << 20, 4, 8), (262_144, 262_144, 262_144));
        assert_eq!(counts(BenchOp::AllGather, 1 << 20, 4, 8), (32_768, 32_768, 262_144));
        assert_eq!(counts(BenchOp::ReduceScatter, 1 << 20, 2, 4), (131_072, 524_288, 131_072));
        assert_eq!(counts(BenchOp::AllToAll, 64, 4, 3), (4, 12, 12), "parts of 5 elements become 16 bytes");
        assert_eq!(counts(BenchOp::Scatter, 1 << 20, 1, 8), (131_072, 1_048_576, 131_072));
        assert_eq!(counts(BenchOp::Gather, 8, 4, 4), (1, 1, 4), "less than 16 bytes per rank has a count of 1");
        assert_eq!(counts(BenchOp::Broadcast, 100, 8, 5), (12, 12, 12));
        assert_eq!(counts(BenchOp::Barrier, 100, 8, 5), (0, 0, 0));
        assert_eq!(counts(BenchOp::AllGatherV, 64, 4, 2), (8, 8, 14), "an odd rank sends a third less");
        assert_eq!(counts(BenchOp::PutStrided, 256, 4, 2), (64, 127, 127), "every other element");
    }

    #[test]
    fn bus_bandwidth_factors_are_those_of_the_tool_nccl_tests() {
        let factor = |op: BenchOp, n| {
            let (alg, bus) = op.bandwidth(Counts { param: 1, send: 1_000_000, recv: 1_000_000 }, 1, 1e-3, n);
            assert!((alg - 1.0).abs() < 1e-12);
            bus
        };
        for n in [1, 2, 3, 8] {
            let share = (n - 1) as f64 / n as f64;
            assert!((factor(BenchOp::AllReduce, n) - 2.0 * share).abs() < 1e-12);
            for op in [
                BenchOp::AllGather,
                BenchOp::ReduceScatter,
                BenchOp::AllToAll,
                BenchOp::AllToAllV,
                BenchOp::AllGatherV,
                BenchOp::Gather,
                BenchOp::Scatter,
            ] {
                assert!((factor(op, n) - share).abs() < 1e-12, "{op:?}");
            }
            for op in [BenchOp::Broadcast, BenchOp::Reduce, BenchOp::SendRecv, BenchOp::Put, BenchOp::Get, BenchOp::PingPong] {
                assert!((factor(op, n) - 1.0).abs() < 1e-12, "{op:?}");
            }
        }
    }

    #[test]
    fn bandwidth_is_based_on_the_larger_buffer() {
        let counts = BenchOp::AllGather.counts(1 << 20, 4, 4);
        let (alg, bus) = BenchOp::AllGather.bandwidth(counts, 4, 1e-3, 4);
        assert!((alg - 1.048_576).abs() < 1e-9 && (bus - 0.786_432).abs() < 1e-9);
        let strided = BenchOp::PutStrided.counts(1 << 20, 4, 2);
        let (alg, _) = BenchOp::PutStrided.bandwidth(strided, 4, 1e-3, 2);
        assert!((alg - 1.048_576).abs() < 1e-9, "algbw counts only the moved elements, got {alg}");
        assert_eq!(BenchOp::Barrier.bandwidth(BenchOp::Barrier.counts(0, 4, 4), 4, 1e-6, 4), (0.0, 0.0));
    }

    #[test]
    fn all_to_all_v_rank_sends_and_receives_equal_totals() {
        for n in 1..9 {
            for param in [1, 2, 3, 7, 1000] {
                let sent = |from: usize| (0..n).map(|to| vector_count(param, (to + n - from) % n, n)).sum::<usize>();
                let received = |to: usize| (0..n).map(|from| vector_count(param, (to + n - from) % n, n)).sum::<usize>();
                for rank in 0..n {
                    assert_eq!(sent(rank), received(rank));
                    assert_eq!(sent(rank), sent(0));
                    assert_eq!(vector_count(param, rank, n), vector_count(param, (n - rank) % n, n));
                }
                assert!((0..n).all(|distance| vector_count(param, distance, n) >= 1));
            }
        }
    }
}
