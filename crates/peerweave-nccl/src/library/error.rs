//! The errors, by cause: the caller, the library, a peer, a deadline.
//!
//! A message is a bug report: it names the call, the value, what was expected, and the library's
//! own text if there is one.
//!
//! Invariant: the variants that carry much are boxed, so that a result stays small enough for a
//! call that takes nanoseconds.

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use peerweave_bootstrap::BootstrapError;
use peerweave_driver::{CudaError, DriverError, MulticastDisabled};
use peerweave_dylib::{LoadError, Unsupported};

pub use crate::library::misuse::{Misuse, MisuseKind};
use crate::{Nccl, Rank, Version, sys};

/// Any error of this crate.
///
/// `Debug` shows the message too, since that is what a `main` that returns an error, and `unwrap`,
/// show to people.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// A bug in the caller. NCCL was not called.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The library that was found is too old for this call or option. NCCL was not called.
    #[error(transparent)]
    Unsupported(Box<Unsupported>),
    /// NCCL returned an error.
    #[error(transparent)]
    Nccl(Box<Failure>),
    /// There is no NCCL, or it cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// CUDA's driver is missing, or returned an error.
    #[error(transparent)]
    Cuda(#[from] DriverError),
    /// A deadline expired.
    #[error(transparent)]
    Timeout(Box<Timeout>),
    /// A rank is gone.
    #[error(transparent)]
    PeerLost(Box<PeerLost>),
    /// The process is a fork of the one that loaded NCCL, whose threads did not follow it. Only the
    /// parent can use NCCL.
    #[error("{call}: NCCL was loaded by process {loaded_by}, and this is its fork {process}; start a new program instead")]
    Forked {
        /// The call.
        call: &'static str,
        /// The process that loaded it.
        loaded_by: u32,
        /// This process.
        process: u32,
    },
    /// The communicator can no longer do this.
    #[error("{call} on {communicator}: {state}")]
    Dead {
        /// The call.
        call: &'static str,
        /// The communicator.
        communicator: Arc<CommunicatorName>,
        /// Why it cannot be used.
        state: DeadState,
    },
    /// Multicast objects are forbidden in this process. Neither NCCL nor the driver was called.
    #[error(transparent)]
    MulticastDisabled(#[from] MulticastDisabled),
    /// The rendezvous of the ranks failed.
    #[error("{call}: {source}")]
    Bootstrap {
        /// The call.
        call: &'static str,
        /// The error of the rendezvous.
        source: Arc<BootstrapError>,
    },
}

impl fmt::Debug for NcclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl NcclError {
    /// A mistake of the caller in `call`.
    #[cold]
    pub(crate) fn misuse(call: &'static str, kind: MisuseKind) -> Self {
        Misuse { call, kind }.into()
    }

    /// A failure of the rendezvous in `call`.
    pub(crate) fn bootstrap(call: &'static str) -> impl FnOnce(BootstrapError) -> Self {
        move |source| Self::Bootstrap { call, source: Arc::new(source) }
    }

    /// Returns the kind of misuse, if it is one.
    pub fn misuse_kind(&self) -> Option<&MisuseKind> {
        match self {
            Self::Misuse(misuse) => Some(&misuse.kind),
            _ => None,
        }
    }

    /// Returns the error of a call that returned `code`, such as one made through
    /// [`Communicator::as_raw`](crate::Communicator::as_raw): with the library's description of the
    /// code and its last error. [`Nccl::check`] returns it as a result.
    ///
    /// Any number is taken, also [`ResultCode::SUCCESS`] and codes that came later than this crate.
    ///
    /// ```no_run
    /// use peerweave_nccl::{Nccl, NcclError, ResultCode};
    ///
    /// let error = NcclError::from_code(Nccl::load()?, "ncclAllReduce", 5);
    /// assert_eq!(error.code(), Some(ResultCode::INVALID_USAGE));
    /// # Ok::<(), NcclError>(())
    /// ```
    pub fn from_code(nccl: Nccl, call: &'static str, code: impl Into<ResultCode>) -> Self {
        // In a fork nothing of the library is called.
        nccl.not_forked(call).err().unwrap_or_else(|| nccl.failure(call, sys::ncclResult_t(code.into().get()), None))
    }

    /// The same error, of another call that came to its end for the same reason.
    pub(crate) fn of_call(mut self, name: &'static str) -> Self {
        match &mut self {
            Self::Misuse(Misuse { call, .. }) => *call = name,
            Self::Timeout(timeout) => timeout.call = name,
            Self::PeerLost(lost) => lost.call = name,
            _ => {}
        }
        self
    }

    /// Returns NCCL's code, if NCCL returned one.
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

/// NCCL's answer to a call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Failure {
    /// NCCL's function.
    pub call: &'static str,
    /// Its code.
    pub code: ResultCode,
    /// NCCL's description of the code.
    pub meaning: &'static str,
    /// The version of the library.
    pub version: Version,
    /// NCCL's text of its last error. Empty where it left none. It is the process's last error:
    /// another thread's failure may have come between.
    pub last_error: String,
    /// The communicator, where there is one already.
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
            write!(f, "; NCCL's last error: {}", self.last_error.trim_end())?;
        }
        Ok(())
    }
}

/// A code that NCCL's functions return. Made of any integer; an error by itself, where no call is
/// known.
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
    /// Nothing is wrong. No error of this crate has it, unless it was made with it.
    pub const SUCCESS: Self = Self(sys::ncclResult_t::ncclSuccess.0);
    /// A call of CUDA failed.
    pub const UNHANDLED_CUDA_ERROR: Self = Self(sys::ncclResult_t::ncclUnhandledCudaError.0);
    /// A call of the operating system failed.
    pub const SYSTEM_ERROR: Self = Self(sys::ncclResult_t::ncclSystemError.0);
    /// A mistake in NCCL, or memory that was overwritten.
    pub const INTERNAL_ERROR: Self = Self(sys::ncclResult_t::ncclInternalError.0);
    /// An argument is invalid.
    pub const INVALID_ARGUMENT: Self = Self(sys::ncclResult_t::ncclInvalidArgument.0);
    /// The call is wrong here.
    pub const INVALID_USAGE: Self = Self(sys::ncclResult_t::ncclInvalidUsage.0);
    /// A peer or the network failed.
    pub const REMOTE_ERROR: Self = Self(sys::ncclResult_t::ncclRemoteError.0);
    /// A non-blocking communicator has not finished.
    pub const IN_PROGRESS: Self = Self(sys::ncclResult_t::ncclInProgress.0);
    /// A wait inside the library ran out. 2.30.3.
    pub const TIMEOUT: Self = Self(sys::ncclResult_t::ncclTimeout.0);

    /// Whether NCCL says so where a peer is gone, among other things.
    pub(crate) fn may_be_a_loss(self) -> bool {
        [Self::REMOTE_ERROR, Self::SYSTEM_ERROR, Self::INTERNAL_ERROR].contains(&self)
    }

    pub(crate) const fn new(code: sys::ncclResult_t) -> Self {
        Self(code.0)
    }

    /// Returns the number.
    pub const fn get(self) -> i32 {
        self.0
    }

    /// Returns NCCL's name of it, if this crate knows one.
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

/// A communicator in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommunicatorName {
    /// Its name, if it was given one.
    pub name: Option<String>,
    /// This process's rank.
    pub rank: Rank,
    /// How many ranks it has.
    pub ranks: usize,
    /// Counts the communicators of this process, to distinguish two of the same name.
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

/// Why a communicator cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeadState {
    /// It was aborted.
    #[error("it was aborted")]
    Aborted,
    /// It was finalized.
    #[error("it was finalized")]
    Finalized,
    /// It was revoked: it can only be split, shrunk or destroyed.
    #[error("it was revoked, and can only be split, shrunk or destroyed")]
    Revoked,
    /// It is suspended: resume it first.
    #[error("it is suspended, resume it first")]
    Suspended,
    /// A call on it failed in a way that it does not survive.
    #[error("it failed before, and can only be shrunk, aborted or dropped")]
    Failed,
}

/// A deadline that expired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Timeout {
    /// The call that was waited for.
    pub call: &'static str,
    /// The number of the call on the communicator, counted from 1; `None` before the first call.
    pub sequence: Option<u64>,
    /// How long the caller has waited.
    pub waited: Duration,
    /// The communicator, where there is one already.
    pub communicator: Option<Arc<CommunicatorName>>,
    /// The ranks that did not arrive, as far as the others know. Empty if that is unknown.
    pub missing: Vec<Rank>,
    /// What the ranks reported about themselves.
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
        write!(f, ": timed out after {:?}", self.waited)?;
        if !self.missing.is_empty() {
            write!(f, ", {} did not arrive", Ranks(&self.missing))?;
        }
        for report in &self.reports {
            write!(f, "; {report}")?;
        }
        Ok(())
    }
}

/// The report of a rank about itself when others waited for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankReport {
    /// The rank.
    pub rank: Rank,
    /// The last call that it issued, counted from 1; 0 before the first.
    pub sequence: u64,
    /// The name of that call.
    pub call: String,
}

impl fmt::Display for RankReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sequence {
            0 => write!(f, "{} has issued nothing yet", self.rank),
            sequence => write!(f, "{} last issued {} (call {sequence})", self.rank, self.call),
        }
    }
}

/// Ranks that are gone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct PeerLost {
    /// The call that was made or waited for.
    pub call: &'static str,
    /// The communicator.
    pub communicator: Option<Arc<CommunicatorName>>,
    /// The ranks that are gone. Empty where NCCL only says that some are.
    pub ranks: Vec<Rank>,
    /// NCCL's text of the error. Empty if it left none.
    pub last_error: String,
}

impl fmt::Display for PeerLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.call)?;
        if let Some(communicator) = &self.communicator {
            write!(f, " on {communicator}")?;
        }
        match self.ranks.as_slice() {
            [] => f.write_str(": a rank is gone")?,
            ranks => write!(f, ": gone: {}", Ranks(ranks))?,
        }
        if !self.last_error.is_empty() {
            write!(f, "; NCCL's last error: {}", self.last_error.trim_end())?;
        }
        Ok(())
    }
}

/// Ranks in a message.
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
    fn failure_reads_as_a_bug_report() {
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
    fn timeout_names_missing_ranks() {
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
             rank 2 last issued broadcast (call 11); rank 3 has issued nothing yet"
        );
    }

    #[test]
    fn unknown_code_keeps_its_number() {
        assert_eq!(ResultCode::new(sys::ncclResult_t(77)).to_string(), "unknown code (77)");
    }

    #[test]
    fn result_types_stay_small() {
        assert!(size_of::<NcclError>() <= 96, "{}", size_of::<NcclError>());
    }

    #[test]
    fn source_of_a_rendezvous_failure_is_kept() {
        use std::error::Error as _;
        let inner = "no endpoint".parse::<peerweave_bootstrap::Endpoint>().expect_err("it is none");
        let error = NcclError::bootstrap("Communicator::from_world")(inner);
        assert!(error.source().is_some());
        assert!(error.to_string().starts_with("Communicator::from_world: "));
    }
}
