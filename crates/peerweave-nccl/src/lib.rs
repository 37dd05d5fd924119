//! A safe API for NCCL. The NCCL library is loaded at run time, so one binary works with NCCL 2.19
//! to 2.32, and also runs on machines without NCCL.
//!
//! This crate provides neither a network transport nor a tensor type.
//!
//! ```text
//!  Nccl          the library: its path, version, missing functions, parameters and logs
//!   ├─ UniqueId       the id with which ranks join one communicator
//!   ├─ Config         the options of a communicator; CollConfig: the options of one collective
//!   ├─ Communicator   one rank of a communicator: collectives, split, shrink, abort, waits with a deadline
//!   │   ├─ PreMulSum     a sum of operands that are multiplied by a factor
//!   │   ├─ Window        memory registered by every rank, for one-sided operations and kernels
//!   │   └─ DeviceCommunicator  the communicator as an argument of kernels
//!   ├─ Group          calls that are issued together
//!   └─ NcclError      misuse, missing features, NCCL errors, expired deadlines, lost peers
//! ```
#![doc = include_str!("../README.md")]
#![allow(clippy::result_large_err, reason = "an `NcclError` has at most 96 bytes, which a test checks")]

mod comm;
mod config;
mod device;
mod library;
mod member;
mod memory;
mod ops;
pub mod prelude;
mod setup;

#[cfg(feature = "raw")]
#[allow(non_camel_case_types, non_snake_case, reason = "NVIDIA's headers define these names")]
pub mod sys;
#[cfg(not(feature = "raw"))]
#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    non_camel_case_types,
    non_snake_case,
    reason = "the feature `raw` makes all items of this module public"
)]
mod sys;

pub use comm::communicator::{Communicator, MemStats};
pub use comm::leaks::{LeakedCommunicator, Leaks};
pub use comm::wait::OnExpiry;
pub use config::choices::{CtaPolicy, GraphUsage, HostCftMode, NvlsHostMode, Switch};
pub use config::encryption::EncryptionConfig;
pub use config::of_call::{CollConfig, VendorOption, VendorValue};
pub use config::of_communicator::Config;
pub use device::device_comm::{CftTeam, DeviceCommunicator, MultimemHandle};
pub use device::requirements::{DeviceCommLayout, DeviceCommRequirements, ResourceBuffer};
pub use device::team::DeviceTeam;
pub(crate) use library::call::Call;
pub use library::debug_log::LogLevel;
pub use library::error::{
    CommunicatorName, DeadState, Failure, Misuse, MisuseKind, NcclError, PeerLost, RankReport, ResultCode, Timeout,
};
pub use library::loading::Nccl;
pub use library::parameters::ParamValue;
pub use library::properties::{CommProperties, GinConnection, GinType};
pub use library::unique_id::UniqueId;
pub use library::version::{version_code, version_from_code};
pub use memory::mem::NcclMem;
pub use memory::pointers::LogicalEndpoint;
pub use memory::registration::Registration;
pub use memory::window::{Window, WindowKind};
pub use ops::configured::{Configured, ConfiguredGroup};
pub use ops::group::Group;
pub use ops::group::sim_info::SimInfo;
pub use ops::one_sided::{Signal, SignalWait};
pub use ops::reduction::{PreMulSum, Reduction};
/// Rendezvous through which the processes of a job exchange data and detect lost processes.
pub use peerweave_bootstrap as bootstrap;
/// The CUDA driver: contexts, streams, device memory, and waits with a deadline.
pub use peerweave_driver as driver;
pub use peerweave_driver::{CudaContext, CudaSlice, CudaStream, DeviceBuffer, DeviceBufferMut, DeviceMemory, context, cudarc};
pub use peerweave_dylib::{Attempt, LoadError, ParseVersionError, SearchScope, SymbolInfo, Unsupported, Version};
pub use peerweave_types::{DType, Element, F8E4M3, F8E5M2, Rank, ReduceOp, bf16, f16};
pub use setup::builder::CommunicatorBuilder;
pub use setup::split::ShrinkMode;

/// Result of calls in this crate. The default error type is [`NcclError`].
pub type Result<T, E = NcclError> = std::result::Result<T, E>;
/// Alias of [`ReduceOp`]. Other bindings of NCCL use this name.
pub type NcclReduceOp = ReduceOp;
/// Alias of [`UniqueId`]. Other bindings of NCCL use this name.
pub type NcclUniqueId = UniqueId;
/// Alias of [`DType`], the type of a buffer's elements. Other bindings of NCCL use this name. Calls
/// in this crate determine the element type from the buffer's Rust type.
pub type NcclDataType = DType;
