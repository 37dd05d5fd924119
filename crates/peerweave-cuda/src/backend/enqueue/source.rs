//! Reads the outcome of an operation that has ended. A [`Source`] is the place where the outcome is
//! stored, for example a slot in pinned memory or the GPU's failure report.

use std::sync::{Arc, OnceLock};

use peerweave_core::backend::{Outcome, Until};
use peerweave_core::{AwaitedWord, Error, TeamName};
use peerweave_stream_kernels::{OUTCOME_BITS, OUTCOME_DONE, OUTCOME_NOT_YET};

use crate::backend::resources::Slot;
use crate::backend::state::State;

/// The place where the outcome of an operation is stored, for example a [`Slot`] in pinned memory
/// or the GPU's failure report.
#[derive(Debug)]
pub(crate) enum Source {
    /// The operation is a copy, which has no stored outcome. The copy has succeeded once the stream
    /// has completed it.
    Copy,
    /// The operation is a quiet. It fails if this PE knows that any PE of the job has died.
    Quiet,
    /// The operation is a call of NCCL. The call counts as failed if an NCCL communicator of this
    /// PE has failed, or if the GPU's failure report contains a failure.
    Nccl,
    /// The operation consists of kernels, and of NCCL messages between hosts. The GPU's failure
    /// report shows whether a kernel failed. The communicator shows whether NCCL failed.
    Hosts,
    /// The operation is a kernel of this backend, without a result. Only the GPU's failure report
    /// shows whether the kernel failed.
    Kernel,
    /// The operation is a kernel of the application. Only the GPU's failure report shows whether
    /// the kernel failed.
    Launch,
    /// The operation is a reduction in which a host function of the caller combines the operands.
    /// If the function panics, the [`OnceLock`] receives the error of the first panic. Without a
    /// panic, the [`OnceLock`] stays empty.
    Function(Arc<OnceLock<Error>>),
    /// The operation copies one element to the slot in pinned memory. Word 1 of the slot is the
    /// element.
    Element(Slot),
    /// The operation is a kernel without a result. Word 0 of the slot in pinned memory shows
    /// whether the kernel succeeded.
    Done(Slot),
    /// The operation is a collective. Word 0 of the slot in pinned memory shows whether the last
    /// barrier of the collective succeeded. If an earlier barrier failed, only the GPU's failure
    /// report shows the failure.
    Collective(Slot),
    /// The operation is a kernel with a result. In the slot in pinned memory, word 0 shows whether
    /// the kernel succeeded, and word 1 is the result.
    Word(Slot),
    /// The operation is a wait for words in symmetric memory. Its kernel writes the outcome to the
    /// slot in pinned memory.
    Wait(Slot, Wait),
}

/// The parameters of a wait for words in symmetric memory that [`Source::read`] needs.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) until: Until,
    /// Number of words for which the operation waits.
    pub(crate) count: usize,
    /// The awaited word, for the timeout error; `None` unless the operation waits for exactly one
    /// word. The field `found` is a placeholder: the error contains the value that the kernel
    /// reports.
    pub(crate) word: Option<AwaitedWord>,
}

impl Source {
    /// Returns whether the operation may wait in NCCL, because NCCL carries out all of it or a
    /// part. NCCL's own waits have no deadline, so the caller must abort NCCL after the deadline of
    /// the operation.
    pub(crate) fn waits_for_nccl(&self, state: &State) -> bool {
        match self {
            Self::Nccl | Self::Hosts => true,
            Self::Function(_) => state.nccl.between.is_ready(),
            _ => false,
        }
    }

    /// Reads the outcome of an operation that has ended.
    pub(crate) fn read(&self, state: &State, call: &'static str, team: TeamName) -> Result<Outcome, Error> {
        let slot = match self {
            Self::Copy => return Ok(Outcome::Done),
            Self::Quiet => return state.check_targets(call, team).map(|()| Outcome::Done),
            Self::Nccl if state.nccl.has_failed() || state.has_failed() => {
                return Err(state.nccl_failure(call, team, state.deadline));
            }
            Self::Hosts | Self::Function(_) if state.has_failed() => return Err(state.operation_failure(call, team, None)),
            Self::Hosts | Self::Function(_) if state.nccl.has_failed() => {
                return Err(state.nccl_failure(call, team, state.deadline));
            }
            Self::Nccl | Self::Hosts => return Ok(Outcome::Done),
            Self::Launch if state.has_failed() => return Err(state.kernel_failure(call, team)),
            Self::Kernel if state.has_failed() => return Err(state.operation_failure(call, team, None)),
            Self::Launch | Self::Kernel => return Ok(Outcome::Done),
            Self::Function(panicked) => return panicked.get().map_or(Ok(Outcome::Done), |error| Err(error.clone())),
            Self::Element(slot) => return Ok(Outcome::Word(slot.get(1))),
            Self::Collective(_) if state.has_failed() => return Err(state.operation_failure(call, team, None)),
            Self::Collective(slot) | Self::Done(slot) | Self::Word(slot) | Self::Wait(slot, ..) => slot,
        };
        match (slot.get(0), self) {
            (OUTCOME_NOT_YET, _) => state.check_signallers(call, team).map(|()| Outcome::NotYet),
            (OUTCOME_DONE, Self::Word(slot)) => Ok(Outcome::Word(slot.get(1))),
            (OUTCOME_DONE, Self::Wait(slot, wait)) => Ok(outcome_of(wait, slot)),
            (OUTCOME_DONE, _) => Ok(Outcome::Done),
            (_, Self::Wait(_, wait)) => Err(state.operation_failure(call, team, wait.word)),
            _ => Err(state.operation_failure(call, team, None)),
        }
    }
}

/// Reads the outcome of a wait that has succeeded.
fn outcome_of(wait: &Wait, slot: &Slot) -> Outcome {
    match wait.until {
        Until::All => Outcome::Word(slot.get(1)),
        Until::Any => Outcome::Indices(slot.get(1).checked_sub(1).map(|index| index as usize).into_iter().collect()),
        Until::Some => {
            let is_set = |index: &usize| slot.get(OUTCOME_BITS + index / 64) >> (index % 64) & 1 != 0;
            Outcome::Indices((0..wait.count).filter(is_set).collect())
        }
    }
}
