//! Access rights of devices to a mapping.
//!
//! Invariant: a function that takes a device returns a mapping's address only if that device has
//! rights to the mapping.

/// The access rights that a device has to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rights {
    /// No access.
    None,
    /// Read access only.
    Read,
    /// Read and write access.
    ReadWrite,
}

impl Rights {
    /// Returns the driver's flags (`CUmemAccess_flags`) for these access rights.
    pub(crate) fn flags(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Read => 1,
            Self::ReadWrite => 3,
        }
    }

    pub(crate) fn from_flags(flags: u64) -> Option<Self> {
        [Self::None, Self::Read, Self::ReadWrite].into_iter().find(|rights| u64::from(rights.flags()) == flags)
    }
}
