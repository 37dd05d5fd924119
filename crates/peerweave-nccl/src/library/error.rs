//! Error types, grouped by cause: misuse by the caller, errors of the NCCL library, a lost peer, an
//! expired deadline.
//!
//! A message is sufficient for a bug report. The message names the call, the value, the expected
//! value, and NCCL's own error text, if any.
//!
//! Invariant: large variants are boxed, so that a `Result` is cheap to return.

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use peerweave_bootstrap::BootstrapError;
use peerweave_driver::{CudaError, DriverError, MulticastDisabled};
use peerweave_dylib::{LoadError, Unsupported};

pub use crate::library::misuse::{Misuse, MisuseKind};
use crate::{Nccl, Rank, Version, sys};

/// An error that a call in this crate returns.
///
/// `Debug` prints the same message as `Display`, because `unwrap` and a `main` that returns an
/// error print `Debug`.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// The caller misused the API, or the system refused a resource such as a thread. Most of these
    /// errors are detected before NCCL is called.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The loaded NCCL is too old for this call or option. NCCL was not called.
    #[error(transparent)]
    Unsupported(Box<Unsupported>),
    /// NCCL returned an error.
    #[error(transparent)]
    Nccl(Box<Failure>),
    /// The NCCL library was not found or cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The CUDA driver is missing or returned an error.
    #[error(transparent)]
    Cuda(#[from] DriverError),
    /// A call or a wait did not complete by its deadline.
    #[error(transparent)]
    Timeout(Box<Timeout>),
    /// A rank has been lost: its process has died, or a connection to it has failed.
    #[error(transparent)]
    PeerLost(Box<PeerLost>),
    /// The process was forked from the process that loaded NCCL. NCCL's threads do not exist in the
    /// child, so only the parent can use NCCL.
    #[error(
        "{call}: process {process} was forked from process {loaded_by}, which loaded NCCL; start a new program instead of forking"
    )]
    Forked {
        /// Name of the call.
        call: &'static str,
        /// Process ID of the process that loaded NCCL.
        loaded_by: u32,
        /// Process ID of this process.
        process: u32,
    },
    /// The communicator is in a state in which this call is not possible.
    #[error("{call} on {communicator}: {state}")]
    Dead {
        /// Name of the call.
        call: &'static str,
        /// Name of the communicator.
        communicator: Arc<CommunicatorName>,
        /// The reason why the communicator cannot be used.
        state: DeadState,
    },
    /// Multicast objects are disabled in this process. Neither NCCL nor the driver was called.
    #[error(transparent)]
    MulticastDisabled(#[from] MulticastDisabled),
    /// The rendezvous between the ranks failed.
    #[error("{call}: {source}")]
    Bootstrap {
        /// Name of the call.
        call: &'static str,
        /// The error that the rendezvous returned.
        source: Arc<BootstrapError>,
    },
}

impl fmt::Debug for NcclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl NcclError {
    /// Returns the error for an invalid argument of `call`.
    #[cold]
    pub(crate) fn misuse(call: &'static str, kind: MisuseKind) -> Self {
        Misuse { call, kind }.into()
    }

    /// Returns the error for a failure of the rendezvous in `call`.
    pub(crate) fn bootstrap(call: &'static str) -> impl FnOnce(BootstrapError) -> Self {
        move |source| Self::Bootstrap { call, source: Arc::new(source) }
    }

    /// Returns the kind of misuse, or `None` if the error is not [`NcclError::Misuse`].
    pub fn misuse_kind(&self) -> Option<&MisuseKind> {
        match self {
            Self::Misuse(misuse) => Some(&misuse.kind),
            _ => None,
        }
    }

    /// Creates the error for an NCCL call that returned `code`, with NCCL's description of the code
    /// and NCCL's message for the last error. Use this function, for example, after a call on the
    /// handle that [`Communicator::as_raw`](crate::Communicator::as_raw) returned. [`Nccl::check`]
    /// returns the same error as a `Result`.
    ///
    /// Any number is accepted, including [`ResultCode::SUCCESS`] and codes that this crate does not
    /// know.
    ///
    /// ```no_run
    /// use peerweave_nccl::{Nccl, NcclError, ResultCode};
    ///
    /// let error = NcclError::from_code(Nccl::load()?, "ncclAllReduce", 5);
    /// assert_eq!(error.code(), Some(ResultCode::INVALID_USAGE));
    /// # Ok::<(), NcclError>(())
    /// ```
    pub fn from_code(nccl: Nccl, call: &'static str, code: impl Into<ResultCode>) -> Self {
        // A forked process must not call the library.
        nccl.not_forked(call).err().unwrap_or_else(|| nccl.failure(call, sys::ncclResult_t(code.into().get()), None))
    }

    /// Returns the error with `name` as the name of the failed call. Used if the call `name`
    /// returns an error that a different call has created. Changes only the variants `Misuse`,
    /// `Timeout` and `PeerLost`.
    pub(crate) fn of_call(mut self, name: &'static str) -> Self {
        match &mut self {
            Self::Misuse(Misuse { call, .. }) => *call = name,
            Self::Timeout(timeout) => timeout.call = name,
            Self::PeerLost(lost) => lost.call = name,
            _ => {}
        }
        self
    }

    /// Returns NCCL's result code, or `None` if the error is not [`NcclError::Nccl`].
    pub fn code(&self) -> Option<ResultCode> {
        match self {
            Self::Nccl(failure) => Some(failure.code),
            _ => None,
        }
    }
}

impl From<Unsupported> for NcclError {
    fn from(error: Unsupported) -> Self {
        Self::Unsupported(Box::new(error))
    }
}

impl From<Failure> for NcclError {
    fn from(error: Failure) -> Self {
        Self::Nccl(Box::new(error))
    }
}

impl From<Timeout> for NcclError {
    fn from(error: Timeout) -> Self {
        Self::Timeout(Box::new(error))
    }
}

impl From<PeerLost> for NcclError {
    fn from(error: PeerLost) -> Self {
        Self::PeerLost(Box::new(error))
    }
}

impl From<CudaError> for NcclError {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error.into())
    }
}

/// An error that NCCL returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Failure {
    /// Name of the failed call: a method of this crate, such as `all_reduce`, or an NCCL function,
    /// such as `ncclCommAbort`.
    pub call: &'static str,
    /// Result code that NCCL returned.
    pub code: ResultCode,
    /// NCCL's description of the code.
    pub meaning: &'static str,
    /// Version of the NCCL library.
    pub version: Version,
    /// NCCL's message for the last error, or an empty string if there is no message. NCCL stores
    /// one such message for the whole process, so the message may describe a failure in another
    /// thread.
    pub last_error: String,
    /// Name of the communicator, or `None` if the failed call was not made on a communicator.
    pub communicator: Option<Arc<CommunicatorName>>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.call)?;
        if let Some(communicator) = &self.communicator {
            write!(f, " on {communicator}")?;
        }
        write!(f, ": {} (NCCL {}): {}", self.code, self.version, self.meaning)?;
        if !self.last_error.is_empty() {
            write!(f, "; NCCL's last error: {text}", text = self.last_error.trim_end())?;
        }
        Ok(())
    }
}

/// A result code that NCCL's functions return. Any integer can be converted to a `ResultCode`. The
/// type implements `Error`, for programs that call NCCL's functions directly.
///
/// ```
/// use peerweave_nccl::ResultCode;
///
/// let code = ResultCode::from(5);
/// assert_eq!(code, ResultCode::INVALID_USAGE);
/// assert_eq!(code.to_string(), "ncclInvalidUsage (5)");
/// assert_eq!(ResultCode::from(99).to_string(), "unknown code (99)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResultCode(c_int);

impl std::error::Error for ResultCode {}

impl From<i32> for ResultCode {
    fn from(code: i32) -> Self {
        Self(code)
    }
}

impl ResultCode {
    /// The call succeeded. No function of this crate fails with this code. Only
    /// [`NcclError::from_code`] creates an error with this code, if the caller passes 0.
    pub const SUCCESS: Self = Self(sys::ncclResult_t::ncclSuccess.0);
    /// A call to CUDA failed.
    pub const UNHANDLED_CUDA_ERROR: Self = Self(sys::ncclResult_t::ncclUnhandledCudaError.0);
    /// A call to the operating system failed.
    pub const SYSTEM_ERROR: Self = Self(sys::ncclResult_t::ncclSystemError.0);
    /// An internal check in NCCL failed, because of a bug in NCCL or corrupted memory.
    pub const INTERNAL_ERROR: Self = Self(sys::ncclResult_t::ncclInternalError.0);
    /// An argument is invalid.
    pub const INVALID_ARGUMENT: Self = Self(sys::ncclResult_t::ncclInvalidArgument.0);
    /// The program uses NCCL incorrectly, such as with two ranks on one device.
    pub const INVALID_USAGE: Self = Self(sys::ncclResult_t::ncclInvalidUsage.0);
    /// A peer or the network failed.
    pub const REMOTE_ERROR: Self = Self(sys::ncclResult_t::ncclRemoteError.0);
    /// A call on a non-blocking communicator has not finished.
    pub const IN_PROGRESS: Self = Self(sys::ncclResult_t::ncclInProgress.0);
    /// A wait inside NCCL timed out. NCCL 2.30.3 introduced this code.
    pub const TIMEOUT: Self = Self(sys::ncclResult_t::ncclTimeout.0);

    /// Returns whether the loss of a peer is a possible cause of this result code.
    pub(crate) fn may_be_a_loss(self) -> bool {
        [Self::REMOTE_ERROR, Self::SYSTEM_ERROR, Self::INTERNAL_ERROR].contains(&self)
    }

    pub(crate) const fn new(code: sys::ncclResult_t) -> Self {
        Self(code.0)
    }

    /// Returns the code as an integer.
    pub const fn get(self) -> i32 {
        self.0
    }

    /// Returns NCCL's name for the code, or `None` if this crate does not know the code.
    pub fn name(self) -> Option<&'static str> {
        sys::ncclResult_t(self.0).name()
    }
}

impl fmt::Display for ResultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name().unwrap_or("unknown code"), self.0)
    }
}

impl fmt::Debug for ResultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Name that identifies one rank of a communicator in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommunicatorName {
    /// Name that the program has set for the communicator, or `None` if the program has set no
    /// name.
    pub name: Option<String>,
    /// The rank that this struct identifies.
    pub rank: Rank,
    /// Number of ranks in the communicator.
    pub ranks: usize,
    /// Number that the communicator has in this process. The number distinguishes communicators
    /// that have the same name.
    pub number: u64,
}

impl fmt::Display for CommunicatorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "communicator {name:?} #{}", self.number)?,
            None => write!(f, "communicator #{}", self.number)?,
        }
        write!(f, " ({} of {})", self.rank, self.ranks)
    }
}

/// The reason why a communicator cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeadState {
    /// The communicator has been aborted.
    #[error("the communicator was aborted")]
    Aborted,
    /// The communicator has been finalized.
    #[error("the communicator was finalized")]
    Finalized,
    /// The communicator has been revoked. The communicator can only be split, shrunk, aborted or
    /// dropped.
    #[error("the communicator was revoked, and can only be split, shrunk, aborted or dropped")]
    Revoked,
    /// The communicator is suspended. The communicator must be resumed before other calls on the
    /// communicator.
    #[error("the communicator is suspended; resume it first")]
    Suspended,
    /// A call on the communicator has failed. The communicator can only be shrunk, aborted or
    /// dropped.
    #[error("a call on the communicator failed; the communicator can only be shrunk, aborted or dropped")]
    Failed,
}

/// The error for a call or a wait that did not complete by its deadline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Timeout {
    /// Name of the call that waited.
    pub call: &'static str,
    /// Number of the call that was issued last on the communicator. Calls are numbered from 1.
    /// `None` if there is no such call, for example if the communicator did not exist yet.
    pub sequence: Option<u64>,
    /// Duration of the wait.
    pub waited: Duration,
    /// Name of the communicator, or `None` if the communicator did not exist yet.
    pub communicator: Option<Arc<CommunicatorName>>,
    /// Ranks that probably have not issued the call with the number `sequence`. Such a rank has
    /// reported an earlier call as its last call, or has not published a report in time. The list
    /// is empty if no such rank was found.
    pub missing: Vec<Rank>,
    /// The reports that other ranks have published. A report contains the last call of one rank.
    pub reports: Vec<RankReport>,
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.call)?;
        if let Some(sequence) = self.sequence {
            write!(f, " (call {sequence})")?;
        }
        if let Some(communicator) = &self.communicator {
            write!(f, " on {communicator}")?;
        }
        write!(f, ": timed out after {waited:?}", waited = self.waited)?;
        if !self.missing.is_empty() {
            write!(f, ", {} did not arrive", Ranks(&self.missing))?;
        }
        for report in &self.reports {
            write!(f, "; {report}")?;
        }
        Ok(())
    }
}

/// A report of the last call of one rank. A rank publishes a report after a wait, a call or
/// enqueued work of this rank has passed its deadline. A rank also publishes a report in
/// [`Communicator::report`](crate::Communicator::report).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankReport {
    /// The rank that published the report.
    pub rank: Rank,
    /// Number of the last call that this rank issued, counted from 1. The number is 0 if the rank
    /// has issued no call.
    pub sequence: u64,
    /// Name of the last call that this rank issued, or an empty string if the rank has issued no
    /// call.
    pub call: String,
}

impl fmt::Display for RankReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sequence {
            0 => write!(f, "{rank} has not issued any call", rank = self.rank),
            sequence => write!(f, "{rank} last issued {call} (call {sequence})", rank = self.rank, call = self.call),
        }
    }
}

/// An error for lost ranks. A rank is lost if its process has died or a connection to it has
/// failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct PeerLost {
    /// Name of the failed call. If a wait for enqueued work failed, this is the name of the last
    /// call that enqueued work.
    pub call: &'static str,
    /// Name of the communicator, or `None` if the failed call was not made on a communicator.
    pub communicator: Option<Arc<CommunicatorName>>,
    /// The lost ranks. The list is empty if these ranks are unknown.
    pub ranks: Vec<Rank>,
    /// NCCL's message for the last error, or an empty string if there is no message.
    pub last_error: String,
}

impl fmt::Display for PeerLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.call)?;
        if let Some(communicator) = &self.communicator {
            write!(f, " on {communicator}")?;
        }
        match self.ranks.as_slice() {
            [] => f.write_str(": a rank is lost")?,
            ranks => write!(f, ": lost peers: {}", Ranks(ranks))?,
        }
        if !self.last_error.is_empty() {
            write!(f, "; NCCL's last error: {text}", text = self.last_error.trim_end())?;
        }
        Ok(())
    }
}

/// A list of ranks, formatted for a message.
pub(super) struct Ranks<'a>(pub(super) &'a [Rank]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank" } else { "ranks" })?;
        for (index, rank) in self.0.iter().enumerate() {
            write!(f, "{} {}", if index == 0 { "" } else { "," }, rank.get())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn communicator() -> Option<Arc<CommunicatorName>> {
        Some(Arc::new(CommunicatorName { name: Some("tensor".into()), rank: Rank::new(1), ranks: 4, number: 7 }))
    }

    #[test]
    fn failure_message_contains_call_code_and_last_error() {
        let error = NcclError::from(Failure {
            call: "ncclAllReduce",
            code: ResultCode::INVALID_USAGE,
            meaning: "invalid usage",
            version: Version::new(2, 30, 4),
            last_error: "op 9 is not created\n".into(),
            communicator: communicator(),
        });
        let text = "ncclAllReduce on communicator \"tensor\" #7 (rank 1 of 4): ncclInvalidUsage (5) (NCCL 2.30.4): invalid usage; \
                    NCCL's last error: op 9 is not created";
        assert_eq!(error.to_string(), text);
        assert_eq!(format!("{error:?}"), text);
        assert_eq!(error.code(), Some(ResultCode::INVALID_USAGE));
    }

    #[test]
    fn timeout_message_names_the_missing_ranks() {
        let error = NcclError::from(Timeout {
            call: "all_reduce",
            sequence: Some(12),
            waited: Duration::from_secs(5),
            communicator: communicator(),
            missing: vec![Rank::new(2), Rank::new(3)],
            reports: vec![
                RankReport { rank: Rank::new(2), sequence: 11, call: "broadcast".into() },
                RankReport { rank: Rank::new(3), sequence: 0, call: String::new() },
            ],
        });
        assert_eq!(
            error.to_string(),
            "all_reduce (call 12) on communicator \"tensor\" #7 (rank 1 of 4): timed out after 5s, ranks 2, 3 did not arrive; \
             rank 2 last issued broadcast (call 11); rank 3 has not issued any call"
        );
    }

    #[test]
    fn unknown_result_code_keeps_its_number() {
        assert_eq!(ResultCode::new(sys::ncclResult_t(77)).to_string(), "unknown code (77)");
    }

    #[test]
    fn nccl_error_type_has_at_most_96_bytes() {
        assert!(size_of::<NcclError>() <= 96, "{}", size_of::<NcclError>());
    }

    #[test]
    fn bootstrap_error_has_the_rendezvous_error_as_source() {
        use std::error::Error as _;
        let inner = "no endpoint".parse::<peerweave_bootstrap::Endpoint>().expect_err("the text is not an endpoint");
        let error = NcclError::bootstrap("Communicator::from_world")(inner);
        assert!(error.source().is_some());
        assert!(error.to_string().starts_with("Communicator::from_world: "));
    }
}
