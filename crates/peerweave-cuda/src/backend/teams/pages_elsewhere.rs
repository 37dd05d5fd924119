//! Replaces `pages` on systems other than Linux, where PEs cannot map words of other PEs.

use std::sync::atomic::AtomicU64;

use peerweave_bootstrap::Rendezvous;
use peerweave_bootstrap::survivors::SurvivorWords;
use peerweave_core::Error;

use crate::backend::error::unsupported;

/// The mapped words of one PE: no value of this type exists.
pub(super) enum Pages {}

impl Pages {
    /// Fails: the backend shares memory of GPUs among processes on Linux only.
    pub(super) fn of_all(call: &'static str, _rendezvous: &Rendezvous, _bytes: usize) -> Result<Box<[Self]>, Error> {
        Err(unsupported(call, "jobs of several PEs with GPUs need Linux"))
    }

    /// Returns the words by which the surviving PEs agree on a new job.
    pub(super) fn survivors(&self, _index: usize) -> &SurvivorWords {
        match *self {}
    }

    /// Returns the word at an index.
    pub(super) fn word(&self, _index: usize) -> &AtomicU64 {
        match *self {}
    }
}
