//! The 8-bit floats. Peerweave transfers them but does no arithmetic on them.

macro_rules! fp8 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// Creates the element with this bit pattern. Every pattern is valid.
            #[inline]
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// Returns the bit pattern.
            #[inline]
            pub const fn to_bits(self) -> u8 {
                self.0
            }
        }
    };
}

fp8!(
    /// An 8-bit float with 4 exponent and 3 mantissa bits (OCP E4M3), as a bit pattern. Equality
    /// compares bits.
    F8E4M3
);

fp8!(
    /// An 8-bit float with 5 exponent and 2 mantissa bits (OCP E5M2), as a bit pattern. Equality
    /// compares bits.
    F8E5M2
);
