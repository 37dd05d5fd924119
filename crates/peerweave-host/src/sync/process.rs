//! Identifies the process of a PE to other processes of the machine: its number, the PID namespace
//! of that number, and a random word in its memory.
//!
//! A number alone does not identify a process: in another PID namespace it belongs to another
//! process. So a number is used only if both sides have the same namespace of the same boot, and
//! memory is read only if the random word was found in it.

use crate::memory::cross_memory;
use crate::memory::layout::PePage;
use rustix::process::Pid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// The identity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pid: u64,
    /// A digest of the PID namespace and of the boot of the machine; 0 if the system does not
    /// report them.
    namespace: u64,
    /// A random word other than 0.
    probe: u64,
    /// The address of that word.
    probe_at: u64,
}

/// The reason why a process cannot be identified by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreachable {
    /// The number belongs to another PID namespace.
    OtherNamespace,
    /// The system does not report the namespace of the number.
    UnknownNamespace,
}

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::OtherNamespace => "its process is in another PID namespace",
            Self::UnknownNamespace => "/proc does not show the PID namespace of its process",
        })
    }
}

impl Identity {
    /// Returns the identity of this process.
    pub(crate) fn own() -> Self {
        static PROBE: OnceLock<u64> = OnceLock::new();
        let probe = PROBE.get_or_init(random_word);
        let namespace = namespace();
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

    /// Publishes the identity in the page of a PE of this process.
    pub(crate) fn publish(&self, page: &PePage) {
        page.pid.store(self.pid, Ordering::Relaxed);
        page.pid_namespace.store(self.namespace, Ordering::Relaxed);
        page.probe.store(self.probe, Ordering::Relaxed);
        page.probe_at.store(self.probe_at, Ordering::Relaxed);
    }

    /// Returns the number of `other`, for use by `self`, which is this process.
    ///
    /// # Errors
    /// If that number may belong to another process.
    pub(crate) fn number_of(&self, other: &Self) -> Result<Pid, Unreachable> {
        match (self.namespace, other.namespace) {
            (0, _) | (_, 0) => Err(Unreachable::UnknownNamespace),
            (mine, theirs) if mine != theirs => Err(Unreachable::OtherNamespace),
            _ => i32::try_from(other.pid).ok().and_then(Pid::from_raw).ok_or(Unreachable::UnknownNamespace),
        }
    }

    /// Checks that this process can read the memory of `other`; otherwise returns the reason.
    pub(crate) fn can_read(&self, other: &Self) -> Result<(), String> {
        self.number_of(other).map_err(|why| why.to_string())?;
        cross_memory::probe(other.pid, other.probe_at, other.probe)
    }
}

/// Returns a random word other than 0. If the system has no random numbers, a word that differs
/// among the processes that are alive at the same time.
fn random_word() -> u64 {
    let mut bytes = [0; 8];
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    let word = match drawn {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => u64::from(std::process::id()) << 32 | (&raw const bytes) as u64 >> 4,
    };
    word | 1
}

/// Returns a digest of the PID namespace of this process and of the boot; 0 if the system does not
/// report them.
fn namespace() -> u64 {
    let Ok(namespace) = fs::metadata("/proc/self/ns/pid") else { return 0 };
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let words = [namespace.dev(), namespace.ino()].into_iter().chain(boot.bytes().map(u64::from));
    // FNV-1a, a word at a time.
    words.fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3)) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_has_a_number_and_readable_memory() {
        let own = Identity::own();
        assert_eq!(own, Identity::own());
        assert_eq!(own.number_of(&own), Ok(rustix::process::getpid()));
        assert_eq!(own.can_read(&own), Ok(()));
    }

    #[test]
    fn process_number_of_another_namespace_is_not_used() {
        let own = Identity::own();
        let other = Identity { namespace: own.namespace ^ 2, ..own };
        assert_eq!(own.number_of(&other), Err(Unreachable::OtherNamespace));
        assert!(own.can_read(&other).is_err());
        let silent = Identity { namespace: 0, ..own };
        assert_eq!(own.number_of(&silent), Err(Unreachable::UnknownNamespace));
        assert_eq!(silent.number_of(&silent), Err(Unreachable::UnknownNamespace));
    }

    #[test]
    fn memory_without_the_random_word_is_not_read() {
        let own = Identity::own();
        assert!(own.can_read(&Identity { probe: own.probe ^ 2, ..own }).is_err());
    }
}
