//! Transfers by bytes and by width: the untyped names of the same operations.
//!
//! `transfer` implements them. Invariant: counts and strides are in elements of the width, or in
//! bytes.

use core::ffi::{c_int, c_void};

use crate::signal::Signal;
use crate::transfer::{Transfer, Way, When};

macro_rules! width {
    ($($bits:literal $kind:ty;)*) => {$(
        export! { ["nvshmem_put", $bits] (target: *mut c_void, source: *const c_void, count: usize, pe: c_int) {
            Transfer::flat(Way::Put, target, source, count * size_of::<$kind>(), pe).on_host(When::Now);
        } }
        export! { ["nvshmem_get", $bits] (target: *mut c_void, source: *const c_void, count: usize, pe: c_int) {
            Transfer::flat(Way::Get, target, source, count * size_of::<$kind>(), pe).on_host(When::Now);
        } }
        export! { ["nvshmem_put", $bits, "_nbi"] (target: *mut c_void, source: *const c_void, count: usize, pe: c_int) {
            Transfer::flat(Way::Put, target, source, count * size_of::<$kind>(), pe).on_host(When::Later);
        } }
        export! { ["nvshmem_get", $bits, "_nbi"] (target: *mut c_void, source: *const c_void, count: usize, pe: c_int) {
            Transfer::flat(Way::Get, target, source, count * size_of::<$kind>(), pe).on_host(When::Later);
        } }
        export! { ["nvshmemx_put", $bits, "_on_stream"]
            (target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: *mut c_void) {
            Transfer::flat(Way::Put, target, source, count * size_of::<$kind>(), pe).on_stream(When::Now, None, stream);
        } }
        export! { ["nvshmemx_get", $bits, "_on_stream"]
            (target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: *mut c_void) {
            Transfer::flat(Way::Get, target, source, count * size_of::<$kind>(), pe).on_stream(When::Now, None, stream);
        } }
        export! { ["nvshmemx_put", $bits, "_nbi_on_stream"]
            (target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: *mut c_void) {
            Transfer::flat(Way::Put, target, source, count * size_of::<$kind>(), pe).on_stream(When::Later, None, stream);
        } }
        export! { ["nvshmemx_get", $bits, "_nbi_on_stream"]
            (target: *mut c_void, source: *const c_void, count: usize, pe: c_int, stream: *mut c_void) {
            Transfer::flat(Way::Get, target, source, count * size_of::<$kind>(), pe).on_stream(When::Later, None, stream);
        } }
        export! { ["nvshmemx_put", $bits, "_signal_on_stream"] (
            target: *mut c_void, source: *const c_void, count: usize, word: *mut u64, value: u64, operation: c_int, pe: c_int,
            stream: *mut c_void,
        ) {
            let signal = Signal { word: word.addr(), value, operation, pe };
            let transfer = Transfer::flat(Way::Put, target, source, count * size_of::<$kind>(), pe);
            transfer.on_stream(When::Now, Some(signal), stream);
        } }
        export! { ["nvshmemx_put", $bits, "_signal_nbi_on_stream"] (
            target: *mut c_void, source: *const c_void, count: usize, word: *mut u64, value: u64, operation: c_int, pe: c_int,
            stream: *mut c_void,
        ) {
            let signal = Signal { word: word.addr(), value, operation, pe };
            let transfer = Transfer::flat(Way::Put, target, source, count * size_of::<$kind>(), pe);
            transfer.on_stream(When::Later, Some(signal), stream);
        } }
    )*};
}
width! {
    "mem" u8;
    "8" u8;
    "16" u16;
    "32" u32;
    "64" u64;
    "128" u128;
}

macro_rules! strided {
    ($($verb:literal $way:ident $bits:literal $kind:ty;)*) => {$(
        export! { ["nvshmem_i", $verb, $bits] (
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
        ) {
            let (sides, strides) = ([target.addr(), source.addr()], [target_stride, source_stride]);
            Transfer::strided(Way::$way, sides, strides, size_of::<$kind>(), count, pe).on_host(When::Now);
        } }
        export! { ["nvshmemx_i", $verb, $bits, "_on_stream"] (
            target: *mut c_void, source: *const c_void, target_stride: isize, source_stride: isize, count: usize, pe: c_int,
            stream: *mut c_void,
        ) {
            let (sides, strides) = ([target.addr(), source.addr()], [target_stride, source_stride]);
            let transfer = Transfer::strided(Way::$way, sides, strides, size_of::<$kind>(), count, pe);
            transfer.on_stream(When::Now, None, stream);
        } }
    )*};
}
strided! {
    "put" Put "8" u8; "put" Put "16" u16; "put" Put "32" u32; "put" Put "64" u64; "put" Put "128" u128;
    "get" Get "8" u8; "get" Get "16" u16; "get" Get "32" u32; "get" Get "64" u64; "get" Get "128" u128;
}
