//! The windows of the communicators of this process.
//!
//! Module `api` registers windows. Invariant: the handle of a window is never reused, so that the
//! use of a deregistered window is detected. Such a use is undefined in NCCL, and ends the process
//! here.

use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::communicator::Comm;
use super::handle::CommPtr;
use crate::abi::{Result, invalid, not_null};
use crate::report::undefined;

/// One rank's view of a window.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// The communicator's handle, as a number.
    pub(crate) comm: usize,
    /// The window's number in its communicator, the same in all ranks.
    pub(crate) number: u64,
    pub(crate) base: usize,
    pub(crate) bytes: usize,
    pub(crate) is_symmetric: bool,
    /// Address and length of each rank's memory in its process.
    pub(crate) places: Vec<(usize, usize)>,
    /// An address range for kernels only; 0 without multicast.
    pub(crate) multimem: usize,
}

static WINDOWS: LazyLock<Mutex<HashMap<usize, Arc<Window>>>> = LazyLock::new(Mutex::default);

/// Locks all windows, and returns them by their handles.
pub(crate) fn windows() -> MutexGuard<'static, HashMap<usize, Arc<Window>>> {
    WINDOWS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of windows.
pub(crate) fn count() -> i64 {
    windows().len() as i64
}

/// Removes a communicator's windows and returns their number.
pub(super) fn forget_all(comm: CommPtr) -> usize {
    let mut all = windows();
    let before = all.len();
    all.retain(|_, window| window.comm != comm.address());
    before - all.len()
}

/// Returns the window of a handle. Ends the process if the window was deregistered.
pub(crate) fn find(window: *mut c_void) -> Result<Arc<Window>> {
    not_null(window, "window")?;
    match windows().get(&window.addr()) {
        Some(window) => Ok(Arc::clone(window)),
        None => undefined("use of a deregistered window"),
    }
}

/// Returns the window of a handle. Fails if the window belongs to another communicator.
pub(crate) fn of(comm: &'static Comm, window: *mut c_void) -> Result<Arc<Window>> {
    let window = find(window)?;
    if window.comm == comm.handle().address() { Ok(window) } else { invalid("the window belongs to another communicator") }
}
