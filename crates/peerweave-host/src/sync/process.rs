//! The identity of the process of a PE, for other processes of the machine. An identity consists of
//! the process ID, the PID namespace of that ID, and a random word in the memory of the process.
//!
//! A process ID alone does not identify a process, because in another PID namespace the same ID
//! belongs to another process. So a process ID is used only if both processes have the same PID
//! namespace of the same boot. The memory of a process is read only if it contains the random word.

use crate::memory::layout::PePage;
use crate::platform::{self, Pid, cross_memory};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// The identity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pid: u64,
    /// Digest of the PID namespace and of the current boot of the machine. 0 if the system does not
    /// report the namespace.
    namespace: u64,
    /// A random word that identifies the process. The word is not 0.
    probe: u64,
    /// Address, in the process, at which the process stores the random word `probe`.
    probe_at: u64,
}

/// The reason why a process cannot be identified by its process ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreachable {
    /// The process ID belongs to another PID namespace.
    OtherNamespace,
    /// The system does not report the namespace of the process ID.
    UnknownNamespace,
}

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::OtherNamespace => "the process of the PE is in another PID namespace",
            Self::UnknownNamespace => "/proc does not show the PID namespace of the PE's process",
        })
    }
}

impl Identity {
    /// Returns the identity of this process.
    pub(crate) fn own() -> Self {
        static PROBE: OnceLock<u64> = OnceLock::new();
        let probe = PROBE.get_or_init(platform::random_word);
        let namespace = platform::namespace();
        Self { pid: u64::from(std::process::id()), namespace, probe: *probe, probe_at: (&raw const *probe) as u64 }
    }

    /// Reads the identity that a PE has published in its page.
    pub(crate) fn read(page: &PePage) -> Self {
        Self {
            pid: page.pid.load(Ordering::Acquire),
            namespace: page.pid_namespace.load(Ordering::Acquire),
            probe: page.probe.load(Ordering::Acquire),
            probe_at: page.probe_at.load(Ordering::Acquire),
        }
    }

    /// Writes this identity of a process to the page of a PE, which is in shared memory. The PE
    /// must run in this process. Other processes read the identity to find the process of the PE.
    pub(crate) fn publish(&self, page: &PePage) {
        page.pid.store(self.pid, Ordering::Relaxed);
        page.pid_namespace.store(self.namespace, Ordering::Relaxed);
        page.probe.store(self.probe, Ordering::Relaxed);
        page.probe_at.store(self.probe_at, Ordering::Relaxed);
    }

    /// Returns the process ID by which this process can refer to the process `other`. `self` is the
    /// identity of this process.
    ///
    /// # Errors
    /// The reason why the process ID may belong to another process.
    pub(crate) fn number_of(&self, other: &Self) -> Result<Pid, Unreachable> {
        match (self.namespace, other.namespace) {
            (0, _) | (_, 0) => Err(Unreachable::UnknownNamespace),
            (mine, theirs) if mine != theirs => Err(Unreachable::OtherNamespace),
            _ => platform::process(other.pid).ok_or(Unreachable::UnknownNamespace),
        }
    }

    /// Checks that this process can read the memory of the process `other`. Returns the reason if
    /// the check fails.
    pub(crate) fn can_read(&self, other: &Self) -> Result<(), String> {
        self.number_of(other).map_err(|why| why.to_string())?;
        cross_memory::probe(other.pid, other.probe_at, other.probe)
    }
}

#[cfg(all(test, target_os = "linux", not(peerweave_portable)))]
mod tests {
    use super::*;

    #[test]
    fn process_identifies_itself_and_can_read_its_own_memory() {
        let own = Identity::own();
        assert_eq!(own, Identity::own());
        assert_eq!(own.number_of(&own), Ok(rustix::process::getpid()));
        assert_eq!(own.can_read(&own), Ok(()));
    }

    #[test]
    fn process_id_from_another_pid_namespace_is_refused() {
        let own = Identity::own();
        let other = Identity { namespace: own.namespace ^ 2, ..own };
        assert_eq!(own.number_of(&other), Err(Unreachable::OtherNamespace));
        assert!(own.can_read(&other).is_err());
        let silent = Identity { namespace: 0, ..own };
        assert_eq!(own.number_of(&silent), Err(Unreachable::UnknownNamespace));
        assert_eq!(silent.number_of(&silent), Err(Unreachable::UnknownNamespace));
    }

    #[test]
    fn process_is_refused_if_its_probe_word_has_the_wrong_value() {
        let own = Identity::own();
        assert!(own.can_read(&Identity { probe: own.probe ^ 2, ..own }).is_err());
    }
}
