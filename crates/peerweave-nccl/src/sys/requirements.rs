//! The structs of NCCL's device API: what a communicator can do, and what a device communicator
//! shall have.
//!
//! `ncclDevComm` itself is not here: its layout changes from version to version, so that it is only
//! ever bytes of a size that is known at run time.

use std::ffi::{c_int, c_uint};

use super::types::{ncclGinConnectionType_t, ncclGinType_t};

/// What a communicator can do. 2.29.2; `layout.rs` says how much of it a version knows. See
/// [`ncclCommProperties_v22902`] for the first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "each field is documented at the method of `CommProperties` that reads it")]
pub struct ncclCommProperties_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub rank: c_int,
    pub nRanks: c_int,
    pub cudaDev: c_int,
    pub nvmlDev: c_int,
    // Numbers, not bool: the library writes them, and a bool of any other value than 0 and 1 would
    // be undefined behaviour.
    pub deviceApiSupport: u8,
    pub multimemSupport: u8,
    pub ginType: ncclGinType_t,
    pub nLsaTeams: c_int,
    pub hostRmaSupport: u8,
    pub railedGinType: ncclGinType_t,
    pub commHash: u64,
    pub ginMinStride: c_int,
    pub ginConnectionType: ncclGinConnectionType_t,
    pub ginSupport: [u8; 64],
    pub devCommRuntimeVersionSize: usize,
    pub cftSupport: u8,
    pub cftMulticastSupport: u8,
    pub cftCountedSupport: u8,
}

/// The properties of 2.29.2 and 2.29.3, with a type of one byte.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as in `ncclCommProperties_t`")]
pub struct ncclCommProperties_v22902 {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub rank: c_int,
    pub nRanks: c_int,
    pub cudaDev: c_int,
    pub nvmlDev: c_int,
    pub deviceApiSupport: u8,
    pub multimemSupport: u8,
    pub ginType: u8,
}

/// A set of ranks that are a stride apart. Passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ncclTeam_t {
    /// How many.
    pub nRanks: c_int,
    /// Which of them this process is.
    pub rank: c_int,
    /// How far apart they are in the communicator.
    pub stride: c_int,
}

/// Where a multicast of a team begins.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ncclMultimemHandle_t {
    /// An address that only kernels may use.
    pub mcBasePtr: *mut core::ffi::c_void,
}

/// Where a kernel finds a barrier among ranks that loads and stores reach.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ncclLsaBarrierHandle_t {
    /// Where it is.
    pub bufHandle: u32,
    /// How many barriers.
    pub nBarriers: c_int,
}

/// Where a kernel finds a barrier over the network.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ncclGinBarrierHandle_t {
    /// Its first signal.
    pub signal0: u32,
    /// Where it was, up to 2.29; nothing since.
    pub unused: u32,
}

/// Where a kernel finds an all-to-all of short messages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ncclLLA2AHandle_t {
    /// Where it is.
    pub bufHandle: u32,
    /// How many slots a block has.
    pub nSlots: u32,
}

/// A resource of a device communicator, in a linked list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "filled by the functions whose names end in CreateRequirement")]
pub struct ncclDevResourceRequirements_t {
    pub next: *mut ncclDevResourceRequirements_t,
    pub bufferSize: usize,
    pub bufferAlign: usize,
    pub outBufferHandle: *mut u32,
    pub ginSignalCount: c_int,
    pub ginCounterCount: c_int,
    pub outGinSignalStart: *mut u32,
    pub outGinCounterStart: *mut u32,
}

/// A team whose ranks want a multicast, in a linked list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as in the header")]
pub struct ncclTeamRequirements_t {
    pub next: *mut ncclTeamRequirements_t,
    pub team: ncclTeam_t,
    pub multimem: bool,
    pub outMultimemHandle: *mut ncclMultimemHandle_t,
}

/// What a device communicator shall have. `layout.rs` says how much of it a version knows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "each field is documented at the method of `DeviceCommRequirements` that sets it")]
pub struct ncclDevCommRequirements_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub resourceRequirementsList: *mut ncclDevResourceRequirements_t,
    pub teamRequirementsList: *mut ncclTeamRequirements_t,
    pub lsaMultimem: bool,
    pub barrierCount: c_int,
    pub lsaBarrierCount: c_int,
    pub railGinBarrierCount: c_int,
    pub lsaLLA2ABlockCount: c_int,
    pub lsaLLA2ASlotCount: c_int,
    pub ginForceEnable: bool,
    pub ginContextCount: c_int,
    pub ginSignalCount: c_int,
    pub ginCounterCount: c_int,
    pub ginConnectionType: ncclGinConnectionType_t,
    pub ginExclusiveContexts: bool,
    pub ginQueueDepth: c_int,
    pub ginTrafficClass: c_int,
    pub worldGinBarrierCount: c_int,
    pub ginStrongSignalsRequired: bool,
    pub ginVaSignalsRequired: bool,
    pub ginCustomStride: c_int,
    pub ginType: ncclGinType_t,
    pub useRuntimeVersion: bool,
    pub cftCaps: c_int,
    pub cftBarrierCount: c_int,
}
