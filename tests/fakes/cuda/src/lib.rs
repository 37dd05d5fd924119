//! A CUDA driver without a GPU: implements the C interface of libcuda.so.1 over ordinary host
//! memory, for tests.
//!
//! Kernels are not executed: a kernel is a host function that the test has registered under the
//! kernel's name. Any other image fails to load, with the code of a driver for an image that it
//! cannot run. All other functions have their effects: streams are threads, copies copy, memory
//! runs out, shared memory is shared between processes. Results with this library are no evidence
//! about hardware.
//!
//! Invariant: a handle is a number that is looked up, never an address that is dereferenced, so
//! that a stale or foreign handle causes an error of the driver and not a crash.
//!
//! # Settings
//! All names begin with `PEERWEAVE_FAKE_CUDA_`, except `CUDA_VISIBLE_DEVICES`, which has the
//! meaning of the driver (numbers only). Pairs and shared memory name devices by their index in the
//! machine, whatever their ordinals are. `DEVICES` (8); `MEMORY_BYTES` of each device (4 GiB);
//! `VERSION` (13000). `NO_VMM`, `NO_MULTICAST`, `NO_POOLS`: the driver reports that it lacks the
//! feature. `NO_PEER=0-1,...`: pairs without peer access. `BROKEN_PEER=0-1,...`: pairs (from, to)
//! with reported access, in which writes of device 0 to device 1 are lost. `FABRIC_DIR`: a
//! directory through which fabric handles find their memory; without it fabric handles are not
//! supported. `FAIL=function:nth=code,...`: calls that fail, counted from 1, `*` for every call;
//! `100ms` instead of a code delays the call. `MISSING=function,...`: functions that
//! `cuGetProcAddress` does not find (the harness also removes the name from the library's table).
//! `LOG=file`: a line `pid function` for each call, and `pid function = code` for each failed one.
//! `NO_POISON`: new memory is zero instead of 0xC3. Budgets belong to the process: two processes
//! that use one device have one budget each.
//!
//! # Differences from the driver
//! Binding memory to a multicast object, and mapping the object, wait until all devices were added,
//! as in the driver, but only for `TEAM_WAIT_MS` (2000); then they fail with
//! `CUDA_ERROR_SYSTEM_NOT_READY`. Memory that a process has bound is unbound when the process has
//! neither a handle nor a mapping of the object left, or dies. These are errors here, although the
//! manual leaves them undefined: stale handles, unbinding a range that was not bound as a whole,
//! and use of freed memory. Mapping at an offset into memory is refused, because the manual
//! requires an offset of zero. Memory of pools cannot be shared or bound.
//!
//! # Functions of the fake only
//! `peerweave_fake_cuda_fail(text)`, `peerweave_fake_context_fail(code)`,
//! `peerweave_fake_stream_block(stream)`, `peerweave_fake_stream_unblock(stream)`,
//! `peerweave_fake_multicast_store(address, bytes, length_bytes)`, `peerweave_fake_kernel(name,
//! function)`: PTX is loaded if every kernel in it has a registered host function; a launch calls
//! that function once, with a `FakeLaunch`.

#![allow(non_snake_case)]
#![cfg(target_os = "linux")]

mod abi;
mod api;
mod calls;
mod machine;
mod memory;
mod os;
mod streams;
mod sync;
mod table;
mod work;
