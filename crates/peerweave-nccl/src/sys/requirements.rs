//! The structs of NCCL's device API: capabilities of a communicator, and requirements of a device
//! communicator.
//!
//! `ncclDevComm` itself is not declared, because its layout differs between versions. This crate
//! handles `ncclDevComm` as bytes. The number of bytes is known only at run time.

use std::ffi::{c_int, c_uint};

use super::types::{ncclGinConnectionType_t, ncclGinType_t};

/// Capabilities of a communicator. Since 2.29.2. `layout.rs` lists the fields of each version.
/// [`ncclCommProperties_v22902`] is the first version of the struct.
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
    // These fields are numbers and not `bool`, because NCCL writes them. A `bool` with a value
    // other than 0 or 1 would be undefined behaviour.
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

/// Capabilities of a communicator in NCCL 2.29.2 and 2.29.3, in which the GIN type has one byte.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields mean the same as the fields of `ncclCommProperties_t`")]
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

/// A team: a set of ranks of one communicator at equal strides. Passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ncclTeam_t {
    /// Number of ranks.
    pub nRanks: c_int,
    /// Index of this rank in the team.
    pub rank: c_int,
    /// Difference between the communicator ranks of two consecutive team members.
    pub stride: c_int,
}

/// Multicast address of a team. NCCL stores the address when NCCL creates a device communicator.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ncclMultimemHandle_t {
    /// Multicast address, valid only in kernels. Null if the hardware has no multicast.
    pub mcBasePtr: *mut core::ffi::c_void,
}

/// Handle by which a kernel uses barriers among the ranks of an LSA team.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ncclLsaBarrierHandle_t {
    /// Handle of the buffer that the barriers use.
    pub bufHandle: u32,
    /// Number of barriers.
    pub nBarriers: c_int,
}

/// Handle by which a kernel uses barriers over the network.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ncclGinBarrierHandle_t {
    /// Index of the first signal that the barriers use.
    pub signal0: u32,
    /// Handle of the buffer that the barriers use in NCCL 2.29 and earlier. NCCL 2.30.3 and later
    /// do not use this field.
    pub unused: u32,
}

/// Handle by which a kernel uses an all-to-all of short messages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ncclLLA2AHandle_t {
    /// Handle of the buffer that the all-to-all uses.
    pub bufHandle: u32,
    /// Number of slots for each thread block in the buffer `bufHandle`.
    pub nSlots: u32,
}

/// A resource that a device communicator requires. The struct is an element of a linked list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "NCCL's header documents the fields")]
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

/// Requirements of a team of ranks: whether the team needs a multicast object. The struct is an
/// element of a linked list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "NCCL's header documents the fields")]
pub struct ncclTeamRequirements_t {
    pub next: *mut ncclTeamRequirements_t,
    pub team: ncclTeam_t,
    pub multimem: bool,
    pub outMultimemHandle: *mut ncclMultimemHandle_t,
}

/// Requirements of a device communicator. `layout.rs` lists the fields of each version.
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
