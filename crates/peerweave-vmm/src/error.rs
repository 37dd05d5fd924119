//! The errors that this crate returns, grouped by cause.
//!
//! Invariant: every error names the call, the value and what was expected, or the PE at fault.

use std::fmt;
use std::time::Duration;

use peerweave_bootstrap::{BootstrapError, Loss};
use peerweave_driver::{CudaCode, DriverError, MulticastDisabled};
use peerweave_types::Pe;

/// An error that this crate returns.
///
/// `Debug` prints the same message as `Display`, because `unwrap` and a `main` that returns an
/// error print errors by `Debug`.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum VmmError {
    /// An argument is invalid, or the present state of an object does not permit the call. In
    /// either case, the caller has a bug.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The driver, the device or the machine does not support a feature.
    #[error("{feature} is not supported: it needs {needs}, found {found}")]
    Unsupported {
        /// Name of the feature.
        feature: &'static str,
        /// Description of what the feature requires.
        needs: String,
        /// Description of what was found instead of `needs`.
        found: String,
    },
    /// Multicast objects are disabled in this process. The error was returned before the driver was
    /// called.
    #[error(transparent)]
    MulticastDisabled(#[from] MulticastDisabled),
    /// The driver is missing or too old, or one of its functions returned an error.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// An exchange at the rendezvous (the server where the PEs of a job meet) failed, and no single
    /// PE is at fault.
    #[error(transparent)]
    Bootstrap(BootstrapError),
    /// Another PE failed in the same collective call, or was lost because its process died or
    /// disconnected.
    #[error("{call}: {pe} {cause}")]
    Peer {
        /// Name of the collective call.
        call: String,
        /// The PE at fault.
        pe: Pe,
        /// The cause of the failure.
        cause: PeerCause,
    },
    /// The deadline passed before the call had completed.
    #[error("{call}: timed out after {waited:.1?}{}", did_not_arrive(.missing))]
    Timeout {
        /// Name of the call that waited.
        call: String,
        /// Time for which the call waited.
        waited: Duration,
        /// The PEs that did not arrive. Empty if the timeout occurred because this PE's own device
        /// did not complete its work.
        missing: Vec<Pe>,
    },
    /// The driver reports peer access, but data transferred between the two devices is wrong or
    /// missing.
    #[error("peer access from {from} to {to} is broken: {what}")]
    BrokenPeer {
        /// The device or PE that accesses the memory.
        from: String,
        /// The device or PE that owns the memory.
        to: String,
        /// Description of the wrong or missing data.
        what: String,
    },
}

impl fmt::Debug for VmmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The cause of another PE's failure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerCause {
    /// The PE's process died or disconnected.
    Lost(Loss),
    /// The PE's own call failed; the string is the message of that PE's error.
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

/// A misuse: an argument is invalid, or the present state of an object does not permit the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// A length is zero, or a length, an offset or an address is not a multiple of the granularity.
    #[error("{call}: {what} is {value} bytes, expected a positive multiple of {multiple}")]
    Unaligned {
        /// Name of the call.
        call: &'static str,
        /// Name of the argument.
        what: &'static str,
        /// The invalid length, offset or address, in bytes.
        value: usize,
        /// The granularity, in bytes.
        multiple: usize,
    },
    /// A range is invalid. Either the range exceeds its memory, reservation, multicast object or
    /// signal pad, or the range is empty although the call requires at least one byte.
    #[error("{call}: the range is {start}..{end}, expected a range within {len} {unit}")]
    OutOfRange {
        /// Name of the call.
        call: &'static str,
        /// First index of the range.
        start: usize,
        /// One past the last index of the range.
        end: usize,
        /// Length of the memory, reservation, multicast object or signal pad to which the range
        /// refers. `unit` is the unit of the length.
        len: usize,
        /// Unit of the indices and of the length: "bytes", "elements" or "signals".
        unit: &'static str,
    },
    /// A part of the reservation's range is already mapped, or a part of the multicast object's
    /// range already has a binding. `multicast::Team::unbind` also returns this error for a range
    /// that has a binding, because only the binding itself may unbind its memory.
    #[error("{call}: a mapping or a binding already covers a part of bytes {start}..{end}, expected a range that none covers")]
    Occupied {
        /// Name of the call.
        call: &'static str,
        /// First byte of the range.
        start: usize,
        /// One past the last byte of the range.
        end: usize,
    },
    /// An argument has an invalid value.
    #[error("{call}: {what} is {value}, expected {expected}")]
    Value {
        /// Name of the call.
        call: &'static str,
        /// Name of the argument.
        what: &'static str,
        /// Value of the argument.
        value: String,
        /// Description of valid values.
        expected: String,
    },
    /// The memory of the requested PE is not mapped in this process. Either the PE does not exist,
    /// or it is on another machine.
    #[error("{call}: the memory of {pe} is not mapped in this process, expected one of the PEs {mapped:?} of this machine")]
    NotMapped {
        /// Name of the call.
        call: &'static str,
        /// The requested PE.
        pe: Pe,
        /// The PEs whose memory is mapped.
        mapped: Vec<u32>,
    },
    /// The PEs did not make the same calls with the same arguments.
    #[error("{call}: the PEs disagree: {one} has {one_has}, {other} has {other_has}")]
    Diverged {
        /// Name of the collective call.
        call: String,
        /// The first of the two PEs that disagree.
        one: Pe,
        /// Description of what the PE in the field `one` reported: its arguments, its state or its
        /// result.
        one_has: String,
        /// The second of the two PEs that disagree.
        other: Pe,
        /// Description of what the PE in the field `other` reported: its arguments, its state or
        /// its result.
        other_has: String,
    },
    /// The memory to be freed is still in use, because this PE or a graph has other handles to it.
    #[error("{call}: the memory at offset {offset} has {handles} handles, expected 1 (the handle passed to the call)")]
    StillShared {
        /// Name of the call.
        call: &'static str,
        /// Offset of the memory in the heap, in bytes.
        offset: u64,
        /// Number of handles, including the handle passed to the call.
        handles: usize,
    },
    /// The memory belongs to another heap.
    #[error("{call}: the memory belongs to another heap, expected memory of this heap")]
    OtherHeap {
        /// Name of the call.
        call: &'static str,
    },
    /// The heap has too little free memory. Either the heap does not grow automatically, or it
    /// would exceed its limit.
    #[error(
        "{call}: {bytes} bytes do not fit into the heap: {free} of {total} bytes are free, and the heap's limit is {limit} bytes"
    )]
    Exhausted {
        /// Name of the call.
        call: &'static str,
        /// Number of requested bytes.
        bytes: u64,
        /// Number of free bytes, possibly in several ranges.
        free: u64,
        /// Current size of the heap in bytes.
        total: u64,
        /// Maximum size of the heap in bytes.
        limit: u64,
    },
    /// An earlier collective call on this heap failed on some PEs. The PEs may therefore have
    /// different states, and the heap refuses every later call.
    #[error("{call}: the heap is unusable because an earlier call failed: {earlier}")]
    Broken {
        /// Name of the call.
        call: &'static str,
        /// Description of the earlier failure.
        earlier: String,
    },
}

impl VmmError {
    /// Returns whether the error means that the device is out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Driver(DriverError::Cuda(error)) if error.is_out_of_memory())
    }

    /// Returns the PEs that caused this error: they did not arrive, were lost, failed, or made a
    /// different call. The list is empty if no PE is known to be at fault.
    pub fn blamed(&self) -> Vec<Pe> {
        match self {
            Self::Peer { pe, .. } => vec![*pe],
            Self::Timeout { missing, .. } => missing.clone(),
            Self::Bootstrap(error) => error.blamed(),
            Self::Misuse(Misuse::Diverged { one, other, .. }) => vec![*one, *other],
            _ => Vec::new(),
        }
    }

    /// Returns whether the error says that a PE was lost or did not arrive. Such a PE does not take
    /// part in later exchanges of the call.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Peer { cause: PeerCause::Lost(_), .. })
    }

    /// Returns whether this error is a driver error with one of the codes in `codes`.
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
    fn errors_for_lost_pes_and_timeouts_name_the_failed_call() {
        let lost = BootstrapError::PeLost { call: "barrier".into(), pe: Pe::new(3), cause: Loss::Disconnected };
        let error = VmmError::from(lost);
        assert_eq!(error.to_string(), "barrier: PE 3 is lost: the connection of the PE closed unexpectedly");
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
