//! A libnvshmem_host.so.3 without a GPU: implements NVSHMEM 3.8's host C interface over host
//! memory, for tests of programs that use it.
//!
//! Speed, kernels and networks are not emulated, and results with this library are no evidence
//! about hardware. All other functions have their effects: PEs are processes of one machine; the
//! symmetric heap is memory of the fake CUDA driver that all PEs share and map; transfers copy,
//! collectives synchronize and compute, and stream-ordered calls are host functions on their
//! streams. The library requires the fake driver, because it accesses device memory directly.
//!
//! Invariant: a call whose behaviour NVSHMEM leaves undefined (memory that is not allocated, a
//! destroyed team, PEs that disagree, use after finalize) ends the process with a line that begins
//! with `fake nvshmem:`; waits that never end in NVSHMEM end at a limit here.
//!
//! # Settings
//! All names begin with `PEERWEAVE_FAKE_NVSHMEM_`. A rule is `function[@pe][:nth][=number]`; commas
//! separate rules; `nth` counts the calls of the process from 1; without it, or with `*`, the rule
//! applies to every call. An invalid setting ends the process.
//!
//! - `VERSION=3.4.5`: the version that the library reports (3.3.24 to 3.8.0), and the version words
//!   that it accepts. `since.txt` lists newer functions; the harness removes their names from a
//!   copy of the library, and a call of one ends the process.
//! - `FAIL=nvshmem_malloc:2=7`: the second call has no effect: it returns the code (7 by default),
//!   null or zero, and prints a line.
//! - `ABORT=nvshmem_barrier_all:1`: the call prints a line and ends the process.
//! - `STUCK=nvshmemx_barrier_on_stream@1`: the call, or the operation that it enqueued, never ends.
//! - `SLOW=nvshmem_malloc=50`: the call or operation begins this many milliseconds later.
//! - `FULL=nvshmem_malloc@1:2`: the allocation fails on that PE only; the other PEs get memory, and
//!   the heaps differ.
//! - `WAIT_MS=30000`: time limit of any wait for another PE; at the limit the process ends.
//! - `NBI_DELAY_MS=2`: maximum delay of `nbi` transfers without a quiet.
//! - `NETWORK_DELAY_MS=2`: delay of puts of the host to PEs that only the network reaches, without
//!   a quiet of the host.
//! - `HEAP_BYTES=4194304`: the size of the symmetric heap; otherwise `NVSHMEM_SYMMETRIC_SIZE`, or 1
//!   GiB.
//! - `SHARE_GPU=1`: PEs may share a GPU (status "limited"); otherwise their initialisation fails
//!   with code 3.
//! - `MULTICAST=1`: `nvshmemx_mc_ptr` returns addresses, which fault when they are accessed, and
//!   team 6 exists.
//! - `ATOMICS=1`: atomics of the host have their effects; otherwise they behave as in every known
//!   release: "not implemented", and zero.
//! - `ANY_MODULE=1`: the version of modules is not checked.
//! - `NOOP=1`: stream-ordered calls are checked and counted, but have no effect; for measurements
//!   of a wrapper.
//! - `DIR=directory`: the directory in which PEs of a launcher connect (`PMI_RANK`, `PMI_SIZE`).
//! - `LOG=file`: a line `process function(name=value, ...) = result` per call.
//!
//! The library reads these variables of NVSHMEM: `NVSHMEM_SYMMETRIC_SIZE`,
//! `NVSHMEM_CUMEM_GRANULARITY`, `NVSHMEM_DISABLE_CUDA_VMM`, `NVSHMEM_MAX_TEAMS`,
//! `NVSHMEM_DISABLE_P2P` (no pointers to other PEs), `NVSHMEM_REMOTE_TRANSPORT`,
//! `NVSHMEM_DISABLE_NVLS`, and those that select the algorithms of collectives, which must be equal
//! on all PEs.
//!
//! # Functions of the fake only
//! `int64_t peerweave_fake_nvshmem_count(const char *what)`: `allocations`, `allocated_bytes`,
//! `teams`, `registrations`, `symmetric_registrations`, `modules`, `pending`, `transfers`,
//! `collectives`, `left_behind`.
//!
//! # Where it is stricter or simpler than NVSHMEM
//! - The heap never grows. If it is too small, the process ends, as with NVSHMEM when its heap
//!   cannot grow, unless `NVSHMEM_DISABLE_CUDA_VMM` requests a fixed size: then the allocation
//!   returns null. The same holds for other memory that cannot be registered as symmetric; its
//!   alignment is 2 MiB. The handle of a team is never reused.
//! - Initialization that fails after the PEs have connected returns 0, as NVSHMEM's does, and sets
//!   the status to 1.
//! - Two pending collectives of a team in one process (the predefined teams count as one) end the
//!   process, even if their streams happen to order them; so does a setup call of a team with a
//!   pending collective (allocation is a setup call of all PEs).
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
