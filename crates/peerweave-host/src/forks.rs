//! How often this process is a forked child of a process that used the backend: a child's mapping is gone, so it must not touch it when it
//! drops what it inherited. Calls in a child are refused by the core.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

static FORKS: AtomicUsize = AtomicUsize::new(0);
static WATCH: Once = Once::new();

/// Changes in a child when it is forked. Costs one load.
#[inline]
pub(crate) fn count() -> usize {
    FORKS.load(Ordering::Relaxed)
}

/// Starts to count; returns the count of this process.
pub(crate) fn watch() -> usize {
    extern "C" fn child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    WATCH.call_once(|| {
        // SAFETY: registers a function that does one atomic addition, which is safe in a child that was forked from a process with threads.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(child)) };
        assert_eq!(refused, 0, "pthread_atfork has no memory");
    });
    count()
}
