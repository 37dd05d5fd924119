//! The error type of this crate, [`CudaError`], and the failure report of a kernel.

use std::fmt;
use std::time::Duration;

use peerweave_bootstrap::{BootstrapError, Loss};
use peerweave_device::launch::NoVariant;
use peerweave_driver::DriverError;
use peerweave_driver::launch::LaunchError;
use peerweave_link::LinkError;
use peerweave_nvshmem::NvshmemError;
use peerweave_types::{FailureKind, KernelOp, Pe};
use peerweave_vmm::VmmError;

use crate::route::RoutesError;

/// An error that a function of this crate returns. `Debug` prints the message of `Display`.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A PE was lost while this call waited, or while kernels waited for the PE.
    #[error("{call}: {pe} is lost: {cause}{}", reported(.report))]
    PeLost {
        /// The call that waited.
        call: &'static str,
        /// The PE that was lost first.
        pe: Pe,
        /// The cause of the loss.
        cause: Loss,
        /// The failure report of a kernel on the calling PE, if a kernel has reported one.
        report: Option<KernelFailure>,
    },
    /// A kernel reported a failure.
    #[error("{call}: {failure}")]
    Kernel {
        /// The call that waited for the kernel.
        call: &'static str,
        /// The failure report of the kernel.
        failure: KernelFailure,
    },
    /// The work of a stream did not complete in time, even after its kernels had been requested to
    /// end. For [`Gpu::end`](crate::Gpu::end), this error can also mean that threads of this
    /// process did not release the rendezvous in time.
    #[error("{call}: timed out after {waited:.1?}: the GPU has not completed its work, or memory of the GPU is still in use")]
    Stuck {
        /// The call that waited.
        call: &'static str,
        /// The time for which the call waited.
        waited: Duration,
    },
    /// A kernel failed earlier, so the state of the words by which teams synchronise is unknown.
    /// All PEs must call [`Gpu::recover`](crate::Gpu::recover).
    #[error("{call}: a kernel failed earlier, so teams cannot synchronise; call Gpu::recover on all PEs first ({failure})")]
    Failed {
        /// The call that failed.
        call: &'static str,
        /// Description of the earlier failure on this PE's GPU. `Gpu::recover` clears this failure.
        failure: String,
    },
    /// An argument of a call is invalid. This is a bug in the caller.
    #[error("{call}: {what} is {value}, expected {expected}")]
    Misuse {
        /// The call that failed.
        call: &'static str,
        /// Name of the invalid argument.
        what: &'static str,
        /// Value of the invalid argument.
        value: String,
        /// Description of the values that are valid for the argument.
        expected: String,
    },
    /// A collective call failed on another PE, and therefore on this PE too.
    #[error("{call}: the call failed on {pe}: {message}")]
    PeFailed {
        /// The call that failed.
        call: &'static str,
        /// The first PE on which the call failed.
        pe: Pe,
        /// The error message of PE `pe`.
        message: String,
    },
    /// The kernel's crate has no PTX for the device.
    #[error("{kernel}: {reason}")]
    NoPtx {
        /// Name of the kernel.
        kernel: &'static str,
        /// The PTX variant that the GPU requires. If the build contains no PTX at all, also the
        /// reason for that.
        reason: NoVariant,
    },
    /// A file with a route table, which selects the algorithms of collectives, cannot be used.
    #[error(transparent)]
    Routes(#[from] RoutesError),
    /// An error of the CUDA driver.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// An error of the symmetric heap in virtual memory.
    #[error(transparent)]
    Vmm(#[from] VmmError),
    /// An error of NVSHMEM.
    #[error(transparent)]
    Nvshmem(#[from] NvshmemError),
    /// An error from compiling or linking a kernel.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// An error of the rendezvous.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
}

pub(crate) fn misuse(call: &'static str, what: &'static str, value: impl ToString, expected: &str) -> CudaError {
    CudaError::Misuse { call, what, value: value.to_string(), expected: expected.to_owned() }
}

impl From<LaunchError> for CudaError {
    fn from(error: LaunchError) -> Self {
        Self::Driver(error.into())
    }
}

impl CudaError {
    /// Returns the PE that caused this error. Returns `None` if the error names no PE.
    pub fn pe(&self) -> Option<Pe> {
        match self {
            Self::PeLost { pe, cause, .. } | Self::Bootstrap(BootstrapError::PeLost { pe, cause, .. }) => {
                Some(at_fault(*pe, cause))
            }
            Self::PeFailed { pe, .. } | Self::Bootstrap(BootstrapError::PeFailed { pe, .. }) => Some(*pe),
            Self::Kernel { failure, .. } => failure.pe,
            Self::Vmm(VmmError::Peer { pe, .. }) => Some(*pe),
            _ => None,
        }
    }
}

/// Returns the PE that caused the loss of `pe`: the first missing PE if `pe` gave up because PEs
/// were missing, otherwise `pe` itself.
pub(crate) fn at_fault(pe: Pe, loss: &Loss) -> Pe {
    match loss {
        Loss::GaveUp { missing } => missing.first().copied().unwrap_or(pe),
        _ => pe,
    }
}

fn reported(report: &Option<KernelFailure>) -> String {
    report.as_ref().map_or_else(String::new, |report| format!(" ({report})"))
}

impl fmt::Debug for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The failure report of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelFailure {
    /// The kind of failure. `None` if this version of Peerweave does not know the number in the
    /// report.
    pub kind: Option<FailureKind>,
    /// The operation that failed. `None` if this version of Peerweave does not know the number in
    /// the report.
    pub operation: Option<KernelOp>,
    /// The PE that did not arrive or is unreachable. `None` if the failure concerns no PE.
    pub pe: Option<Pe>,
    /// The number of the operation's team. `None` if the operation has no team.
    pub team: Option<u32>,
    /// The value that the kernel expected: a value of a signal, an epoch, or a number of bytes.
    pub expected: u64,
    /// The value that the kernel found instead of [`Self::expected`], or the code that the kernel
    /// passed to `Context::exit`.
    pub found: u64,
    /// Linear index of the block that failed first (x fastest, then y, then z).
    pub block: u32,
    /// Linear index, in its block, of the thread that failed first.
    pub thread: u32,
}

impl fmt::Display for KernelFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation {
            Some(operation) => write!(f, "{operation} failed in a kernel: ")?,
            None => write!(f, "a kernel failed: ")?,
        }
        match self.kind {
            Some(kind) => write!(f, "{kind}")?,
            None => write!(f, "the reason is unknown")?,
        }
        if let Some(pe) = self.pe {
            write!(f, ", {pe}")?;
        }
        if let Some(team) = self.team {
            write!(f, ", team {team}")?;
        }
        match (self.kind, self.pe) {
            (Some(FailureKind::Exit), _) => write!(f, " (code {}", self.found)?,
            (Some(FailureKind::NoSuchPeer), Some(_)) => write!(f, " (expected a PE below {}", self.expected)?,
            _ => write!(f, " (found {}, expected {}", self.found, self.expected)?,
        }
        write!(f, "; block {}, thread {})", self.block, self.thread)
    }
}
