//! Defines NCCL's structs as in C.
//!
//! Invariant: sizes and offsets are those of NCCL 2.32's headers (asserted below).

use core::ffi::{c_char, c_int, c_uint, c_void};

use super::codes::{Result, invalid};

/// 128 bytes that identify a communicator to create.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId {
    pub(crate) bytes: [u8; 128],
}

/// A handle of a CUDA stream.
pub(crate) type Stream = *mut c_void;

pub(crate) const UNDEFINED: c_int = c_int::MIN;
pub(crate) const MAGIC: c_uint = 0xcafe_beef;
pub(crate) const SIM_MAGIC: c_uint = 0x7468_5283;

/// First fields of every versioned struct of NCCL.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
}

impl Header {
    /// Returns an error if the program did not initialize the versioned struct by NCCL's macro for
    /// it.
    pub(crate) fn check(&self, magic: u32, what: &str) -> Result {
        if self.magic != magic {
            return invalid(format!("{what} argument not initialized via its initializer macro: magic {:#x}", self.magic));
        }
        Ok(())
    }
}

/// `ncclConfig_t` of 2.32.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ConfigStruct {
    pub(crate) header: Header,
    pub(crate) blocking: c_int,
    pub(crate) cga_cluster_size: c_int,
    pub(crate) min_ctas: c_int,
    pub(crate) max_ctas: c_int,
    pub(crate) net_name: *const c_char,
    pub(crate) split_share: c_int,
    pub(crate) traffic_class: c_int,
    pub(crate) comm_name: *const c_char,
    pub(crate) collnet_enable: c_int,
    pub(crate) cta_policy: c_int,
    pub(crate) shrink_share: c_int,
    pub(crate) nvls_ctas: c_int,
    pub(crate) channels_per_net_peer: c_int,
    pub(crate) nvlink_centric_sched: c_int,
    pub(crate) graph_usage_mode: c_int,
    pub(crate) num_rma_ctx: c_int,
    pub(crate) max_p2p_peers: c_int,
    pub(crate) graph_stream_ordering: c_int,
    pub(crate) launch_order_implicit: c_int,
    pub(crate) num_rma_sig: c_int,
    pub(crate) rma_eager_init: c_int,
    pub(crate) host_cft_mode: c_int,
    pub(crate) nvls_host_mode: c_int,
}

/// `ncclCollConfig_t` of 2.32.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CollConfig {
    pub(crate) header: Header,
    pub(crate) ext: *const c_void,
    pub(crate) min_ctas: c_int,
    pub(crate) max_ctas: c_int,
    pub(crate) nvls_ctas: c_int,
    pub(crate) cga_cluster_size: c_int,
    pub(crate) alg_selection: *const c_char,
    pub(crate) force_alg_selection: c_int,
    pub(crate) cta_policy: c_int,
    pub(crate) user_profiler_tag: u64,
    pub(crate) launch_completion_event: *mut c_void,
}

/// `ncclSimInfo_t`.
#[repr(C)]
pub(crate) struct SimInfo {
    pub(crate) header: Header,
    pub(crate) estimated_time: f32,
}

/// `ncclWaitSignalDesc_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct WaitSignalDesc {
    pub(crate) count: c_int,
    pub(crate) peer: c_int,
    pub(crate) signal: c_int,
    pub(crate) context: c_int,
}

/// `ncclEncryptionConfig_t`.
#[repr(C)]
pub(crate) struct EncryptionConfig {
    pub(crate) header: Header,
    pub(crate) mode: c_int,
    pub(crate) psk: *const c_char,
}

/// `ncclTeam`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Team {
    pub(crate) ranks: c_int,
    pub(crate) rank: c_int,
    pub(crate) stride: c_int,
}

const _: () = {
    assert!(size_of::<Header>() == 16);
    assert!(size_of::<ConfigStruct>() == 120);
    assert!(core::mem::offset_of!(ConfigStruct, nvls_host_mode) == 112);
    assert!(core::mem::offset_of!(ConfigStruct, comm_name) == 48);
    assert!(size_of::<CollConfig>() == 72);
    assert!(core::mem::offset_of!(CollConfig, user_profiler_tag) == 56);
    assert!(size_of::<SimInfo>() == 24);
    assert!(size_of::<EncryptionConfig>() == 32);
    assert!(size_of::<WaitSignalDesc>() == 16);
    assert!(size_of::<Team>() == 12);
};
