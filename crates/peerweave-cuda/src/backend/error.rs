//! Converts errors of the GPU crates to errors of the portable API.

use peerweave_bootstrap::{BootstrapError, Loss};
use peerweave_core::backend::TeamId;
use peerweave_core::{Error, KernelFailure, Mismatch, Misuse, MisuseKind, PeerCause, TeamName, Timeout};
use peerweave_driver::DriverError;
use peerweave_types::Pe;
use peerweave_vmm::VmmError;

use crate::error::CudaError;

/// Name of the backend.
pub(super) const NAME: &str = "cuda";

/// Returns the name of the team of all PEs.
pub(super) fn world(n_pes: usize) -> TeamName {
    TeamName { id: TeamId::WORLD, size: n_pes }
}

pub(super) fn cause(loss: &Loss) -> PeerCause {
    match loss {
        Loss::Left => PeerCause::Left,
        Loss::GaveUp { .. } => PeerCause::Failed,
        _ => PeerCause::Died,
    }
}

pub(super) fn mismatch(team: TeamName, pe: Pe, mine: String, theirs: String) -> Error {
    Error::Mismatch(Box::new(Mismatch { team, pe, mine, theirs }))
}

fn timeout(call: &'static str, team: TeamName, waited: std::time::Duration, missing: Vec<Pe>) -> Error {
    Error::Timeout(Box::new(Timeout { call, team, waited, missing, running: None }))
}

/// Returns the error of `call` on `team` for a failure of the GPU crates.
pub(super) fn portable(call: &'static str, team: TeamName, error: CudaError) -> Error {
    match error {
        CudaError::PeLost { pe, cause: loss, .. } => Error::Peer { call, team, pe, cause: cause(&loss) },
        CudaError::Kernel { failure, .. } => Error::Kernel(Box::new(KernelFailure {
            kernel: call,
            kind: failure.kind,
            operation: failure.operation,
            missing: failure.pe,
            message: failure.to_string(),
        })),
        CudaError::Stuck { waited, .. } => timeout(call, team, waited, Vec::new()),
        CudaError::PeFailed { pe, .. } => Error::Peer { call, team, pe, cause: PeerCause::Failed },
        CudaError::Bootstrap(error) => of_rendezvous(call, team, error),
        CudaError::Vmm(VmmError::Bootstrap(error)) => of_rendezvous(call, team, error),
        CudaError::Vmm(VmmError::Timeout { waited, missing, .. }) => timeout(call, team, waited, missing),
        CudaError::Vmm(VmmError::Peer { pe, cause: peerweave_vmm::PeerCause::Lost(loss), .. }) => {
            Error::Peer { call, team, pe, cause: cause(&loss) }
        }
        CudaError::Vmm(VmmError::Peer { pe, .. }) => Error::Peer { call, team, pe, cause: PeerCause::Failed },
        CudaError::Vmm(VmmError::Misuse(peerweave_vmm::Misuse::Diverged { other, one_has, other_has, .. })) => {
            mismatch(team, other, one_has, other_has)
        }
        CudaError::Vmm(VmmError::Misuse(peerweave_vmm::Misuse::Exhausted { bytes, free, .. })) => Error::OutOfMemory {
            call,
            requested_bytes: bytes as usize,
            available_bytes: free as usize,
            what: "of the symmetric heap of the GPU",
        },
        error => Error::system(call, error),
    }
}

fn of_rendezvous(call: &'static str, team: TeamName, error: BootstrapError) -> Error {
    match error {
        BootstrapError::Timeout { waited, missing, .. } => timeout(call, team, waited, missing),
        BootstrapError::PeLost { pe, cause: loss, .. } => Error::Peer { call, team, pe, cause: cause(&loss) },
        BootstrapError::PeFailed { pe, .. } => Error::Peer { call, team, pe, cause: PeerCause::Failed },
        BootstrapError::Mismatch { other, one_call, other_call, .. } => mismatch(team, other, one_call, other_call),
        error => Error::system(call, error),
    }
}

/// Returns the error of `call` for a failure of the driver.
pub(super) fn driver(call: &'static str, error: DriverError) -> Error {
    Error::system(call, error)
}

/// Returns the error of `call` for a request that this backend does not support.
pub(super) fn unsupported(call: &'static str, why: &'static str) -> Error {
    Error::Unsupported { call, backend: NAME, why }
}

/// Returns the error of a call that another thread's finalize has overtaken.
pub(super) fn finalized(call: &'static str) -> Error {
    Misuse { call, kind: MisuseKind::Finalized }.into()
}

/// Returns the error of a call whose team another thread has destroyed.
pub(super) fn destroyed(call: &'static str) -> Error {
    Misuse { call, kind: MisuseKind::TeamDestroyed }.into()
}
