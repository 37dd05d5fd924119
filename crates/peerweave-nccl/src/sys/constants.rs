//! Constants of NCCL's headers that are used as arguments.
//!
//! The values of NCCL's enums are associated constants of the types in `types.rs`.

use std::ffi::{c_int, c_uint};

/// Length of a unique id in bytes.
pub const NCCL_UNIQUE_ID_BYTES: usize = 128;
/// Value of an integer field in a configuration struct if the field is not set.
pub const NCCL_CONFIG_UNDEF_INT: c_int = c_int::MIN;
/// Magic number of configuration structs.
pub const NCCL_API_MAGIC: c_uint = 0xcafe_beef;
/// Magic number of `ncclSimInfo_t`.
pub const NCCL_SIM_INFO_MAGIC: c_uint = 0x7468_5283;
/// Value of `estimatedTime` in `ncclSimInfo_t` that means that NCCL has no estimate.
pub const NCCL_UNDEF_FLOAT: f32 = -1.0;
/// Color that a rank passes to a split to join no new communicator.
pub const NCCL_SPLIT_NOCOLOR: c_int = -1;
/// No window flags: the window can be used in every way.
pub const NCCL_WIN_DEFAULT: c_int = 0;
/// Flag for a window that is used in symmetric collectives: every rank passes buffers at the same
/// offset in its own window.
pub const NCCL_WIN_COLL_SYMMETRIC: c_int = 1;
/// Window flag: the accesses of kernels to the window are strictly ordered. Since 2.29.7.
pub const NCCL_WIN_STRICT_ORDERING: c_int = 2;
/// Flag for a window that NCCL registers only for GPU-initiated networking (GIN). Since 2.32.0.
pub const NCCL_WIN_GIN_ONLY: c_int = 4;
/// Flag for a window that NCCL registers only for counted operations of the Compute Fabric
/// Transport (CFT). Since 2.32.0.
pub const NCCL_WIN_CFT_COUNTED: c_int = 8;
/// Required alignment of a window's address, in bytes.
pub const NCCL_WIN_REQUIRED_ALIGNMENT: usize = 4096;
/// CTA policy: NCCL selects the number of CTAs for the highest performance.
pub const NCCL_CTA_POLICY_DEFAULT: c_int = 0;
/// CTA policy: NCCL uses fewer CTAs if the loss of performance is small.
pub const NCCL_CTA_POLICY_EFFICIENCY: c_int = 1;
/// CTA policy: NCCL uses no CTAs if copy engines can do the work.
pub const NCCL_CTA_POLICY_ZERO: c_int = 2;
/// Flag of `ncclCommShrink`: NCCL lets running work complete. For use if no rank is lost and no
/// work is stuck.
pub const NCCL_SHRINK_DEFAULT: c_int = 0;
/// Flag of `ncclCommShrink`: NCCL first ends running work.
pub const NCCL_SHRINK_ABORT: c_int = 1;
/// The only value of the argument `revokeFlags` of `ncclCommRevoke`.
pub const NCCL_REVOKE_DEFAULT: c_int = 0;
/// Flag for a suspension that releases memory.
pub const NCCL_SUSPEND_MEM: c_int = 1;
/// Value of `hostCftMode`: host code can query the addresses of windows in the Compute Fabric
/// Transport (CFT). Since 2.31.1.
pub const NCCL_HOST_CFT_ENABLE: c_int = 1;
/// Value of `hostCftMode`: host code cannot query the addresses of windows in the Compute Fabric
/// Transport.
pub const NCCL_HOST_CFT_DISABLE: c_int = 2;
/// Value of `hostCftMode`: like `NCCL_HOST_CFT_ENABLE` if the hardware supports these queries,
/// otherwise like `NCCL_HOST_CFT_DISABLE`.
pub const NCCL_HOST_CFT_FALLBACK: c_int = 3;
/// Value of `nvlsHostMode`: NCCL's host API uses all operations of NVLink switches (NVLS). Since
/// 2.32.0.
pub const NCCL_NVLS_HOST_ENABLE: c_int = 0;
/// Value of `nvlsHostMode`: NCCL's host API does not use the NVLS transport. All other NVLS
/// operations stay enabled.
pub const NCCL_NVLS_HOST_DISABLE_TRANSPORT: c_int = 1;
/// Value of `nvlsHostMode`: NCCL's host API uses no multimem instructions in two places: symmetric
/// kernels, and copies by copy engines. The API uses all other NVLS operations.
pub const NCCL_NVLS_HOST_DISABLE_SYMMETRIC_MULTIMEM: c_int = 2;
/// Value of `nvlsHostMode`: NCCL's host API uses no NVLS operations. This value also disables NVLS
/// operations that later versions add.
pub const NCCL_NVLS_HOST_DISABLE: c_int = c_int::MAX;
/// Encryption mode: NCCL does not encrypt its sockets.
pub const NCCL_ENCRYPTION_MODE_NONE: c_int = 0;
/// Encryption mode: NCCL encrypts its sockets with a pre-shared key.
pub const NCCL_ENCRYPTION_MODE_PSK: c_int = 1;
/// Value of `cftCaps`: kernels do not access memory over the fabric (CFT). Since 2.31.0.
pub const NCCL_CFT_NONE: c_int = 0;
/// Flag of `cftCaps`: kernels access memory over the fabric, by logical endpoints.
pub const NCCL_CFT: c_int = 1;
/// Flag of `cftCaps`: kernels use the fabric's multicast.
pub const NCCL_CFT_MULTIMEM: c_int = 2;
