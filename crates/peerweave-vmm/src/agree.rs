//! Exchanges the outcomes of a collective call among the PEs, so that each PE knows whether the
//! call failed on another PE. Converts the errors of the exchange to [`VmmError`].
//!
//! [`peerweave_bootstrap::agree`] implements the exchange. Invariant: [`Disagreement::Known`] means
//! that all PEs know of the failure. Every PE then undoes the call, so no PE waits for another PE
//! until the deadline.

use peerweave_bootstrap::agree::{self, Failure, Members};
use peerweave_bootstrap::{BootstrapError, Rendezvous};
use peerweave_types::Pe;

use crate::error::{Misuse, PeerCause, VmmError};

/// The error of [`agree()`], which states whether all PEs know that the call has failed.
pub(crate) enum Disagreement {
    /// All PEs know that the call has failed, so each PE undoes the call.
    Known(VmmError),
    /// The exchange itself failed, so this PE does not know the outcomes of the other PEs. Some PEs
    /// may have completed the call, and others may have undone it.
    Unknown(VmmError),
}

impl From<Disagreement> for VmmError {
    fn from(disagreement: Disagreement) -> Self {
        match disagreement {
            Disagreement::Known(error) | Disagreement::Unknown(error) => error,
        }
    }
}

/// Sends this PE's outcome of a collective call to all PEs of the job, and receives their outcomes.
/// An outcome is a blob of data or an error. If no PE has an error, returns the blobs of all PEs,
/// in ascending order of the PEs.
///
/// `label` identifies the exchange. `call` describes the call: its name, its arguments and the
/// state before the call. `label` and `call` must be the same on all PEs. If `outcome` is an error,
/// this function returns that error, unless the exchange itself fails or the PEs pass different
/// calls.
pub(crate) fn agree(
    rendezvous: &Rendezvous,
    label: &str,
    call: &str,
    outcome: Result<Vec<u8>, VmmError>,
) -> Result<Vec<Vec<u8>>, Disagreement> {
    let is_consequence = |error: &VmmError| matches!(error, VmmError::Peer { .. });
    let said = outcome.as_deref().map_err(|error| Failure { reason: error.to_string(), is_consequence: is_consequence(error) });
    let diverged = |call: String, one, one_has, other, other_has| {
        Disagreement::Known(Misuse::Diverged { call, one, one_has, other, other_has }.into())
    };
    agree::agree(rendezvous, Members::All, label, call, said).map_err(|disagreement| match (disagreement, outcome) {
        // Every PE gets the error `Mismatch`.
        (agree::Disagreement::Rendezvous(BootstrapError::Mismatch { call, one, one_call, other, other_call }), _) => {
            diverged(call, one, one_call, other, other_call)
        }
        (agree::Disagreement::Rendezvous(error), outcome) => {
            if let Err(own) = outcome {
                // The exchange's error is returned instead of `own`, because other PEs may not know
                // of this PE's failure.
                tracing::warn!(call, error = %own, "this PE failed, and other PEs may not have been notified");
            }
            Disagreement::Unknown(error.into())
        }
        (_, Err(own)) => Disagreement::Known(own),
        (agree::Disagreement::Failed { pe, reason }, Ok(_)) => {
            Disagreement::Known(VmmError::Peer { call: call.to_owned(), pe, cause: PeerCause::Failed(reason) })
        }
        (agree::Disagreement::Diverged { one, one_has, other, other_has }, Ok(_)) => {
            diverged(label.to_owned(), one, one_has, other, other_has)
        }
        (agree::Disagreement::Own, Ok(_)) => {
            unreachable!("bug in peerweave-vmm: the exchange says that this PE failed, but this PE reported success")
        }
    })
}

/// A reader for a blob that another PE sent. Each read removes the value from the front of the
/// blob.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Returns the error for a blob from `pe` that this PE cannot decode.
pub(crate) fn unreadable(call: &str, pe: Pe) -> VmmError {
    let cause = PeerCause::Failed("the PE sent invalid data".into());
    VmmError::Peer { call: call.to_owned(), pe, cause }
}
