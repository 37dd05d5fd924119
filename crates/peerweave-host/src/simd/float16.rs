//! Converts 16-bit floats with integer arithmetic without branches, so that the compiler can
//! vectorise the conversions.
//!
//! An instruction set that can convert binary16 uses [`super::arch::Arch::widen_f16`] in its own
//! file instead. Invariant: the integer arithmetic and the instructions return the same bits for
//! every input, except for the payload of a NaN. [`super::number`] removes this payload.

/// Bits of 2^16 as an f32. A conversion to binary16 turns a value of at least this magnitude into
/// infinity.
const F16_OVERFLOW: u32 = (127 + 16) << 23;
/// Bits of 2^-14 as an f32. 2^-14 is the least normal binary16.
const F16_LEAST_NORMAL: u32 = (127 - 14) << 23;

/// Converts binary16 to f32, exactly.
#[inline(always)]
pub(super) fn widen(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    // Exponent and mantissa in place, with the bias corrected. For infinity and NaN the bias is
    // corrected twice, so that the exponent stays the highest exponent.
    let normal = (magnitude << 13) + ((127 - 15) << 23);
    let special = normal + ((127 - 15) << 23);
    // A subnormal is m * 2^-24. The formula puts m into the mantissa of 2^-14 and subtracts 2^-14
    // again. The result is exact.
    let subnormal = (f32::from_bits((magnitude << 13) + F16_LEAST_NORMAL) - f32::from_bits(F16_LEAST_NORMAL)).to_bits();
    let finite = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { finite })
}

/// Converts f32 to binary16, rounding to nearest, ties to even.
#[inline(always)]
pub(super) fn narrow(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Rounds at bit 13. The carry correctly goes into the exponent, up to infinity.
    let odd = (magnitude >> 13) & 1;
    let normal = (magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13) as u16;
    // The unit in the last place of 0.5 is 2^-24, like that of a subnormal binary16. So the
    // addition rounds, and the mantissa is the result.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits()) as u16;
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < F16_LEAST_NORMAL { subnormal } else { normal };
    sign | if magnitude >= F16_OVERFLOW { special } else { finite }
}

/// Applies [`widen`] to all elements of a register. Not inlined, because inlining would enlarge
/// dozens of functions. Few processors run these functions.
#[inline(never)]
pub(super) fn widen_all(from: &[u16], into: &mut [f32]) {
    for (value, &bits) in into.iter_mut().zip(from) {
        *value = widen(bits);
    }
}

/// Applies [`narrow`] to all elements of a register. Not inlined, for the same reason as
/// [`widen_all`].
#[inline(never)]
pub(super) fn narrow_all(from: &[f32], into: &mut [u16]) {
    for (bits, &value) in into.iter_mut().zip(from) {
        *bits = narrow(value);
    }
}

/// Converts bfloat16 to f32, exactly.
#[inline(always)]
pub(super) fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Converts f32 to bfloat16, rounding to nearest, ties to even. If `value` is a NaN, it must be the
/// canonical NaN ([`super::number::Number::canonical`]). The rounding could turn another NaN into a
/// number.
#[inline(always)]
pub(super) fn narrow_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let odd = (bits >> 16) & 1;
    (bits.wrapping_add(0x7fff + odd) >> 16) as u16
}
