//! Handles, numbers and the structs of `nccl.h`. `requirements.rs` has the structs of the device
//! communicator.
//!
//! Invariant: every number that the library returns is a newtype of an integer, and not a Rust
//! enum, because a newer library may return unknown values.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;

pub use peerweave_driver::cudarc::driver::sys::{CUevent, CUstream};

/// Declares a handle type, and the opaque type to which the handle points.
macro_rules! opaque {
    ($($(#[$attribute:meta])* $Pointee:ident as $Handle:ident;)*) => {$(
        /// The opaque type to which the handle points.
        #[repr(C)]
        #[derive(Debug)]
        pub struct $Pointee {
            _opaque: [u8; 0],
            _neither_send_nor_sync: core::marker::PhantomData<(*mut u8, core::marker::PhantomPinned)>,
        }

        $(#[$attribute])*
        pub type $Handle = *mut $Pointee;
    )*};
}

opaque! {
    /// Handle of a communicator on one rank.
    ncclComm as ncclComm_t;
    /// Handle of a registered window. Points to device memory.
    ncclWindow_vidmem as ncclWindow_t;
    /// Handle of a parameter. NCCL owns the parameter.
    ncclParamHandle as ncclParamHandle_t;
}

/// Declares a newtype for an NCCL enum, with the values that this crate knows.
macro_rules! numbers {
    ($(#[$attribute:meta])* $Name:ident($Integer:ty) { $($(#[$value_attribute:meta])* $value:ident = $number:expr;)* }) => {
        $(#[$attribute])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $Name(pub $Integer);

        #[allow(non_upper_case_globals, reason = "NVIDIA's headers define these names")]
        impl $Name {
            $($(#[$value_attribute])* pub const $value: Self = Self($number);)*

            /// NCCL's name and number of each value that this crate knows.
            pub const NAMES: &'static [(&'static str, i64)] = &[$((stringify!($value), $number as i64)),*];

            /// Returns NCCL's name for this value, or `None` if this crate does not know the value.
            pub fn name(self) -> Option<&'static str> {
                Self::NAMES.iter().find(|(_, number)| *number == i64::from(self.0)).map(|(name, _)| *name)
            }
        }

        impl fmt::Debug for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{name} ({})", self.0),
                    None => write!(f, "{}({})", stringify!($Name), self.0),
                }
            }
        }
    };
}

numbers! {
    /// Result code of a function.
    ncclResult_t(c_int) {
        /// The call succeeded. Enqueued work need not be complete yet.
        ncclSuccess = 0;
        /// A call to CUDA failed.
        ncclUnhandledCudaError = 1;
        /// A call to the operating system failed.
        ncclSystemError = 2;
        /// An internal check in NCCL failed, because of a bug in NCCL or corrupted memory.
        ncclInternalError = 3;
        /// An argument is invalid.
        ncclInvalidArgument = 4;
        /// The program uses NCCL incorrectly, such as with two ranks on one device.
        ncclInvalidUsage = 5;
        /// A peer or the network failed.
        ncclRemoteError = 6;
        /// A call on a non-blocking communicator has not finished.
        ncclInProgress = 7;
        /// A wait inside NCCL timed out. Since 2.30.3.
        ncclTimeout = 8;
    }
}

numbers! {
    /// Element type of a buffer.
    ncclDataType_t(c_int) {
        /// Elements of type `i8`.
        ncclInt8 = 0;
        /// Elements of type `u8`.
        ncclUint8 = 1;
        /// Elements of type `i32`.
        ncclInt32 = 2;
        /// Elements of type `u32`.
        ncclUint32 = 3;
        /// Elements of type `i64`.
        ncclInt64 = 4;
        /// Elements of type `u64`.
        ncclUint64 = 5;
        /// Elements of type `f16`.
        ncclFloat16 = 6;
        /// Elements of type `f32`.
        ncclFloat32 = 7;
        /// Elements of type `f64`.
        ncclFloat64 = 8;
        /// Elements of type `bf16`.
        ncclBfloat16 = 9;
        /// 8-bit float with 4 exponent bits. Since 2.24.3.
        ncclFloat8e4m3 = 10;
        /// 8-bit float with 5 exponent bits. Since 2.24.3.
        ncclFloat8e5m2 = 11;
    }
}

numbers! {
    /// Number of a reduction. Numbers from 5 on denote reductions that were created for one
    /// communicator.
    ncclRedOp_t(c_int) {
        /// Sum over all ranks.
        ncclSum = 0;
        /// Product over all ranks.
        ncclProd = 1;
        /// Maximum over all ranks.
        ncclMax = 2;
        /// Minimum over all ranks.
        ncclMin = 3;
        /// Average over all ranks: the sum divided by the number of ranks.
        ncclAvg = 4;
    }
}

numbers! {
    /// Location of a reduction's scalar, and the time at which NCCL reads the scalar.
    ncclScalarResidence_t(c_int) {
        /// The scalar is in memory that the device can access. NCCL reads the scalar while the
        /// collective runs.
        ncclScalarDevice = 0;
        /// The scalar is in host memory. NCCL reads the scalar before the call returns.
        ncclScalarHostImmediate = 1;
    }
}

numbers! {
    /// Selects a statistic of a communicator's memory. Since 2.29.7.
    ncclCommMemStat_t(c_int) {
        /// Device memory, in bytes, that suspending releases.
        ncclStatGpuMemSuspend = 0;
        /// 1 while the communicator is suspended, otherwise 0.
        ncclStatGpuMemSuspended = 1;
        /// Device memory, in bytes, that suspending does not release.
        ncclStatGpuMemPersist = 2;
        /// All device memory that NCCL tracks, in bytes.
        ncclStatGpuMemTotal = 3;
    }
}

numbers! {
    /// Ranks that kernels reach over the network. Since 2.29.7.
    ncclGinConnectionType_t(c_int) {
        /// Kernels reach no ranks over the network.
        NCCL_GIN_CONNECTION_NONE = 0;
        /// Kernels reach all ranks over the network.
        NCCL_GIN_CONNECTION_FULL = 1;
        /// Kernels reach the rail team over the network: the ranks that have the same index in
        /// their LSA teams as the kernel's rank.
        NCCL_GIN_CONNECTION_RAIL = 2;
        /// Kernels reach some ranks over the network: those whose distance from the kernel's rank
        /// is a multiple of a given stride. Since 2.31.0.
        NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3;
    }
}

numbers! {
    /// Transport through which kernels communicate over the network (GIN). The type has one byte in
    /// 2.29.2 and 2.29.3, and four bytes in later versions.
    ncclGinType_t(c_int) {
        /// As a property of a communicator: no transport. As a requirement of a device
        /// communicator: any transport.
        NCCL_GIN_TYPE_NONE = 0;
        /// A proxy thread on the host passes the transfers of kernels to the network.
        NCCL_GIN_TYPE_PROXY = 2;
        /// The GPU itself passes the transfers of kernels to the network adapter, without a proxy
        /// thread (GDAKI).
        NCCL_GIN_TYPE_GDAKI = 3;
        /// NCCL's GPU-Push Interface (GPI), which requires a Spectrum-X network.
        NCCL_GIN_TYPE_GPI = 4;
        /// GPUDirect Async (GDA) with Amazon's Elastic Fabric Adapter (EFA). Requires Amazon's
        /// plug-in for NCCL (aws-ofi-nccl).
        NCCL_GIN_TYPE_EFA_GDA = 5;
    }
}

numbers! {
    /// Selects the ranks of a fabric team. Since 2.31.0.
    ncclCftTeamMode_t(c_int) {
        /// All ranks of the fabric.
        NCCL_CFT_TEAM_FLAT = 0;
        /// The ranks that the fabric's multicast reaches.
        NCCL_CFT_TEAM_HIER_MULTIMEM = 1;
        /// The ranks that access each other by loads and stores.
        NCCL_CFT_TEAM_HIER_LSA = 2;
    }
}

/// The id with which ranks connect to each other. Passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclUniqueId {
    /// Opaque bytes.
    pub internal: [c_char; 128],
}

/// Configuration of a communicator. `layout.rs` lists the fields of each version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "each field is documented at the method of `Config` that sets it")]
pub struct ncclConfig_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cgaClusterSize: c_int,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    pub netName: *const c_char,
    pub splitShare: c_int,
    pub trafficClass: c_int,
    pub commName: *const c_char,
    pub collnetEnable: c_int,
    pub CTAPolicy: c_int,
    pub shrinkShare: c_int,
    pub nvlsCTAs: c_int,
    pub nChannelsPerNetPeer: c_int,
    pub nvlinkCentricSched: c_int,
    pub graphUsageMode: c_int,
    pub numRmaCtx: c_int,
    pub maxP2pPeers: c_int,
    pub graphStreamOrdering: c_int,
    pub launchOrderImplicit: c_int,
    pub numRmaSig: c_int,
    pub rmaEagerInit: c_int,
    pub hostCftMode: c_int,
    pub nvlsHostMode: c_int,
}

/// The key of a vendor-specific option. Vendors other than NVIDIA define such options.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ncclConfigExtKey {
    /// Number of the vendor.
    pub vendorId: c_int,
    /// Number of the option, defined by the vendor.
    pub optionId: c_int,
}

/// Value of a vendor-specific option. Vendors other than NVIDIA define such options.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclConfigExtValue {
    /// Integer value of the option.
    pub i: c_int,
    /// String value of the option, which ends in a zero byte.
    pub s: *const c_char,
    /// Pointer whose meaning the vendor of the option defines.
    pub raw: *mut c_void,
}

/// A vendor-specific option. Vendors other than NVIDIA define such options. The struct is an
/// element of a linked list. Since 2.31.0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclConfigExt_t {
    /// The next option, or null.
    pub next: *mut ncclConfigExt_t,
    /// Key of the option.
    pub key: ncclConfigExtKey,
    /// Value of the option.
    pub val: ncclConfigExtValue,
}

/// Configuration of one collective. Since 2.31.0. NCCL 2.32.0 introduced the last field.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "each field is documented at the method of `CollConfig` that sets it")]
pub struct ncclCollConfig_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub ext: *mut ncclConfigExt_t,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    pub nvlsCTAs: c_int,
    pub cgaClusterSize: c_int,
    pub algSelection: *const c_char,
    pub forceAlgSelection: c_int,
    pub CTAPolicy: c_int,
    pub userProfilerTag: u64,
    pub launchCompletionEvent: CUevent,
}

/// Estimate for a simulated group. Since 2.22.3.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ncclSimInfo_t {
    /// Size of the struct in bytes.
    pub size: usize,
    /// Must be [`NCCL_SIM_INFO_MAGIC`](super::NCCL_SIM_INFO_MAGIC).
    pub magic: c_uint,
    /// Version of NCCL that defines the layout of the caller's struct.
    pub version: c_uint,
    /// Estimated time in microseconds, or -1 if NCCL has no estimate.
    pub estimatedTime: f32,
}

/// Selects whether NCCL encrypts the data on its sockets. Since 2.32.0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ncclEncryptionConfig_t {
    /// Size of the struct in bytes.
    pub size: usize,
    /// Must be [`NCCL_API_MAGIC`](super::NCCL_API_MAGIC).
    pub magic: c_uint,
    /// Version of NCCL that defines the layout of the caller's struct.
    pub version: c_uint,
    /// Encryption mode: 0 for no encryption, 1 for a pre-shared key.
    pub mode: c_int,
    /// The pre-shared key.
    pub psk: *const c_char,
}

/// Describes one wait: the signal, the rank that increments the signal, and the number of
/// increments. Since 2.29.2.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ncclWaitSignalDesc_t {
    /// Number of increments to wait for.
    pub opCnt: c_int,
    /// The rank that increments the signal.
    pub peer: c_int,
    /// Index of the signal.
    pub sigIdx: c_int,
    /// Index of the signal's context for one-sided operations. The field `numRmaCtx` of
    /// [`ncclConfig_t`] is the number of contexts.
    pub ctx: c_int,
}
