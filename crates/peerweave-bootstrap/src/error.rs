//! Errors of the rendezvous, and of reading the environment variables that launchers set.
//!
//! Invariant: every error names the call that failed or the invalid value. If a wait times out, the
//! error names the missing PEs.

use std::fmt;
use std::io;
use std::time::Duration;

use peerweave_types::Pe;

use crate::limits::{MAX_FRAME_LEN_BYTES, VERSION};

/// An error of this crate, for example an invalid environment variable, a missing PE, a lost PE, or
/// a failed system call.
///
/// `Debug` prints the same message as `Display`, because `unwrap` and a `main` that returns an
/// error print `Debug`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// An environment variable is missing, cannot be parsed, or contradicts another variable.
    #[error("{variable} is {}, expected {expected}", found(.value))]
    Environment {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable; `None` if the variable is not set.
        value: Option<String>,
        /// Description of valid values.
        expected: String,
    },

    /// The caller passed an invalid argument. This is a bug in the caller. Another PE cannot cause
    /// this error.
    #[error("{call}: {what} is {value}, expected {expected}")]
    Misuse {
        /// Name of the call that refused the argument.
        call: &'static str,
        /// Name of the argument.
        what: &'static str,
        /// Value of the argument.
        value: String,
        /// Description of valid values.
        expected: String,
    },

    /// The deadline passed before the call completed. `missing` lists the PEs that did not arrive.
    /// The list is empty if the call waited for a key, or if the server did not answer.
    #[error("{call}: timed out after {waited:.1?}{}", did_not_arrive(.missing))]
    Timeout {
        /// Name of the call, with its label or key.
        call: String,
        /// Time for which the call waited.
        waited: Duration,
        /// PEs that did not arrive, in ascending order.
        missing: Vec<Pe>,
    },

    /// A PE is lost, so the call can never complete.
    #[error("{call}: {pe} is lost: {cause}")]
    PeLost {
        /// Name of the call, with its label or key.
        call: String,
        /// The PE that was lost first.
        pe: Pe,
        /// The reason why the PE is lost.
        cause: Loss,
    },

    /// Another PE failed in the same call, but that PE is still part of the job.
    #[error("{call}: {pe} failed: {message}")]
    PeFailed {
        /// Name of the call.
        call: &'static str,
        /// The PE that failed.
        pe: Pe,
        /// The error message that `pe` sent.
        message: String,
    },

    /// The server of the rendezvous refused this PE.
    #[error("join: the rendezvous at {endpoint} refused {pe}: {reason}")]
    Refused {
        /// Address of the server, as in `PEERWEAVE_RENDEZVOUS`.
        endpoint: String,
        /// The PE that was refused.
        pe: Pe,
        /// The reason for the refusal.
        reason: Refusal,
    },

    /// The PEs made different collective calls. All PEs get this error.
    #[error("{call}: the PEs disagree: {one} called {one_call}, {other} called {other_call}")]
    Mismatch {
        /// The call that this PE made.
        call: String,
        /// The first of two PEs that made different calls.
        one: Pe,
        /// The call that PE `one` made.
        one_call: String,
        /// The second of two PEs that made different calls.
        other: Pe,
        /// The call that PE `other` made.
        other_call: String,
    },

    /// The peer sent invalid data.
    #[error("{call}: received invalid data, expected a peer of the same Peerweave version: {source}")]
    Protocol {
        /// Name of the call that received the data.
        call: &'static str,
        /// The reason why the data is invalid.
        source: ProtocolError,
    },

    /// A blob, a label, a key or a value exceeds its size limit, or the server's memory is full.
    #[error("{call}: {what} has {len_bytes} bytes, expected at most {limit_bytes}")]
    TooLarge {
        /// Name of the call, with its label or key.
        call: String,
        /// Name of the argument that is too long, or "the data stored by the server" if the
        /// server's memory is full.
        what: &'static str,
        /// Length of the argument, in bytes. If the server's memory is full, the total size that
        /// the stored data would have.
        len_bytes: u64,
        /// The limit in bytes.
        limit_bytes: u64,
    },

    /// The owner of the rendezvous server stopped the server while this PE was using the server.
    #[error("{call}: the rendezvous server at {endpoint} was stopped")]
    ServerGone {
        /// Name of the call, with its label or key.
        call: String,
        /// Address of the server, as in `PEERWEAVE_RENDEZVOUS`.
        endpoint: String,
    },

    /// The calling process was forked from the process that joined. A forked child is not a PE.
    #[error("{call}: process {called_by} was forked from process {joined_by}; call only from the process that joined")]
    Forked {
        /// Name of the call.
        call: &'static str,
        /// ID of the process that joined.
        joined_by: u32,
        /// ID of the forked process that made this call.
        called_by: u32,
    },

    /// The operating system returned an error.
    #[error("{call}: {message}")]
    Io {
        /// Name of the operation that failed.
        call: &'static str,
        /// Kind of the error that the operating system returned.
        kind: io::ErrorKind,
        /// The operating system's error message. If the address is known, the message begins with
        /// the address.
        message: String,
    },
}

impl fmt::Debug for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The reason why a PE is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The PE's connection closed unexpectedly: the PE crashed, was killed, or dropped its
    /// [`Rendezvous`](crate::Rendezvous).
    Disconnected,
    /// The PE has called [`leave`](crate::Rendezvous::leave), but a call of another PE still needs
    /// the PE that left.
    Left,
    /// The PE has left the job, or its connection has closed, after a failure of other PEs. Either
    /// the PE had waited for the other PEs until a timeout, or the PE had named one of them with
    /// [`report_root_cause`](crate::Rendezvous::report_root_cause).
    GaveUp {
        /// The other PEs, in ascending order: either the PEs for which the lost PE had waited until
        /// a timeout, or the one PE that it had passed to `report_root_cause`.
        missing: Vec<Pe>,
    },
    /// The launcher reported that the PE's process has ended. The value is the launcher's message.
    Reported(String),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("the connection of the PE closed unexpectedly"),
            Self::Left => f.write_str("the PE left the rendezvous, but a call of another PE still needs the PE"),
            Self::GaveUp { missing } => write!(f, "the PE gave up waiting for other PEs{}", did_not_arrive(missing)),
            Self::Reported(why) => f.write_str(why),
        }
    }
}

/// The reason why a rendezvous server refuses a PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The token belongs to another job.
    Token,
    /// This PE has already joined. Either the same process joins twice, or another process has the
    /// same PE number. A PE cannot join again even after it has left or died.
    AlreadyJoined,
    /// This PE and the server have different numbers of PEs for the job.
    NPes,
    /// The protocol version of this PE differs from the protocol version of the server.
    Version,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token => "the token belongs to another job; set the same PEERWEAVE_TOKEN on all PEs",
            Self::AlreadyJoined => {
                "this PE has already joined, and a PE can join only once; \
                 share the handle of the first join, or give each process its own PE number"
            }
            Self::NPes => {
                "the number of PEs in the job differs between this PE and the server; \
                 set the same number on all PEs, for example with PEERWEAVE_N_PES"
            }
            Self::Version => "the protocol version differs from the server's; use the same Peerweave version on all PEs",
        })
    }
}

/// An error in received data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The length prefix is 0 or exceeds the maximum length of a frame.
    #[error("a frame has {len_bytes} bytes, expected 1 to {MAX_FRAME_LEN_BYTES}")]
    FrameLength {
        /// The received length, in bytes.
        len_bytes: u32,
    },
    /// The kind of the frame is unknown.
    #[error("a frame has the unknown kind {kind}")]
    Kind {
        /// The byte that encodes the kind.
        kind: u8,
    },
    /// A hello does not start with [`MAGIC`](crate::wire::proto::MAGIC).
    #[error("a hello does not start with the magic bytes of the protocol")]
    Magic,
    /// A hello has a protocol version that differs from the protocol version of this crate.
    #[error("a hello has protocol version {found}, expected {VERSION}")]
    Version {
        /// The protocol version in the hello, the first frame of a connection.
        found: u16,
    },
    /// A field extends beyond the frame, or has an invalid value.
    #[error("the field {field} of a frame is invalid")]
    Field {
        /// Name of the field.
        field: &'static str,
    },
    /// The frame has bytes after its last field.
    #[error("a frame has {len_bytes} bytes after its last field, expected 0")]
    Trailing {
        /// Number of extra bytes.
        len_bytes: usize,
    },
    /// The frame is valid but unexpected at this point.
    #[error("unexpected {kind} frame")]
    OutOfPlace {
        /// Name of the frame's kind.
        kind: &'static str,
    },
}

impl BootstrapError {
    pub(crate) fn io(call: &'static str, error: &io::Error) -> Self {
        Self::Io { call, kind: error.kind(), message: error.to_string() }
    }

    pub(crate) fn io_at(call: &'static str, place: &dyn fmt::Display, error: &io::Error) -> Self {
        Self::Io { call, kind: error.kind(), message: format!("{place}: {error}") }
    }

    /// Returns the PEs that caused this error: PEs that did not arrive, were lost, failed, were
    /// refused, or made different calls.
    ///
    /// ```
    /// use peerweave_bootstrap::{BootstrapError, Loss, Pe};
    ///
    /// let lost = BootstrapError::PeLost { call: "barrier".into(), pe: Pe::new(3), cause: Loss::Left };
    /// assert_eq!(lost.blamed(), [Pe::new(3)]);
    /// ```
    pub fn blamed(&self) -> Vec<Pe> {
        match self {
            Self::Timeout { missing, .. } => missing.clone(),
            Self::PeLost { pe, .. } | Self::PeFailed { pe, .. } | Self::Refused { pe, .. } => vec![*pe],
            Self::Mismatch { one, other, .. } => vec![*one, *other],
            _ => Vec::new(),
        }
    }
}

fn found(value: &Option<String>) -> String {
    match value {
        Some(value) => format!("{value:?}"),
        None => "not set".to_owned(),
    }
}

/// Formats the missing PEs for an error message. Lists at most 16 PEs, and the number of all other
/// missing PEs.
fn did_not_arrive(missing: &[Pe]) -> String {
    const SHOWN: usize = 16;
    if missing.is_empty() {
        return String::new();
    }
    let names: Vec<String> = missing.iter().take(SHOWN).map(|pe| pe.get().to_string()).collect();
    let more = match missing.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let noun = if missing.len() == 1 { "PE" } else { "PEs" };
    format!(", {noun} {numbers}{more} did not arrive", numbers = names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_names_missing_pes_and_truncates_a_long_list() {
        let timeout = |missing: Vec<Pe>| BootstrapError::Timeout {
            call: "barrier(\"start\")".to_owned(),
            waited: Duration::from_millis(1500),
            missing,
        };
        assert_eq!(timeout(vec![Pe::new(7)]).to_string(), "barrier(\"start\"): timed out after 1.5s, PE 7 did not arrive");
        let many = timeout((0..20).map(Pe::new).collect()).to_string();
        assert!(many.ends_with("14, 15 and 4 more did not arrive"), "{many}");
        assert_eq!(timeout(vec![]).to_string(), "barrier(\"start\"): timed out after 1.5s");
    }

    #[test]
    fn unset_variable_is_reported_as_not_set() {
        let error = BootstrapError::Environment { variable: "WORLD_SIZE", value: None, expected: "a number".to_owned() };
        assert_eq!(error.to_string(), "WORLD_SIZE is not set, expected a number");
    }
}
