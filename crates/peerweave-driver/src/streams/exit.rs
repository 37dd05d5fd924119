//! The end of the process: no thread of this library may be inside the driver when it shuts down.
//!
//! The driver shuts down in a function that runs when the process exits, while other threads
//! continue. A thread that is then in a call of the driver may access memory that is gone. So the
//! threads in the background enter before they call, and a function that runs before the driver's
//! closes the entry and waits until they have left.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::wait_until;

/// Longest time that the end of the process waits for threads that are inside.
const PATIENCE: Duration = Duration::from_secs(2);

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Number of threads that are inside.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Process ID of the process whose threads are counted; a fork has a copy of the count.
static OF_PROCESS: AtomicU32 = AtomicU32::new(0);

/// A thread in the background that may call the driver. The end of the process waits for it.
#[derive(Debug)]
#[must_use = "the thread is inside until this is dropped"]
pub struct BeforeExit(());

impl BeforeExit {
    /// Makes the end of the process wait for this thread. Returns `None` if the process is already
    /// ending: the thread must not call the driver again.
    pub fn enter() -> Option<Self> {
        // In this order, so that the thread that closes sees this one, or this one sees the close.
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let inside = Self(());
        (!CLOSED.load(Ordering::SeqCst)).then_some(inside)
    }

    /// Makes the end of the process wait for the threads that have [entered](Self::enter), for at
    /// most 2 s.
    ///
    /// At the end of the process, functions that were registered last run first. So call this after
    /// the libraries that the threads call are initialised, and again after each later library.
    pub fn register() {
        OF_PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the function lives as long as the process, and does not panic.
        if unsafe { libc::atexit(close) } != 0 {
            tracing::warn!("atexit failed: the end of the process does not wait for threads that call the driver");
        }
    }
}

impl Drop for BeforeExit {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

extern "C" fn close() {
    if OF_PROCESS.load(Ordering::Relaxed) == std::process::id() {
        CLOSED.store(true, Ordering::SeqCst);
        let left = || Ok::<_, std::convert::Infallible>(INSIDE.load(Ordering::SeqCst) == 0);
        let _ = wait_until(Instant::now() + PATIENCE, left);
    }
}
