//! Conversions between `f32` and 16-bit or 8-bit floats. Each function converts two values, which
//! are packed in one integer. Results are rounded to nearest even.

use crate::arch;
use peerweave_types::{F8E4M3, bf16, f16};

/// Converts two values to `f16`. The first value is in the low half of the result.
#[inline]
pub fn f16_pair([low, high]: [f32; 2]) -> u32 {
    u32::from(f16::from_f32(low).to_bits()) | u32::from(f16::from_f32(high).to_bits()) << 16
}

/// Converts two `f16` values to `f32`. The first value is in the low half of `pair`.
#[inline]
pub fn f16_values(pair: u32) -> [f32; 2] {
    [f16::from_bits(pair as u16).to_f32(), f16::from_bits((pair >> 16) as u16).to_f32()]
}

/// Converts two values to `bf16`. The first value is in the low half of the result.
#[inline]
pub fn bf16_pair([low, high]: [f32; 2]) -> u32 {
    u32::from(arch::bf16_bits(low)) | u32::from(arch::bf16_bits(high)) << 16
}

/// Converts two `bf16` values to `f32`. The first value is in the low half of `pair`.
#[inline]
pub fn bf16_values(pair: u32) -> [f32; 2] {
    [bf16::from_bits(pair as u16).to_f32(), bf16::from_bits((pair >> 16) as u16).to_f32()]
}

/// Converts two values to 8-bit floats (E4M3). The first value is in the low byte of the result. A
/// value beyond the largest finite float becomes that float, with the sign of the value.
#[inline]
pub fn f8e4m3_pair([low, high]: [f32; 2]) -> u16 {
    u16::from(F8E4M3::from_f32(low).to_bits()) | u16::from(F8E4M3::from_f32(high).to_bits()) << 8
}
