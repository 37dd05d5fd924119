//! Memory pools: their devices and their counters. [`crate::memory`] allocates from them.
//! Invariant: a pool retains nothing, so that reserved and used bytes are equal.

use core::ffi::{c_int, c_void};
use std::sync::Mutex;

use crate::abi::{Code, CuPool, In, Location, Out, PoolProps};
use crate::calls::exports;
use crate::driver::driver;
use crate::sync::lock;

/// One pool.
pub(crate) struct Pool {
    pub(crate) device: usize,
    default: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used_bytes: u64,
    used_high_bytes: u64,
    release_threshold_bytes: u64,
    /// Settings for the reuse of memory: by events, by opportunity, by internal dependencies.
    reuse: [c_int; 3],
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

exports! {
    11020 fn cuMemPoolCreate(pool: Out<CuPool>, props: In<PoolProps>) {
        pool.required()?;
        let props = props.get()?;
        if props.kind != 1 || props.location.kind != Location::DEVICE {
            return Err(Code::INVALID_VALUE);
        }
        if props.handle_types != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let driver = driver()?;
        let device = driver.device(props.location.id)?.ordinal;
        pool.set(CuPool(driver.pools.add(Pool::new(device, false))))
    }

    11020 fn cuMemPoolDestroy(pool: CuPool) {
        let driver = driver()?;
        let found = driver.pools.get(pool.0).ok_or(Code::INVALID_VALUE)?;
        if found.default {
            return Err(Code::INVALID_VALUE);
        }
        let device = &driver.devices[found.device];
        let mut current = lock(&device.current_pool);
        if *current == pool.0 {
            *current = device.default_pool;
        }
        driver.pools.remove(pool.0);
        Ok(())
    }

    11020 fn cuMemPoolTrimTo(pool: CuPool, _keep: usize) {
        // A pool retains nothing, so there is nothing to trim.
        driver()?.pools.get(pool.0).map(|_| ()).ok_or(Code::INVALID_VALUE)
    }

    11020 fn cuMemPoolGetAttribute(pool: CuPool, attribute: c_int, value: Out<c_void>) {
        let pool = driver()?.pools.get(pool.0).ok_or(Code::INVALID_VALUE)?;
        let state = lock(&pool.state);
        match attribute {
            1..=3 => value.cast::<c_int>().set(state.reuse[attribute as usize - 1]),
            4 => value.cast::<u64>().set(state.release_threshold_bytes),
            5 | 7 => value.cast::<u64>().set(state.used_bytes),
            6 | 8 => value.cast::<u64>().set(state.used_high_bytes),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    11020 fn cuMemPoolSetAttribute(pool: CuPool, attribute: c_int, value: In<u64>) {
        let pool = driver()?.pools.get(pool.0).ok_or(Code::INVALID_VALUE)?;
        let mut state = lock(&pool.state);
        match attribute {
            1..=3 => state.reuse[attribute as usize - 1] = value.cast::<c_int>().get()?,
            4 => state.release_threshold_bytes = value.get()?,
            6 | 8 if value.get()? == 0 => state.used_high_bytes = state.used_bytes,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }
}
