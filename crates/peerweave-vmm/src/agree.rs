//! One round of a collective call of the heap or of a multicast object, with this crate's errors.
//!
//! The round itself is [`peerweave_bootstrap::agree`]. Invariant: after a [`Disagreement::Known`]
//! all PEs undo, so that none waits for the deadline.

use peerweave_bootstrap::agree::{self, Failure, Members};
use peerweave_bootstrap::{BootstrapError, Rendezvous};
use peerweave_types::Pe;

use crate::error::{Misuse, PeerCause, VmmError};

/// Why a round did not succeed.
pub(crate) enum Disagreement {
    /// All know, and all undo.
    Known(VmmError),
    /// The round itself failed: the PEs may have come to different conclusions.
    Unknown(VmmError),
}

impl From<Disagreement> for VmmError {
    fn from(disagreement: Disagreement) -> Self {
        match disagreement {
            Disagreement::Known(error) | Disagreement::Unknown(error) => error,
        }
    }
}

/// Goes through a round. `call` names the call with its arguments and the state that it started
/// from; it must be the same on all PEs. `outcome` is what this PE has to give to the others, or
/// its error, which is then the result.
///
/// Gives the blobs of all PEs of the job.
pub(crate) fn agree(
    rendezvous: &Rendezvous,
    label: &str,
    call: &str,
    outcome: Result<Vec<u8>, VmmError>,
) -> Result<Vec<Vec<u8>>, Disagreement> {
    let is_heard = |error: &VmmError| matches!(error, VmmError::Peer { .. });
    let said = outcome.as_deref().map_err(|error| Failure { reason: error.to_string(), is_heard: is_heard(error) });
    let diverged = |call: String, one, one_has, other, other_has| {
        Disagreement::Known(Misuse::Diverged { call, one, one_has, other, other_has }.into())
    };
    agree::agree(rendezvous, Members::All, label, call, said).map_err(|disagreement| match (disagreement, outcome) {
        // Every PE gets this one.
        (agree::Disagreement::Rendezvous(BootstrapError::Mismatch { call, one, one_call, other, other_call }), _) => {
            diverged(call, one, one_call, other, other_call)
        }
        (agree::Disagreement::Rendezvous(error), outcome) => {
            if let Err(own) = outcome {
                // The caller gets the other one: that this PE's failure was not heard of everywhere
                // is worse.
                tracing::warn!(call, error = %own, "failed, and the others may not have heard of it");
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
        (agree::Disagreement::Own, Ok(_)) => unreachable!("bug in peerweave-vmm: this PE did its part"),
    })
}

/// Reads numbers off the front of a blob.
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

/// The error for a blob that cannot be read.
pub(crate) fn unreadable(call: &str, pe: Pe) -> VmmError {
    let cause = PeerCause::Failed("sent a blob that cannot be read".into());
    VmmError::Peer { call: call.to_owned(), pe, cause }
}
