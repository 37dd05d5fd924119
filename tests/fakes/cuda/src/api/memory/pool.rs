//! Creates and destroys memory pools, and gets and sets their attributes.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{Code, CuPool, In, Location, Out, PoolProps, Result};
use crate::calls::exports;
use crate::machine::driver::driver;
use crate::machine::pool::{POOLS, Pool};
use crate::sync::lock;

fn find(pool: CuPool) -> Result<Arc<Pool>> {
    driver()?;
    POOLS.find(pool.0)
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
        pool.set(CuPool(POOLS.add(Pool::new(device, false))))
    }

    11020 fn cuMemPoolDestroy(pool: CuPool) {
        let driver = driver()?;
        let found = POOLS.find(pool.0)?;
        if found.default {
            return Err(Code::INVALID_VALUE);
        }
        let device = &driver.devices[found.device];
        let mut current = lock(&device.current_pool);
        if *current == pool.0 {
            *current = device.default_pool;
        }
        POOLS.remove(pool.0);
        Ok(())
    }

    11020 fn cuMemPoolTrimTo(pool: CuPool, _keep: usize) {
        // A pool retains nothing, so there is nothing to trim.
        find(pool).map(drop)
    }

    11020 fn cuMemPoolGetAttribute(pool: CuPool, attribute: c_int, value: Out<c_void>) {
        let pool = find(pool)?;
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
        let pool = find(pool)?;
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
