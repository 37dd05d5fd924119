//! GPU architectures and their names.

use std::fmt;
use std::str::FromStr;

/// A GPU architecture: a compute capability and an optional suffix. Code for an architecture with a
/// suffix may use instructions that newer architectures lack.
///
/// ```
/// use peerweave_link::Arch;
///
/// let hopper: Arch = "sm_90a".parse()?;
/// assert_eq!(hopper.to_string(), "sm_90a");
/// assert_eq!(hopper, Arch::new(9, 0).with_suffix('a'));
/// # Ok::<(), peerweave_link::ParseArchError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// Major number of the compute capability, such as 9.
    pub major: u8,
    /// Minor number of the compute capability, such as 0.
    pub minor: u8,
    /// Suffix of the name. Code with suffix `a` runs only on this architecture. Code with suffix
    /// `f` runs only on architectures of the same family. Machine code without a suffix also runs
    /// on architectures with the same major number and a greater minor number.
    pub suffix: Option<char>,
}

impl Arch {
    /// Returns the architecture with this compute capability, without a suffix.
    pub const fn new(major: u8, minor: u8) -> Self {
        Self { major, minor, suffix: None }
    }

    /// Returns this architecture with the given suffix, which should be `a` or `f`.
    pub const fn with_suffix(self, suffix: char) -> Self {
        Self { suffix: Some(suffix), ..self }
    }

    /// Returns the number in the architecture's name: 90 for compute capability 9.0.
    pub const fn number(self) -> u32 {
        self.major as u32 * 10 + self.minor as u32
    }

    /// Returns the name of the virtual architecture, such as `compute_90`.
    pub fn virtual_name(self) -> String {
        self.named("compute_")
    }

    fn named(self, prefix: &str) -> String {
        let suffix = self.suffix.map(String::from).unwrap_or_default();
        format!("{prefix}{}{suffix}", self.number())
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named("sm_"))
    }
}

/// The error that parsing an [`Arch`] returns if the text is not the name of an architecture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an architecture, expected a name such as sm_90 or sm_90a")]
pub struct ParseArchError(String);

impl FromStr for Arch {
    type Err = ParseArchError;

    /// Parses `sm_90`, `sm_90a`, `compute_90` or `90`.
    fn from_str(text: &str) -> Result<Self, ParseArchError> {
        let refused = || ParseArchError(text.to_owned());
        let rest = text.strip_prefix("sm_").or_else(|| text.strip_prefix("compute_")).unwrap_or(text);
        let digits = rest.trim_end_matches(['a', 'f']);
        let suffix = match &rest[digits.len()..] {
            "" => None,
            "a" => Some('a'),
            "f" => Some('f'),
            _ => return Err(refused()),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refused());
        }
        let number: u32 = digits.parse().map_err(|_| refused())?;
        let (Ok(major), minor) = (u8::try_from(number / 10), (number % 10) as u8) else { return Err(refused()) };
        if major == 0 { Err(refused()) } else { Ok(Self { major, minor, suffix }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arch_names_are_parsed_and_formatted() {
        for (text, arch) in
            [("sm_90", Arch::new(9, 0)), ("sm_100a", Arch::new(10, 0).with_suffix('a')), ("sm_75", Arch::new(7, 5))]
        {
            assert_eq!(text.parse(), Ok(arch));
            assert_eq!(arch.to_string(), text);
        }
        assert_eq!("compute_120f".parse::<Arch>().map(Arch::virtual_name), Ok("compute_120f".to_owned()));
        for text in ["", "sm_", "sm_x", "sm_9", "sm_90b", "sm_90aa", "sm_-90", "sm_99999"] {
            assert!(text.parse::<Arch>().is_err(), "{text}");
        }
    }
}
