//! Copies and reductions with vector instructions. Collectives and one-sided operations spend most
//! of their time in this module.
//!
//! This module does not synchronize, allocate or check arguments. The callers must do so.
//! Invariant: the memory of the arguments is never accessed by an ordinary Rust access or through a
//! reference.
//!
//! # Memory that other PEs write
//! Other processes and threads share the memory of the arguments. A program with a bug may write to
//! this memory at any time. If this process accessed the memory by ordinary loads and stores, such
//! a race would be undefined behavior in this process. So **every byte is read and written by a
//! relaxed atomic access.** The result of a race is then a mixture of old and new bytes, and every
//! bit pattern of the element types is valid. Flags and fences around a call order the accesses.
//!
//! The portable file of [`arch`] does exactly this. It is the specification, and miri runs it. The
//! files of instruction sets move one vector register at a time, with inline assembly. Rust
//! requires that a block of inline assembly has only effects that some Rust code could have. Each
//! of these blocks has the effects of relaxed atomic accesses to the single bytes of the register.
//! The compiler cannot see the instructions, so it must allow for these effects.
//!
//! On these architectures other threads cannot distinguish a vector access from accesses to its
//! single bytes. A vector access may be torn between any two bytes, which the specification allows.
//! Rust's own vector loads cannot be used, because they are not atomic. `read_volatile` cannot be
//! used either, because a racing volatile access to memory of the program is a data race.
//!
//! A loaded value is private, in registers or on the stack. Arithmetic is ordinary Rust on arrays
//! of lanes ([`number`], [`mod@reduce`]), instantiated for each instruction set and vectorised by
//! the compiler. Results have the same bits on all instruction sets.
//!
//! Streaming stores are weakly ordered even on x86. Functions that use streaming stores end with a
//! fence. So a later release store also publishes the streaming stores.

mod arch;
mod copy;
mod float16;
mod lanes;
mod number;
mod reduce;
#[cfg(test)]
mod tests;

pub(crate) use arch::Isa;
pub(crate) use reduce::{Input, Stores, reduce};

/// Returns the name of the instruction set in use: `avx512`, `avx2`, `sse2`, `neon` or `portable`.
pub(crate) fn isa() -> &'static str {
    Isa::best().name()
}

/// Copies `bytes` bytes between addresses of any alignment. The copy is not atomic: another thread
/// may see some new and some old bytes.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `bytes` bytes, by atomic accesses or accesses
/// of this module. The two ranges do not overlap. Other threads and processes may access both
/// ranges at the same time, atomically or through this module.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if bytes <= copy::INLINE_BYTES {
            copy::copy_inline(dst, src, bytes);
        } else if bytes <= copy::SHORT_BYTES {
            copy::short(dst, src, bytes);
        } else {
            copy_on(Isa::best(), dst, src, bytes);
        }
    }
}

/// Like [`copy()`], for more than 64 bytes, with a given instruction set.
///
/// # Safety
/// As for [`copy()`]. In addition, `bytes` is more than 64.
unsafe fn copy_on(isa: Isa, dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { isa.enter(copy::Copy { dst, src, bytes }) };
}

/// Copies `bytes` bytes between addresses of any alignment, bypassing the caches if the processor
/// can. Meant for copies that are larger than every cache.
///
/// # Safety
/// As for [`copy()`].
pub(crate) unsafe fn copy_streaming(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { Isa::best().enter(copy::CopyStreaming { dst, src, bytes }) };
}

/// Copies `count` elements of `element_bytes` bytes each. The strides are the distances between
/// consecutive elements in the destination and in the source. A stride is a number of elements.
///
/// # Safety
/// As for [`copy()`], for every element.
pub(crate) unsafe fn copy_strided(
    dst: *mut u8,
    dst_stride_elements: usize,
    src: *const u8,
    src_stride_elements: usize,
    element_bytes: usize,
    count: usize,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if dst_stride_elements == 1 && src_stride_elements == 1 {
            copy(dst, src, count * element_bytes);
        } else {
            let (dst_stride_bytes, src_stride_bytes) = (dst_stride_elements * element_bytes, src_stride_elements * element_bytes);
            copy::strided(dst, dst_stride_bytes, src, src_stride_bytes, element_bytes, count);
        }
    }
}

/// Writes `bytes` zero bytes to memory of any alignment.
///
/// # Safety
/// `dst` is valid for writes of `bytes` bytes, as in [`copy()`].
pub(crate) unsafe fn fill_zero(dst: *mut u8, bytes: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { Isa::best().enter(copy::Zero { dst, bytes }) };
}
