//! Safe NCCL, loaded at run time: one binary for NCCL 2.19 to 2.32, and for machines that have none.
//!
//! No network transport of its own, no tensors. Every module says what it does not do.
//!
//! ```text
//!  Nccl          the library: where it is, its version, what it lacks, parameters, logs
//!   ├─ UniqueId       what ranks that want to meet have in common
//!   ├─ Config         how a communicator shall be made; CollConfig, how one collective shall run
//!   ├─ Communicator   one rank's membership: collectives, split, shrink, abort, waits with a deadline
//!   │   ├─ PreMulSum     a reduction of its own
//!   │   ├─ Window        memory that every rank registered, for one-sided operations and kernels
//!   │   └─ DeviceCommunicator  what kernels are given
//!   ├─ Group          calls that are issued together
//!   └─ NcclError      misuse, unsupported, NCCL's answer, a deadline, a lost peer
//! ```
#![doc = include_str!("../README.md")]
#![allow(clippy::result_large_err, reason = "the error is held to 96 bytes by a test")]

mod agreement;
mod builder;
mod call;
mod choices;
mod coll_config;
mod collective;
mod communicator;
mod config;
mod configured;
mod debug_log;
mod device_comm;
mod device_requirements;
mod device_team;
mod encryption;
mod error;
mod group;
mod in_place;
mod init;
mod leaks;
mod library;
mod lifecycle;
mod mem;
mod membership;
mod nvls;
mod one_sided;
mod parameters;
mod point_to_point;
pub mod prelude;
mod properties;
mod red_op;
mod registered;
mod request;
mod requests;
mod settle;
mod siblings;
mod sim_info;
mod spans;
mod split;
mod state;
mod turns;
mod unique_id;
mod version;
mod wait;
mod watchdog;
mod window;
mod window_pointers;
mod work;

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

pub use builder::CommunicatorBuilder;
pub(crate) use call::Call;
pub use choices::{CtaPolicy, GraphUsage, HostCftMode, NvlsHostMode, Switch};
pub use coll_config::{CollConfig, VendorOption, VendorValue};
pub use communicator::{Communicator, MemStats};
pub use config::Config;
pub use configured::{Configured, ConfiguredGroup};
pub use debug_log::LogLevel;
pub use device_comm::{CftTeam, DeviceCommunicator, MultimemHandle};
pub use device_requirements::{DeviceCommLayout, DeviceCommRequirements, ResourceBuffer};
pub use device_team::DeviceTeam;
pub use encryption::EncryptionConfig;
pub use error::{CommunicatorName, DeadState, Failure, Misuse, MisuseKind, NcclError, PeerLost, RankReport, ResultCode, Timeout};
pub use group::Group;
pub use leaks::{LeakedCommunicator, Leaks};
pub use library::Nccl;
pub use mem::NcclMem;
pub use one_sided::{Signal, SignalWait};
pub use parameters::ParamValue;
/// The rendezvous of a job's processes.
pub use peerweave_bootstrap as bootstrap;
/// CUDA's driver: contexts, streams, device memory, waits with a deadline.
pub use peerweave_driver as driver;
pub use peerweave_driver::{CudaContext, CudaSlice, CudaStream, DeviceBuffer, DeviceBufferMut, DeviceMemory, context, cudarc};
pub use peerweave_dylib::{Attempt, LoadError, ParseVersionError, SymbolInfo, Unsupported, Version};
pub use peerweave_types::{DType, Element, F8E4M3, F8E5M2, bf16, f16};
pub use properties::{CommProperties, GinConnection, GinType};
pub use red_op::{PreMulSum, ReduceOp, Reduction};
pub use sim_info::SimInfo;
pub use split::ShrinkMode;
pub use unique_id::UniqueId;
pub use version::{version_code, version_from_code};
pub use wait::OnExpiry;
pub use window::{Registration, Window, WindowKind};
pub use window_pointers::LogicalEndpoint;

/// A result of this crate.
pub type Result<T, E = NcclError> = std::result::Result<T, E>;
/// NCCL's name of [`ReduceOp`], as other bindings have it.
pub type NcclReduceOp = ReduceOp;
/// NCCL's name of [`UniqueId`], as other bindings have it.
pub type NcclUniqueId = UniqueId;
/// NCCL's name of [`DType`], as other bindings have it: the type of a buffer's elements. Calls take it from the buffer.
pub type NcclDataType = DType;
