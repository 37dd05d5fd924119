//! A libnvshmem_host.so.3 without a GPU: implements NVSHMEM 3.8's host C interface over host
//! memory, for tests of programs that use it.
//!
//! Speed, kernels and networks are not emulated, and results with this library are no evidence
//! about hardware. All other functions have their effects: PEs are processes of one machine; the
//! symmetric heap is memory of the fake CUDA driver that all PEs share and map; transfers copy,
//! collectives synchronize and compute, and stream-ordered calls are host functions on their
//! streams. The library requires the fake driver, because the library accesses device memory
//! directly.
//!
//! Invariant: a call whose behaviour NVSHMEM leaves undefined ends the process with a line that
//! begins with `fake nvshmem:`. Examples are memory that is not allocated, a destroyed team, PEs
//! that disagree, and use after finalize. A wait that never ends in NVSHMEM ends the process at a
//! time limit here.
//!
//! # Settings
//! All names begin with `PEERWEAVE_FAKE_NVSHMEM_`. A rule is `function[@pe][:nth][=number]`; commas
//! separate rules. `nth` counts the calls of the process from 1. Without `nth`, or with `*`, the
//! rule applies to every call. An invalid setting ends the process.
//!
//! - `VERSION=3.4.5`: the version that the library reports (3.3.24 to 3.8.0). The version also
//!   determines which version words the library accepts. `since.txt` lists newer functions: the
//!   harness removes their names from a copy of the library, and a call of such a function ends the
//!   process.
//! - `FAIL=nvshmem_malloc:2=7`: the second call has no effect. The call returns the code (7 by
//!   default), null or zero, and prints a line.
//! - `ABORT=nvshmem_barrier_all:1`: the call prints a line and ends the process.
//! - `STUCK=nvshmemx_barrier_on_stream@1`: the call, or the operation that it enqueued, never ends.
//! - `SLOW=nvshmem_malloc=50`: the call or operation begins this many milliseconds later.
//! - `FULL=nvshmem_malloc@1:2`: the allocation fails on that PE only; the other PEs get memory, and
//!   the heaps differ.
//! - `WAIT_MS=30000`: time limit of any wait for another PE; at the limit the process ends.
//! - `NBI_DELAY_MS=2`: maximum delay of `nbi` transfers without a quiet.
//! - `NETWORK_DELAY_MS=2`: maximum delay of puts of the host to PEs that only the network reaches,
//!   without a quiet of the host.
//! - `HEAP_BYTES=4194304`: the size of the symmetric heap; otherwise `NVSHMEM_SYMMETRIC_SIZE`, or 1
//!   GiB.
//! - `SHARE_GPU=1`: PEs may share a GPU (status "limited"); otherwise their initialisation fails
//!   with code 3.
//! - `MULTICAST=1`: `nvshmemx_mc_ptr` returns addresses, which fault when they are accessed, and
//!   team 6 exists.
//! - `ATOMICS=1`: atomics of the host have their effects. Otherwise they print "not implemented"
//!   and return zero, as in every known release.
//! - `ANY_MODULE=1`: the version of modules is not checked.
//! - `NOOP=1`: stream-ordered calls are checked and counted, but have no effect; for measurements
//!   of a wrapper.
//! - `DIR=directory`: the directory through which PEs connect if a launcher started them
//!   (`PMI_RANK`, `PMI_SIZE`).
//! - `LOG=file`: a line `process function(name=value, ...) = result` per call.
//!
//! The library reads these variables of NVSHMEM: `NVSHMEM_SYMMETRIC_SIZE`,
//! `NVSHMEM_CUMEM_GRANULARITY`, `NVSHMEM_DISABLE_CUDA_VMM`, `NVSHMEM_MAX_TEAMS`,
//! `NVSHMEM_DISABLE_P2P` (no pointers to other PEs), `NVSHMEM_REMOTE_TRANSPORT`,
//! `NVSHMEM_DISABLE_NVLS`. It also reads the variables that select the algorithms of collectives.
//! These must be equal on all PEs.
//!
//! # Functions of the fake only
//! `int64_t peerweave_fake_nvshmem_count(const char *what)`: `allocations`, `allocated_bytes`,
//! `teams`, `registrations`, `symmetric_registrations`, `modules`, `pending`, `transfers`,
//! `collectives`, `left_behind`.
//!
//! # Where the fake is stricter or simpler than NVSHMEM
//! - The heap never grows. If the heap is too small, the process ends, as in NVSHMEM when its heap
//!   cannot grow. If `NVSHMEM_DISABLE_CUDA_VMM` requests a heap of fixed size, the allocation
//!   returns null instead. A failed symmetric registration has the same consequences.
//! - Allocations are aligned to at most 2 MiB. The length of a symmetric registration must be a
//!   multiple of `NVSHMEM_CUMEM_GRANULARITY` (512 MiB by default), or of 2 MiB if the heap has a
//!   fixed size.
//! - The handle of a team is never reused.
//! - Initialization that fails after the PEs have connected returns 0, as in NVSHMEM, and sets the
//!   status to 1.
//! - A collective that begins before the previous collective of its team in the process is complete
//!   ends the process. The predefined teams count as one team here. A setup call of a team with a
//!   pending collective also ends the process; allocation is a setup call of all PEs.
//! - Fence and flush have the effect of quiet. `nbi` transfers complete in order.
//! - Sources and targets of collectives must have the same offset on all members. Reductions are
//!   computed in rank order and rounded after each step.
//! - At most 32 PEs. Initialization by MPI and SHMEM fails with code 3. Cooperative launches fail
//!   with code 6.
//! - `nvshmemid_*` and the data symbols, which no program should use, are not exported.

#![allow(non_snake_case)]
#![cfg(target_os = "linux")]

mod abi;
mod arithmetic;
mod call;
mod collectives;
mod job;
mod peers;
mod resources;
mod settings;
mod startup;
mod transfers;
