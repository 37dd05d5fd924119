//! A libnvshmem_host.so.3 without a GPU: NVSHMEM 3.8's host C interface over the memory of a host,
//! for tests of programs that use it.
//!
//! Not in this library: speed, kernels, networks. It stands in for nothing in a claim about
//! hardware. Everything else is really done: PEs are processes of one machine; the symmetric heap
//! is memory of the fake CUDA driver, shared and mapped by all; transfers copy, collectives meet
//! and compute, and what is for a stream is a host function on that stream. It needs the fake
//! driver: it reaches into memory of the device.
//!
//! Invariant: what NVSHMEM leaves undefined (memory that is not allocated, a team that was
//! destroyed, PEs that disagree, use after the end) ends the process with a line that begins with
//! `fake nvshmem:`; what NVSHMEM waits for forever is waited for, up to a limit.
//!
//! # Settings
//! All names begin with `PEERWEAVE_FAKE_NVSHMEM_`. A rule is `function[@pe][:nth][=number]`; rules
//! are separated by commas; `nth` counts from 1 over the process, and every call is meant without
//! it or with `*`. A setting that cannot be understood ends the process.
//!
//! - `VERSION=3.4.5`: what the library says it is (3.3.24 to 3.8.0), and which version words it
//!   takes. `since.txt` says which functions are newer; the harness takes their names out of a copy
//!   of the library, and one that is called nevertheless ends the process.
//! - `FAIL=nvshmem_malloc:2=7`: the second call does nothing: it returns the code (7 if none is
//!   given), null or zero, and prints a line.
//! - `ABORT=nvshmem_barrier_all:1`: the call prints a line and ends the process.
//! - `STUCK=nvshmemx_barrier_on_stream@1`: the call, or on a stream what it enqueued, never ends.
//! - `SLOW=nvshmem_malloc=50`: the same takes so many milliseconds more.
//! - `FULL=nvshmem_malloc@1:2`: the call finds no room on that PE alone; the others get memory, and
//!   the heaps are alike no more.
//! - `WAIT_MS=30000`: how long anything waits for another PE before the process is ended.
//! - `NBI_DELAY_MS=2`: how long `nbi` transfers are left undone if nobody asks for quiet.
//! - `NETWORK_DELAY_MS=2`: how long what the host puts to PEs that the network alone reaches is on
//!   its way if the host asks for no quiet.
//! - `HEAP_BYTES=4194304`: the size of the symmetric heap; otherwise `NVSHMEM_SYMMETRIC_SIZE`, or 1
//!   GiB.
//! - `SHARE_GPU=1`: PEs may share a GPU (status "limited"); otherwise their initialisation fails
//!   with code 3.
//! - `MULTICAST=1`: `nvshmemx_mc_ptr` gives addresses, which fault if they are touched, and team 6
//!   is there.
//! - `ATOMICS=1`: atomics of the host are done; otherwise they are what they are in every known
//!   release: "not implemented", and zero.
//! - `ANY_MODULE=1`: modules are not asked for their version.
//! - `NOOP=1`: what is for a stream is checked and counted, and not done: for the cost of a
//!   wrapper.
//! - `DIR=directory`: where PEs meet that a launcher started (`PMI_RANK`, `PMI_SIZE`).
//! - `LOG=file`: a line `process function(name=value, ...) = result` per call.
//!
//! Of NVSHMEM's own variables these are read: `NVSHMEM_SYMMETRIC_SIZE`,
//! `NVSHMEM_CUMEM_GRANULARITY`, `NVSHMEM_DISABLE_CUDA_VMM`, `NVSHMEM_MAX_TEAMS`,
//! `NVSHMEM_DISABLE_P2P` (no pointers to other PEs), `NVSHMEM_REMOTE_TRANSPORT`,
//! `NVSHMEM_DISABLE_NVLS`, and those that say how collectives are done, which must be equal.
//!
//! # Functions of the fake only
//! `int64_t peerweave_fake_nvshmem_count(const char *what)`: `allocations`, `allocated_bytes`,
//! `teams`, `registrations`, `symmetric_registrations`, `modules`, `pending`, `transfers`,
//! `collectives`, `left_behind`.
//!
//! # Where it is stricter or simpler than NVSHMEM
//! - The heap never grows. Where it is too small the process ends, as NVSHMEM's does where its heap
//!   cannot grow, unless `NVSHMEM_DISABLE_CUDA_VMM` says that it is of a fixed size: then null is
//!   given. The same holds for outside memory that cannot be made symmetric. Its alignment is 2
//!   MiB. A handle of a team is not used twice.
//! - Initialisation that fails after the PEs have met gives 0, as NVSHMEM's does, and leaves a
//!   status of 1.
//! - Two collectives of a team (the predefined ones count as one) that are in flight at once in a
//!   process end it, also where their streams would have been lucky; so does a set-up call of a
//!   team (memory is that of all PEs) that has one in flight.
//! - Fence and flush do what quiet does. `nbi` transfers are done in order.
//! - Sources and targets of collectives must be at the same offset on all members. Reductions are
//!   done in the order of ranks, rounded after each.
//! - At most 32 PEs. MPI and SHMEM are refused with code 3. Co-resident launches fail with code 6.
//! - Not exported: `nvshmemid_*` and the data symbols, which no program should bind.

#![allow(non_snake_case)]
#![cfg(target_os = "linux")]

#[macro_use]
mod call;
#[macro_use]
mod types;

mod abi;
mod atomics;
mod collectives;
mod compute;
mod control;
mod counters;
mod driver;
mod enqueue;
mod faults;
mod flight;
mod heap;
mod init;
mod log;
mod meet;
mod memory;
mod modules;
mod order;
mod pending;
mod rma;
mod settings;
mod signal;
mod teams;
mod transfer;
mod typed_collectives;
mod version;
mod waits;
mod widths;
mod world;
