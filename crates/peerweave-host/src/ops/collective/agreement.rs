//! Checks that the ranks of a collective have made the same call. Each rank publishes a digest of
//! its call, and the ranks compare the digests. After a difference, they compare the full
//! parameters.

use super::{Algorithm, Run};
use crate::sync::wait::Stop;
use peerweave_core::backend::{Allocation, CollectiveKind, CollectiveShape, SplitCall};
use peerweave_core::{Error, Mismatch};
use peerweave_types::{DType, Pe, Rank, ReduceOp, TeamShape};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The call for which the backend runs a collective. `User`: the program has called the collective
/// itself. Every other value stands for a call that contains the collective as one step, such as a
/// split. If the ranks have different purposes, the collective fails with a mismatch error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Purpose {
    User = 0,
    Allocate = 1,
    Release = 2,
    Split = 3,
    Destroy = 4,
    Finalize = 5,
    Join = 6,
    Place = 7,
}

impl Purpose {
    const ALL: [Self; 8] =
        [Self::User, Self::Allocate, Self::Release, Self::Split, Self::Destroy, Self::Finalize, Self::Join, Self::Place];

    /// Returns the name of the call that needs the collective, such as `split`. Returns `None` for
    /// [`Purpose::User`], because the program itself has called the collective.
    pub(super) fn call(self) -> Option<&'static str> {
        match self {
            Self::User => None,
            Self::Allocate | Self::Place => Some("alloc"),
            Self::Release => Some("release"),
            Self::Split => Some("split"),
            Self::Destroy => Some("destroy"),
            Self::Finalize => Some("finalize"),
            Self::Join => Some("World::from_env"),
        }
    }
}

/// Encodes the parameters of an allocation in one word, so that PEs can compare them. The
/// parameters are the number of bytes, the element type, the alignment, and whether the memory is
/// zeroed.
pub(crate) fn allocation_detail(request: &Allocation) -> u64 {
    let align = u64::from(request.align.trailing_zeros());
    let bytes = (request.bytes as u64).min((1 << ALLOCATE_DTYPE_SHIFT) - 1);
    let dtype = request.dtype as u64;
    bytes | dtype << ALLOCATE_DTYPE_SHIFT | align << ALLOCATE_ALIGN_SHIFT | u64::from(request.zeroed) << 63
}

/// Bit position of the element type in the result of [`allocation_detail`]. The bits below contain
/// the requested number of bytes, limited to 2^48 - 1. A larger request fails anyway, because it
/// exceeds the address space.
const ALLOCATE_DTYPE_SHIFT: u32 = 48;
const ALLOCATE_ALIGN_SHIFT: u32 = 56;

fn allocation(detail: u64) -> Allocation {
    Allocation {
        bytes: (detail & ((1 << ALLOCATE_DTYPE_SHIFT) - 1)) as usize,
        dtype: DType::from_u8((detail >> ALLOCATE_DTYPE_SHIFT) as u8).unwrap_or(DType::U8),
        align: 1 << (detail >> ALLOCATE_ALIGN_SHIFT & 0x3f),
        zeroed: detail >> 63 == 1,
    }
}

/// Encodes the arguments of a split in one word. Ranks compare this word. A split takes two steps.
/// In the first step, the ranks exchange their requests, and `claimed` is `false`. In the second
/// step, they check whether all ranks have reserved a slot for the new team, and `claimed` is
/// `true`. The word contains `claimed`, so ranks in different steps have different words.
///
/// In a strided split, the word contains the first rank of the new team in 12 bits and the number
/// of ranks in 13 bits. This is sufficient, because a job has at most 4096 PEs. A new team of one
/// rank needs no stride. The word then contains the stride 1, so ranks do not compare their
/// strides.
pub(crate) fn split_detail(call: SplitCall, claimed: bool) -> u64 {
    let (kind, arguments) = match call {
        SplitCall::Strided(TeamShape { start, stride, size }) => {
            let stride = if size == 1 { 1 } else { stride };
            (1, u64::from(stride as u32) | u64::from(start & 0xfff) << 32 | u64::from(size & 0x1fff) << 44)
        }
        SplitCall::TwoD { x_range, columns } => (2, x_range as u64 | u64::from(columns) << 32),
        SplitCall::Local => (3, 0),
        _ => (0, 0),
    };
    arguments | kind << SPLIT_KIND_SHIFT | u64::from(claimed) << 63
}

const SPLIT_KIND_SHIFT: u32 = 60;

fn split(detail: u64) -> SplitCall {
    match detail >> SPLIT_KIND_SHIFT & 7 {
        1 => SplitCall::Strided(TeamShape {
            start: (detail >> 32 & 0xfff) as u32,
            stride: detail as u32 as i32,
            size: (detail >> 44 & 0x1fff) as u32,
        }),
        2 => SplitCall::TwoD { x_range: detail as u32 as usize, columns: detail >> 32 & 1 == 1 },
        3 => SplitCall::Local,
        _ => SplitCall::Colors,
    }
}

/// Flag in word 0 of the words that describe a call. The flag is set if the call reduces elements
/// with a function that the program has passed.
const BY_FUNCTION: u64 = 1 << 31;

/// Returns a digest of the words of a call. If two calls differ in exactly one word, their digests
/// differ, because each word is mixed into the digest by a one-to-one function.
#[inline]
pub(super) fn signature([what, root, count, detail, history]: &CallWords) -> u64 {
    (what ^ root << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ count.wrapping_mul(0xd6e8_feb8_6659_fd93)
        ^ detail.wrapping_mul(0xff51_afd7_ed55_8ccd)
        ^ history
}

/// The parameters of a call on which all ranks must agree, encoded in words.
/// [`CallWords`](crate::memory::layout::CallWords) in shared memory describes each word.
pub(super) type CallWords = [u64; 5];

impl Run<'_> {
    /// Returns the parameters of this rank's call, encoded in words. Two ranks whose words differ
    /// have made different calls, which is an error.
    #[inline]
    pub(super) fn call_words(&self) -> CallWords {
        let op = self.op;
        let what = op.kind as u64 | (op.dtype as u64) << 8 | (op.op as u64) << 16 | (self.purpose as u64) << 24;
        let what = what | if op.function().is_some() { BY_FUNCTION } else { 0 };
        [what, u64::from(op.root.get()), op.count as u64, self.detail, self.step.team.history()]
    }

    /// Returns whether ranks compare all parameters of their calls, not only the digests. The full
    /// comparison is necessary if a rank accesses memory at an address that another rank published.
    #[inline]
    pub(super) fn compares_in_full(&self, algorithm: Algorithm) -> bool {
        self.shared.compare_calls || algorithm == Algorithm::Large || self.purpose != Purpose::User
    }

    /// Publishes the parameters of this rank's call. Other ranks read these parameters if they
    /// compare calls in full.
    #[inline]
    pub(super) fn publish_call(&self, call: &CallWords) {
        let words = &self.step.words(self.me).call[self.step.line()].words;
        for (to, from) in words.iter().zip(call) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// Compares the parameters of all ranks' calls with those of this rank's call. Returns an error
    /// that names the first rank whose call differs. All ranks must have entered the collective.
    #[cold]
    pub(super) fn compare_calls(&self) -> Result<(), Stop> {
        self.compare_calls_of(0..self.n)
    }

    /// Like [`Self::compare_calls`], but compares only with the calls of the given ranks.
    #[cold]
    pub(super) fn compare_calls_of(&self, ranks: Range<usize>) -> Result<(), Stop> {
        let published = |rank: usize| -> CallWords {
            let words = &self.step.words(rank).call[self.step.line()].words;
            std::array::from_fn(|i| words[i].load(Ordering::Relaxed))
        };
        let mine = published(self.me);
        for rank in ranks {
            let theirs = published(rank);
            if theirs != mine {
                let (mut described, mut other) = (describe(mine), describe(theirs));
                if mine[..4] == theirs[..4] {
                    described += AFTER_BROADCASTS;
                    other += AFTER_OTHER_BROADCASTS;
                }
                return Err(mismatch(Mismatch {
                    team: self.step.team.name(),
                    pe: Pe::new(self.step.team.members[rank] as u32),
                    mine: described,
                    theirs: other,
                }));
            }
        }
        Ok(())
    }
}

/// Text after the description of this PE's call in a mismatch error, if the calls of two PEs have
/// the same parameters, but earlier small broadcasts differed. [`AFTER_OTHER_BROADCASTS`] is the
/// text for the call of the other PE.
const AFTER_BROADCASTS: &str = " after earlier broadcasts of at most 64 bytes";
const AFTER_OTHER_BROADCASTS: &str = " after broadcasts of at most 64 bytes that differ from those of this PE";

/// Returns the error for `mismatch`: the ranks of a collective have made different calls.
pub(super) fn mismatch(mismatch: Mismatch) -> Stop {
    Error::Mismatch(Box::new(mismatch)).into()
}

/// Returns the description of a call, for error messages.
fn describe([what, root, count, detail, _]: CallWords) -> String {
    let purpose = Purpose::ALL.get((what >> 24 & 0x7f) as usize).copied().unwrap_or(Purpose::User);
    if let Some(call) = purpose.call() {
        return match purpose {
            Purpose::Allocate => allocation(detail).to_string(),
            Purpose::Split => split(detail).to_string(),
            Purpose::Join => format!("{call} with {detail} bytes of symmetric heap"),
            Purpose::Place => format!("{call} that returned offset {detail:#x}"),
            Purpose::Release => format!("{call} of the buffer at offset {detail:#x}"),
            _ => call.to_owned(),
        };
    }
    let (kind, dtype, op) = (what as u8, (what >> 8) as u8, (what >> 16) as u8);
    let known = (CollectiveKind::from_u8(kind), DType::from_u8(dtype), ReduceOp::from_u8(op));
    let (Some(kind), Some(dtype), Some(op)) = known else { return format!("an unknown operation ({what:#x})") };
    let described = CollectiveShape { kind, dtype, op, root: Rank::new(root as u32), count: count as usize, detail }.to_string();
    if what & BY_FUNCTION == 0 { described } else { described.replacen(" by sum", " by a reduction function", 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_collective_is_described_by_name_and_arguments() {
        let words = [CollectiveKind::Reduce as u64 | (DType::F32 as u64) << 8 | (ReduceOp::Max as u64) << 16, 3, 17, 0, 0];
        assert_eq!(describe(words), "reduce of 17 elements of f32 by max with root 3");
        assert_eq!(describe([CollectiveKind::Barrier as u64, 0, 0, 0, 0]), "barrier");
        let words = [CollectiveKind::Scan as u64 | (DType::U8 as u64) << 8 | BY_FUNCTION, 0, 2, 0, 0];
        assert_eq!(describe(words), "scan of 2 elements of u8 by a reduction function");
    }
}
