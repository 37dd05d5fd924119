//! Converts signal operations, comparisons and teams to NVSHMEM's constants.

use crate::{Compare, SignalOp};

/// Returns NVSHMEM's constant for a signal operation: `NVSHMEM_SIGNAL_SET` or `NVSHMEM_SIGNAL_ADD`.
#[inline]
pub const fn signal_op(op: SignalOp) -> i32 {
    match op {
        SignalOp::Set => 9,
        SignalOp::Add => 10,
    }
}

/// Returns NVSHMEM's constant for a comparison, such as `NVSHMEM_CMP_EQ`. The constants are not in
/// the order of the variants of [`Compare`].
#[inline]
pub const fn compare(compare: Compare) -> i32 {
    match compare {
        Compare::Eq => 0,
        Compare::Ne => 1,
        Compare::Gt => 2,
        Compare::Le => 3,
        Compare::Lt => 4,
        Compare::Ge => 5,
    }
}

/// NVSHMEM's handle for the team of all PEs: `NVSHMEM_TEAM_WORLD`.
pub const TEAM_WORLD: i32 = 0;
/// NVSHMEM's handle for the team of PEs that share memory: `NVSHMEM_TEAM_SHARED`.
pub const TEAM_SHARED: i32 = 1;
/// NVSHMEM's handle for the team of PEs on this PE's node: `NVSHMEMX_TEAM_NODE`.
pub const TEAM_NODE: i32 = 2;
