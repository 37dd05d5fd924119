//! The CUDA runtime inside NCCL, which frees its state at the end of the process.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::report::undefined;

/// Whether the runtime inside NCCL has freed its state, at the end of the process.
static RUNTIME_GONE: AtomicBool = AtomicBool::new(false);

/// Initializes the runtime inside NCCL, which frees its state by a function at the end of the
/// process.
pub(super) fn start_runtime() {
    extern "C" fn end() {
        RUNTIME_GONE.store(true, Ordering::Release);
    }
    static STARTED: Once = Once::new();
    // SAFETY: the function lives as long as the process, which never unloads this library.
    STARTED.call_once(|| assert_eq!(unsafe { libc::atexit(end) }, 0, "atexit failed"));
}

/// Ends the process if the runtime inside NCCL has freed its state.
pub(super) fn needs_runtime(call: &str) {
    if RUNTIME_GONE.load(Ordering::Acquire) {
        undefined(&format!("{call} after the CUDA runtime inside NCCL has freed its state at the end of the process"));
    }
}
