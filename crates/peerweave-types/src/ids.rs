//! Names of endpoints. A PE is an endpoint of the job; a rank is its index inside one team.

use core::fmt;

macro_rules! index_newtype {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u32);

        impl $name {
            /// Names the endpoint with this index.
            #[inline]
            pub const fn new(index: u32) -> Self {
                Self(index)
            }

            /// The index, counted from 0.
            #[inline]
            pub const fn get(self) -> u32 {
                self.0
            }

            /// The index, ready to index a slice.
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
    /// An endpoint of the job, usually one process and, where there are GPUs, one GPU. Counted from 0 over the whole job.
    Pe,
    "PE"
);

index_newtype!(
    /// The index of a PE inside one team, counted from 0. The same PE has another rank in another team.
    Rank,
    "rank"
);
