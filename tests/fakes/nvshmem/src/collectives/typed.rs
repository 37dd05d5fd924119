//! Collectives by type and by size in bytes, from the host and on streams.
//!
//! Module `collective` implements the collectives. Invariant: counts of typed functions are in
//! elements, and those of `mem` functions in bytes.

use core::ffi::{c_int, c_void};

use super::collective::{Collective, Kind};
use crate::abi::types::{each_bitwise, each_reduce, each_rma};
use crate::arithmetic;
use crate::call::export;

/// Defines a collective without a root; `$stem` is the middle of the function names. `$count` is
/// the name of the count argument in the log.
macro_rules! rootless {
    ([$($stem:tt)*] $kind:ty, $count:ident, $which:expr) => {
        export! { ["nvshmem_", $($stem)*] (team: c_int, target: *mut c_void, source: *const c_void, $count: usize) -> c_int {
            Collective::new($which, target, source, $count * size_of::<$kind>()).on_host(team)
        } }
        export! { ["nvshmemx_", $($stem)*, "_on_stream"]
            (team: c_int, target: *mut c_void, source: *const c_void, $count: usize, stream: *mut c_void) -> c_int {
            Collective::new($which, target, source, $count * size_of::<$kind>()).on_stream(team, stream)
        } }
    };
}

/// Defines a broadcast.
macro_rules! broadcast {
    ([$($stem:tt)*] $kind:ty, $count:ident) => {
        export! { ["nvshmem_", $($stem)*]
            (team: c_int, target: *mut c_void, source: *const c_void, $count: usize, root: c_int) -> c_int {
            Collective::new(Kind::Broadcast { root }, target, source, $count * size_of::<$kind>()).on_host(team)
        } }
        export! { ["nvshmemx_", $($stem)*, "_on_stream"]
            (team: c_int, target: *mut c_void, source: *const c_void, $count: usize, root: c_int, stream: *mut c_void) -> c_int {
            Collective::new(Kind::Broadcast { root }, target, source, $count * size_of::<$kind>()).on_stream(team, stream)
        } }
    };
}

macro_rules! moves {
    ($name:literal $kind:ty) => {
        rootless! { [$name, "_alltoall"] $kind, count, Kind::AllToAll }
        rootless! { [$name, "_fcollect"] $kind, count, Kind::Fcollect }
        broadcast! { [$name, "_broadcast"] $kind, count }
    };
}
each_rma!(moves);
rootless! { ["alltoallmem"] u8, bytes, Kind::AllToAll }
rootless! { ["fcollectmem"] u8, bytes, Kind::Fcollect }
broadcast! { ["broadcastmem"] u8, bytes }

macro_rules! reductions {
    ($name:literal $kind:ty; $($operator:literal $function:ident)*) => {$(
        rootless! { [$name, $operator, "_reduce"] $kind, count, Kind::Reduce(arithmetic::$function::<$kind>) }
        rootless! { [$name, $operator, "_reducescatter"] $kind, count, Kind::ReduceScatter(arithmetic::$function::<$kind>) }
    )*};
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
