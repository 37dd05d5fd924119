//! The two 8-bit floating-point types: E4M3 without infinities, E5M2 with infinities.
//!
//! Arithmetic is in `f32`. Invariant: conversion rounds to nearest, ties to even, and values that
//! are too large become the largest finite value.

/// A number with 4 bits of exponent and 3 bits of fraction. The largest value is 448. A number
/// whose exponent and fraction bits are all 1 is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct E4M3(u8);

/// A number with 5 bits of exponent and 2 bits of fraction. The largest value is 57344.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct E5M2(u8);

fn decode(bits: u8, fraction_bits: u32, bias: i32) -> f32 {
    let exponent = i32::from((bits & 0x7f) >> fraction_bits);
    let fraction = f32::from(bits & ((1 << fraction_bits) - 1)) / (1_u32 << fraction_bits) as f32;
    let magnitude = if exponent == 0 { fraction * 2_f32.powi(1 - bias) } else { (1.0 + fraction) * 2_f32.powi(exponent - bias) };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Returns the nearest of the values `0..=greatest`, which increase with their bits.
fn encode(value: f32, greatest: u8, decode: impl Fn(u8) -> f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = value.abs();
    let (mut low, mut high) = (0, greatest);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if decode(middle) <= magnitude { low = middle } else { high = middle }
    }
    let (below, above) = (magnitude - decode(low), decode(high) - magnitude);
    let nearest = if below < above || (below == above && low % 2 == 0) { low } else { high };
    sign | nearest
}

impl E4M3 {
    pub(crate) fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    pub(crate) fn to_bits(self) -> u8 {
        self.0
    }

    pub(crate) fn to_f32(self) -> f32 {
        if self.0 & 0x7f == 0x7f { f32::NAN } else { decode(self.0, 3, 7) }
    }

    pub(crate) fn from_f32(value: f32) -> Self {
        if value.is_nan() { Self(0x7f) } else { Self(encode(value, 0x7e, |bits| decode(bits, 3, 7))) }
    }
}

impl E5M2 {
    pub(crate) fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    pub(crate) fn to_bits(self) -> u8 {
        self.0
    }

    pub(crate) fn to_f32(self) -> f32 {
        match self.0 & 0x7f {
            0x7c if self.0 & 0x80 == 0 => f32::INFINITY,
            0x7c => f32::NEG_INFINITY,
            0x7d..=0x7f => f32::NAN,
            _ => decode(self.0, 2, 15),
        }
    }

    pub(crate) fn from_f32(value: f32) -> Self {
        if value.is_nan() { Self(0x7f) } else { Self(encode(value, 0x7b, |bits| decode(bits, 2, 15))) }
    }
}

#[cfg(test)]
mod tests {
    use super::{E4M3, E5M2};

    #[test]
    fn every_8_bit_float_converts_to_f32_and_back() {
        for bits in 0..=255_u8 {
            let (four, five) = (E4M3::from_bits(bits), E5M2::from_bits(bits));
            if !four.to_f32().is_nan() {
                assert_eq!(E4M3::from_f32(four.to_f32()), four);
            }
            if five.to_f32().is_finite() {
                assert_eq!(E5M2::from_f32(five.to_f32()), five);
            }
        }
    }

    #[test]
    fn fp8_conversion_rounds_ties_to_even_and_saturates() {
        assert_eq!(E4M3::from_f32(1.0).to_bits(), 0x38);
        assert_eq!(E4M3::from_f32(1000.0).to_f32(), 448.0);
        assert_eq!(E4M3::from_f32(17.0).to_f32(), 16.0);
        assert_eq!(E4M3::from_f32(19.0).to_f32(), 20.0);
        assert_eq!(E5M2::from_f32(1.0).to_bits(), 0x3c);
        assert_eq!(E5M2::from_f32(-1e9).to_f32(), -57344.0);
        assert!(E4M3::from_f32(f32::NAN).to_f32().is_nan());
    }
}
