//! The version of the driver and the features of the devices, according to the settings.

use core::ffi::c_int;

use crate::calls::settings::{VARIABLES, variable};

/// Returns the version that the driver reports.
pub(crate) fn version() -> i32 {
    VARIABLES.number(variable::VERSION).unwrap_or(13000)
}

/// Returns the compute capability of the devices: that of an H200 unless a test sets another.
pub(crate) fn capability() -> (c_int, c_int) {
    let text = VARIABLES.get(variable::CAPABILITY).unwrap_or_else(|| "9.0".to_owned());
    let numbers = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    numbers.unwrap_or_else(|| VARIABLES.bad(variable::CAPABILITY, &text))
}

/// Returns whether the devices have memory pools and, therefore, stream-ordered allocation.
pub(crate) fn has_pools() -> bool {
    !VARIABLES.flag(variable::NO_POOLS) && version() >= 11020
}

/// Returns whether the devices have virtual memory management.
pub(crate) fn has_vmm() -> bool {
    !VARIABLES.flag(variable::NO_VMM) && version() >= 10020
}

/// Returns whether the devices have multicast objects.
pub(crate) fn has_multicast() -> bool {
    !VARIABLES.flag(variable::NO_MULTICAST) && version() >= 12010
}

/// Returns whether fabric handles are supported.
pub(crate) fn fabric_supported() -> bool {
    VARIABLES.get(variable::FABRIC_DIR).is_some()
}
