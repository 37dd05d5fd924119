//! Detects that a process was forked from the process that created a value, such as a mapping or a
//! loaded library.
//!
//! The owner of the value decides what a forked process may do with it. A process created by
//! `clone` without the C library is not detected, because no handler runs.
//!
//! Invariant: the count differs between a process and every process forked from it after the first
//! [`ForkGuard::new`].
#![doc = include_str!("../README.md")]

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the process that created the first guard and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Distinguishes the process that created it from processes forked from that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGuard(u32);

impl ForkGuard {
    /// Returns a guard of this process. The first call in a process registers a handler with the C
    /// library. If that fails, forks are not detected and a warning is logged.
    #[must_use]
    pub fn new() -> Self {
        watch();
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether this process was forked from the one that created the guard. Costs one load.
    #[inline]
    #[must_use]
    pub fn is_forked(self) -> bool {
        // Relaxed is enough: the count changes only in a child while it has a single thread. That
        // thread reads the count later, or starts the threads that read it.
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
        // SAFETY: the handler lives as long as the process: a library that is closed with dlclose
        // has its handlers removed by the C library. It does what a child of a process with threads
        // may do: it adds to one atomic, takes no lock and allocates nothing.
        let status = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if status != 0 {
            tracing::warn!(status, "forks of this process will not be detected: do not use earlier values in a forked process");
        }
    });
}

/// No fork can be detected on this system.
#[cfg(not(all(unix, not(miri))))]
fn watch() {}

#[cfg(all(test, unix, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn guard_is_forked_only_in_a_child() {
        let guard = ForkGuard::new();
        // SAFETY: the child only reads an atomic, makes a guard of its own, and ends without
        // running destructors.
        match unsafe { libc::fork() } {
            0 => {
                let own = ForkGuard::new();
                let right = guard.is_forked() && !own.is_forked() && own != guard;
                // SAFETY: it ends the process and nothing else.
                unsafe { libc::_exit(if right { 0 } else { 1 }) }
            }
            child => {
                assert!(child > 0, "fork failed");
                let mut status = 0;
                // SAFETY: the child is ours and the pointer is to a live integer.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "the child's guard is forked");
                assert!(!guard.is_forked(), "the parent's guard is not forked");
            }
        }
    }
}
