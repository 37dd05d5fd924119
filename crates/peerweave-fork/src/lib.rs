//! Detects forks: whether the current process was forked from the process that created a value.
//! Examples of such values are mappings and loaded libraries.
//!
//! The owner of the value decides what a forked process may do with the value. A process created by
//! a direct `clone` system call is not detected, because the C library's fork handler does not run.
//!
//! Implementation: each process has a count. The count is 0 in the process that first calls
//! [`ForkGuard::new`]. From this call on, a forked process has the count of its parent plus 1.
//! Invariant: the count of a process differs from the counts of all its descendants.
#![doc = include_str!("../README.md")]

use std::sync::atomic::{AtomicU32, Ordering};

/// The count of this process. The process that creates the first guard has the count 0. From then
/// on, a forked process has the count of its parent plus 1.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A guard that detects forks. A guard belongs to the process that created it. In every process
/// that was forked from that process, [`is_forked`](Self::is_forked) returns `true`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGuard(u32);

impl ForkGuard {
    /// Creates a guard for this process. The first call in a process registers a handler with the C
    /// library. If the registration fails, forks are not detected and a warning is logged.
    #[must_use]
    pub fn new() -> Self {
        watch();
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether this process was forked from the process that created the guard. The check
    /// costs one load.
    #[inline]
    #[must_use]
    pub fn is_forked(self) -> bool {
        // Relaxed is enough: the count changes only in a child while the child has a single thread.
        // Later reads are in that thread or in threads that it started.
        FORKS.load(Ordering::Relaxed) != self.0
    }
}

impl Default for ForkGuard {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(unix, not(miri)))]
fn watch() {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler lives as long as the process: if a library is closed with dlclose,
        // the C library removes the handlers of that library. The handler only adds to one atomic,
        // takes no lock and allocates nothing. A child of a process with threads may do that.
        let status = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if status != 0 {
            tracing::warn!(
                status,
                "pthread_atfork failed, so forks of this process are not detected: in a forked process, do not use values created before the fork"
            );
        }
    });
}

/// Does nothing, because forks cannot be detected on this system.
#[cfg(not(all(unix, not(miri))))]
fn watch() {}

#[cfg(all(test, unix, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn fork_is_detected_only_in_the_child() {
        let guard = ForkGuard::new();
        // SAFETY: the child only reads an atomic, creates its own guard, and ends without running
        // destructors.
        match unsafe { libc::fork() } {
            0 => {
                let own = ForkGuard::new();
                let right = guard.is_forked() && !own.is_forked() && own != guard;
                // SAFETY: `_exit` only ends the process.
                unsafe { libc::_exit(if right { 0 } else { 1 }) }
            }
            child => {
                assert!(child > 0, "fork failed");
                let mut status = 0;
                // SAFETY: this process created the child, and the pointer is to a live integer.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "the child did not detect the fork");
                assert!(!guard.is_forked(), "the guard reported a fork in the parent, expected only in the child");
            }
        }
    }
}
