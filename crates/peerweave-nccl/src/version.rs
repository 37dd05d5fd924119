//! NCCL's version numbers, and the two ways in which it has encoded them.
//!
//! Does not know which version brought what: see [`crate::sys`] for functions and [`crate::Config`] for options.

use std::fmt;
use std::str::FromStr;

/// A version of NCCL. Ordered as versions are.
///
/// ```
/// use peerweave_nccl::Version;
///
/// assert_eq!(Version::from_code(23203), Some(Version::new(2, 32, 3)));
/// assert_eq!(Version::from_code(2708), Some(Version::new(2, 7, 8))); // the encoding before 2.9
/// assert!("2.28.9".parse::<Version>()? < Version::new(2, 29, 2));
/// # Ok::<(), peerweave_nccl::ParseVersionError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 2 for every NCCL that this crate can use.
    pub major: u8,
    /// Grows with every release that adds functions or options.
    pub minor: u8,
    /// Grows with corrections; now and then options come with one too.
    pub patch: u8,
}

impl Version {
    /// `major.minor.patch`.
    pub const fn new(major: u8, minor: u8, patch: u8) -> Self {
        Self { major, minor, patch }
    }

    /// Decodes what `ncclGetVersion` gives. Up to 2.8 that is major x 1000 + minor x 100 + patch, since 2.9 major x 10000 + minor x 100 +
    /// patch. `None` for numbers that no version has.
    pub const fn from_code(code: i32) -> Option<Self> {
        let thousands = match code {
            1_000..=9_999 => 1_000,
            10_000..=2_559_999 => 10_000,
            _ => return None,
        };
        // Each is below 256 by the bounds above.
        let version = Self::new((code / thousands) as u8, (code % thousands / 100) as u8, (code % 100) as u8);
        // Of the old encoding there is nothing after 2.8, and of the new one nothing before 2.9.
        if version.code() == code { Some(version) } else { None }
    }

    /// The number that `ncclGetVersion` gives for this version, and that configuration structs are stamped with.
    pub const fn code(self) -> i32 {
        let thousands = if self.major < 2 || (self.major == 2 && self.minor <= 8) { 1_000 } else { 10_000 };
        self.major as i32 * thousands + self.minor as i32 * 100 + self.patch as i32
    }

    /// Whether this is not older than `other`; usable in constants.
    pub const fn at_least(self, other: Self) -> bool {
        self.key() >= other.key()
    }

    const fn key(self) -> u32 {
        u32::from_be_bytes([0, self.major, self.minor, self.patch])
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Text that is no version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a version of the form major.minor.patch, each below 256")]
#[non_exhaustive]
pub struct ParseVersionError;

impl FromStr for Version {
    type Err = ParseVersionError;

    /// Reads `major.minor.patch`; a missing patch is 0.
    fn from_str(text: &str) -> Result<Self, ParseVersionError> {
        let mut parts = text.split('.');
        let mut number = || parts.next().map(|part| part.parse::<u8>().map_err(|_| ParseVersionError));
        let major = number().ok_or(ParseVersionError)??;
        let minor = number().ok_or(ParseVersionError)??;
        let patch = number().transpose()?.unwrap_or(0);
        if parts.next().is_some() { Err(ParseVersionError) } else { Ok(Self::new(major, minor, patch)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_encodings_are_read() {
        for (code, version) in [
            (2305, Version::new(2, 3, 5)),
            (2804, Version::new(2, 8, 4)),
            (20906, Version::new(2, 9, 6)),
            (21801, Version::new(2, 18, 1)),
            (23007, Version::new(2, 30, 7)),
            (23203, Version::new(2, 32, 3)),
        ] {
            assert_eq!(Version::from_code(code), Some(version));
            assert_eq!(version.code(), code);
        }
    }

    #[test]
    fn numbers_that_no_version_has_are_none() {
        for code in [i32::MIN, -1, 0, 999, 2906, 20804, 2_560_000, i32::MAX] {
            assert_eq!(Version::from_code(code), None, "{code}");
        }
    }

    #[test]
    fn text_is_read_and_written() {
        assert_eq!("2.18".parse(), Ok(Version::new(2, 18, 0)));
        assert_eq!("2.30.7".parse(), Ok(Version::new(2, 30, 7)));
        assert_eq!(Version::new(2, 30, 7).to_string(), "2.30.7");
        for text in ["", "2", "2.", "2.18.1.post1", "2.1.2.3", "2.300.1", "v2.1.0"] {
            assert_eq!(text.parse::<Version>(), Err(ParseVersionError), "{text}");
        }
    }

    #[test]
    fn order_is_that_of_releases() {
        let ordered =
            ["2.9.6", "2.18.1", "2.18.3", "2.29.2", "2.29.7", "2.30.3"].map(|text| text.parse::<Version>().expect("a version"));
        assert!(ordered.windows(2).all(|pair| pair[0] < pair[1] && pair[1].at_least(pair[0]) && !pair[0].at_least(pair[1])));
        assert!(ordered[0].at_least(ordered[0]));
    }
}
