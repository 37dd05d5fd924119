//! The work of calls: collectives, sends, receives, one-sided operations.
//!
//! Module `execute` runs the work. Invariant: all arguments have been checked.

use crate::abi::{Code, WaitSignalDesc};
use crate::arithmetic::{DType, Op};
use crate::settings;

/// Kind of collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
}

/// A collective of one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Collective {
    pub(crate) kind: Kind,
    pub(crate) send: usize,
    pub(crate) receive: usize,
    pub(crate) count: usize,
    pub(crate) dtype: DType,
    pub(crate) op: Op,
    pub(crate) root: i32,
}

/// The work of one call.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Collective(Collective),
    Send {
        from: usize,
        bytes: usize,
        peer: i32,
    },
    Receive {
        to: usize,
        bytes: usize,
        peer: i32,
    },
    OneSided(OneSided),
    /// No work, because the setting `NOOP` is set.
    Nothing,
}

/// One call's work with its injected faults.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) work: Work,
    pub(crate) effect: Effect,
}

impl Work {
    /// Returns whether NCCL discards the operation if it is recorded and never launched.
    pub(super) fn is_forgotten(&self) -> bool {
        let Self::Collective(collective) = self else { return matches!(self, Self::Nothing) };
        match collective.kind {
            Kind::AllReduce | Kind::Reduce | Kind::AllGather | Kind::ReduceScatter => true,
            Kind::Broadcast => settings::get().version < 22902,
            Kind::AllToAll | Kind::Gather | Kind::Scatter => false,
        }
    }

    /// Returns the number of bytes that this rank sends or receives.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Collective(collective) => collective.count * collective.dtype.size(),
            Self::Send { bytes, .. } | Self::Receive { bytes, .. } => *bytes,
            Self::OneSided(_) | Self::Nothing => 0,
        }
    }
}

/// An operation on another rank's window or signals.
#[derive(Clone, Debug)]
pub(crate) enum OneSided {
    Put { from: usize, bytes: usize, peer: i32, window: u64, offset: usize, signal: i32, context: i32 },
    Signal { peer: i32, signal: i32, context: i32 },
    Wait(Vec<WaitSignalDesc>),
}

impl OneSided {
    /// Returns whether the operation does not wait for other ranks.
    pub(crate) fn is_outgoing(&self) -> bool {
        !matches!(self, Self::Wait(_))
    }
}

/// Injected effect on an enqueued operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Whether the operation runs until its communicator is aborted.
    pub(crate) stuck: bool,
    /// The asynchronous error that the communicator reports while the operation does not complete.
    pub(crate) async_error: Option<Code>,
    /// Delay before the call or operation begins, in milliseconds.
    pub(crate) slow_ms: u64,
}

impl Effect {
    /// No injected effect.
    pub(crate) const NONE: Self = Self { stuck: false, async_error: None, slow_ms: 0 };
}
