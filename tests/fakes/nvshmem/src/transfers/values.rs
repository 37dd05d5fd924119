//! Puts and gets of single values, by type; from the host and on streams.
//!
//! Invariant: a put of a value is the only transfer that needs no memory of this PE.

use core::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use super::transfer::{Local, Transfer, Way, When};
use crate::abi::types::each_rma;
use crate::call::{self, export};
use crate::job::stream::through_stream;
use crate::job::{World, on_stream};

fn value_put<T>(target: *mut T, value: &T, pe: c_int) -> Transfer {
    let transfer = Transfer::flat(Way::Put, target.cast(), std::ptr::from_ref(value).cast(), size_of::<T>(), pe);
    Transfer { local: Local::Value, ..transfer }
}

fn put_value_on_stream<T: Copy + Send + Sync + 'static>(target: *mut T, value: T, pe: c_int, stream: *mut c_void) {
    value_put(target, &value, pe).check();
    let target = target.addr();
    let work = move |world: &Arc<World>, function| value_put(target as *mut T, &value, pe).now(world, function);
    call::or_abort(on_stream(stream, work));
}

fn value_get<T>(value: &mut T, source: *const T, pe: c_int) -> Transfer {
    let transfer = Transfer::flat(Way::Get, std::ptr::from_mut(value).cast(), source.cast(), size_of::<T>(), pe);
    Transfer { local: Local::NotByNetwork, ..transfer }
}

fn get_value_on_stream<T: Copy + Default + Send + Sync + 'static>(source: *const T, pe: c_int, stream: *mut c_void) -> T {
    value_get(&mut T::default(), source, pe).check();
    let (source, found) = (source.addr(), Arc::new(Mutex::new(T::default())));
    let place = Arc::clone(&found);
    let work = move |world: &Arc<World>, function| {
        let mut value = place.lock().unwrap_or_else(PoisonError::into_inner);
        value_get(&mut *value, source as *const T, pe).now(world, function);
    };
    call::or_abort(through_stream(stream, work));
    *found.lock().unwrap_or_else(PoisonError::into_inner)
}

macro_rules! values {
    ($name:literal $kind:ty) => {
        export! { ["nvshmem_", $name, "_p"] (target: *mut $kind, value: $kind, pe: c_int) {
            value_put(target, &value, pe).on_host(When::Now);
        } }
        export! { ["nvshmem_", $name, "_g"] (source: *const $kind, pe: c_int) -> $kind {
            let mut value = <$kind>::default();
            value_get(&mut value, source, pe).on_host(When::Now);
            value
        } }
        export! { ["nvshmemx_", $name, "_p_on_stream"] (target: *mut $kind, value: $kind, pe: c_int, stream: *mut c_void) {
            put_value_on_stream(target, value, pe, stream);
        } }
        export! { ["nvshmemx_", $name, "_g_on_stream"] (source: *const $kind, pe: c_int, stream: *mut c_void) -> $kind {
            get_value_on_stream(source, pe, stream)
        } }
    };
}
each_rma!(values);
