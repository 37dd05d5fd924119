//! The state of a communicator that its lock protects.
//!
//! Invariant: the lock is never held during a wait or a send.

use std::collections::HashMap;

use crate::arithmetic::{DType, Scalar};

/// State under a lock that is never held during a wait or a send.
#[derive(Default)]
pub(crate) struct State {
    /// Number of launches so far. Each launch has a position: the number of launches before it.
    pub(crate) launched: u64,
    /// Position of the running launch or, if none is running, of the next one.
    pub(crate) turn: u64,
    pub(crate) running: bool,
    /// Number of the next collective.
    pub(crate) collective: u64,
    /// Number of the next exchange of the library itself.
    pub(crate) control: u64,
    /// Number of shrinks.
    pub(crate) shrinks: u64,
    pub(crate) finalized: bool,
    /// Whether the first collective has been issued. Used only with the setting `CONNECT`.
    pub(crate) connected: bool,
    pub(crate) suspended: bool,
    /// Whether an id that `ncclCommGetUniqueId` created is not yet used by a grow.
    pub(crate) grow_id: bool,
    pub(crate) redops: Vec<Option<RedOp>>,
    /// Registered buffers by handle.
    pub(crate) registered: HashMap<usize, usize>,
    /// The buffers of device communicators.
    pub(crate) device_comms: Vec<Vec<u64>>,
    /// Signals that have arrived, by sender, signal and context.
    pub(crate) signals: HashMap<(i32, i32, i32), u64>,
}

/// An operator that the program has created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RedOp {
    pub(crate) dtype: DType,
    pub(crate) scalar: Scalar,
}

/// Frees a communicator's registered buffers, whose handles become invalid with the communicator.
pub(super) fn forget_registered(registered: HashMap<usize, usize>) {
    for handle in registered.into_keys() {
        // SAFETY: the handle was made by `ncclCommRegister` and is in no map any more.
        drop(unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut::<usize>(handle)) });
    }
}
