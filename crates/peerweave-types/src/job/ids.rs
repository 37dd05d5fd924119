//! Types for PEs and ranks. A PE is an endpoint of the job. A rank is the index of a PE in a team.

use core::fmt;

macro_rules! index_newtype {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u32);

        impl $name {
            /// Creates the PE or the rank with this index, counted from 0.
            #[inline]
            pub const fn new(index: u32) -> Self {
                Self(index)
            }

            /// Returns the index, counted from 0.
            #[inline]
            pub const fn get(self) -> u32 {
                self.0
            }

            /// Returns the index as a `usize`.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<u32> for $name {
            #[inline]
            fn from(index: u32) -> Self {
                Self(index)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

index_newtype!(
    /// The number of an endpoint of the job, counted from 0 over the whole job. An endpoint is
    /// usually one process, with one GPU if the job uses GPUs.
    Pe,
    "PE"
);

index_newtype!(
    /// The index of a PE in a team, counted from 0. A PE can have different ranks in different
    /// teams.
    Rank,
    "rank"
);
