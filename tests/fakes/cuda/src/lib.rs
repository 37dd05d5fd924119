//! A CUDA driver without a GPU: implements the C interface of libcuda.so.1 over ordinary host
//! memory, for tests.
//!
//! GPU kernels are not executed. Instead, a test registers a host function under the name of a
//! kernel. An image with any other kernel fails to load with `CUDA_ERROR_NO_BINARY_FOR_GPU`. All
//! other functions have their effects: streams are threads, copies copy, memory runs out, shared
//! memory is shared between processes. Results with this library are no evidence about hardware.
//!
//! Invariant: a handle is a number that is looked up, never an address that is dereferenced. A
//! stale or foreign handle therefore causes an error of the driver, not a crash.
//!
//! # Settings
//! All names begin with `PEERWEAVE_FAKE_CUDA_`. `CUDA_VISIBLE_DEVICES` has the driver's meaning,
//! but accepts only numbers. Settings and shared memory identify a device by its index in the
//! machine, not by its ordinal in a process. Defaults are in parentheses.
//!
//! - `DEVICES` (8): the number of devices of the machine.
//! - `MEMORY_BYTES` (4 GiB): the memory of each device. Budgets belong to the process: two
//!   processes that use one device have one budget each.
//! - `VERSION` (13000): the version that the driver reports.
//! - `CAPABILITY` (9.0): the compute capability of the devices.
//! - `NO_VMM`, `NO_MULTICAST`, `NO_POOLS`: the driver reports that it lacks the feature.
//! - `NO_PEER=0-1,...`: pairs (from, to) without peer access; `*` means any device.
//! - `BROKEN_PEER=0-1,...`: pairs (from, to) with reported access, in which writes of the first
//!   device to the second are lost; `*` means any device.
//! - `FABRIC_DIR`: a directory through which fabric handles find their memory. Without it, fabric
//!   handles are not supported.
//! - `TEAM_WAIT_MS` (2000): how long calls wait for the devices of a multicast object.
//! - `DESTROY_MS` (0): the time between the release of the last reference to a user object and its
//!   destructor.
//! - `FAIL=function:nth=code,...`: the nth call of the function fails, counted from 1; `*` means
//!   every call. `100ms` instead of a code delays the call.
//! - `MISSING=function,...`: functions that `cuGetProcAddress` does not find. The harness also
//!   removes these names from the library's symbol table.
//! - `LOG=file`: a line `pid function` for each call, and `pid function = code` for each failed
//!   call.
//! - `NO_POISON`: new memory is zero instead of 0xC3.
//!
//! # Differences from the driver
//! - Binding memory to a multicast object, and mapping the object, wait until all devices are
//!   added. The driver waits without a limit. Here the calls wait for `TEAM_WAIT_MS`, and then fail
//!   with `CUDA_ERROR_SYSTEM_NOT_READY`.
//! - Memory that a process has bound to a multicast object is unbound when the process dies. It is
//!   also unbound when the process has released its last handle and mapping of that object.
//! - Stale handles, unbinding a range that was not bound as a whole, and use of freed memory are
//!   errors here. The manual leaves them undefined.
//! - Mapping at an offset into memory is refused, because the manual requires an offset of zero.
//! - Memory of pools cannot be shared or bound.
//! - Some functions for kernels exist, but always fail, such as `cuLaunchCooperativeKernel`.
//!
//! # Functions of the fake only
//! - `peerweave_fake_cuda_fail(text)` replaces the injected faults.
//! - `peerweave_fake_context_fail(code)` puts the current context in a failed state.
//! - `peerweave_fake_stream_block(stream)` and `peerweave_fake_stream_unblock(stream)` block and
//!   unblock a stream.
//! - `peerweave_fake_multicast_store(address, bytes, length_bytes)` stores to a multicast address.
//! - `peerweave_fake_kernel(name, function)` registers a host function for a kernel. PTX is loaded
//!   if every kernel in it has a registered function. A launch calls that function once, with a
//!   `FakeLaunch`.

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
