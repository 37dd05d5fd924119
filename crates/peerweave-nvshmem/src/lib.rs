//! Safe NVSHMEM for the host, loaded at run time: one binary for NVSHMEM 3.3 to 3.8, and for machines that have none.
//!
//! No kernels, no network transport of its own, no tensors. Every module says what it does not do.
//!
//! ```text
//!  Nvshmem           the library: where it is, its version, what it lacks, its plug-ins
//!   └─ Context       NVSHMEM in this process: started by a rendezvous, an id, MPI or a launcher
//!       ├─ SymmetricBuffer   memory that every PE has; put, get, signal, wait
//!       ├─ Team              PEs that call collectives together
//!       └─ ModuleGuard       a module whose kernels call NVSHMEM
//!  NvshmemError      misuse, unsupported, the machine, NVSHMEM's answer, a deadline, a lost peer
//! ```
#![doc = include_str!("../README.md")]
#![allow(clippy::result_large_err, reason = "the error is held to 104 bytes by a test")]

mod agree;
mod atomics;
mod buffer;
mod collective;
mod context;
mod enqueue;
mod environment;
mod error;
mod finalize;
mod gate;
mod handle;
mod heap;
mod init;
mod interface;
mod left;
mod library;
mod module;
mod order;
mod parked;
mod plugins;
mod preflight;
mod rma;
mod rma_blocking;
mod settings;
mod signal;
mod streams;
mod team;
mod unique_id;
mod words;

#[cfg(feature = "raw")]
#[allow(non_camel_case_types, non_snake_case, reason = "the names are the vendor's")]
pub mod sys;
#[cfg(not(feature = "raw"))]
#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    non_camel_case_types,
    non_snake_case,
    reason = "all of it is public under the feature `raw`"
)]
mod sys;

pub use buffer::SymmetricBuffer;
pub use context::{Context, Info};
pub use error::{
    DeadState, Disagree, Failure, Misuse, MisuseKind, NvshmemError, PluginError, PreflightError, StatusCode, Timeout,
};
pub use finalize::{FinalizeReport, Leak};
pub use heap::Registration;
pub use library::{Nvshmem, Status};
pub use module::ModuleGuard;
pub use peerweave_dylib::{Attempt, LoadError, ParseVersionError, SymbolInfo, Unsupported, Version};
pub use peerweave_types::Strides;
pub use settings::Settings;
pub use signal::Signal;
pub use team::{Team, TeamConfig, TeamId, TeamKind};
pub use unique_id::UniqueId;
