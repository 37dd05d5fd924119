//! A libnccl.so.2 without a GPU: implements NCCL 2.32's C interface over host memory, for tests of
//! programs that use NCCL.
//!
//! Speed, kernels and networks are not emulated, and results with this library are no evidence
//! about hardware. All other functions have their effects: every collective is enqueued as a host
//! function on its CUDA stream (of any driver that is installed as `libcuda.so.1`). In that
//! function the ranks of the communicator synchronize, exchange their data and compute. Ranks may
//! be threads of one process or processes of one machine.
//!
//! Invariant: a call whose behaviour NCCL leaves undefined (such as use of a destroyed
//! communicator) ends the process with a line that begins with `fake nccl:`. Where NCCL would hang
//! (ranks disagree, a rank is dead, a graph outlives its communicator), this library hangs too.

//!
//! # Settings
//! All names begin with `PEERWEAVE_FAKE_NCCL_`. A rule is `function[@rank][:nth][=number]`; rules
//! are separated by commas. With a rank, only calls on communicators of that rank count. `nth`
//! counts the calls of the process from 1. Without `nth`, or with `*`, the rule applies to every
//! call. An invalid setting ends the process.
//!
//! - `VERSION=21805`: the version that `ncclGetVersion` returns (2.18 to 2.32). The version
//!   determines how `ncclConfig_t` and the structs of the device interface are read, and which
//!   types exist. `since.txt` lists newer functions; the harness removes their names from a copy of
//!   the library, and a call of such a function ends the process.
//! - `FAIL=ncclAllReduce:3=2`: the third call returns code 2 and does nothing.
//! - `STUCK=ncclAllReduce:2`: the second call's operation runs until its communicator is aborted or
//!   revoked. A stuck `ncclCommRevoke`, `ncclCommFinalize` or `ncclCommMemStats` does not return,
//!   or does not complete, until the communicator is aborted.
//! - `ASYNC_ERROR=ncclAllReduce:2=6`: like `STUCK`, and `ncclCommGetAsyncError` returns 6 once the
//!   operation runs.
//! - `SLOW=ncclAllReduce=50`: operations wait this many milliseconds on their stream before they
//!   begin; other functions wait at the start of the call.
//! - `INIT_STUCK=*` or a rank (of the parent if there is one): the communicators of that rank do
//!   not become ready until they are aborted.
//! - `INIT_SLOW=100`: milliseconds before each initialisation.
//! - `NULL_WINDOW=1`: windows are registered with success, but the handle is null.
//! - `MULTIMEM=1`: the library reports multicast; the multicast pointers that it returns fault if
//!   the host accesses them.
//! - `DEATH=hang` (as NCCL over shared memory; the default) or `error`: whether communicators that
//!   have received from a process report `ncclRemoteError` after its end.
//! - `NOOP=1`: collectives, sends, receives and puts are only counted, for measurements of a
//!   wrapper. On a non-blocking communicator a call is in progress until a thread has processed it,
//!   as in NCCL since version 2.23.4. With `NOOP=questions` no thread is started, and the call is
//!   in progress until the first query, so that it costs the same each time.
//! - `CONNECT=1`: a communicator's first collective waits on the host until all ranks have issued
//!   their first collective. NCCL connects the ranks at that time.
//! - `LOG=file`: a line `process function(name=value, ...) = code` per call;
//!   `process config field=value ...` for each configuration that was read, with the fields that
//!   have an effect; `process collective config ...` for each configuration of a call;
//!   `process mismatch ...` if ranks disagree and hang.
//!
//! # Functions of the fake only
//! `int64_t peerweave_fake_nccl_count(const char *what)`: `communicators`, `windows`, `redops`,
//! `registrations`, `device_comms`, `allocations`, `allocated_bytes`, `graph_launches`,
//! `left_behind`, `collectives`, `busy`. `int peerweave_fake_nccl_group_depth(void)`: the number of
//! groups that are open on the calling thread.
//!
//! # Where the fake is stricter or simpler than NCCL
//! - A send completes when its receive completes, whatever its size. Calls are compared: a mismatch
//!   of kind, type, operator, root or count hangs.
//! - Reductions are computed in rank order and rounded after each step. Averages of floating-point
//!   numbers multiply by the inverse first.
//! - Two ranks of one process on one device are refused; ranks of different processes are not,
//!   because each may see other devices.
//! - Ranks of different processes cannot access each other's windows by a pointer (they are in
//!   different LSA teams), only by puts.
//! - If a communicator ends while a captured graph holds its operations, the process ends after
//!   five seconds; NCCL waits forever.
//! - GIN, CFT and vendor options are not supported. Encryption settings are checked but have no
//!   effect.
//! - The log of `NCCL_DEBUG` and `NCCL_DEBUG_FILE` contains only errors and initializations.

#![allow(non_snake_case)]
#![cfg(target_os = "linux")]

mod abi;
mod api;
mod arithmetic;
mod call;
mod comm;
mod groups;
mod messages;
mod report;
mod settings;
