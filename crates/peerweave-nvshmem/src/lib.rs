//! A safe Rust API for NVSHMEM's host library, which is loaded at run time. One binary works with
//! NVSHMEM 3.3 to 3.8, and also runs on machines without NVSHMEM.
//!
//! This crate contains no kernels, no network transport and no tensor type.
//!
//! ```text
//!  Nvshmem           the library: its path, version, missing functions and plug-ins
//!   └─ Context       NVSHMEM in this process: started by a rendezvous, an id, MPI or a launcher
//!       ├─ SymmetricBuffer   memory that every PE has; put, get, signal, wait
//!       ├─ Team              PEs that call collectives together
//!       └─ ModuleGuard       a module whose kernels call NVSHMEM
//!  NvshmemError      misuse, missing features, unsuitable machines, errors of NVSHMEM, expired deadlines, lost peers
//! ```
#![doc = include_str!("../README.md")]
#![allow(clippy::result_large_err, reason = "a test ensures that the error type has at most 104 bytes")]

mod comm;
mod context;
mod error;
mod heap;
mod library;
mod ops;
mod startup;
mod team;

#[cfg(feature = "raw")]
#[allow(non_camel_case_types, non_snake_case, reason = "the names are those of NVSHMEM's headers")]
pub mod sys;
#[cfg(not(feature = "raw"))]
#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    non_camel_case_types,
    non_snake_case,
    reason = "all items are public under the feature `raw`"
)]
mod sys;

pub use context::{Context, Info};
pub use error::{
    DeadState, Disagree, Failure, Misuse, MisuseKind, NvshmemError, OtherCall, PluginError, PreflightError, StatusCode, Timeout,
};
pub use heap::buffer::SymmetricBuffer;
pub use heap::registration::Registration;
pub use library::{Nvshmem, Settings, Status};
pub use ops::module::ModuleGuard;
pub use ops::signal::Signal;
pub use peerweave_dylib::{Attempt, LoadError, ParseVersionError, SearchScope, SymbolInfo, Unsupported, Version};
pub use peerweave_types::Strides;
pub use startup::finalize::{FinalizeReport, Leak};
pub use startup::unique_id::UniqueId;
pub use team::{Team, TeamConfig, TeamId, TeamKind};
