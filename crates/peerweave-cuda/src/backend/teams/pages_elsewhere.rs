//! Replaces the module `pages` on systems other than Linux. On such systems, this backend has no
//! shared memory among PEs, and a job cannot have several PEs with GPUs.

use std::sync::atomic::AtomicU64;

use peerweave_bootstrap::Rendezvous;
use peerweave_bootstrap::survivors::SurvivorWords;
use peerweave_core::Error;

use crate::backend::error::unsupported;

/// Stands for the mapped words of a PE on systems other than Linux. No value of this type exists,
/// because PEs on such systems cannot map words of other PEs.
pub(super) enum Pages {}

impl Pages {
    /// Always fails, because this backend shares memory of GPUs among processes only on Linux.
    pub(super) fn of_all(call: &'static str, _rendezvous: &Rendezvous, _bytes: usize) -> Result<Box<[Self]>, Error> {
        Err(unsupported(call, "jobs of several PEs with GPUs need Linux"))
    }

    /// Cannot be called, because no [`Pages`] value exists on this system. On Linux, the same
    /// function returns the [`SurvivorWords`] of a PE.
    pub(super) fn survivors(&self, _index: usize) -> &SurvivorWords {
        match *self {}
    }

    /// Cannot be called, because no [`Pages`] value exists on this system. On Linux, the same
    /// function returns the 64-bit word at index `_index`.
    pub(super) fn word(&self, _index: usize) -> &AtomicU64 {
        match *self {}
    }
}
