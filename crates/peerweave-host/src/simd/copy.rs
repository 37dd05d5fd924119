//! Copies and zeroes memory, by loops that are generic over [`Arch`].
//!
//! Contains no arithmetic. Invariant: a byte of the destination is written only with its final
//! value, possibly twice, and no other byte is written.

use super::arch::{Arch, Basic, Kernel, Vector, word};

/// The longest copy by words, in bytes.
pub(super) const INLINE_BYTES: usize = 32;

/// The longest copy that runs inline, without a choice of the instruction set, in bytes.
pub(super) const SHORT_BYTES: usize = 64;

/// From this size in bytes, a streaming copy uses the string instruction of the processor if it has
/// one: at 64 MiB, 2.1 ms instead of 3.1 ms.
const HUGE_BYTES: usize = 32 << 20;

/// From this size in bytes, source and destination together exceed the first-level cache. There
/// string instructions are faster if both have the same offset in a cache line: on Zen 5 by a
/// factor of 1.6 at 32 KiB and 1.3 at 16 MiB. Otherwise they are never faster.
const STRING_COPY_BYTES: usize = 32 << 10;

/// From this size in bytes, the zeroed memory exceeds the second-level cache. There string
/// instructions are faster, because they do not read what they overwrite: on Zen 5 by a factor of
/// 1.1 at 1 MiB and 2.2 at 64 MiB. Below this size they are slower, by a factor of up to 1.6.
const STRING_ZERO_BYTES: usize = 1 << 20;

/// The size of a cache line, or a divisor of it, on every architecture that has a file in `arch`.
const LINE_BYTES: usize = 64;

/// Copies at most [`INLINE_BYTES`] bytes, as up to four words, which may overlap.
///
/// # Safety
/// As for [`super::copy()`], and `bytes` is at most [`INLINE_BYTES`].
#[inline(always)]
pub(super) unsafe fn copy_inline(dst: *mut u8, src: *const u8, bytes: usize) {
    debug_assert!(bytes <= INLINE_BYTES);
    // SAFETY: every word lies within the first `bytes` bytes: its offset plus its size is at most
    // the lower bound of its branch, or it ends at `bytes`.
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

/// Copies less than 64 bytes.
///
/// # Safety
/// As for [`super::copy()`].
#[inline(always)]
pub(super) unsafe fn pieces(dst: *mut u8, src: *const u8, bytes: usize) {
    let whole = bytes / INLINE_BYTES * INLINE_BYTES;
    // SAFETY: the two pieces together cover the whole range.
    unsafe {
        if whole > 0 {
            copy_inline(dst, src, INLINE_BYTES);
        }
        copy_inline(dst.add(whole), src.add(whole), bytes - whole);
    }
}

/// Returns the number of bytes before the next multiple of `alignment_bytes`, a power of two.
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
        // SAFETY: every access ends at or before `bytes`: by the bound of its branch, or because it
        // is counted from the end.
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
                // The first vector has any alignment, those of the loop are aligned: a store across
                // two lines takes as long as two stores.
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
    // SAFETY: the first two vectors end at 32, the others start there or before and end at `bytes`.
    unsafe {
        let (a, b) = (Basic::load(src), Basic::load(src.add(Basic::BYTES)));
        let (c, d) = (Basic::load(src.add(bytes - 2 * Basic::BYTES)), Basic::load(src.add(bytes - Basic::BYTES)));
        a.store(dst);
        b.store(dst.add(Basic::BYTES));
        c.store(dst.add(bytes - 2 * Basic::BYTES));
        d.store(dst.add(bytes - Basic::BYTES));
    }
}

/// A copy past the caches.
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
        // SAFETY: `at` never exceeds `bytes`; `dst + at` is a multiple of 64 in the loop.
        unsafe {
            // For copies far larger than any cache, the processor's string instruction is even
            // faster; it does not read the destination either.
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

/// Zeroes through the caches.
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
        // SAFETY: `at` never exceeds `bytes`; `zeros` is private and as long as any vector, for
        // which zero bits are valid.
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
                // As in `Copy`.
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

/// Copies elements at strides.
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
                // SAFETY: element `i` of both sides, which the caller guarantees to be valid.
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
                // SAFETY: element `i` of both sides, which the caller guarantees to be valid.
                unsafe { super::copy(dst.add(i * dst_stride_bytes), src.add(i * src_stride_bytes), element_bytes) };
            }
        }
    }
}
