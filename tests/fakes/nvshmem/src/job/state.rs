//! The state of NVSHMEM in this process.
//!
//! Invariant: a call that requires a job while there is none ends the process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::world::World;
use crate::call::{self, undefined};

/// The state of NVSHMEM.
pub(crate) enum State {
    Idle,
    /// The PEs have connected, but a later step has failed. Contains the number of this PE, and the
    /// number of PEs.
    Bootstrapped(i32, i32),
    /// Initialized. Contains the job, and the number of initializations.
    Live(Arc<World>, u32),
    Finalized,
}

static STATE: Mutex<State> = Mutex::new(State::Idle);

/// Locks the state.
pub(crate) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes the state.
pub(crate) fn set_state(new: State) {
    let mut state = state();
    call::set_own_pe(if let State::Live(world, _) = &new { Some(world.pe) } else { None });
    *state = new;
}

/// Returns the job; ends the process if there is none.
pub(crate) fn live() -> Arc<World> {
    match &*state() {
        State::Live(world, _) => Arc::clone(world),
        State::Idle => undefined(&format!("{} was called before NVSHMEM was initialised", call::function())),
        State::Bootstrapped(..) => undefined(&format!("{}: nvshmem initialization failed, exiting", call::function())),
        State::Finalized => undefined(&format!("{} was called after nvshmemx_hostlib_finalize", call::function())),
    }
}

/// Returns the job, if there is one.
pub(crate) fn peek() -> Option<Arc<World>> {
    match &*state() {
        State::Live(world, _) => Some(Arc::clone(world)),
        _ => None,
    }
}
