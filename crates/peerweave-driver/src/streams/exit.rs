//! Keeps background threads out of the driver while the driver shuts down at the end of the
//! process.
//!
//! The driver shuts down in an exit handler of the process, while other threads continue. A thread
//! that is inside a call of the driver at that time may access freed memory. So background threads
//! enter a gate ([`BeforeExit`]) before they call the driver. A function that runs before the
//! driver's shutdown closes the gate and waits until these threads have left.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::wait_until;

/// Maximum time for which the exit of the process waits for threads that hold a [`BeforeExit`].
const PATIENCE: Duration = Duration::from_secs(2);

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Number of [`BeforeExit`] values that exist now. Each thread that may call the driver holds such
/// a value.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// ID of the process that registered the exit handler. A forked child inherits the handler and a
/// copy of [`INSIDE`], but must not wait for the threads of its parent. So the handler compares
/// this ID with the ID of its own process.
static OF_PROCESS: AtomicU32 = AtomicU32::new(0);

/// Permission for a background thread to call the driver. An exiting process waits until the
/// permission has been dropped, as described at [`register`](Self::register).
#[derive(Debug)]
#[must_use = "the process can exit while this thread calls the driver, unless the thread keeps this value"]
pub struct BeforeExit(());

impl BeforeExit {
    /// Makes the exit of the process wait for this thread, until the returned value is dropped.
    /// Returns `None` if the process is already exiting. In that case, the thread must not call the
    /// driver again.
    pub fn enter() -> Option<Self> {
        // The count is increased first. So either the closing thread sees this thread, or this
        // thread sees that the gate is closed.
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let inside = Self(());
        (!CLOSED.load(Ordering::SeqCst)).then_some(inside)
    }

    /// Makes the exit of the process wait, for at most 2 s, for the threads that have
    /// [entered](Self::enter) the gate. For this purpose, registers a function with `atexit`.
    ///
    /// When the process exits, the function that was registered last runs first. So call `register`
    /// after initialising the libraries that the threads call. Call `register` again after
    /// initialising each further library.
    pub fn register() {
        OF_PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the function lives as long as the process, and does not panic.
        if unsafe { libc::atexit(close) } != 0 {
            tracing::warn!("atexit failed: the exit of the process will not wait for threads that call the driver");
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
