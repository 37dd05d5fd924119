//! Lines of 16 bytes: reading and writing them in operands of any alignment and length, and in
//! staging areas.

use crate::epoch::pointer;
use crate::reduce::{Class, FromBits};
use peerweave_device::gpu::{self, Piece, Vector};

/// Bytes of a line.
pub const LINE_BYTES: usize = size_of::<Vector>();

/// Elements of a line.
pub(crate) const fn per_line<T>() -> usize {
    LINE_BYTES / size_of::<T>()
}

/// An operand: elements at any address that is aligned to them. With `WHOLE` the address is aligned
/// to lines and none is incomplete, which saves the test.
#[derive(Clone, Copy)]
pub(crate) struct Operand<const WHOLE: bool> {
    address: u64,
    count: u64,
    /// Whether the address is aligned to lines.
    aligned: bool,
}

impl<const WHOLE: bool> Operand<WHOLE> {
    /// # Safety
    /// The address is that of `count` elements that this thread can access while the kernel runs,
    /// aligned to them; with `WHOLE` aligned to lines, and `count` elements are whole lines.
    #[inline(always)]
    pub(crate) unsafe fn new(address: u64, count: u64) -> Self {
        Self { address, count, aligned: address.is_multiple_of(LINE_BYTES as u64) }
    }

    /// Number of lines, the last of which may be incomplete.
    #[inline(always)]
    pub(crate) fn lines<T: Class>(self) -> u64 {
        self.count.div_ceil(per_line::<T>() as u64)
    }

    /// Returns whether `n` lines from `line` on are aligned, and none of them is incomplete.
    #[inline(always)]
    pub(crate) fn is_whole<T: Class>(self, line: u64, n: u64) -> bool {
        WHOLE || self.aligned && (line + n) * per_line::<T>() as u64 <= self.count
    }

    /// Reads a line for which [`Self::is_whole`] holds.
    #[inline(always)]
    pub(crate) fn read_whole(self, line: u64) -> Vector {
        // SAFETY: a whole, aligned line of the operand, which `new` was promised.
        unsafe { gpu::load_vector_global(pointer::<u8>(self.address + line * LINE_BYTES as u64)) }
    }

    /// Writes a line for which [`Self::is_whole`] holds.
    #[inline(always)]
    pub(crate) fn write_whole(self, line: u64, value: Vector) {
        // SAFETY: as in `read_whole`.
        unsafe { gpu::store_vector_global(pointer::<u8>(self.address + line * LINE_BYTES as u64), value) };
    }

    /// Reads a line below [`Self::lines`]. Elements behind the end are zeros.
    #[inline(always)]
    pub(crate) fn read<T: Class>(self, line: u64) -> Vector {
        let from = pointer::<u8>(self.address + line * LINE_BYTES as u64);
        let left = self.count - line * per_line::<T>() as u64;
        if WHOLE || self.aligned && left >= per_line::<T>() as u64 {
            self.read_whole(line)
        } else {
            // SAFETY: as many elements as the operand has from here on, at most a line.
            unsafe { gather_any::<T::Piece>(from.cast(), left.min(per_line::<T>() as u64) as u32) }
        }
    }

    /// Writes a line below [`Self::lines`], but for elements behind the end.
    #[inline(always)]
    pub(crate) fn write<T: Class>(self, line: u64, value: Vector) {
        let to = pointer::<u8>(self.address + line * LINE_BYTES as u64);
        let left = self.count - line * per_line::<T>() as u64;
        if WHOLE || self.aligned && left >= per_line::<T>() as u64 {
            self.write_whole(line, value);
        } else {
            // SAFETY: as many elements as the operand has from here on, at most a line.
            unsafe { scatter_any::<T::Piece>(to.cast(), left.min(per_line::<T>() as u64) as u32, value) };
        }
    }
}

/// [`gather`] of elements, or of words of 4 bytes instead of bytes where all are whole words: most
/// operands of bytes are elements of a larger type.
///
/// # Safety
/// As for [`gather`].
#[inline(always)]
unsafe fn gather_any<P: Piece + Into<u64>>(from: *const P, n: u32) -> Vector {
    // SAFETY: the caller promises the elements; words hold no more bytes.
    let (low, high) = unsafe {
        if size_of::<P>() == 1 && are_words(from.addr(), n) { gather::<u32>(from.cast(), n / 4) } else { gather::<P>(from, n) }
    };
    [low, high]
}

/// [`scatter`], as [`gather_any`].
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

/// Whether `n` bytes are whole, aligned words of 4 bytes.
#[inline(always)]
fn are_words(address: usize, n: u32) -> bool {
    (address as u64 | u64::from(n)).is_multiple_of(4)
}

/// Reads `n` elements to the start of a line. A function of its own: it is for the ends of
/// operands, and for those that are not aligned. Its results travel in registers, as an array would
/// not.
///
/// # Safety
/// The pointer is that of as many elements, at most a line, that this thread can read.
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
/// The pointer is that of as many elements, at most a line, that this thread can write.
#[inline(never)]
unsafe fn scatter<P: Piece + FromBits>(to: *mut P, n: u32, low: u64, high: u64) {
    let bits = size_of::<P>() as u32 * 8;
    for k in 0..n {
        let half = if k * bits < 64 { low } else { high };
        // SAFETY: the index is below the number of elements.
        unsafe { P::store_global(to.add(k as usize), P::from_bits(half >> (k * bits % 64))) };
    }
}

/// Lines of a staging area, from an address on.
#[derive(Clone, Copy)]
pub(crate) struct Lines(u64);

impl Lines {
    /// # Safety
    /// The address is that of lines in a staging area, own or of a mapped peer, as many as the
    /// caller indexes, which are accessed only by line accesses while the kernel runs.
    #[inline(always)]
    pub(crate) unsafe fn at(address: u64) -> Self {
        Self(address)
    }

    /// The lines at the same place in another area, by the addresses of both.
    ///
    /// # Safety
    /// As for [`Self::at`].
    #[inline(always)]
    pub(crate) unsafe fn beside(self, area: u64, other: u64) -> Self {
        Self(self.0 - area + other)
    }

    /// The lines from `line` on.
    #[inline(always)]
    pub(crate) fn from(self, line: u64) -> Self {
        Self(self.0 + line * LINE_BYTES as u64)
    }

    /// Writes a line.
    #[inline(always)]
    pub(crate) fn push(self, line: u64, value: Vector) {
        // SAFETY: `at` was promised the line.
        unsafe { gpu::store_line_relaxed(pointer(self.0 + line * LINE_BYTES as u64), value) };
    }

    /// Reads a line.
    #[inline(always)]
    pub(crate) fn look(self, line: u64) -> Vector {
        // SAFETY: `at` was promised the line.
        unsafe { gpu::load_line_relaxed(pointer(self.0 + line * LINE_BYTES as u64)) }
    }
}

/// Returns whether a line has arrived where the sentinel was.
///
/// On GPUs a line is one access. On the host it is two, of which either may be seen first.
#[inline(always)]
pub(crate) fn has_arrived(line: Vector, sentinel: [u64; 2]) -> bool {
    if cfg!(target_arch = "nvptx64") {
        line[0] != sentinel[0] || line[1] != sentinel[1]
    } else {
        line[0] != sentinel[0] && line[1] != sentinel[1]
    }
}
