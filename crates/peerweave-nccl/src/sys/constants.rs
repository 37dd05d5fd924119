//! The constants of NCCL's headers, for use as arguments.
//!
//! Those that are values of a type are at the type.

use std::ffi::{c_int, c_uint};

/// Bytes of a unique id.
pub const NCCL_UNIQUE_ID_BYTES: usize = 128;
/// A field that the caller did not set.
pub const NCCL_CONFIG_UNDEF_INT: c_int = c_int::MIN;
/// The mark of configuration structs.
pub const NCCL_API_MAGIC: c_uint = 0xcafe_beef;
/// The mark of `ncclSimInfo_t`.
pub const NCCL_SIM_INFO_MAGIC: c_uint = 0x7468_5283;
/// No time was estimated.
pub const NCCL_UNDEF_FLOAT: f32 = -1.0;
/// A rank that takes no part in a split.
pub const NCCL_SPLIT_NOCOLOR: c_int = -1;
/// A plain window.
pub const NCCL_WIN_DEFAULT: c_int = 0;
/// A window whose buffers are symmetric, for collectives.
pub const NCCL_WIN_COLL_SYMMETRIC: c_int = 1;
/// A window whose accesses stay in order. 2.29.7.
pub const NCCL_WIN_STRICT_ORDERING: c_int = 2;
/// A window only for kernels that use the network. 2.32.0.
pub const NCCL_WIN_GIN_ONLY: c_int = 4;
/// A window only for counted fabric operations. 2.32.0.
pub const NCCL_WIN_CFT_COUNTED: c_int = 8;
/// What a window's address and length are multiples of.
pub const NCCL_WIN_REQUIRED_ALIGNMENT: usize = 4096;
/// The library's own choice of CTAs.
pub const NCCL_CTA_POLICY_DEFAULT: c_int = 0;
/// Few CTAs.
pub const NCCL_CTA_POLICY_EFFICIENCY: c_int = 1;
/// No CTAs where copy engines can do it.
pub const NCCL_CTA_POLICY_ZERO: c_int = 2;
/// Shrink a healthy communicator.
pub const NCCL_SHRINK_DEFAULT: c_int = 0;
/// End what runs first.
pub const NCCL_SHRINK_ABORT: c_int = 1;
/// The only way of revoking.
pub const NCCL_REVOKE_DEFAULT: c_int = 0;
/// Give memory back while suspended.
pub const NCCL_SUSPEND_MEM: c_int = 1;
/// Host-side fabric queries work. 2.31.1.
pub const NCCL_HOST_CFT_ENABLE: c_int = 1;
/// Host-side fabric queries do not work.
pub const NCCL_HOST_CFT_DISABLE: c_int = 2;
/// Host-side fabric queries work where the hardware can.
pub const NCCL_HOST_CFT_FALLBACK: c_int = 3;
/// The host uses NVLS wherever it can. 2.32.0.
pub const NCCL_NVLS_HOST_ENABLE: c_int = 0;
/// Not the NVLS transport.
pub const NCCL_NVLS_HOST_DISABLE_TRANSPORT: c_int = 1;
/// No multimem in symmetric kernels.
pub const NCCL_NVLS_HOST_DISABLE_SYMMETRIC_MULTIMEM: c_int = 2;
/// No NVLS on the host, whatever may come.
pub const NCCL_NVLS_HOST_DISABLE: c_int = c_int::MAX;
/// Sockets carry plain text.
pub const NCCL_ENCRYPTION_MODE_NONE: c_int = 0;
/// Sockets are encrypted with a key that is known beforehand.
pub const NCCL_ENCRYPTION_MODE_PSK: c_int = 1;
/// No fabric operations from kernels. 2.31.0.
pub const NCCL_CFT_NONE: c_int = 0;
/// Fabric operations from kernels.
pub const NCCL_CFT: c_int = 1;
/// Fabric multicasts from kernels.
pub const NCCL_CFT_MULTIMEM: c_int = 2;
