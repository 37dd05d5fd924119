//! What can go wrong with shared memory of GPUs, by whose fault it is. Holds no logic: the text and
//! the fields are the bug report.
//!
//! Invariant: every error names the call, the value and what was expected, or the PE at fault.

use std::fmt;
use std::time::Duration;

use peerweave_bootstrap::{BootstrapError, Loss};
use peerweave_driver::{CudaCode, DriverError, MulticastDisabled};
use peerweave_types::Pe;

/// Why a call of this crate did not do what was asked.
///
/// `Debug` shows the message too, since that is what a `main` that returns an error, and `unwrap`,
/// show to people.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum VmmError {
    /// An argument cannot be used, or the call is out of place. Can be fixed by reading the code.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The driver, the device or the machine cannot do this.
    #[error("{feature} is not supported: it needs {needs}, found {found}")]
    Unsupported {
        /// What was asked for.
        feature: &'static str,
        /// What it needs.
        needs: String,
        /// What there is.
        found: String,
    },
    /// Multicast objects are forbidden in this process. The driver was not called.
    #[error(transparent)]
    MulticastDisabled(#[from] MulticastDisabled),
    /// The driver refused, is too old, or is not there.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The rendezvous failed, for a reason that is no PE's in particular.
    #[error(transparent)]
    Bootstrap(BootstrapError),
    /// Another PE failed in the same collective call, or is gone.
    #[error("{call}: {pe} {cause}")]
    Peer {
        /// The collective call.
        call: String,
        /// The PE at fault.
        pe: Pe,
        /// What happened to it.
        cause: PeerCause,
    },
    /// The deadline passed.
    #[error("{call}: timed out after {waited:.1?}{}", did_not_arrive(.missing))]
    Timeout {
        /// What was waited for.
        call: String,
        /// For how long.
        waited: Duration,
        /// The PEs that did not arrive; empty where work of the own device did not end.
        missing: Vec<Pe>,
    },
    /// One device is said to reach another's memory, and what arrived is not what was sent, or
    /// nothing arrived.
    #[error("peer access from {from} to {to} is broken: {what}")]
    BrokenPeer {
        /// Who reads or writes: a device or a PE.
        from: String,
        /// Whose memory it is.
        to: String,
        /// What was seen.
        what: String,
    },
}

impl fmt::Debug for VmmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What happened to another PE.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerCause {
    /// It is gone.
    Lost(Loss),
    /// It failed in this call, with this error.
    Failed(String),
}

impl std::fmt::Display for PeerCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost(loss) => write!(f, "is lost: {loss}"),
            Self::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}

/// An argument that cannot be used, or a call out of place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// A number of bytes or an offset that is not a multiple of what it must be, or zero where it
    /// may not be.
    #[error("{call}: {what} is {value} bytes, expected a multiple of {multiple} above 0")]
    Unaligned {
        /// The call.
        call: &'static str,
        /// Which argument.
        what: &'static str,
        /// Its value in bytes.
        value: usize,
        /// What it must be a multiple of, in bytes.
        multiple: usize,
    },
    /// A range that is not inside what it was taken of.
    #[error("{call}: range {start}..{end} of {len} {unit}")]
    OutOfRange {
        /// The call.
        call: &'static str,
        /// First.
        start: usize,
        /// One past the last.
        end: usize,
        /// How many there are.
        len: usize,
        /// Of what: bytes or elements.
        unit: &'static str,
    },
    /// Addresses that have something mapped already.
    #[error("{call}: bytes {start}..{end} of the reservation are mapped already")]
    Occupied {
        /// The call.
        call: &'static str,
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
    /// A value that is not one of those allowed.
    #[error("{call}: {what} is {value}, expected {expected}")]
    Value {
        /// The call.
        call: &'static str,
        /// Which argument.
        what: &'static str,
        /// Its value.
        value: String,
        /// What would have been right.
        expected: String,
    },
    /// A PE whose memory is not mapped here: it does not exist or is on another machine.
    #[error("{call}: {pe} is not mapped here; the heap has PEs {mapped:?} of this machine")]
    NotMapped {
        /// The call.
        call: &'static str,
        /// Who was asked for.
        pe: Pe,
        /// Whose memory is mapped.
        mapped: Vec<u32>,
    },
    /// The PEs did not make the same calls with the same arguments.
    #[error("{call}: the PEs disagree: {one} has {one_has}, {other} has {other_has}")]
    Diverged {
        /// The collective call.
        call: String,
        /// A PE.
        one: Pe,
        /// What it called with, or found.
        one_has: String,
        /// Another.
        other: Pe,
        /// What that one has.
        other_has: String,
    },
    /// Memory that is to be freed has other handles, of this PE or of a graph.
    #[error("{call}: the memory at offset {offset} has {handles} handles, expected 1")]
    StillShared {
        /// The call.
        call: &'static str,
        /// Where the memory is in the heap, in bytes.
        offset: u64,
        /// How many handles there are.
        handles: usize,
    },
    /// Memory of another heap.
    #[error("{call}: the memory belongs to another heap")]
    OtherHeap {
        /// The call.
        call: &'static str,
    },
    /// The heap has no room, and may not or cannot grow.
    #[error("{call}: no room for {bytes} bytes: {free} of {total} bytes are free, and the heap ends at {limit} bytes")]
    Exhausted {
        /// The call.
        call: &'static str,
        /// Asked for, in bytes.
        bytes: u64,
        /// Free, not always in one piece, in bytes.
        free: u64,
        /// What the heap has now, in bytes.
        total: u64,
        /// What it may have, in bytes.
        limit: u64,
    },
    /// An earlier collective call on this heap failed half way; the PEs may not agree any more.
    #[error("{call}: the heap cannot be used since {earlier}")]
    Broken {
        /// The call.
        call: &'static str,
        /// The earlier failure.
        earlier: String,
    },
}

impl VmmError {
    /// Whether the device has too little memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Driver(DriverError::Cuda(error)) if error.is_out_of_memory())
    }

    /// The PEs that this error blames: those that did not arrive, were lost, or failed.
    pub fn blamed(&self) -> Vec<Pe> {
        match self {
            Self::Peer { pe, .. } => vec![*pe],
            Self::Timeout { missing, .. } => missing.clone(),
            Self::Bootstrap(error) => error.blamed(),
            Self::Misuse(Misuse::Diverged { one, other, .. }) => vec![*one, *other],
            _ => Vec::new(),
        }
    }

    /// Whether another PE is gone, or did not come: it will hear nothing that this one says next,
    /// nor say what it had done.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Peer { cause: PeerCause::Lost(_), .. })
    }

    /// Whether the driver answered with one of these codes.
    pub(crate) fn is_code(&self, codes: &[CudaCode]) -> bool {
        matches!(self, Self::Driver(DriverError::Cuda(error)) if codes.iter().any(|code| error.is(*code)))
    }
}

impl From<BootstrapError> for VmmError {
    fn from(error: BootstrapError) -> Self {
        match error {
            BootstrapError::Timeout { call, waited, missing } => Self::Timeout { call, waited, missing },
            BootstrapError::PeLost { call, pe, cause } => Self::Peer { call, pe, cause: PeerCause::Lost(cause) },
            BootstrapError::PeFailed { call, pe, message } => {
                Self::Peer { call: call.to_owned(), pe, cause: PeerCause::Failed(message) }
            }
            error => Self::Bootstrap(error),
        }
    }
}

fn did_not_arrive(missing: &[Pe]) -> String {
    let names: Vec<String> = missing.iter().map(|pe| pe.get().to_string()).collect();
    match names.len() {
        0 => String::new(),
        1 => format!(", PE {} did not arrive", names[0]),
        _ => format!(", PEs {} did not arrive", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_pe_and_an_expired_wait_keep_their_names() {
        let lost = BootstrapError::PeLost { call: "barrier".into(), pe: Pe::new(3), cause: Loss::Disconnected };
        let error = VmmError::from(lost);
        assert_eq!(error.to_string(), "barrier: PE 3 is lost: its connection closed unexpectedly");
        assert_eq!(error.blamed(), [Pe::new(3)]);
        assert!(error.is_loss());
        let failed = BootstrapError::PeFailed { call: "exchange_descriptors", pe: Pe::new(1), message: "no room".into() };
        let error = VmmError::from(failed);
        assert_eq!(error.to_string(), "exchange_descriptors: PE 1 failed: no room");
        assert!(error.blamed() == [Pe::new(1)] && !error.is_loss());
        let late =
            VmmError::Timeout { call: "grow".into(), waited: Duration::from_secs(2), missing: vec![Pe::new(1), Pe::new(2)] };
        assert_eq!(late.to_string(), "grow: timed out after 2.0s, PEs 1, 2 did not arrive");
        assert_eq!(late.blamed().len(), 2);
    }
}
