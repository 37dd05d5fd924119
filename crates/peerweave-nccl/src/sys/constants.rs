//! The constants of NCCL's headers, for use as arguments.
//!
//! Constants that are values of a type are associated with the type.

use std::ffi::{c_int, c_uint};

/// Length of a unique id in bytes.
pub const NCCL_UNIQUE_ID_BYTES: usize = 128;
/// The value of an unset field.
pub const NCCL_CONFIG_UNDEF_INT: c_int = c_int::MIN;
/// Magic number of configuration structs.
pub const NCCL_API_MAGIC: c_uint = 0xcafe_beef;
/// Magic number of `ncclSimInfo_t`.
pub const NCCL_SIM_INFO_MAGIC: c_uint = 0x7468_5283;
/// The estimated time if there is no estimate.
pub const NCCL_UNDEF_FLOAT: f32 = -1.0;
/// The color of a rank that takes no part in a split.
pub const NCCL_SPLIT_NOCOLOR: c_int = -1;
/// A window for any use.
pub const NCCL_WIN_DEFAULT: c_int = 0;
/// A window whose buffers are symmetric, for collectives.
pub const NCCL_WIN_COLL_SYMMETRIC: c_int = 1;
/// A window whose accesses stay in order. Since 2.29.7.
pub const NCCL_WIN_STRICT_ORDERING: c_int = 2;
/// A window only for kernels that use the network. Since 2.32.0.
pub const NCCL_WIN_GIN_ONLY: c_int = 4;
/// A window only for counted fabric operations. Since 2.32.0.
pub const NCCL_WIN_CFT_COUNTED: c_int = 8;
/// Required alignment of a window's address and length.
pub const NCCL_WIN_REQUIRED_ALIGNMENT: usize = 4096;
/// The library's own choice of CTAs.
pub const NCCL_CTA_POLICY_DEFAULT: c_int = 0;
/// Few CTAs.
pub const NCCL_CTA_POLICY_EFFICIENCY: c_int = 1;
/// No CTAs, if copy engines can do the work.
pub const NCCL_CTA_POLICY_ZERO: c_int = 2;
/// Shrinks a healthy communicator.
pub const NCCL_SHRINK_DEFAULT: c_int = 0;
/// Ends running work first.
pub const NCCL_SHRINK_ABORT: c_int = 1;
/// The only mode of revoking.
pub const NCCL_REVOKE_DEFAULT: c_int = 0;
/// Releases memory while suspended.
pub const NCCL_SUSPEND_MEM: c_int = 1;
/// Host-side fabric queries are enabled. Since 2.31.1.
pub const NCCL_HOST_CFT_ENABLE: c_int = 1;
/// Host-side fabric queries are disabled.
pub const NCCL_HOST_CFT_DISABLE: c_int = 2;
/// Host-side fabric queries are enabled if the hardware supports them.
pub const NCCL_HOST_CFT_FALLBACK: c_int = 3;
/// The host uses all NVLS operations. Since 2.32.0.
pub const NCCL_NVLS_HOST_ENABLE: c_int = 0;
/// All NVLS operations except the transport.
pub const NCCL_NVLS_HOST_DISABLE_TRANSPORT: c_int = 1;
/// All NVLS operations except multimem in symmetric kernels.
pub const NCCL_NVLS_HOST_DISABLE_SYMMETRIC_MULTIMEM: c_int = 2;
/// No NVLS operations on the host, not even future ones.
pub const NCCL_NVLS_HOST_DISABLE: c_int = c_int::MAX;
/// Sockets carry plain text.
pub const NCCL_ENCRYPTION_MODE_NONE: c_int = 0;
/// Sockets are encrypted with a pre-shared key.
pub const NCCL_ENCRYPTION_MODE_PSK: c_int = 1;
/// Kernels use no fabric operations (CFT). Since 2.31.0.
pub const NCCL_CFT_NONE: c_int = 0;
/// Kernels use fabric operations.
pub const NCCL_CFT: c_int = 1;
/// Kernels use multicasts over the fabric.
pub const NCCL_CFT_MULTIMEM: c_int = 2;
