//! NCCL's estimate of the duration of a group that is not launched (requires NCCL 2.22.3).

use std::time::Duration;

use crate::sys::{self, Versioned, ncclSimInfo_t};
use crate::{Nccl, NcclError, Version, version_code};

/// The estimate that NCCL makes for a simulated group.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SimInfo {
    /// Estimated duration of the group, or `None` if NCCL has no estimate.
    pub estimated_time: Option<Duration>,
}

impl SimInfo {
    /// Returns an initialized struct for NCCL to fill.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] before 2.22.3.
    pub(crate) fn empty(nccl: Nccl) -> Result<ncclSimInfo_t, NcclError> {
        let version = nccl.version().min(sys::HEADER);
        empty(version).ok_or_else(|| nccl.unsupported("SimInfo (ncclSimInfo_t)", Version::new(2, 22, 3)))
    }

    /// Converts a struct that NCCL has filled. The struct's `estimatedTime` is in microseconds. If
    /// NCCL has no estimate, `estimatedTime` is negative or NaN.
    pub(crate) fn of(raw: &ncclSimInfo_t) -> Self {
        let microseconds = f64::from(raw.estimatedTime);
        Self { estimated_time: Duration::try_from_secs_f64(microseconds / 1e6).ok() }
    }
}

fn empty(version: Version) -> Option<ncclSimInfo_t> {
    Some(ncclSimInfo_t {
        size: ncclSimInfo_t::len_bytes(version)?,
        magic: sys::NCCL_SIM_INFO_MAGIC,
        version: version_code(version).unsigned_abs(),
        estimatedTime: sys::NCCL_UNDEF_FLOAT,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sim_info_struct_requires_nccl_2_22_3() {
        let raw = empty(Version::new(2, 22, 3)).expect("NCCL 2.22.3 has the struct");
        assert_eq!((raw.size, raw.magic, raw.version), (24, 0x7468_5283, 22203));
        assert!(empty(Version::new(2, 21, 5)).is_none());
    }

    #[test]
    fn estimated_time_is_none_if_nccl_has_no_estimate() {
        let mut raw = empty(Version::new(2, 32, 3)).expect("NCCL 2.32 has the struct");
        assert_eq!(SimInfo::of(&raw).estimated_time, None);
        raw.estimatedTime = f32::NAN;
        assert_eq!(SimInfo::of(&raw).estimated_time, None);
        raw.estimatedTime = 250.0;
        assert_eq!(SimInfo::of(&raw).estimated_time, Some(Duration::from_micros(250)));
    }
}
