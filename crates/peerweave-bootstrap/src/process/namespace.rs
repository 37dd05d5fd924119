//! The PID namespace of this process.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// Returns a digest that identifies the PID namespace of this process and the current boot of the
/// machine. Returns 0 if the system does not report the namespace.
///
/// If two processes get the same digest, and the digest is not 0, every process ID means the same
/// process in both.
pub fn pid_namespace() -> u64 {
    let Ok(namespace) = fs::metadata("/proc/self/ns/pid") else { return 0 };
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let words = [namespace.dev(), namespace.ino()].into_iter().chain(boot.bytes().map(u64::from));
    // This is FNV-1a, applied to words instead of bytes.
    words.fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3)) | 1
}
