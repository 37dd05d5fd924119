//! Why a GPU of a job did not do what was asked.

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

/// Why a GPU of a job did not do what was asked. `Debug` shows the message too.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A PE died while kernels, or this call, waited for it.
    #[error("{call}: {pe} is lost: {cause}{}", reported(.report))]
    PeLost {
        /// The call that waited.
        call: &'static str,
        /// The PE that was lost first.
        pe: Pe,
        /// How it was lost.
        cause: Loss,
        /// What a kernel of this PE reported, if one did.
        report: Option<KernelFailure>,
    },
    /// A kernel reported a failure.
    #[error("{call}: {failure}")]
    Kernel {
        /// The call that waited for the kernel.
        call: &'static str,
        /// What the kernel reported.
        failure: KernelFailure,
    },
    /// The work of a stream did not end in time, and asking its kernels to end did not help.
    #[error("{call}: the stream was still busy after {waited:.1?}")]
    Stuck {
        /// The call that waited.
        call: &'static str,
        /// How long it waited.
        waited: Duration,
    },
    /// An earlier failure left the teams' words in an unknown state.
    #[error("{call}: a kernel failed before, so its teams cannot synchronise: call Gpu::recover on all PEs first ({failure})")]
    Failed {
        /// The call that is refused.
        call: &'static str,
        /// The first failure.
        failure: String,
    },
    /// An argument that cannot be.
    #[error("{call}: {what} is {value}, expected {expected}")]
    Misuse {
        /// What was called.
        call: &'static str,
        /// The argument.
        what: &'static str,
        /// Its value.
        value: String,
        /// Values that can be.
        expected: String,
    },
    /// A collective call failed on another PE, so that it is an error here too.
    #[error("{call}: it failed on {pe}: {message}")]
    PeFailed {
        /// The call.
        call: &'static str,
        /// The first PE that it failed on.
        pe: Pe,
        /// What it reported.
        message: String,
    },
    /// The kernels' crate has no PTX for the device.
    #[error("{kernel}: {reason}")]
    NoPtx {
        /// The kernel.
        kernel: &'static str,
        /// What is there, and what to install.
        reason: NoVariant,
    },
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The symmetric heap of virtual memory.
    #[error(transparent)]
    Vmm(#[from] VmmError),
    /// NVSHMEM.
    #[error(transparent)]
    Nvshmem(#[from] NvshmemError),
    /// Compiling or linking.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The rendezvous.
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
    /// The PE that is to blame, if one is.
    pub fn pe(&self) -> Option<Pe> {
        match self {
            Self::PeLost { pe, .. } | Self::PeFailed { pe, .. } => Some(*pe),
            Self::Kernel { failure, .. } => failure.pe,
            Self::Vmm(VmmError::Peer { pe, .. }) => Some(*pe),
            Self::Bootstrap(BootstrapError::PeLost { pe, .. } | BootstrapError::PeFailed { pe, .. }) => Some(*pe),
            _ => None,
        }
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

/// What a kernel wrote when an operation of it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelFailure {
    /// Why it failed; `None` for a number that this version does not know.
    pub kind: Option<FailureKind>,
    /// The operation; `None` for a number that this version does not know.
    pub operation: Option<KernelOp>,
    /// The PE that is missing or cannot be reached.
    pub pe: Option<Pe>,
    /// The number of the team.
    pub team: Option<u32>,
    /// What was expected: a signal's value, an epoch, a number of bytes.
    pub expected: u64,
    /// What was found.
    pub found: u64,
    /// The block that failed first, counted along x, then y, then z.
    pub block: u32,
    /// The thread of that block, counted likewise.
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
            None => write!(f, "unknown reason")?,
        }
        if let Some(pe) = self.pe {
            write!(f, ", {pe}")?;
        }
        if let Some(team) = self.team {
            write!(f, ", team {team}")?;
        }
        write!(f, " (found {}, expected {}; block {}, thread {})", self.found, self.expected, self.block, self.thread)
    }
}
