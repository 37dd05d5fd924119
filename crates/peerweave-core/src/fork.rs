//! Notices that the process was forked. Does not forbid it: a child may make a world of its own.
//!
//! Invariant: the generation differs between a process and every process forked from it after [`watch`] was called, so that a world can tell
//! by one load whether it is used by the process that made it. Asking the system for the process id would cost more than a small put.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How often this process' line was forked since [`watch`] was first called.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Starts counting, once per process.
#[cfg(all(unix, not(miri)))]
pub(crate) fn watch() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: `in_child` is a function for the life of the process and does what a child of a threaded process may do: it touches one
        // atomic, takes no lock and allocates nothing. The result tells only of missing memory, where the check is lost but nothing else.
        let status = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if status != 0 {
            tracing::warn!(status, "forks of this process will not be noticed");
        }
    });
}

/// Nothing forks here.
#[cfg(not(all(unix, not(miri))))]
pub(crate) fn watch() {}
