//! What can go wrong, sorted by who is at fault: the caller, the library, the machine, a peer,
//! time.
//!
//! The caller's mistakes are `misuse.rs`, what the machine lacks `machine.rs`. No call fails here.
//! A message is a bug report: it names the call, the value, what was expected, and the library's
//! code where it gave one.
//!
//! Invariant: the variants that carry much are boxed, so that a result stays small.

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

/// Any failure of this crate.
///
/// `Debug` shows the message too, since that is what a `main` that returns an error, and `unwrap`,
/// show to people.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NvshmemError {
    /// A bug in the caller. NVSHMEM was not called.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The library that was found does not do this. NVSHMEM was not called.
    #[error(transparent)]
    Unsupported(Box<Unsupported>),
    /// NVSHMEM said no.
    #[error(transparent)]
    Nvshmem(Box<Failure>),
    /// There is no NVSHMEM, or it cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The library was found, and not the plug-ins that it needs beside it.
    #[error(transparent)]
    Plugin(Box<PluginError>),
    /// This machine, or how the job was started, cannot serve NVSHMEM. It was not called: it would
    /// have ended the process, or hung.
    #[error(transparent)]
    Preflight(Box<PreflightError>),
    /// CUDA's driver is missing, or said no.
    #[error(transparent)]
    Cuda(#[from] DriverError),
    /// A deadline expired.
    #[error(transparent)]
    Timeout(Box<Timeout>),
    /// The PEs did not make the same collective call, or one of them could not make it. Nobody
    /// called NVSHMEM.
    #[error(transparent)]
    Disagree(Box<Disagree>),
    /// The process is a fork of the one that loaded NVSHMEM, whose threads did not follow it. Only
    /// the parent can use NVSHMEM.
    #[error("{call}: NVSHMEM was loaded by process {loaded_by}, and this is its fork {process}; start a new program instead")]
    Forked {
        /// The call.
        call: &'static str,
        /// The process that loaded it.
        loaded_by: u32,
        /// This process.
        process: u32,
    },
    /// NVSHMEM can no longer be used in this process, or not any more through this handle.
    #[error("{call}: {state}")]
    Dead {
        /// The call.
        call: &'static str,
        /// What became of it.
        state: DeadState,
    },
    /// Multicast objects are forbidden in this process. Neither NVSHMEM nor the driver was called.
    #[error(transparent)]
    MulticastDisabled(#[from] MulticastDisabled),
    /// The PEs did not find each other.
    #[error("{call}: {source}")]
    Bootstrap {
        /// The call.
        call: &'static str,
        /// What the rendezvous said.
        source: Arc<BootstrapError>,
    },
}

impl fmt::Debug for NvshmemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl NvshmemError {
    /// A mistake of the caller in `call`.
    #[cold]
    pub(crate) fn misuse(call: &'static str, kind: MisuseKind) -> Self {
        Misuse { call, kind }.into()
    }

    /// A failure of the rendezvous in `call`.
    pub(crate) fn bootstrap(call: &'static str) -> impl FnOnce(BootstrapError) -> Self {
        move |source| Self::Bootstrap { call, source: Arc::new(source) }
    }

    /// The kind of misuse, where it is one.
    pub fn misuse_kind(&self) -> Option<&MisuseKind> {
        match self {
            Self::Misuse(misuse) => Some(&misuse.kind),
            _ => None,
        }
    }

    /// NVSHMEM's code, where NVSHMEM spoke.
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

/// NVSHMEM's answer to a call that failed. What it knows about the cause it prints to the standard
/// error stream; see [`Settings::debug`](crate::Settings::debug).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Failure {
    /// NVSHMEM's function.
    pub call: &'static str,
    /// Its code; `None` for a function that gives a null pointer.
    pub code: Option<StatusCode>,
    /// What was asked for, where that helps.
    pub detail: String,
    /// The version of the library.
    pub version: Version,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, version, detail, .. } = self;
        match self.code {
            Some(code) => write!(f, "{call}: {code} (NVSHMEM {version})")?,
            None => write!(f, "{call}: null (NVSHMEM {version})")?,
        }
        if detail.is_empty() { Ok(()) } else { write!(f, "; {detail}") }
    }
}

/// A code that NVSHMEM's functions return.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StatusCode(c_int);

impl StatusCode {
    /// An argument is invalid.
    pub const INVALID_VALUE: Self = Self(sys::NVSHMEMX_ERROR_INVALID_VALUE);
    /// Too little memory, of the device or of the symmetric heap.
    pub const OUT_OF_MEMORY: Self = Self(sys::NVSHMEMX_ERROR_OUT_OF_MEMORY);
    /// Not possible here.
    pub const NOT_SUPPORTED: Self = Self(sys::NVSHMEMX_ERROR_NOT_SUPPORTED);
    /// Something inside.
    pub const INTERNAL: Self = Self(sys::NVSHMEMX_ERROR_INTERNAL);

    pub(crate) const fn new(code: c_int) -> Self {
        Self(code)
    }

    /// The number.
    pub const fn get(self) -> i32 {
        self.0
    }

    /// NVSHMEM's name of it, if it has one.
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

/// What became of NVSHMEM in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadState {
    /// It was finalised.
    Finalized,
    /// Initialisation failed, and NVSHMEM cannot try it twice in a process.
    InitFailed,
    /// A call did not come back by its deadline. Its thread is still inside NVSHMEM, which lets no
    /// other in.
    Stuck {
        /// The call that did not come back.
        inside: &'static str,
    },
    /// NVSHMEM reported an error that leaves it unusable.
    Broken {
        /// The call that failed.
        by: &'static str,
    },
}

impl fmt::Display for DeadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finalized => f.write_str("the context was finalised"),
            Self::InitFailed => f.write_str("initialisation failed before in this process, and NVSHMEM cannot try it twice"),
            Self::Stuck { inside } => write!(f, "{inside} has not come back from NVSHMEM; end the process"),
            Self::Broken { by } => write!(f, "NVSHMEM is unusable since {by} failed; end the process"),
        }
    }
}

/// A wait that ended by its deadline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Timeout {
    /// The call.
    pub call: &'static str,
    /// How long it was waited for.
    pub waited: Duration,
    /// This PE, where it is known.
    pub pe: Option<Pe>,
    /// Who had not arrived, where it is known.
    pub missing: Vec<Pe>,
    /// Who was lost meanwhile, in the rendezvous' words.
    pub lost: Option<String>,
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, waited, .. } = self;
        write!(f, "{call}: not done after {waited:.1?}")?;
        if let Some(pe) = self.pe {
            write!(f, " on {pe}")?;
        }
        if !self.missing.is_empty() {
            write!(f, "; not there: {}", list(&self.missing))?;
        }
        self.lost.as_ref().map_or(Ok(()), |lost| write!(f, "; {lost}"))
    }
}

fn list(pes: &[Pe]) -> String {
    pes.iter().map(Pe::to_string).collect::<Vec<_>>().join(", ")
}

/// PEs that made different collective calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {pe} came with `{theirs}`, this PE with `{ours}`")]
#[non_exhaustive]
pub struct Disagree {
    /// The call.
    pub call: &'static str,
    /// Another PE.
    pub pe: Pe,
    /// Its arguments, or why it could not call.
    pub theirs: String,
    /// This PE's.
    pub ours: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_in_errors_are_those_of_rust() {
        use peerweave_types::{DType, ReduceOp};
        let kind = MisuseKind::Reduction { op: ReduceOp::And, dtype: DType::F32 };
        assert_eq!(kind.to_string(), "and of f32 elements is not among NVSHMEM's reductions");
    }

    #[test]
    fn results_stay_small() {
        assert!(size_of::<NvshmemError>() <= 104, "{}", size_of::<NvshmemError>());
    }

    #[test]
    fn messages_name_what_was_missing() {
        let timeout = Timeout {
            call: "nvshmem_malloc",
            waited: Duration::from_secs(20),
            pe: Some(Pe::new(1)),
            missing: vec![Pe::new(0), Pe::new(3)],
            lost: None,
        };
        assert_eq!(timeout.to_string(), "nvshmem_malloc: not done after 20.0s on PE 1; not there: PE 0, PE 3");
        assert_eq!(StatusCode::new(7).to_string(), "NVSHMEMX_ERROR_INTERNAL (7)");
        assert_eq!(StatusCode::new(42).to_string(), "unknown code (42)");
    }
}
