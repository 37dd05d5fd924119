//! Reads and writes lines in operands of any alignment and length.

use crate::epoch::pointer;
use crate::line::reduce::{Class, FromBits};
use peerweave_device::gpu::{self, Piece, Vector};
use peerweave_device::lines::LINE_BYTES;

/// Returns the number of elements of type `T` in a 16-byte line.
pub(crate) const fn per_line<T>() -> usize {
    LINE_BYTES / size_of::<T>()
}

/// An operand of a kernel, which is read and written in 16-byte lines. The address of its elements
/// is aligned to the element size. If `WHOLE` is true, the address is also aligned to lines and
/// every line is complete, so the code does not test these properties.
#[derive(Clone, Copy)]
pub(crate) struct Operand<const WHOLE: bool> {
    address: u64,
    count: u64,
    /// Whether the address is a multiple of [`LINE_BYTES`].
    aligned: bool,
}

impl<const WHOLE: bool> Operand<WHOLE> {
    /// Returns the operand with `count` elements at `address`.
    ///
    /// # Safety
    /// `address` is the address of `count` elements that this thread can access while the kernel
    /// runs, and is aligned to the element size. If `WHOLE` is true, the address and the length of
    /// the operand are multiples of [`LINE_BYTES`].
    #[inline(always)]
    pub(crate) unsafe fn new(address: u64, count: u64) -> Self {
        Self { address, count, aligned: address.is_multiple_of(LINE_BYTES as u64) }
    }

    /// Returns the address of the operand's first element.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.address
    }

    /// Returns the number of 16-byte lines of the operand. The last line may be incomplete.
    #[inline(always)]
    pub(crate) fn lines<T: Class>(self) -> u64 {
        self.count.div_ceil(per_line::<T>() as u64)
    }

    /// Returns whether the `n` lines that start with line `line` lie completely in the operand, and
    /// the operand is aligned to [`LINE_BYTES`].
    #[inline(always)]
    pub(crate) fn is_whole<T: Class>(self, line: u64, n: u64) -> bool {
        WHOLE || self.aligned && (line + n) * per_line::<T>() as u64 <= self.count
    }

    /// Reads the line with the index `line`. [`Self::is_whole`] must be true for this line.
    #[inline(always)]
    pub(crate) fn read_whole(self, line: u64) -> Vector {
        // SAFETY: this is a whole, aligned line of the operand, which the caller of `new`
        // guaranteed.
        unsafe { gpu::load_vector_global(pointer::<u8>(self.address + line * LINE_BYTES as u64)) }
    }

    /// Writes the line with the index `line`. [`Self::is_whole`] must be true for this line.
    #[inline(always)]
    pub(crate) fn write_whole(self, line: u64, value: Vector) {
        // SAFETY: as in `read_whole`.
        unsafe { gpu::store_vector_global(pointer::<u8>(self.address + line * LINE_BYTES as u64), value) };
    }

    /// Reads line `line`, which must be below [`Self::lines`]. In the returned line, elements past
    /// the end of the operand are zero.
    #[inline(always)]
    pub(crate) fn read<T: Class>(self, line: u64) -> Vector {
        let from = pointer::<u8>(self.address + line * LINE_BYTES as u64);
        let left = self.count - line * per_line::<T>() as u64;
        if WHOLE || self.aligned && left >= per_line::<T>() as u64 {
            self.read_whole(line)
        } else {
            // SAFETY: these are the remaining elements of the operand, at most one line.
            unsafe { gather_any::<T::Piece>(from.cast(), left.min(per_line::<T>() as u64) as u32) }
        }
    }

    /// Writes line `line`, which must be below [`Self::lines`]. Ignores elements of `value` past
    /// the end of the operand.
    #[inline(always)]
    pub(crate) fn write<T: Class>(self, line: u64, value: Vector) {
        let to = pointer::<u8>(self.address + line * LINE_BYTES as u64);
        let left = self.count - line * per_line::<T>() as u64;
        if WHOLE || self.aligned && left >= per_line::<T>() as u64 {
            self.write_whole(line, value);
        } else {
            // SAFETY: these are the remaining elements of the operand, at most one line.
            unsafe { scatter_any::<T::Piece>(to.cast(), left.min(per_line::<T>() as u64) as u32, value) };
        }
    }
}

/// Like [`gather`], but reads elements of one byte as words of 4 bytes if the address and `n` are
/// multiples of 4. Most operands that are passed as bytes have elements of a larger type, and often
/// satisfy this condition.
///
/// # Safety
/// As for [`gather`]: this thread can read `n` elements at `from`, at most one line.
#[inline(always)]
unsafe fn gather_any<P: Piece + Into<u64>>(from: *const P, n: u32) -> Vector {
    // SAFETY: the caller guarantees the elements; the words contain the same bytes.
    let (low, high) = unsafe {
        if size_of::<P>() == 1 && are_words(from.addr(), n) { gather::<u32>(from.cast(), n / 4) } else { gather::<P>(from, n) }
    };
    [low, high]
}

/// Like [`scatter`], but elements of one byte are written as words of 4 bytes if the address and
/// `n` are multiples of 4.
///
/// # Safety
/// As for [`scatter`]: this thread can write `n` elements at `to`, at most one line.
#[inline(always)]
unsafe fn scatter_any<P: Piece + FromBits>(to: *mut P, n: u32, value: Vector) {
    // SAFETY: as in `gather_any`.
    unsafe {
        if size_of::<P>() == 1 && are_words(to.addr(), n) {
            scatter::<u32>(to.cast(), n / 4, value[0], value[1]);
        } else {
            scatter::<P>(to, n, value[0], value[1]);
        }
    }
}

/// Returns whether the `n` bytes at `address` are whole, aligned words of 4 bytes.
#[inline(always)]
fn are_words(address: usize, n: u32) -> bool {
    (address as u64 | u64::from(n)).is_multiple_of(4)
}

/// Reads `n` elements one by one, and returns a line that starts with these elements. The function
/// is used at the end of an operand, and for operands that are not aligned to lines. It is not
/// inlined, because it is rarely called. The line is returned as two words, because an array would
/// not stay in registers.
///
/// # Safety
/// `from` points to `n` elements that this thread can read. The elements fill at most one line.
#[inline(never)]
unsafe fn gather<P: Piece + Into<u64>>(from: *const P, n: u32) -> (u64, u64) {
    let (mut low, mut high) = (0, 0);
    let bits = size_of::<P>() as u32 * 8;
    for k in 0..n {
        // SAFETY: the index is below the number of elements.
        let value: u64 = unsafe { P::load_global(from.add(k as usize)) }.into();
        let shifted = value << (k * bits % 64);
        if k * bits < 64 {
            low |= shifted;
        } else {
            high |= shifted;
        }
    }
    (low, high)
}

/// Writes the first `n` elements of a line, one by one. The line is passed as two words, `low` and
/// `high`.
///
/// # Safety
/// `to` points to `n` elements that this thread can write. The elements fill at most one line.
#[inline(never)]
unsafe fn scatter<P: Piece + FromBits>(to: *mut P, n: u32, low: u64, high: u64) {
    let bits = size_of::<P>() as u32 * 8;
    for k in 0..n {
        let half = if k * bits < 64 { low } else { high };
        // SAFETY: the index is below the number of elements.
        unsafe { P::store_global(to.add(k as usize), P::from_bits(half >> (k * bits % 64))) };
    }
}
