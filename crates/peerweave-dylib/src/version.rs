//! Versions of libraries, with three numbers.
//!
//! Each crate that uses a library defines how the vendor encodes a version in one number, and which
//! features each version has.

use std::fmt;
use std::str::FromStr;

/// A version of a library. An older version compares as less than a newer version.
///
/// `{}` formats all three numbers. `{:#}` omits a patch version of 0, for products whose versions
/// have two numbers.
///
/// ```
/// use peerweave_dylib::Version;
///
/// assert!("3.4.5".parse::<Version>()? < Version::new(3, 8, 0));
/// assert_eq!(format!("{}, {:#}", Version::new(3, 8, 0), Version::new(13, 0, 0)), "3.8.0, 13.0");
/// # Ok::<(), peerweave_dylib::ParseVersionError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Major version: changes when the library becomes incompatible.
    pub major: u8,
    /// Minor version: increases when functions or options are added.
    pub minor: u8,
    /// Patch version: increases with corrections, and sometimes with new options.
    pub patch: u8,
}

impl Version {
    /// Stands for a version that is not known: 0.0.0, which no supported library has.
    pub const UNKNOWN: Self = Self::new(0, 0, 0);

    /// Returns the version `major.minor.patch`.
    pub const fn new(major: u8, minor: u8, patch: u8) -> Self {
        Self { major, minor, patch }
    }

    /// Returns the version with these three numbers. A number above 255 is stored as 255.
    pub fn of_numbers(numbers: [u32; 3]) -> Self {
        let [major, minor, patch] = numbers.map(|number| u8::try_from(number).unwrap_or(u8::MAX));
        Self::new(major, minor, patch)
    }

    /// Returns whether this version is `other` or newer. This function can be called in constants.
    pub const fn at_least(self, other: Self) -> bool {
        self.key() >= other.key()
    }

    const fn key(self) -> u32 {
        u32::from_be_bytes([0, self.major, self.minor, self.patch])
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if f.alternate() && self.patch == 0 { Ok(()) } else { write!(f, ".{}", self.patch) }
    }
}

/// Error that is returned if a parsed text is not a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the version is {text:?}, expected major.minor or major.minor.patch, with numbers below 256")]
pub struct ParseVersionError {
    text: String,
}

impl FromStr for Version {
    type Err = ParseVersionError;

    /// Parses `major.minor.patch`; a missing patch is 0.
    fn from_str(text: &str) -> Result<Self, ParseVersionError> {
        let invalid = || ParseVersionError { text: text.to_owned() };
        let numbers: Result<Vec<u8>, _> = text.split('.').map(str::parse).collect();
        match numbers.map_err(|_| invalid())?[..] {
            [major, minor] => Ok(Self::new(major, minor, 0)),
            [major, minor, patch] => Ok(Self::new(major, minor, patch)),
            _ => Err(invalid()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_parsed_and_formatted() {
        assert_eq!("2.18".parse(), Ok(Version::new(2, 18, 0)));
        assert_eq!("3.3.24".parse(), Ok(Version::new(3, 3, 24)));
        assert_eq!(Version::new(2, 30, 7).to_string(), "2.30.7");
        for text in ["", "2", "2.", "2.18.1.post1", "2.1.2.3", "2.300.1", "v2.1.0"] {
            let error = text.parse::<Version>().expect_err("the text is not a version");
            assert!(error.to_string().starts_with(&format!("the version is {text:?}, expected major.minor")), "{error}");
        }
    }

    #[test]
    fn alternate_format_omits_a_patch_version_of_zero() {
        assert_eq!(format!("{:#}", Version::of_numbers([12, 9, 0])), "12.9");
        assert_eq!(format!("{:#}", Version::of_numbers([12, 9, 86])), "12.9.86");
        assert_eq!(Version::of_numbers([3, 400, 1]), Version::new(3, 255, 1));
    }

    #[test]
    fn versions_are_ordered_by_age() {
        let ordered = ["2.9.6", "2.18.1", "2.18.3", "2.29.2", "2.30.3", "3.3.9", "3.3.24", "3.8.0"];
        let ordered = ordered.map(|text| text.parse::<Version>().expect("the text is a version"));
        assert!(ordered.windows(2).all(|pair| pair[0] < pair[1] && pair[1].at_least(pair[0]) && !pair[0].at_least(pair[1])));
        assert!(ordered[0].at_least(ordered[0]));
    }
}
