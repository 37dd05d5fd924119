//! Reports which halves of this thread's vector registers are in use, according to the processor's
//! XINUSE state.

/// The bits of XINUSE for upper halves: bit 2 for bits 128 to 255 of registers 0 to 15, and bit 6
/// for bits 256 to 511 of these registers. SSE code cannot name registers 16 to 31 (bit 7), so
/// their state does not slow it down.
#[cfg(target_arch = "x86_64")]
const UPPER_HALVES: u32 = 1 << 2 | 1 << 6;

/// Returns whether upper halves are in use. If they are, SSE code of this thread is slow.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn upper_halves_in_use() -> bool {
    let low: u32;
    // SAFETY: reads a register of the processor's state; `is_observable` checks that it exists.
    unsafe { std::arch::asm!("xgetbv", in("ecx") 1, out("eax") low, out("edx") _, options(nomem, nostack)) };
    low & UPPER_HALVES != 0
}

/// Clears all upper halves.
#[cfg(target_arch = "x86_64")]
pub fn clean() {
    // SAFETY: zeroes the upper halves of vector registers, as the calling convention allows every
    // function; `is_observable` checks that the processor has the instruction.
    unsafe { std::arch::asm!("vzeroupper", options(nomem, nostack, preserves_flags)) };
}

/// Returns whether this processor has upper halves and reports their use. Tests this by using an
/// upper half.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn is_observable() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if !std::is_x86_feature_detected!("avx") || __cpuid(0).eax < 0xd || __cpuid_count(0xd, 1).eax & 1 << 2 == 0 {
        return false;
    }
    clean();
    let before = upper_halves_in_use();
    // SAFETY: AVX is available; the assembly declares the register that it writes.
    unsafe { std::arch::asm!("vcmptrueps ymm0, ymm0, ymm0", out("ymm0") _, options(nomem, nostack, preserves_flags)) };
    let after = upper_halves_in_use();
    clean();
    !before && after
}

/// Returns false, because only x86-64 processors have upper halves.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub fn is_observable() -> bool {
    false
}

/// Returns false, because only x86-64 processors have upper halves.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub fn upper_halves_in_use() -> bool {
    false
}

/// Does nothing, because only x86-64 processors have upper halves.
#[cfg(not(target_arch = "x86_64"))]
pub fn clean() {}
