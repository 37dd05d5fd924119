//! Lines of 16 bytes: reading and writing them in operands of any alignment and length, and in
//! staging areas.

use crate::epoch::pointer;
use crate::reduce::{Class, FromBits};
use peerweave_device::gpu::{self, Piece, Vector};

/// Size of a line in bytes.
pub const LINE_BYTES: usize = size_of::<Vector>();

/// Returns the number of elements in a line.
pub(crate) const fn per_line<T>() -> usize {
    LINE_BYTES / size_of::<T>()
}

/// An operand: elements at any address that is aligned to the element size. With `WHOLE`, the
/// address is aligned to lines and every line is complete, so the code does not test these
/// properties.
#[derive(Clone, Copy)]
pub(crate) struct Operand<const WHOLE: bool> {
    address: u64,
    count: u64,
    /// Whether the address is aligned to lines.
    aligned: bool,
}

impl<const WHOLE: bool> Operand<WHOLE> {
    /// Returns the operand at an address.
    ///
    /// # Safety
    /// `address` is the address of `count` elements that this thread can access while the kernel
    /// runs, and is aligned to the element size. With `WHOLE`, the address is aligned to lines, and
    /// the elements are whole lines.
    #[inline(always)]
    pub(crate) unsafe fn new(address: u64, count: u64) -> Self {
        Self { address, count, aligned: address.is_multiple_of(LINE_BYTES as u64) }
    }

    /// Returns the address of the first element.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.address
    }

    /// Returns the number of lines. The last line may be incomplete.
    #[inline(always)]
    pub(crate) fn lines<T: Class>(self) -> u64 {
        self.count.div_ceil(per_line::<T>() as u64)
    }

    /// Returns whether the `n` lines that start at `line` are aligned and complete.
    #[inline(always)]
    pub(crate) fn is_whole<T: Class>(self, line: u64, n: u64) -> bool {
        WHOLE || self.aligned && (line + n) * per_line::<T>() as u64 <= self.count
    }

    /// Reads a line that is aligned and complete, as [`Self::is_whole`] reports.
    #[inline(always)]
    pub(crate) fn read_whole(self, line: u64) -> Vector {
        // SAFETY: this is a whole, aligned line of the operand, which the caller of `new`
        // guaranteed.
        unsafe { gpu::load_vector_global(pointer::<u8>(self.address + line * LINE_BYTES as u64)) }
    }

    /// Writes a line that is aligned and complete, as [`Self::is_whole`] reports.
    #[inline(always)]
    pub(crate) fn write_whole(self, line: u64, value: Vector) {
        // SAFETY: as in `read_whole`.
        unsafe { gpu::store_vector_global(pointer::<u8>(self.address + line * LINE_BYTES as u64), value) };
    }

    /// Reads a line below [`Self::lines`]. Elements past the end of the operand are zero.
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

    /// Writes a line below [`Self::lines`], except elements past the end of the operand.
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

/// Like [`gather`], but reads 4-byte words instead of bytes if the address and the number of bytes
/// are multiples of 4. Most operands that are read as bytes consist of elements of a larger type.
///
/// # Safety
/// As for [`gather`].
#[inline(always)]
unsafe fn gather_any<P: Piece + Into<u64>>(from: *const P, n: u32) -> Vector {
    // SAFETY: the caller guarantees the elements; the words contain the same bytes.
    let (low, high) = unsafe {
        if size_of::<P>() == 1 && are_words(from.addr(), n) { gather::<u32>(from.cast(), n / 4) } else { gather::<P>(from, n) }
    };
    [low, high]
}

/// Like [`scatter`], but writes 4-byte words instead of bytes in the cases in which [`gather_any`]
/// reads words.
///
/// # Safety
/// As for [`scatter`].
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

/// Returns whether `n` bytes at `address` are whole, aligned 4-byte words.
#[inline(always)]
fn are_words(address: usize, n: u32) -> bool {
    (address as u64 | u64::from(n)).is_multiple_of(4)
}

/// Reads `n` elements to the start of a line, for the ends of operands and for operands that are
/// not aligned. Not inlined, because it is rarely called. Returns two words instead of an array,
/// because an array would not stay in registers.
///
/// # Safety
/// At the pointer there are `n` elements, at most one line, that this thread can read.
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

/// Writes the first `n` elements of a line.
///
/// # Safety
/// At the pointer there are `n` elements, at most one line, that this thread can write.
#[inline(never)]
unsafe fn scatter<P: Piece + FromBits>(to: *mut P, n: u32, low: u64, high: u64) {
    let bits = size_of::<P>() as u32 * 8;
    for k in 0..n {
        let half = if k * bits < 64 { low } else { high };
        // SAFETY: the index is below the number of elements.
        unsafe { P::store_global(to.add(k as usize), P::from_bits(half >> (k * bits % 64))) };
    }
}

/// Lines of a staging area that start at an address.
#[derive(Clone, Copy)]
pub(crate) struct Lines(u64);

impl Lines {
    /// Returns the lines at an address.
    ///
    /// # Safety
    /// At the address there are as many lines as the caller indexes, in the staging area of this
    /// rank or of a mapped peer. While the kernel runs, they are accessed only by whole lines.
    #[inline(always)]
    pub(crate) unsafe fn at(address: u64) -> Self {
        Self(address)
    }

    /// Returns the lines at the same offset in another staging area. `area` is the address of the
    /// area that contains these lines, and `other` is the address of the other area.
    ///
    /// # Safety
    /// As for [`Self::at`].
    #[inline(always)]
    pub(crate) unsafe fn beside(self, area: u64, other: u64) -> Self {
        Self(self.0 - area + other)
    }

    /// Returns the lines that start at `line`.
    #[inline(always)]
    pub(crate) fn from(self, line: u64) -> Self {
        Self(self.0 + line * LINE_BYTES as u64)
    }

    /// Writes a line of the staging area.
    #[inline(always)]
    pub(crate) fn push(self, line: u64, value: Vector) {
        // SAFETY: the caller of `at` guaranteed the line.
        unsafe { gpu::store_line_relaxed(pointer(self.0 + line * LINE_BYTES as u64), value) };
    }

    /// Reads a line of the staging area, whether or not its data has arrived.
    #[inline(always)]
    pub(crate) fn look(self, line: u64) -> Vector {
        // SAFETY: the caller of `at` guaranteed the line.
        unsafe { gpu::load_line_relaxed(pointer(self.0 + line * LINE_BYTES as u64)) }
    }
}

/// Returns whether a line has arrived: it then no longer contains the sentinel.
///
/// On GPUs a line is written by one access. On the host it is written by two accesses, and either
/// may become visible first.
#[inline(always)]
pub(crate) fn has_arrived(line: Vector, sentinel: [u64; 2]) -> bool {
    if cfg!(target_arch = "nvptx64") {
        line[0] != sentinel[0] || line[1] != sentinel[1]
    } else {
        line[0] != sentinel[0] && line[1] != sentinel[1]
    }
}
