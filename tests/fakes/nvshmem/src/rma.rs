//! Typed transfers: put, get, nbi, strided, single values, put with signal; from the host and on
//! streams.
//!
//! `transfer` implements them. Invariant: counts and strides are in elements.

use core::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use crate::call;
use crate::enqueue::{on_stream, through_stream};
use crate::signal::Signal;
use crate::transfer::{Local, Transfer, Way, When};
use crate::world;

/// Defines a put or get of elements; `$kind` is the element's type.
macro_rules! transfers {
    ($name:literal $kind:ty; $($verb:literal $way:ident)*) => {$(
        export! { ["nvshmem_", $name, "_", $verb] (target: *mut $kind, source: *const $kind, count: usize, pe: c_int) {
            Transfer::flat(Way::$way, target.cast(), source.cast(), count * size_of::<$kind>(), pe).on_host(When::Now);
        } }
        export! { ["nvshmem_", $name, "_", $verb, "_nbi"] (target: *mut $kind, source: *const $kind, count: usize, pe: c_int) {
            Transfer::flat(Way::$way, target.cast(), source.cast(), count * size_of::<$kind>(), pe).on_host(When::Later);
        } }
        export! { ["nvshmemx_", $name, "_", $verb, "_on_stream"]
            (target: *mut $kind, source: *const $kind, count: usize, pe: c_int, stream: *mut c_void) {
            let transfer = Transfer::flat(Way::$way, target.cast(), source.cast(), count * size_of::<$kind>(), pe);
            transfer.on_stream(When::Now, None, stream);
        } }
        export! { ["nvshmemx_", $name, "_", $verb, "_nbi_on_stream"]
            (target: *mut $kind, source: *const $kind, count: usize, pe: c_int, stream: *mut c_void) {
            let transfer = Transfer::flat(Way::$way, target.cast(), source.cast(), count * size_of::<$kind>(), pe);
            transfer.on_stream(When::Later, None, stream);
        } }
        export! { ["nvshmem_", $name, "_i", $verb] (
            target: *mut $kind, source: *const $kind, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
        ) {
            let sides = [target.addr(), source.addr()];
            let strides = [target_stride, source_stride];
            Transfer::strided(Way::$way, sides, strides, size_of::<$kind>(), count, pe).on_host(When::Now);
        } }
        export! { ["nvshmemx_", $name, "_i", $verb, "_on_stream"] (
            target: *mut $kind, source: *const $kind, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
            stream: *mut c_void,
        ) {
            let sides = [target.addr(), source.addr()];
            let strides = [target_stride, source_stride];
            let transfer = Transfer::strided(Way::$way, sides, strides, size_of::<$kind>(), count, pe);
            transfer.on_stream(When::Now, None, stream);
        } }
    )*};
}
/// Defines a put with a signal.
macro_rules! signalled {
    ($name:literal $kind:ty; $($tail:literal $when:ident)*) => {$(
        export! { ["nvshmemx_", $name, $tail] (
            target: *mut $kind, source: *const $kind, count: usize, word: *mut u64, value: u64, operation: c_int, pe: c_int,
            stream: *mut c_void,
        ) {
            let signal = Signal { word: word.addr(), value, operation, pe };
            let transfer = Transfer::flat(Way::Put, target.cast(), source.cast(), count * size_of::<$kind>(), pe);
            transfer.on_stream(When::$when, Some(signal), stream);
        } }
    )*};
}
fn value_put<T>(target: *mut T, value: &T, pe: c_int) -> Transfer {
    let transfer = Transfer::flat(Way::Put, target.cast(), std::ptr::from_ref(value).cast(), size_of::<T>(), pe);
    Transfer { local: Local::Value, ..transfer }
}

fn put_value_on_stream<T: Copy + Send + Sync + 'static>(target: *mut T, value: T, pe: c_int, stream: *mut c_void) {
    value_put(target, &value, pe).check();
    let target = target.addr();
    let work = move |world: &Arc<world::World>, function| value_put(target as *mut T, &value, pe).now(world, function);
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
    let work = move |world: &Arc<world::World>, function| {
        let mut value = place.lock().unwrap_or_else(PoisonError::into_inner);
        value_get(&mut *value, source as *const T, pe).now(world, function);
    };
    call::or_abort(through_stream(stream, work));
    *found.lock().unwrap_or_else(PoisonError::into_inner)
}

macro_rules! rma {
    ($name:literal $kind:ty) => {
        transfers! { $name $kind; "put" Put "get" Get }
        signalled! { $name $kind; "_put_signal_on_stream" Now "_put_signal_nbi_on_stream" Later }
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
each_rma!(rma);
