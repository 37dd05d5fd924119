//! Errors, grouped by cause: the caller, the library, the machine, another PE, or a deadline.
//!
//! `misuse.rs` has the errors for invalid arguments, `machine.rs` those for problems of the
//! machine. A message names the call, the value and what was expected. The message also has the
//! library's status code if the library returned a code.
//!
//! Invariant: large variants are boxed, so that results stay small.

mod machine;
mod misuse;

pub use machine::{PluginError, PreflightError};
pub use misuse::{Misuse, MisuseKind};

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use peerweave_bootstrap::BootstrapError;
use peerweave_driver::{CudaError, DriverError, MulticastDisabled};
use peerweave_dylib::{LoadError, Unsupported};
use peerweave_types::Pe;

use crate::{Version, sys};

/// Any error that this crate returns.
///
/// The `Debug` output is the same message as the `Display` output. So the message is readable in
/// the panic of an `unwrap`, and if `main` returns the error.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NvshmemError {
    /// The call is invalid, for example because of an invalid argument. NVSHMEM was not called.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The NVSHMEM library lacks the function that the call needs, or does not implement it.
    #[error(transparent)]
    Unsupported(Box<Unsupported>),
    /// NVSHMEM returned an error, or cannot satisfy a request for memory.
    #[error(transparent)]
    Nvshmem(Box<Failure>),
    /// No usable NVSHMEM library was found.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The NVSHMEM library was found, but a plug-in that the library needs is missing or cannot be
    /// loaded.
    #[error(transparent)]
    Plugin(Box<PluginError>),
    /// A check has found that NVSHMEM cannot work on this machine or in this job. Without this
    /// check, NVSHMEM would end the process or hang. NVSHMEM was not initialised, except if the
    /// error is [`PreflightError::NotAlone`].
    #[error(transparent)]
    Preflight(Box<PreflightError>),
    /// The CUDA driver is missing or returned an error, or a call to the driver is not possible.
    #[error(transparent)]
    Cuda(#[from] DriverError),
    /// The deadline passed before the call was complete.
    #[error(transparent)]
    Timeout(Box<Timeout>),
    /// The PEs made different collective calls, or a PE could not make the call. NVSHMEM was then
    /// not called on any PE. An allocation that has succeeded only on some PEs returns this error
    /// too, and makes the context unusable ([`DeadState::Broken`]).
    #[error(transparent)]
    Disagree(Box<Disagree>),
    /// This process was forked from a process that had loaded NVSHMEM. Only the parent process can
    /// use NVSHMEM.
    #[error("{call}: process {process} was forked from process {loaded_by}, which loaded NVSHMEM; start a new program instead")]
    Forked {
        /// Name of the call.
        call: &'static str,
        /// Process ID of the process that loaded NVSHMEM.
        loaded_by: u32,
        /// Process ID of this process.
        process: u32,
    },
    /// NVSHMEM can no longer be used in this process or through this context.
    #[error("{call}: {state}")]
    Dead {
        /// Name of the call.
        call: &'static str,
        /// The reason why NVSHMEM cannot be used.
        state: DeadState,
    },
    /// Multicast objects are disabled in this process. Neither NVSHMEM nor the driver was called.
    #[error(transparent)]
    MulticastDisabled(#[from] MulticastDisabled),
    /// The rendezvous, at which the PEs exchange data, returned an error.
    #[error("{call}: {source}")]
    Bootstrap {
        /// Name of the call.
        call: &'static str,
        /// The error that the rendezvous returned.
        source: Arc<BootstrapError>,
    },
}

impl fmt::Debug for NvshmemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl NvshmemError {
    /// Returns the error for an invalid argument of `call`.
    #[cold]
    pub(crate) fn misuse(call: &'static str, kind: MisuseKind) -> Self {
        Misuse { call, kind }.into()
    }

    /// Returns the error for a failure of the rendezvous in `call`.
    pub(crate) fn bootstrap(call: &'static str) -> impl FnOnce(BootstrapError) -> Self {
        move |source| Self::Bootstrap { call, source: Arc::new(source) }
    }

    /// Returns the kind of misuse, or `None` if the error has a different cause.
    pub fn misuse_kind(&self) -> Option<&MisuseKind> {
        match self {
            Self::Misuse(misuse) => Some(&misuse.kind),
            _ => None,
        }
    }

    /// Returns NVSHMEM's status code, or `None` if NVSHMEM returned no code.
    pub fn code(&self) -> Option<StatusCode> {
        match self {
            Self::Nvshmem(failure) => failure.code,
            _ => None,
        }
    }
}

macro_rules! boxed {
    ($($Variant:ident($Inner:ident)),*) => {$(
        impl From<$Inner> for NvshmemError {
            fn from(error: $Inner) -> Self {
                Self::$Variant(Box::new(error))
            }
        }
    )*};
}
boxed!(
    Unsupported(Unsupported),
    Nvshmem(Failure),
    Plugin(PluginError),
    Preflight(PreflightError),
    Timeout(Timeout),
    Disagree(Disagree)
);

impl From<CudaError> for NvshmemError {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error.into())
    }
}

/// An error that NVSHMEM returned, or a request for memory that NVSHMEM cannot satisfy. NVSHMEM
/// prints details to standard error; see [`Settings::debug`](crate::Settings::debug).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Failure {
    /// Name of the NVSHMEM function that failed. If `detail` says that NVSHMEM was not called, this
    /// is the function that the call would have used.
    pub call: &'static str,
    /// The status code. `None` if there is no error code, for example because the function returned
    /// a null pointer, or because NVSHMEM was not called.
    pub code: Option<StatusCode>,
    /// Details that help to find the cause, such as the arguments; empty if there are none.
    pub detail: String,
    /// Version of the NVSHMEM library.
    pub version: Version,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, version, detail, .. } = self;
        match self.code {
            Some(code) => write!(f, "{call}: {code} (NVSHMEM {version})")?,
            None => write!(f, "{call}: failed without a status code (NVSHMEM {version})")?,
        }
        if detail.is_empty() { Ok(()) } else { write!(f, "; {detail}") }
    }
}

/// A status code that NVSHMEM returned.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StatusCode(c_int);

impl StatusCode {
    /// An argument is invalid.
    pub const INVALID_VALUE: Self = Self(sys::NVSHMEMX_ERROR_INVALID_VALUE);
    /// The device or the symmetric heap has too little memory.
    pub const OUT_OF_MEMORY: Self = Self(sys::NVSHMEMX_ERROR_OUT_OF_MEMORY);
    /// The function is not supported.
    pub const NOT_SUPPORTED: Self = Self(sys::NVSHMEMX_ERROR_NOT_SUPPORTED);
    /// NVSHMEM has an internal error.
    pub const INTERNAL: Self = Self(sys::NVSHMEMX_ERROR_INTERNAL);

    pub(crate) const fn new(code: c_int) -> Self {
        Self(code)
    }

    /// Returns the code as a number.
    pub const fn get(self) -> i32 {
        self.0
    }

    /// Returns the name that NVSHMEM gives this code, or `None` if the code is unknown.
    pub fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 8] = [
            "NVSHMEMX_SUCCESS",
            "NVSHMEMX_ERROR_INVALID_VALUE",
            "NVSHMEMX_ERROR_OUT_OF_MEMORY",
            "NVSHMEMX_ERROR_NOT_SUPPORTED",
            "NVSHMEMX_ERROR_SYMMETRY",
            "NVSHMEMX_ERROR_GPU_NOT_SELECTED",
            "NVSHMEMX_ERROR_COLLECTIVE_LAUNCH_FAILED",
            "NVSHMEMX_ERROR_INTERNAL",
        ];
        usize::try_from(self.0).ok().and_then(|code| NAMES.get(code).copied())
    }
}

impl fmt::Display for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name().unwrap_or("unknown code"), self.0)
    }
}

impl fmt::Debug for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The reason why NVSHMEM can no longer be used in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadState {
    /// The context has been finalised.
    Finalized,
    /// The initialisation has failed. After a failure, NVSHMEM cannot be initialised again in the
    /// same process.
    InitFailed,
    /// A call has timed out. The thread that runs the call is still inside NVSHMEM, so no other
    /// thread may call NVSHMEM.
    Stuck {
        /// Name of the call that has not returned.
        inside: &'static str,
    },
    /// A call has failed, and the failure has made NVSHMEM unusable.
    Broken {
        /// Name of the call that failed.
        by: &'static str,
    },
}

impl fmt::Display for DeadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finalized => f.write_str("the context has been finalised"),
            Self::InitFailed => {
                f.write_str("NVSHMEM's initialisation has failed and cannot be repeated in this process; end the process")
            }
            Self::Stuck { inside } => write!(f, "the call {inside} has not returned from NVSHMEM; end the process"),
            Self::Broken { by } => write!(f, "NVSHMEM is unusable because the call {by} failed; end the process"),
        }
    }
}

/// The error for a wait that has timed out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Timeout {
    /// Name of the call that waited.
    pub call: &'static str,
    /// Duration of the wait.
    pub waited: Duration,
    /// The number of this PE. `None` if the number was not known when the wait timed out.
    pub pe: Option<Pe>,
    /// The PEs that had not arrived when the wait timed out; empty if they are unknown.
    pub missing: Vec<Pe>,
    /// The message of the rendezvous about a lost PE; `None` if the rendezvous reports no lost PE.
    pub lost: Option<String>,
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, waited, .. } = self;
        write!(f, "{call}: timed out after {waited:.1?}")?;
        if let Some(pe) = self.pe {
            write!(f, " on {pe}")?;
        }
        if !self.missing.is_empty() {
            write!(f, "; missing: {}", list(&self.missing))?;
        }
        self.lost.as_ref().map_or(Ok(()), |lost| write!(f, "; {lost}"))
    }
}

fn list(pes: &[Pe]) -> String {
    pes.iter().map(Pe::to_string).collect::<Vec<_>>().join(", ")
}

/// The error for a collective call that failed because PEs made different calls, or because a PE
/// could not make the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {pe} {theirs}; this PE called with `{ours}`, expected the same call on all PEs")]
#[non_exhaustive]
pub struct Disagree {
    /// Name of the collective call that this PE made.
    pub call: &'static str,
    /// A PE that made a different call, or could not make the call.
    pub pe: Pe,
    /// The call that `pe` made, or the reason why `pe` could not make the call.
    pub theirs: OtherCall,
    /// The arguments that this PE passed.
    pub ours: String,
}

/// The behaviour of the PE that a [`Disagree`] error names: the call that this PE made, or the
/// reason why this PE made no call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OtherCall {
    /// The PE made a call with these arguments. If the PE called a different function, the text
    /// starts with the name of that function.
    #[error("called with `{0}`")]
    Made(String),
    /// The PE could not make the call, for this reason.
    #[error("could not make the call ({0})")]
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reduction_error_names_the_rust_type_of_the_elements() {
        use peerweave_types::{DType, ReduceOp};
        let kind = MisuseKind::Reduction { op: ReduceOp::And, dtype: DType::F32 };
        assert_eq!(kind.to_string(), "NVSHMEM does not support the reduction `and` for elements of type f32");
    }

    #[test]
    fn nvshmem_error_type_is_at_most_104_bytes() {
        assert!(size_of::<NvshmemError>() <= 104, "{}", size_of::<NvshmemError>());
    }

    #[test]
    fn timeout_error_names_the_missing_pes() {
        let timeout = Timeout {
            call: "nvshmem_malloc",
            waited: Duration::from_secs(20),
            pe: Some(Pe::new(1)),
            missing: vec![Pe::new(0), Pe::new(3)],
            lost: None,
        };
        assert_eq!(timeout.to_string(), "nvshmem_malloc: timed out after 20.0s on PE 1; missing: PE 0, PE 3");
        assert_eq!(StatusCode::new(7).to_string(), "NVSHMEMX_ERROR_INTERNAL (7)");
        assert_eq!(StatusCode::new(42).to_string(), "unknown code (42)");
    }
}
