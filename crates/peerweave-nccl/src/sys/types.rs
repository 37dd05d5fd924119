//! Handles, numbers and the structs of `nccl.h`. Those of the device communicator are in
//! `requirements.rs`.
//!
//! Invariant: every number from the library is a newtype over an integer, never a Rust enum, since
//! a newer library may have values that are unknown here.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;

pub use peerweave_driver::cudarc::driver::sys::{CUevent, CUstream};

/// Declares what is behind a handle.
macro_rules! opaque {
    ($($(#[$attribute:meta])* $Pointee:ident as $Handle:ident;)*) => {$(
        /// What is behind the handle. Its layout is the library's own.
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
    /// A rank's handle of a communicator.
    ncclComm as ncclComm_t;
    /// A registered window. Points to memory of the device.
    ncclWindow_vidmem as ncclWindow_t;
    /// A parameter of the library, owned by it.
    ncclParamHandle as ncclParamHandle_t;
}

/// Declares a number of the library with the names that this crate knows.
macro_rules! numbers {
    ($(#[$attribute:meta])* $Name:ident($Integer:ty) { $($(#[$value_attribute:meta])* $value:ident = $number:expr;)* }) => {
        $(#[$attribute])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $Name(pub $Integer);

        #[allow(non_upper_case_globals, reason = "the vendor's names")]
        impl $Name {
            $($(#[$value_attribute])* pub const $value: Self = Self($number);)*

            /// The names that are known here, with their numbers.
            pub const NAMES: &'static [(&'static str, i64)] = &[$((stringify!($value), $number as i64)),*];

            /// Returns the vendor's name of this number, if it has one here.
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
    /// What a function returns.
    ncclResult_t(c_int) {
        /// It worked, or was enqueued.
        ncclSuccess = 0;
        /// A call of CUDA failed.
        ncclUnhandledCudaError = 1;
        /// A call of the operating system failed.
        ncclSystemError = 2;
        /// A mistake in NCCL, or memory that was overwritten.
        ncclInternalError = 3;
        /// An argument is invalid.
        ncclInvalidArgument = 4;
        /// The call is wrong here.
        ncclInvalidUsage = 5;
        /// A peer or the network failed.
        ncclRemoteError = 6;
        /// A non-blocking communicator has not finished.
        ncclInProgress = 7;
        /// A wait inside the library ran out. 2.30.3.
        ncclTimeout = 8;
    }
}

numbers! {
    /// A type of elements.
    ncclDataType_t(c_int) {
        /// `i8`.
        ncclInt8 = 0;
        /// `u8`.
        ncclUint8 = 1;
        /// `i32`.
        ncclInt32 = 2;
        /// `u32`.
        ncclUint32 = 3;
        /// `i64`.
        ncclInt64 = 4;
        /// `u64`.
        ncclUint64 = 5;
        /// `f16`.
        ncclFloat16 = 6;
        /// `f32`.
        ncclFloat32 = 7;
        /// `f64`.
        ncclFloat64 = 8;
        /// `bf16`.
        ncclBfloat16 = 9;
        /// Eight bits, four of them exponent. 2.24.3.
        ncclFloat8e4m3 = 10;
        /// Eight bits, five of them exponent. 2.24.3.
        ncclFloat8e5m2 = 11;
    }
}

numbers! {
    /// A reduction. From 5 on, one that was created for a communicator.
    ncclRedOp_t(c_int) {
        /// Sum.
        ncclSum = 0;
        /// Product.
        ncclProd = 1;
        /// Maximum.
        ncclMax = 2;
        /// Minimum.
        ncclMin = 3;
        /// Sum divided by the number of ranks.
        ncclAvg = 4;
    }
}

numbers! {
    /// Where the scalar of a reduction lies, and until when it is read.
    ncclScalarResidence_t(c_int) {
        /// In memory that the device sees; read while the collective runs.
        ncclScalarDevice = 0;
        /// In host memory; read before the call returns.
        ncclScalarHostImmediate = 1;
    }
}

numbers! {
    /// Which statistic of a communicator's memory. 2.29.7.
    ncclCommMemStat_t(c_int) {
        /// Bytes of the device that suspending gives back.
        ncclStatGpuMemSuspend = 0;
        /// 1 while suspended.
        ncclStatGpuMemSuspended = 1;
        /// Bytes of the device that suspending does not give back.
        ncclStatGpuMemPersist = 2;
        /// All bytes of the device that NCCL tracks.
        ncclStatGpuMemTotal = 3;
    }
}

numbers! {
    /// How a device communicator connects ranks over the network. 2.29.7.
    ncclGinConnectionType_t(c_int) {
        /// Not at all.
        NCCL_GIN_CONNECTION_NONE = 0;
        /// Every rank with every rank.
        NCCL_GIN_CONNECTION_FULL = 1;
        /// Along rails.
        NCCL_GIN_CONNECTION_RAIL = 2;
        /// Ranks a stride apart. 2.31.0.
        NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3;
    }
}

numbers! {
    /// What carries communication that kernels start over the network. One byte in 2.29.2 and
    /// 2.29.3, four since.
    ncclGinType_t(c_int) {
        /// None; in requirements, any.
        NCCL_GIN_TYPE_NONE = 0;
        /// A thread of the host.
        NCCL_GIN_TYPE_PROXY = 2;
        /// The device itself.
        NCCL_GIN_TYPE_GDAKI = 3;
        /// GPI.
        NCCL_GIN_TYPE_GPI = 4;
        /// Amazon's adapters.
        NCCL_GIN_TYPE_EFA_GDA = 5;
    }
}

numbers! {
    /// Which ranks a fabric team has. 2.31.0.
    ncclCftTeamMode_t(c_int) {
        /// All of the fabric.
        NCCL_CFT_TEAM_FLAT = 0;
        /// Those that a multicast reaches.
        NCCL_CFT_TEAM_HIER_MULTIMEM = 1;
        /// Those that loads and stores reach.
        NCCL_CFT_TEAM_HIER_LSA = 2;
    }
}

/// What ranks that want to meet have in common. Passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclUniqueId {
    /// Opaque.
    pub internal: [c_char; 128],
}

/// The configuration of a communicator. `layout.rs` says how much of it a version knows.
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

/// Names an option of a vendor other than NVIDIA.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ncclConfigExtKey {
    /// The vendor's number.
    pub vendorId: c_int,
    /// The option's number at that vendor.
    pub optionId: c_int,
}

/// The value of a vendor's option.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclConfigExtValue {
    /// A number.
    pub i: c_int,
    /// Text.
    pub s: *const c_char,
    /// Anything.
    pub raw: *mut c_void,
}

/// An option of a vendor other than NVIDIA, in a linked list. 2.31.0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclConfigExt_t {
    /// The next, or null.
    pub next: *mut ncclConfigExt_t,
    /// Which option.
    pub key: ncclConfigExtKey,
    /// Its value.
    pub val: ncclConfigExtValue,
}

/// The configuration of one collective. 2.31.0; the last field 2.32.0.
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

/// What a simulated group is estimated to take. 2.22.3.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ncclSimInfo_t {
    /// Bytes of the struct.
    pub size: usize,
    /// [`NCCL_SIM_INFO_MAGIC`](super::NCCL_SIM_INFO_MAGIC), which no other struct has.
    pub magic: c_uint,
    /// The version of the caller.
    pub version: c_uint,
    /// Microseconds, or -1.
    pub estimatedTime: f32,
}

/// How the library encrypts its sockets. 2.32.0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ncclEncryptionConfig_t {
    /// Bytes of the struct.
    pub size: usize,
    /// [`NCCL_API_MAGIC`](super::NCCL_API_MAGIC).
    pub magic: c_uint,
    /// The version of the caller.
    pub version: c_uint,
    /// 0 not at all, 1 with a key that is known beforehand.
    pub mode: c_int,
    /// That key.
    pub psk: *const c_char,
}

/// How many signals to wait for, from whom. 2.29.2.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ncclWaitSignalDesc_t {
    /// How many.
    pub opCnt: c_int,
    /// From which rank.
    pub peer: c_int,
    /// At which index.
    pub sigIdx: c_int,
    /// In which context.
    pub ctx: c_int,
}
