//! Conversions between `f32` and 16-bit or 8-bit floats. Each function converts two values, which
//! are packed in one register. Results are rounded to nearest even.

#[cfg(not(target_feature = "sm_90"))]
use crate::arch;
use core::arch::asm;
#[cfg(not(target_feature = "sm_90"))]
use peerweave_types::F8E4M3;

/// Converts two values to `f16`. The first value is in the low half of the result.
#[inline(always)]
pub fn f16_pair(values: [f32; 2]) -> u32 {
    let pair: u32;
    // SAFETY: arithmetic on registers; touches no memory.
    unsafe {
        asm!(
            "{{ .reg .b16 l, h; cvt.rn.f16.f32 l, {low}; cvt.rn.f16.f32 h, {high}; mov.b32 {pair}, {{l, h}}; }}",
            low = in(reg32) values[0],
            high = in(reg32) values[1],
            pair = out(reg32) pair,
            options(pure, nomem, nostack),
        );
    }
    pair
}

/// Converts two `f16` values to `f32`. The first value is in the low half of `pair`.
#[inline(always)]
pub fn f16_values(pair: u32) -> [f32; 2] {
    let (low, high): (f32, f32);
    // SAFETY: arithmetic on registers; touches no memory.
    unsafe {
        asm!(
            "{{ .reg .b16 l, h; mov.b32 {{l, h}}, {pair}; cvt.f32.f16 {low}, l; cvt.f32.f16 {high}, h; }}",
            pair = in(reg32) pair,
            low = out(reg32) low,
            high = out(reg32) high,
            options(pure, nomem, nostack),
        );
    }
    [low, high]
}

/// Converts two values to `bf16`. The first value is in the low half of the result.
#[inline(always)]
pub fn bf16_pair(values: [f32; 2]) -> u32 {
    #[cfg(target_feature = "sm_90")]
    {
        let pair: u32;
        // SAFETY: arithmetic on registers; touches no memory.
        unsafe {
            asm!(
                "cvt.rn.bf16x2.f32 {pair}, {high}, {low};",
                high = in(reg32) values[1],
                low = in(reg32) values[0],
                pair = out(reg32) pair,
                options(pure, nomem, nostack),
            );
        }
        pair
    }
    #[cfg(not(target_feature = "sm_90"))]
    {
        u32::from(arch::bf16_bits(values[0])) | u32::from(arch::bf16_bits(values[1])) << 16
    }
}

/// Converts two `bf16` values to `f32`. The first value is in the low half of `pair`.
#[inline(always)]
pub fn bf16_values(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}

/// Converts two values to 8-bit floats (E4M3). The first value is in the low byte of the result. A
/// value beyond the largest finite float becomes that float, with the sign of the value.
#[inline(always)]
pub fn f8e4m3_pair(values: [f32; 2]) -> u16 {
    #[cfg(target_feature = "sm_90")]
    {
        let pair: u16;
        // SAFETY: arithmetic on registers; touches no memory.
        unsafe {
            asm!(
                "cvt.rn.satfinite.e4m3x2.f32 {pair}, {high}, {low};",
                high = in(reg32) values[1],
                low = in(reg32) values[0],
                pair = out(reg16) pair,
                options(pure, nomem, nostack),
            );
        }
        pair
    }
    #[cfg(not(target_feature = "sm_90"))]
    {
        u16::from(F8E4M3::from_f32(values[0]).to_bits()) | u16::from(F8E4M3::from_f32(values[1]).to_bits()) << 8
    }
}
