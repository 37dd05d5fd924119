//! Converts [`CudaError`] and the errors in it to errors of the portable API.

use std::collections::HashSet;
use std::sync::Mutex;

use peerweave_bootstrap::{BootstrapError, Loss};
use peerweave_core::backend::TeamId;
use peerweave_core::{Error, KernelFailure, Mismatch, Misuse, MisuseKind, PeerCause, TeamName, Timeout};
use peerweave_driver::DriverError;
use peerweave_types::Pe;
use peerweave_vmm::VmmError;

use super::lock::lock;
use crate::error::{CudaError, at_fault};

/// Name of this backend in errors and descriptions.
pub(crate) const NAME: &str = "cuda";

/// Returns the [`TeamName`] of the team of all PEs, for errors.
pub(crate) fn world(n_pes: usize) -> TeamName {
    TeamName { id: TeamId::WORLD, size: n_pes }
}

pub(crate) fn cause(loss: &Loss) -> PeerCause {
    match loss {
        Loss::Left => PeerCause::Left,
        Loss::GaveUp { .. } => PeerCause::Failed,
        _ => PeerCause::Died,
    }
}

/// Returns the error of `call` for the lost PE `pe`. If `pe` gave up because another PE failed, the
/// error names the other PE.
pub(crate) fn of_loss(call: &'static str, team: TeamName, pe: Pe, loss: &Loss) -> Error {
    Error::Peer { call, team, pe: at_fault(pe, loss), cause: cause(loss) }
}

pub(crate) fn mismatch(team: TeamName, pe: Pe, mine: String, theirs: String) -> Error {
    Error::Mismatch(Box::new(Mismatch { team, pe, mine, theirs }))
}

/// Converts a [`CudaError`] to the portable error of `call` on `team`.
pub(crate) fn portable(call: &'static str, team: TeamName, error: CudaError) -> Error {
    match error {
        CudaError::PeLost { pe, cause: loss, .. } => of_loss(call, team, pe, &loss),
        CudaError::Kernel { failure, .. } => Error::Kernel(Box::new(KernelFailure {
            kernel: call,
            kind: failure.kind,
            operation: failure.operation,
            missing: failure.pe,
            exit_code: (failure.kind == Some(peerweave_types::FailureKind::Exit)).then_some(failure.found),
            message: failure.to_string(),
        })),
        CudaError::Stuck { waited, .. } => Timeout::new(call, team, waited, Vec::new()).into(),
        CudaError::PeFailed { pe, .. } => Error::Peer { call, team, pe, cause: PeerCause::Failed },
        CudaError::Bootstrap(error) => of_rendezvous(call, team, error),
        CudaError::Vmm(VmmError::Bootstrap(error)) => of_rendezvous(call, team, error),
        CudaError::Vmm(VmmError::Timeout { waited, missing, .. }) => Timeout::new(call, team, waited, missing).into(),
        CudaError::Vmm(VmmError::Peer { pe, cause: peerweave_vmm::PeerCause::Lost(loss), .. }) => of_loss(call, team, pe, &loss),
        CudaError::Vmm(VmmError::Peer { pe, .. }) => Error::Peer { call, team, pe, cause: PeerCause::Failed },
        CudaError::Vmm(VmmError::Misuse(peerweave_vmm::Misuse::Diverged { other, one_has, other_has, .. })) => {
            mismatch(team, other, one_has, other_has)
        }
        CudaError::Vmm(VmmError::Misuse(peerweave_vmm::Misuse::Exhausted { bytes, free, .. })) => Error::OutOfMemory {
            call,
            requested_bytes: bytes as usize,
            available_bytes: free as usize,
            what: "the symmetric heap of the GPU",
        },
        error => Error::system(call, error),
    }
}

/// Converts an error of `call`, which sets up a job of `n_pes` PEs. If a PE was lost, is missing or
/// has made a different call, the result names that PE. Otherwise, the result is an
/// [`Error::Setup`] that contains `error`.
pub(crate) fn of_set_up(call: &'static str, n_pes: usize, error: impl Into<CudaError>) -> Error {
    let error = error.into();
    let is_named = match &error {
        CudaError::PeLost { .. } => true,
        CudaError::Bootstrap(error) | CudaError::Vmm(VmmError::Bootstrap(error)) => names_a_pe(error),
        CudaError::Vmm(VmmError::Timeout { missing, .. }) => !missing.is_empty(),
        CudaError::Vmm(VmmError::Peer { cause, .. }) => matches!(cause, peerweave_vmm::PeerCause::Lost(_)),
        _ => false,
    };
    if is_named { portable(call, world(n_pes), error) } else { Error::setup(call, error) }
}

fn names_a_pe(error: &BootstrapError) -> bool {
    match error {
        BootstrapError::PeLost { .. } | BootstrapError::Mismatch { .. } => true,
        BootstrapError::Timeout { missing, .. } => !missing.is_empty(),
        _ => false,
    }
}

fn of_rendezvous(call: &'static str, team: TeamName, error: BootstrapError) -> Error {
    match error {
        BootstrapError::Timeout { waited, missing, .. } => Timeout::new(call, team, waited, missing).into(),
        BootstrapError::PeLost { pe, cause: loss, .. } => of_loss(call, team, pe, &loss),
        BootstrapError::PeFailed { pe, .. } => Error::Peer { call, team, pe, cause: PeerCause::Failed },
        BootstrapError::Mismatch { other, one_call, other_call, .. } => mismatch(team, other, one_call, other_call),
        error => Error::system(call, error),
    }
}

/// Converts an error of the CUDA driver to the portable error of `call`.
pub(crate) fn driver(call: &'static str, error: DriverError) -> Error {
    Error::system(call, error)
}

/// Returns the error of `call` for a request that this backend does not support.
pub(crate) fn unsupported(call: &'static str, why: &'static str) -> Error {
    Error::Unsupported { call, backend: NAME, why }
}

/// Returns the misuse error for a call that is not allowed after finalize.
pub(crate) fn finalized(call: &'static str) -> Error {
    Misuse { call, kind: MisuseKind::Finalized }.into()
}

/// Returns the error of a call on a team that was destroyed.
pub(crate) fn destroyed(call: &'static str) -> Error {
    Misuse { call, kind: MisuseKind::TeamDestroyed }.into()
}

/// Returns a `&'static str` with the given text. Stores equal texts once, and never frees them.
/// There are few different texts: they name PEs of one job, or say why NCCL is unavailable.
pub(crate) fn interned(text: String) -> &'static str {
    static TEXTS: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut texts = lock(&TEXTS);
    let texts = texts.get_or_insert_default();
    if let Some(known) = texts.get(text.as_str()) {
        return known;
    }
    let text: &'static str = text.leak();
    texts.insert(text);
    text
}
