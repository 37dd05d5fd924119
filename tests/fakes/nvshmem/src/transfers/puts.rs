//! Puts and gets of arrays: contiguous, strided, and with a signal; by type, by width and by bytes;
//! from the host and on streams.
//!
//! Module `transfer` implements the puts and gets. Invariant: counts and strides are in elements of
//! the type or the width, or in bytes.

use core::ffi::{c_int, c_void};

use super::signal::Signal;
use super::transfer::{Transfer, Way, When};
use crate::abi::types::each_rma;
use crate::call::export;

/// Defines a put or get of contiguous elements; `$stem` is the middle of the function names.
macro_rules! contiguous {
    ([$($stem:tt)*] $way:ident $kind:ty) => {
        export! { ["nvshmem_", $($stem)*] (target: *mut c_void, source: *const c_void, count: usize, pe: c_int) {
            Transfer::flat(Way::$way, target, source, count * size_of::<$kind>(), pe).on_host(When::Now);
        } }
        export! { ["nvshmem_", $($stem)*, "_nbi"] (target: *mut c_void, source: *const c_void, count: usize, pe: c_int) {
            Transfer::flat(Way::$way, target, source, count * size_of::<$kind>(), pe).on_host(When::Later);
        } }
        export! { ["nvshmemx_", $($stem)*, "_on_stream"]
            (target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: *mut c_void) {
            Transfer::flat(Way::$way, target, source, count * size_of::<$kind>(), pe).on_stream(When::Now, None, stream);
        } }
        export! { ["nvshmemx_", $($stem)*, "_nbi_on_stream"]
            (target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: *mut c_void) {
            Transfer::flat(Way::$way, target, source, count * size_of::<$kind>(), pe).on_stream(When::Later, None, stream);
        } }
    };
}

/// Defines a put or get of elements with a stride on each side.
macro_rules! strided {
    ([$($stem:tt)*] $way:ident $kind:ty) => {
        export! { ["nvshmem_", $($stem)*] (
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
        ) {
            let (sides, strides) = ([target.addr(), source.addr()], [target_stride, source_stride]);
            Transfer::strided(Way::$way, sides, strides, size_of::<$kind>(), count, pe).on_host(When::Now);
        } }
        export! { ["nvshmemx_", $($stem)*, "_on_stream"] (
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
            stream: *mut c_void,
        ) {
            let (sides, strides) = ([target.addr(), source.addr()], [target_stride, source_stride]);
            let transfer = Transfer::strided(Way::$way, sides, strides, size_of::<$kind>(), count, pe);
            transfer.on_stream(When::Now, None, stream);
        } }
    };
}

/// Defines a put with a signal.
macro_rules! signalled {
    ([$($stem:tt)*] $kind:ty) => {
        signalled! { [$($stem)*, "_on_stream"] $kind; Now }
        signalled! { [$($stem)*, "_nbi_on_stream"] $kind; Later }
    };
    ([$($name:tt)*] $kind:ty; $when:ident) => {
        export! { ["nvshmemx_", $($name)*] (
            target: *mut c_void, source: *const c_void, count: usize, word: *mut u64, value: u64, operation: c_int, pe: c_int,
            stream: *mut c_void,
        ) {
            let signal = Signal { word: word.addr(), value, operation, pe };
            let transfer = Transfer::flat(Way::Put, target, source, count * size_of::<$kind>(), pe);
            transfer.on_stream(When::$when, Some(signal), stream);
        } }
    };
}

macro_rules! by_type {
    ($name:literal $kind:ty) => {
        contiguous! { [$name, "_put"] Put $kind }
        contiguous! { [$name, "_get"] Get $kind }
        strided! { [$name, "_iput"] Put $kind }
        strided! { [$name, "_iget"] Get $kind }
        signalled! { [$name, "_put_signal"] $kind }
    };
}
each_rma!(by_type);

macro_rules! by_bytes {
    ($($size:literal $kind:ty;)*) => {$(
        contiguous! { ["put", $size] Put $kind }
        contiguous! { ["get", $size] Get $kind }
        signalled! { ["put", $size, "_signal"] $kind }
    )*};
}
macro_rules! by_width {
    ($($bits:literal $kind:ty;)*) => {$(
        by_bytes! { $bits $kind; }
        strided! { ["iput", $bits] Put $kind }
        strided! { ["iget", $bits] Get $kind }
    )*};
}
by_bytes! { "mem" u8; }
by_width! { "8" u8; "16" u16; "32" u32; "64" u64; "128" u128; }
