//! The list of all declared constants. For each constant, the list has NCCL's name, and the first
//! version whose header has the constant. The list is compared with NVIDIA's headers.

use super::constants::*;
use super::types::*;
use crate::Version;

/// Returns the name of each constant, the first version whose header has the constant, and the
/// value of the constant.
pub fn values() -> Vec<(&'static str, Version, i64)> {
    let mut all = Vec::new();
    let mut from = |minor, patch, values: &[(&'static str, i64)]| {
        all.extend(values.iter().map(|(name, number)| (*name, Version::new(2, minor, patch), *number)));
    };
    let (timeout, results) = ncclResult_t::NAMES.split_last().expect("every enum of NCCL has at least one value");
    from(14, 3, results);
    from(30, 3, &[*timeout]);
    let (types, float8) = ncclDataType_t::NAMES.split_at(10);
    from(10, 3, types);
    from(24, 3, float8);
    from(10, 3, ncclRedOp_t::NAMES);
    from(11, 4, ncclScalarResidence_t::NAMES);
    from(29, 7, ncclCommMemStat_t::NAMES);
    let (stride, connections) = ncclGinConnectionType_t::NAMES.split_last().expect("every enum of NCCL has at least one value");
    from(29, 7, connections);
    from(31, 0, &[*stride]);
    let (gin, later) = ncclGinType_t::NAMES.split_at(3);
    from(29, 2, gin);
    from(31, 0, later);
    from(31, 0, ncclCftTeamMode_t::NAMES);
    from(
        18,
        1,
        &[
            ("NCCL_UNIQUE_ID_BYTES", NCCL_UNIQUE_ID_BYTES as i64),
            ("NCCL_CONFIG_UNDEF_INT", NCCL_CONFIG_UNDEF_INT.into()),
            ("NCCL_SPLIT_NOCOLOR", NCCL_SPLIT_NOCOLOR.into()),
        ],
    );
    from(
        27,
        3,
        &[
            ("NCCL_WIN_DEFAULT", NCCL_WIN_DEFAULT.into()),
            ("NCCL_WIN_COLL_SYMMETRIC", NCCL_WIN_COLL_SYMMETRIC.into()),
            ("NCCL_CTA_POLICY_DEFAULT", NCCL_CTA_POLICY_DEFAULT.into()),
            ("NCCL_CTA_POLICY_EFFICIENCY", NCCL_CTA_POLICY_EFFICIENCY.into()),
            ("NCCL_SHRINK_DEFAULT", NCCL_SHRINK_DEFAULT.into()),
            ("NCCL_SHRINK_ABORT", NCCL_SHRINK_ABORT.into()),
        ],
    );
    from(
        28,
        3,
        &[
            ("NCCL_WIN_REQUIRED_ALIGNMENT", NCCL_WIN_REQUIRED_ALIGNMENT as i64),
            ("NCCL_CTA_POLICY_ZERO", NCCL_CTA_POLICY_ZERO.into()),
        ],
    );
    from(28, 7, &[("NCCL_REVOKE_DEFAULT", NCCL_REVOKE_DEFAULT.into())]);
    from(29, 2, &[("NCCL_API_MAGIC", NCCL_API_MAGIC.into())]);
    from(29, 7, &[("NCCL_WIN_STRICT_ORDERING", NCCL_WIN_STRICT_ORDERING.into()), ("NCCL_SUSPEND_MEM", NCCL_SUSPEND_MEM.into())]);
    from(
        31,
        0,
        &[
            ("NCCL_CFT_NONE", NCCL_CFT_NONE.into()),
            ("NCCL_CFT", NCCL_CFT.into()),
            ("NCCL_CFT_MULTIMEM", NCCL_CFT_MULTIMEM.into()),
        ],
    );
    from(
        31,
        1,
        &[
            ("ncclHostCftEnable", NCCL_HOST_CFT_ENABLE.into()),
            ("ncclHostCftDisable", NCCL_HOST_CFT_DISABLE.into()),
            ("ncclHostCftFallback", NCCL_HOST_CFT_FALLBACK.into()),
        ],
    );
    from(
        32,
        0,
        &[
            ("NCCL_WIN_GIN_ONLY", NCCL_WIN_GIN_ONLY.into()),
            ("NCCL_WIN_CFT_COUNTED", NCCL_WIN_CFT_COUNTED.into()),
            ("ncclNvlsHostModeEnable", NCCL_NVLS_HOST_ENABLE.into()),
            ("ncclNvlsHostModeDisableTransport", NCCL_NVLS_HOST_DISABLE_TRANSPORT.into()),
            ("ncclNvlsHostModeDisableSymmetricMultimem", NCCL_NVLS_HOST_DISABLE_SYMMETRIC_MULTIMEM.into()),
            ("ncclNvlsHostModeDisable", NCCL_NVLS_HOST_DISABLE.into()),
            ("NCCL_ENCRYPTION_MODE_NONE", NCCL_ENCRYPTION_MODE_NONE.into()),
            ("NCCL_ENCRYPTION_MODE_PSK", NCCL_ENCRYPTION_MODE_PSK.into()),
        ],
    );
    all
}
