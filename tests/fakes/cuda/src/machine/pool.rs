//! Memory pools: their devices and their counters. Invariant: a pool retains nothing, so that
//! reserved and used bytes are equal.

use core::ffi::c_int;
use std::sync::Mutex;

use crate::abi::Code;
use crate::sync::lock;
use crate::table::Table;

/// All pools. The first `cuInit` creates the default pools.
pub(crate) static POOLS: Table<Pool> = Table::new(0x57, Code::INVALID_VALUE);

/// One pool.
pub(crate) struct Pool {
    pub(crate) device: usize,
    pub(crate) default: bool,
    pub(crate) state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) used_bytes: u64,
    pub(crate) used_high_bytes: u64,
    pub(crate) release_threshold_bytes: u64,
    /// The attributes for the reuse of memory: event dependencies, opportunistic, internal
    /// dependencies.
    pub(crate) reuse: [c_int; 3],
}

impl Pool {
    pub(crate) fn new(device: usize, default: bool) -> Pool {
        Pool { device, default, state: Mutex::new(State { reuse: [1; 3], ..State::default() }) }
    }

    pub(crate) fn use_bytes(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.used_bytes += bytes;
        state.used_high_bytes = state.used_high_bytes.max(state.used_bytes);
    }

    pub(crate) fn return_bytes(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.used_bytes = state.used_bytes.saturating_sub(bytes);
    }
}
