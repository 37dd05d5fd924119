//! The location of the outcome of an operation, and how the outcome is read.

use std::sync::{Arc, OnceLock};

use peerweave_core::backend::{Outcome, Until};
use peerweave_core::{Error, TeamName};
use peerweave_stream_kernels::{OUTCOME_BITS, OUTCOME_DONE, OUTCOME_NOT_YET};

use crate::backend::resources::Slot;
use crate::backend::state::State;

/// The location of the outcome of an operation.
#[derive(Debug)]
pub(crate) enum Source {
    /// The operation is a copy. It has no stored outcome: it has succeeded when the stream has
    /// passed it.
    Copy,
    /// The operation is a quiet. It fails if a PE is known to have died.
    Quiet,
    /// The operation is a call of NCCL. Only the communicator shows whether the call failed.
    Nccl,
    /// The operation consists of kernels and of messages between hosts.
    Hosts,
    /// The operation is a kernel without a result. Only the GPU's report shows whether the kernel
    /// failed.
    Kernel,
    /// A function of the caller has combined elements. The value is the error of the function's
    /// first panic, if it panicked.
    Function(Arc<OnceLock<Error>>),
    /// A copy has written the result to word 1 of the slot.
    Element(Slot),
    /// The slot contains whether the kernel succeeded.
    Done(Slot),
    /// The slot contains whether the last barrier of a collective succeeded. The GPU's report
    /// contains the failure of an earlier barrier.
    Collective(Slot),
    /// The slot contains whether the kernel succeeded, and its result in word 1.
    Word(Slot),
    /// A wait for this number of words has written the slot.
    Wait(Slot, Until, usize),
}

impl Source {
    /// Returns whether NCCL may carry out a part of the operation. Waits of NCCL have no deadline.
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
            Self::Hosts | Self::Function(_) if state.has_failed() => return Err(state.kernel_failure(call, team)),
            Self::Hosts | Self::Function(_) if state.nccl.has_failed() => {
                return Err(state.nccl_failure(call, team, state.deadline));
            }
            Self::Nccl | Self::Hosts => return Ok(Outcome::Done),
            Self::Kernel if state.has_failed() => return Err(state.kernel_failure(call, team)),
            Self::Kernel => return Ok(Outcome::Done),
            Self::Function(panicked) => return panicked.get().map_or(Ok(Outcome::Done), |error| Err(error.clone())),
            Self::Element(slot) => return Ok(Outcome::Word(slot.get(1))),
            Self::Collective(_) if state.has_failed() => return Err(state.kernel_failure(call, team)),
            Self::Collective(slot) | Self::Done(slot) | Self::Word(slot) | Self::Wait(slot, ..) => slot,
        };
        match (slot.get(0), self) {
            (OUTCOME_NOT_YET, _) => Ok(Outcome::NotYet),
            (OUTCOME_DONE, Self::Word(slot) | Self::Wait(slot, Until::All, _)) => Ok(Outcome::Word(slot.get(1))),
            (OUTCOME_DONE, Self::Wait(slot, Until::Any, _)) => {
                Ok(Outcome::Indices(slot.get(1).checked_sub(1).map(|index| index as usize).into_iter().collect()))
            }
            (OUTCOME_DONE, Self::Wait(slot, Until::Some, count)) => {
                let is_set = |index: &usize| slot.get(OUTCOME_BITS + index / 64) >> (index % 64) & 1 != 0;
                Ok(Outcome::Indices((0..*count).filter(is_set).collect()))
            }
            (OUTCOME_DONE, _) => Ok(Outcome::Done),
            _ => Err(state.kernel_failure(call, team)),
        }
    }
}
