//! NVSHMEM's version numbers: those of the product, not of the OpenSHMEM specification that it follows.
//!
//! Does not know which version brought what: see [`crate::sys`].

use std::fmt;
use std::str::FromStr;

/// A version of NVSHMEM. Ordered as versions are.
///
/// ```
/// use peerweave_nvshmem::Version;
///
/// assert!("3.4.5".parse::<Version>()? < Version::new(3, 8, 0));
/// # Ok::<(), peerweave_nvshmem::ParseVersionError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 3 for every NVSHMEM that this crate can use.
    pub major: u8,
    /// Grows with every release that adds functions.
    pub minor: u8,
    /// Grows with corrections.
    pub patch: u8,
}

impl Version {
    /// `major.minor.patch`.
    pub const fn new(major: u8, minor: u8, patch: u8) -> Self {
        Self { major, minor, patch }
    }

    /// Whether this is not older than `other`; usable in constants.
    pub const fn at_least(self, other: Self) -> bool {
        u32::from_be_bytes([0, self.major, self.minor, self.patch])
            >= u32::from_be_bytes([0, other.major, other.minor, other.patch])
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
    fn text_is_read_and_written() {
        assert_eq!("3.4".parse(), Ok(Version::new(3, 4, 0)));
        assert_eq!("3.3.24".parse(), Ok(Version::new(3, 3, 24)));
        assert_eq!(Version::new(3, 3, 24).to_string(), "3.3.24");
        for text in ["", "3", "3.", "3.4.5.post1", "3.400.1", "v3.4.5"] {
            assert_eq!(text.parse::<Version>(), Err(ParseVersionError), "{text}");
        }
    }

    #[test]
    fn order_is_that_of_releases() {
        let ordered = ["3.3.9", "3.3.24", "3.4.5", "3.6.5", "3.8.0"].map(|text| text.parse::<Version>().expect("a version"));
        assert!(ordered.windows(2).all(|pair| pair[0] < pair[1] && pair[1].at_least(pair[0]) && !pair[0].at_least(pair[1])));
    }
}
