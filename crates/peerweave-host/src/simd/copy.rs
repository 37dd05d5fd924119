//! Copies and zeroes memory, with loops that are generic over [`Arch`].
//!
//! This module contains no arithmetic. Invariant: a byte of the destination is written only with
//! its final value, possibly twice. No other byte is written.

use super::arch::{Arch, Basic, Kernel, Vector, word};

/// Maximum length, in bytes, of a copy that [`copy_inline`] can execute.
pub(super) const INLINE_BYTES: usize = 32;

/// Maximum length, in bytes, of a copy that runs inline, without selecting an instruction set.
pub(super) const SHORT_BYTES: usize = 64;

/// Minimum length, in bytes, of a streaming copy that uses the string instruction of the processor.
/// The copy uses this instruction only if the instruction is fast on this processor. In addition,
/// source and destination must have the same offset in a cache line. On Zen 5, a copy of 64 MiB
/// then takes 2.1 ms instead of 3.1 ms.
const HUGE_BYTES: usize = 32 << 20;

/// Minimum length, in bytes, of a copy that uses string instructions. From this length, source and
/// destination together exceed the first-level cache. String instructions are then faster if source
/// and destination have the same offset in a cache line: on Zen 5 by a factor of 1.6 at 32 KiB and
/// 1.3 at 16 MiB. With different offsets, string instructions are never faster.
const STRING_COPY_BYTES: usize = 32 << 10;

/// Minimum length, in bytes, of memory that is zeroed with string instructions. From this length,
/// the memory exceeds the second-level cache. String instructions are then faster, because they do
/// not read the memory that they overwrite: on Zen 5 by a factor of 1.1 at 1 MiB and 2.2 at 64 MiB.
/// Below this length, string instructions are slower, by a factor of up to 1.6.
const STRING_ZERO_BYTES: usize = 1 << 20;

/// Assumed size of a cache line, in bytes. On every architecture that has a file in `arch`, the
/// size of a cache line is a multiple of this number.
const LINE_BYTES: usize = 64;

/// Copies at most [`INLINE_BYTES`] bytes, as at most four words. The words may overlap.
///
/// # Safety
/// As for [`super::copy()`], and `bytes` is at most [`INLINE_BYTES`].
#[inline(always)]
pub(super) unsafe fn copy_inline(dst: *mut u8, src: *const u8, bytes: usize) {
    debug_assert!(bytes <= INLINE_BYTES);
    // SAFETY: every word is within the first `bytes` bytes. Either its offset plus its size is at
    // most the lower bound of its branch, or the word ends at `bytes`.
    unsafe {
        if bytes >= 8 {
            let first = word::load_u64(src);
            let last = word::load_u64(src.add(bytes - 8));
            if bytes > 16 {
                let second = word::load_u64(src.add(8));
                let third = word::load_u64(src.add(bytes - 16));
                word::store_u64(second, dst.add(8));
                word::store_u64(third, dst.add(bytes - 16));
            }
            word::store_u64(first, dst);
            word::store_u64(last, dst.add(bytes - 8));
        } else if bytes >= 4 {
            let first = word::load_u32(src);
            let last = word::load_u32(src.add(bytes - 4));
            word::store_u32(first, dst);
            word::store_u32(last, dst.add(bytes - 4));
        } else if bytes >= 2 {
            let first = word::load_u16(src);
            let last = word::load_u16(src.add(bytes - 2));
            word::store_u16(first, dst);
            word::store_u16(last, dst.add(bytes - 2));
        } else if bytes == 1 {
            word::store_u8(word::load_u8(src), dst);
        }
    }
}

/// Copies less than 64 bytes, by at most two calls of [`copy_inline`].
///
/// # Safety
/// As for [`super::copy()`].
#[inline(always)]
pub(super) unsafe fn pieces(dst: *mut u8, src: *const u8, bytes: usize) {
    let whole = bytes / INLINE_BYTES * INLINE_BYTES;
    // SAFETY: the two pieces together cover exactly the whole range.
    unsafe {
        if whole > 0 {
            copy_inline(dst, src, INLINE_BYTES);
        }
        copy_inline(dst.add(whole), src.add(whole), bytes - whole);
    }
}

/// Returns the number of bytes from `at` to the next multiple of `alignment_bytes`, which is a
/// power of two.
#[inline(always)]
pub(super) fn bytes_to_alignment(at: *const u8, alignment_bytes: usize) -> usize {
    at.addr().wrapping_neg() & (alignment_bytes - 1)
}

/// A copy of more than [`SHORT_BYTES`] bytes through the caches.
pub(super) struct Copy {
    pub(super) dst: *mut u8,
    pub(super) src: *const u8,
    pub(super) bytes: usize,
}

impl Kernel for Copy {
    #[inline(always)]
    unsafe fn run<A: Arch>(self) {
        let Self { dst, src, bytes } = self;
        let vector = A::Vector::BYTES;
        debug_assert!(bytes > SHORT_BYTES);
        // SAFETY: every access ends at or before `bytes`, either by the bound of its branch, or
        // because its offset is computed from the end.
        unsafe {
            if bytes <= 2 * vector {
                let (first, last) = (A::Vector::load(src), A::Vector::load(src.add(bytes - vector)));
                first.store(dst);
                last.store(dst.add(bytes - vector));
            } else if bytes <= 4 * vector {
                let (a, b) = (A::Vector::load(src), A::Vector::load(src.add(vector)));
                let (c, d) = (A::Vector::load(src.add(bytes - 2 * vector)), A::Vector::load(src.add(bytes - vector)));
                a.store(dst);
                b.store(dst.add(vector));
                c.store(dst.add(bytes - 2 * vector));
                d.store(dst.add(bytes - vector));
            } else {
                let alike = (dst.addr() ^ src.addr()) & (LINE_BYTES - 1) == 0;
                if bytes >= STRING_COPY_BYTES && alike && A::string_copy(dst, src, bytes) {
                    return;
                }
                // The first vector may have any alignment, but the vectors of the loop are aligned.
                // A store across two cache lines takes as long as two stores.
                A::Vector::load(src).store(dst);
                let mut at = vector - (dst.addr() & (vector - 1));
                while at + 4 * vector <= bytes {
                    A::Vector::store_four(A::Vector::load_four(src.add(at)), dst.add(at));
                    at += 4 * vector;
                }
                let last = bytes - 4 * vector;
                A::Vector::store_four(A::Vector::load_four(src.add(last)), dst.add(last));
            }
        }
    }
}

/// Copies 33 to 64 bytes by vectors of 16 bytes, which every processor of the architecture has.
///
/// # Safety
/// As for [`super::copy()`], for 33 to 64 bytes.
#[inline(always)]
pub(super) unsafe fn short(dst: *mut u8, src: *const u8, bytes: usize) {
    debug_assert!(bytes > INLINE_BYTES && bytes <= SHORT_BYTES);
    const { assert!(2 * Basic::BYTES == INLINE_BYTES && 4 * Basic::BYTES == SHORT_BYTES) };
    // SAFETY: the first two vectors end at offset 32. The other two vectors start at or before
    // offset 32 and end at `bytes`.
    unsafe {
        let (a, b) = (Basic::load(src), Basic::load(src.add(Basic::BYTES)));
        let (c, d) = (Basic::load(src.add(bytes - 2 * Basic::BYTES)), Basic::load(src.add(bytes - Basic::BYTES)));
        a.store(dst);
        b.store(dst.add(Basic::BYTES));
        c.store(dst.add(bytes - 2 * Basic::BYTES));
        d.store(dst.add(bytes - Basic::BYTES));
    }
}

/// A copy that bypasses the caches.
pub(super) struct CopyStreaming {
    pub(super) dst: *mut u8,
    pub(super) src: *const u8,
    pub(super) bytes: usize,
}

impl Kernel for CopyStreaming {
    #[inline(always)]
    unsafe fn run<A: Arch>(self) {
        let Self { dst, src, bytes } = self;
        let vector = A::Vector::BYTES;
        // SAFETY: `at` never exceeds `bytes`, and `dst + at` is a multiple of 64 in the first loop.
        unsafe {
            // For copies far larger than any cache, the string instruction of some processors is
            // even faster. It does not read the destination either.
            let alike = (dst.addr() ^ src.addr()) & (LINE_BYTES - 1) == 0;
            if bytes >= HUGE_BYTES && alike && A::string_copy(dst, src, bytes) {
                return;
            }
            let mut at = bytes_to_alignment(dst, LINE_BYTES).min(bytes);
            pieces(dst, src, at);
            while at + 4 * vector <= bytes {
                A::Vector::store_four_streaming(A::Vector::load_four(src.add(at)), dst.add(at));
                at += 4 * vector;
            }
            while at + vector <= bytes {
                A::Vector::load(src.add(at)).store(dst.add(at));
                at += vector;
            }
            pieces(dst.add(at), src.add(at), bytes - at);
        }
        A::fence_streaming();
    }
}

/// An operation that fills memory with zeros through the caches.
pub(super) struct Zero {
    pub(super) dst: *mut u8,
    pub(super) bytes: usize,
}

impl Kernel for Zero {
    #[inline(always)]
    unsafe fn run<A: Arch>(self) {
        let Self { dst, bytes } = self;
        let vector = A::Vector::BYTES;
        let zeros = [0u8; 64];
        // SAFETY: `at` never exceeds `bytes`. `zeros` is a local array that is at least as long as
        // any vector, and zero bits are a valid vector.
        unsafe {
            let zero = zeros.as_ptr().cast::<A::Vector>().read_unaligned();
            if bytes < vector {
                A::store_part(zero, dst, bytes);
            } else if bytes < 4 * vector {
                let mut at = 0;
                while at + vector < bytes {
                    zero.store(dst.add(at));
                    at += vector;
                }
                zero.store(dst.add(bytes - vector));
            } else if bytes < STRING_ZERO_BYTES || !A::string_zero(dst, bytes) {
                // The first vector may have any alignment, but the vectors of the loop are aligned,
                // as in `Copy`.
                zero.store(dst);
                let mut at = vector - (dst.addr() & (vector - 1));
                while at + 4 * vector <= bytes {
                    A::Vector::store_four([zero; 4], dst.add(at));
                    at += 4 * vector;
                }
                A::Vector::store_four([zero; 4], dst.add(bytes - 4 * vector));
            }
        }
    }
}

/// Copies `count` elements. `src_stride_bytes` is the distance between consecutive elements in the
/// source, and `dst_stride_bytes` the distance in the destination.
///
/// # Safety
/// As for [`super::copy_strided`].
#[inline(always)]
pub(super) unsafe fn strided(
    dst: *mut u8,
    dst_stride_bytes: usize,
    src: *const u8,
    src_stride_bytes: usize,
    element_bytes: usize,
    count: usize,
) {
    macro_rules! words {
        ($load:ident, $store:ident) => {
            for i in 0..count {
                // SAFETY: accesses element `i` of source and destination, which the caller
                // guarantees to be valid.
                unsafe { word::$store(word::$load(src.add(i * src_stride_bytes)), dst.add(i * dst_stride_bytes)) };
            }
        };
    }
    match element_bytes {
        1 => words!(load_u8, store_u8),
        2 => words!(load_u16, store_u16),
        4 => words!(load_u32, store_u32),
        8 => words!(load_u64, store_u64),
        _ => {
            for i in 0..count {
                // SAFETY: accesses element `i` of source and destination, which the caller
                // guarantees to be valid.
                unsafe { super::copy(dst.add(i * dst_stride_bytes), src.add(i * src_stride_bytes), element_bytes) };
            }
        }
    }
}
