//! A driver of CUDA without a GPU: the C interface of libcuda.so.1 over ordinary host memory, for
//! tests.
//!
//! Not in this library: kernels. Loading a module is refused with the code that a driver gives for
//! an image it cannot run. Everything else is really done: streams are threads, copies copy, memory
//! runs out, shared memory is shared between processes. It stands in for nothing in a claim about
//! hardware.
//!
//! Invariant: a handle is a number that is looked up, never an address that is followed, so that a
//! stale or foreign one is an error of the real driver and not a crash.
//!
//! # Settings
//! All names begin with `PEERWEAVE_FAKE_CUDA_`, but for `CUDA_VISIBLE_DEVICES`, which means what it
//! means to a driver (numbers only). Pairs and shared memory name devices as they lie in the
//! machine, whatever their ordinals. `DEVICES` (8), `MEMORY_BYTES` of each device (4 GiB),
//! `VERSION` (13000), `NO_VMM`, `NO_MULTICAST`, `NO_POOLS`: the driver says that it lacks them.
//! `NO_PEER=0-1,...`: pairs without peer access. `BROKEN_PEER=0-1,...`: pairs (from, to) whose
//! access is claimed, but what device 0 writes to device 1 is lost. `FABRIC_DIR`: a directory
//! through which fabric handles find their memory; without it fabric is not supported.
//! `FAIL=function:nth=code,...`: calls that fail, counted from 1, `*` for every call; with `100ms`
//! for a code, a call that is late. `MISSING=function,...`: what `cuGetProcAddress` does not find
//! (the harness also takes the name out of the library's own table). `LOG=file`: a line
//! `pid function` for each call, and `pid function = code` for each that failed. `NO_POISON`: new
//! memory is zero instead of 0xC3. Budgets are of the process: two processes that use one device
//! have one each.
//!
//! # Where this is not the driver
//! Binding memory to a multicast object, and mapping the object, wait for devices that others still
//! have to add, as the driver's do, but only for `TEAM_WAIT_MS` (2000); then they fail with
//! `CUDA_ERROR_SYSTEM_NOT_READY`. What a process bound is unbound when the process has neither
//! handle nor mapping of the object left, and is gone when it dies. Undefined by the manual, an
//! error here: stale handles, unbinding what was not bound so, freed memory. Mapping at an offset
//! into memory is refused: the manual says that it must be zero. Memory of pools cannot be shared
//! or bound.
//!
//! # Functions of the fake only
//! `peerweave_fake_cuda_fail(text)`, `peerweave_fake_context_fail(code)`,
//! `peerweave_fake_stream_block(stream)`, `peerweave_fake_stream_unblock(stream)`,
//! `peerweave_fake_multicast_store(address, bytes, length_bytes)`,
//! `peerweave_fake_kernel(name, function)`: PTX whose kernels all have a function of the host can
//! be loaded, and a launch calls that function once, with a `FakeLaunch`.

#![allow(non_snake_case)]
#![cfg(target_os = "linux")]

/// Makes exported functions, and the list of them from which `cuGetProcAddress` reads.
///
/// The number before a function is the driver's version that brought it.
macro_rules! exports {
    ($($(#[$doc:meta])* $since:literal fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $type),*) -> core::ffi::c_int {
                $crate::faults::call(stringify!($name), move || -> $crate::abi::Result { $body })
            }
        )*
        /// The exports of this module.
        pub(crate) const SYMBOLS: &[$crate::entry::Symbol] = &[
            $($crate::entry::Symbol { name: stringify!($name), since: $since, address: || $name as *const () },)*
        ];
    };
}

mod abi;
mod address;
mod arena;
mod capture;
mod context;
mod copy;
mod device;
mod driver;
mod entries;
mod entry;
mod event;
mod faults;
mod graph;
mod handles;
mod host_memory;
mod ipc;
mod memory;
mod modules;
mod multicast;
mod peer;
mod physical;
mod pointer;
mod pool;
mod share;
mod stream;
mod transfer;
mod unified;
mod user_object;
mod vmm;
mod work;
