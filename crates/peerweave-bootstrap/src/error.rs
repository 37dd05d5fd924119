//! What can go wrong between PEs that look for each other. Holds no logic: the text and the fields are the bug report.
//!
//! Invariant: every error says which call it came from or which value was at fault, and an expired wait names who was missing.

use std::fmt;
use std::io;
use std::time::Duration;

use peerweave_types::Pe;

use crate::proto::ProtocolError;

/// An error of the bootstrap: the environment was wrong, a PE did not come or went away, or the operating system refused.
///
/// `Debug` shows the message too, since that is what a `main` that returns an error, and `unwrap`, show to people.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// A variable of the launcher's environment is missing, cannot be parsed or contradicts another one.
    #[error("{variable} is {}, expected {expected}", found(.value))]
    Environment {
        /// The variable's name.
        variable: &'static str,
        /// Its value, `None` where it is not set.
        value: Option<String>,
        /// What would have been right.
        expected: String,
    },

    /// An argument of a call of this crate cannot be used. Can be fixed by reading the code; never caused by a peer.
    #[error("{call}: {what} is {value}, expected {expected}")]
    Misuse {
        /// The call that refused the argument.
        call: &'static str,
        /// The argument.
        what: &'static str,
        /// Its value.
        value: String,
        /// What would have been right.
        expected: String,
    },

    /// The deadline passed. `missing` names the PEs that did not arrive; it is empty where nobody in particular was awaited
    /// (a key that nobody put) or the server did not answer any more.
    #[error("{call}: timed out after {waited:.1?}{}", did_not_arrive(.missing))]
    Timeout {
        /// The call, with its label or key.
        call: String,
        /// For how long it had waited.
        waited: Duration,
        /// Who did not arrive, in ascending order.
        missing: Vec<Pe>,
    },

    /// A PE has gone, so that what waits for it can never complete.
    #[error("{call}: {pe} is lost: {cause}")]
    PeLost {
        /// The call that can not complete, with its label or key.
        call: String,
        /// The PE that went first.
        pe: Pe,
        /// How it went.
        cause: Loss,
    },

    /// Another PE could not do its part of the same call, and goes on.
    #[error("{call}: {pe} failed: {message}")]
    PeFailed {
        /// The call.
        call: &'static str,
        /// The PE that could not.
        pe: Pe,
        /// Why, in its own words.
        message: String,
    },

    /// The server of the rendezvous answered, and does not want this PE.
    #[error("join: the rendezvous at {endpoint} refused {pe}: {reason}")]
    Refused {
        /// Where the server is, as in `PEERWEAVE_RENDEZVOUS`.
        endpoint: String,
        /// Who was refused.
        pe: Pe,
        /// Why.
        reason: Refusal,
    },

    /// The PEs did not make the same collective call. Each of them gets this error.
    #[error("{call}: the PEs disagree: {one} called {one_call}, {other} called {other_call}")]
    Mismatch {
        /// The call of this PE.
        call: String,
        /// The first of two PEs that disagree.
        one: Pe,
        /// What it called.
        one_call: String,
        /// The second.
        other: Pe,
        /// What that one called.
        other_call: String,
    },

    /// The other side sent what does not belong to the protocol.
    #[error("{call}: the other side does not speak the protocol: {source}")]
    Protocol {
        /// The call that read it.
        call: &'static str,
        /// What was wrong with it.
        source: ProtocolError,
    },

    /// A blob, a label or a key is larger than the protocol carries.
    #[error("{call}: {what} has {len_bytes} bytes, the limit is {limit_bytes}")]
    TooLarge {
        /// The call that was given it, with its label or key.
        call: String,
        /// Which argument, or what of the server's.
        what: &'static str,
        /// Its length in bytes.
        len_bytes: u64,
        /// The most that is taken, in bytes.
        limit_bytes: u64,
    },

    /// The server of the rendezvous was ended by its owner while this PE still used it.
    #[error("{call}: the rendezvous at {endpoint} has ended")]
    ServerGone {
        /// The call that needed the server, with its label or key.
        call: String,
        /// Where it was, as in `PEERWEAVE_RENDEZVOUS`.
        endpoint: String,
    },

    /// The process that calls was forked from the one that joined. A forked child is no PE.
    #[error("{call}: process {called_by} was forked from process {joined_by}, which joined; a forked child is no PE")]
    Forked {
        /// The call.
        call: &'static str,
        /// The process that joined.
        joined_by: u32,
        /// The process that called.
        called_by: u32,
    },

    /// The operating system refused.
    #[error("{call}: {message}")]
    Io {
        /// What was tried.
        call: &'static str,
        /// The kind of the operating system's error.
        kind: io::ErrorKind,
        /// The operating system's words, with the address where there is one.
        message: String,
    },
}

impl fmt::Debug for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How a PE was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Its connection closed without a farewell: it crashed, was killed, or dropped its [`Rendezvous`](crate::Rendezvous).
    Disconnected,
    /// It left in order, before the call that now waits for it.
    Left,
    /// Its own wait had expired, so that it went. This PE was among those that it waited for.
    GaveUp {
        /// Whom it had waited for, in ascending order.
        missing: Vec<Pe>,
    },
    /// Whoever watches the processes says so, in these words.
    Reported(String),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("its connection closed without a farewell"),
            Self::Left => f.write_str("it has left the rendezvous"),
            Self::GaveUp { missing } => write!(f, "it gave up{}", did_not_arrive(missing)),
            Self::Reported(why) => f.write_str(why),
        }
    }
}

/// Why the server of a rendezvous refuses a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The token is another job's.
    Token,
    /// This PE is in the job already, or has been.
    AlreadyJoined,
    /// The number of PEs is not the server's.
    NPes,
    /// The version of the protocol is not the server's.
    Version,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token => "the token is not this job's",
            Self::AlreadyJoined => "this PE has joined already",
            Self::NPes => "the job has another number of PEs",
            Self::Version => "the server speaks another version of the protocol",
        })
    }
}

impl BootstrapError {
    pub(crate) fn io(call: &'static str, error: &io::Error) -> Self {
        Self::Io { call, kind: error.kind(), message: error.to_string() }
    }

    pub(crate) fn io_at(call: &'static str, place: &dyn fmt::Display, error: &io::Error) -> Self {
        Self::Io { call, kind: error.kind(), message: format!("{place}: {error}") }
    }

    /// The PEs that this error blames: those that did not arrive, or the one that was lost or failed.
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

/// Long lists are cut: of 512 missing PEs the first few tell the story.
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
    let word = if missing.len() == 1 { "PE" } else { "PEs" };
    format!(", {word} {}{more} did not arrive", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_names_who_is_missing_and_cuts_a_long_list() {
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
    fn an_unset_variable_reads_as_such() {
        let error = BootstrapError::Environment { variable: "WORLD_SIZE", value: None, expected: "a number".to_owned() };
        assert_eq!(error.to_string(), "WORLD_SIZE is not set, expected a number");
    }
}
