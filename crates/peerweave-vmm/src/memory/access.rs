//! Who may read and write a mapping.
//!
//! Invariant: memory is handed out for a device only after that device was given rights to it.

/// What a device may do with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rights {
    /// Nothing.
    None,
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
}

impl Rights {
    /// The driver's number.
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
