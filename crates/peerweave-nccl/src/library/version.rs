//! NCCL's two encodings of its version as a number.
//!
//! [`crate::sys`] has the version that introduced each function. [`crate::Config`] has the version
//! that introduced each option.

use peerweave_dylib::Version;

/// Returns the version that `ncclGetVersion` reports as `code`, or `None` if no version has this
/// number. Up to NCCL 2.8 the number is `major * 1000 + minor * 100 + patch`. Since NCCL 2.9 the
/// number is `major * 10000 + minor * 100 + patch`.
///
/// ```
/// use peerweave_nccl::{Version, version_from_code};
///
/// assert_eq!(version_from_code(23203), Some(Version::new(2, 32, 3)));
/// assert_eq!(version_from_code(2708), Some(Version::new(2, 7, 8))); // the encoding before 2.9
/// ```
pub const fn version_from_code(code: i32) -> Option<Version> {
    let thousands = match code {
        1_000..=9_999 => 1_000,
        10_000..=2_559_999 => 10_000,
        _ => return None,
    };
    // Each component is below 256 because of the bounds above.
    let version = Version::new((code / thousands) as u8, (code % thousands / 100) as u8, (code % 100) as u8);
    // The old encoding ended with 2.8, and the new one began with 2.9.
    if version_code(version) == code { Some(version) } else { None }
}

/// Returns the number that `ncclGetVersion` reports for a version. Configuration structs of NCCL
/// contain the same number.
pub const fn version_code(version: Version) -> i32 {
    let Version { major, minor, patch } = version;
    let thousands = if major < 2 || (major == 2 && minor <= 8) { 1_000 } else { 10_000 };
    major as i32 * thousands + minor as i32 * 100 + patch as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_version_encodings_are_decoded() {
        for (code, version) in [
            (2305, Version::new(2, 3, 5)),
            (2804, Version::new(2, 8, 4)),
            (20906, Version::new(2, 9, 6)),
            (21801, Version::new(2, 18, 1)),
            (23007, Version::new(2, 30, 7)),
            (23203, Version::new(2, 32, 3)),
        ] {
            assert_eq!(version_from_code(code), Some(version));
            assert_eq!(version_code(version), code);
        }
    }

    #[test]
    fn invalid_version_numbers_yield_no_version() {
        for code in [i32::MIN, -1, 0, 999, 2906, 20804, 2_560_000, i32::MAX] {
            assert_eq!(version_from_code(code), None, "{code}");
        }
    }
}
