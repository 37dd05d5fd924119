//! The 8-bit floats. Peerweave transfers 8-bit floats and quantises results to them, but does no
//! arithmetic on them.

macro_rules! fp8 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// Creates the element that has this bit pattern. Every bit pattern is valid.
            #[inline]
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// Returns the bit pattern of this element.
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

impl F8E4M3 {
    /// The largest finite value, 448.
    pub const MAX: Self = Self(0x7e);

    /// Converts an `f32` to the nearest element, with ties to even. A value whose magnitude is
    /// above 448, such as an infinity, becomes 448 with the same sign. NaN stays NaN.
    ///
    /// ```
    /// use peerweave_types::F8E4M3;
    ///
    /// assert_eq!(F8E4M3::from_f32(1.06).to_f32(), 1.0);
    /// assert_eq!(F8E4M3::from_f32(-1e9).to_f32(), -448.0);
    /// ```
    #[inline]
    pub fn from_f32(value: f32) -> Self {
        const LARGEST: u32 = 448.0_f32.to_bits();
        /// The bits of 2⁻⁶ as `f32`. 2⁻⁶ is the smallest normal value of `F8E4M3`.
        const NORMAL: u32 = 0x3c80_0000;
        let bits = value.to_bits();
        let (sign, magnitude) = ((bits >> 24) as u8 & 0x80, bits & 0x7fff_ffff);
        let code = if magnitude > f32::INFINITY.to_bits() {
            return Self(0x7f);
        } else if magnitude >= LARGEST {
            Self::MAX.0
        } else if magnitude >= NORMAL {
            // Rounds to 3 bits of mantissa, then changes the bias of the exponent from 127 to 7.
            let rounded = magnitude + 0x7_ffff + (magnitude >> 20 & 1);
            ((rounded >> 20) - (120 << 3)) as u8
        } else {
            // The unit in the last place of this number is the smallest positive value, 2⁻⁹. The
            // addition therefore rounds to a multiple of that value.
            const ROUNDER: f32 = 16384.0;
            ((f32::from_bits(magnitude) + ROUNDER).to_bits() - ROUNDER.to_bits()) as u8
        };
        Self(sign | code)
    }

    /// Converts this element to `f32`. The conversion is exact.
    #[inline]
    pub fn to_f32(self) -> f32 {
        let (exponent, mantissa) = (u32::from(self.0 >> 3 & 0xf), u32::from(self.0 & 7));
        let magnitude = match (exponent, mantissa) {
            (0xf, 7) => f32::NAN,
            (0, mantissa) => mantissa as f32 / 512.0,
            _ => f32::from_bits(((exponent + 120) << 23) | (mantissa << 20)),
        };
        if self.0 & 0x80 == 0 { magnitude } else { -magnitude }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f8e4m3_values_convert_to_f32_and_back() {
        for bits in 0..=255 {
            let value = F8E4M3::from_bits(bits);
            let again = F8E4M3::from_f32(value.to_f32());
            assert!(again == value || value.to_f32().is_nan() && again.to_f32().is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn f8e4m3_rounds_to_nearest_even_and_saturates() {
        // The midpoint of two adjacent values rounds to the value with an even bit pattern. Other
        // floats round to the nearer value.
        for bits in 0..0x7e_u8 {
            let [low, high] = [bits, bits + 1].map(|bits| F8E4M3::from_bits(bits).to_f32());
            let middle = (low + high) / 2.0;
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            for sign in [1.0, -1.0] {
                let of = |value: f32| F8E4M3::from_f32(sign * value).to_bits() & 0x7f;
                assert_eq!((of(middle), of(middle.next_down()), of(middle.next_up())), (even, bits, bits + 1), "{bits:#x}");
            }
        }
        for (value, wanted) in [(448.1, 0x7e), (464.0, 0x7e), (1e30, 0x7e), (f32::INFINITY, 0x7e), (f32::NAN, 0x7f)] {
            assert_eq!(F8E4M3::from_f32(value).to_bits(), wanted, "{value}");
        }
        assert_eq!((F8E4M3::from_f32(-0.0).to_bits(), F8E4M3::from_f32(f32::NEG_INFINITY).to_bits()), (0x80, 0xfe));
    }
}
