//! Collectives by type and by size in bytes, from the host and on streams.
//!
//! `collective` implements them. Invariant: counts are in elements.

use core::ffi::{c_int, c_void};

use super::collective::{Collective, Kind};
use super::compute;
use crate::abi::types::{each_bitwise, each_reduce, each_rma};
use crate::call::{export, exports};

macro_rules! moves {
    ($name:literal $kind:ty) => {
        moves! { $name $kind; "_alltoall" AllToAll "_fcollect" Fcollect }
        export! { ["nvshmem_", $name, "_broadcast"]
            (team: c_int, target: *mut $kind, source: *const $kind, count: usize, root: c_int) -> c_int {
            Collective::new(Kind::Broadcast { root }, target.cast(), source.cast(), count * size_of::<$kind>()).on_host(team)
        } }
        export! { ["nvshmemx_", $name, "_broadcast_on_stream"]
            (team: c_int, target: *mut $kind, source: *const $kind, count: usize, root: c_int, stream: *mut c_void) -> c_int {
            let kind = Kind::Broadcast { root };
            Collective::new(kind, target.cast(), source.cast(), count * size_of::<$kind>()).on_stream(team, stream)
        } }
    };
    ($name:literal $kind:ty; $($tail:literal $which:ident)*) => {$(
        export! { ["nvshmem_", $name, $tail] (team: c_int, target: *mut $kind, source: *const $kind, count: usize) -> c_int {
            Collective::new(Kind::$which, target.cast(), source.cast(), count * size_of::<$kind>()).on_host(team)
        } }
        export! { ["nvshmemx_", $name, $tail, "_on_stream"]
            (team: c_int, target: *mut $kind, source: *const $kind, count: usize, stream: *mut c_void) -> c_int {
            Collective::new(Kind::$which, target.cast(), source.cast(), count * size_of::<$kind>()).on_stream(team, stream)
        } }
    )*};
}
each_rma!(moves);

macro_rules! reductions {
    ($name:literal $kind:ty; $($operator:literal $function:ident)*) => {$(
        reduction! { $name $kind; $operator $function "_reduce" Reduce }
        reduction! { $name $kind; $operator $function "_reducescatter" ReduceScatter }
    )*};
}
macro_rules! reduction {
    ($name:literal $kind:ty; $operator:literal $function:ident $tail:literal $which:ident) => {
        export! { ["nvshmem_", $name, $operator, $tail]
            (team: c_int, target: *mut $kind, source: *const $kind, count: usize) -> c_int {
            let kind = Kind::$which(compute::$function::<$kind>);
            Collective::new(kind, target.cast(), source.cast(), count * size_of::<$kind>()).on_host(team)
        } }
        export! { ["nvshmemx_", $name, $operator, $tail, "_on_stream"]
            (team: c_int, target: *mut $kind, source: *const $kind, count: usize, stream: *mut c_void) -> c_int {
            let kind = Kind::$which(compute::$function::<$kind>);
            Collective::new(kind, target.cast(), source.cast(), count * size_of::<$kind>()).on_stream(team, stream)
        } }
    };
}
macro_rules! arithmetic {
    ($name:literal $kind:ty) => {
        reductions! { $name $kind; "_sum" sum "_prod" prod "_min" min "_max" max }
    };
}
macro_rules! bitwise {
    ($name:literal $kind:ty) => {
        reductions! { $name $kind; "_and" and "_or" or "_xor" xor }
    };
}
each_reduce!(arithmetic);
each_bitwise!(bitwise);

macro_rules! bytes {
    ($($name:literal $which:ident;)*) => {$(
        export! { ["nvshmem_", $name] (team: c_int, target: *mut c_void, source: *const c_void, bytes: usize) -> c_int {
            Collective::new(Kind::$which, target, source, bytes).on_host(team)
        } }
        export! { ["nvshmemx_", $name, "_on_stream"]
            (team: c_int, target: *mut c_void, source: *const c_void, bytes: usize, stream: *mut c_void) -> c_int {
            Collective::new(Kind::$which, target, source, bytes).on_stream(team, stream)
        } }
    )*};
}
bytes! { "alltoallmem" AllToAll; "fcollectmem" Fcollect; }

exports! {
    fn nvshmem_broadcastmem(team: c_int, target: *mut c_void, source: *const c_void, bytes: usize, root: c_int) -> c_int {
        Collective::new(Kind::Broadcast { root }, target, source, bytes).on_host(team)
    }

    fn nvshmemx_broadcastmem_on_stream(
        team: c_int, target: *mut c_void, source: *const c_void, bytes: usize, root: c_int, stream: *mut c_void,
    ) -> c_int {
        Collective::new(Kind::Broadcast { root }, target, source, bytes).on_stream(team, stream)
    }
}
