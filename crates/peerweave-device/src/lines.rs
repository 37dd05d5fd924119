//! Lines of 16 bytes through which PEs exchange data without separate signals.
//!
//! Before the data of a line arrives, the line holds a fixed bit pattern, the sentinel. A sender
//! writes each line by one relaxed store. The receiver polls the line until its content differs
//! from the sentinel ([`has_arrived`]), and then writes the sentinel to the line again. A sender
//! must not send data that equals the sentinel, and must not write to a line before the receiver
//! has written the sentinel.
//!
//! ```
//! use peerweave_device::lines::{Lines, has_arrived};
//!
//! const SENTINEL: [u64; 2] = [u64::MAX; 2];
//! let mut memory = [u128::MAX; 2];
//! let address = memory.as_mut_ptr().expose_provenance() as u64;
//! // SAFETY: the lines are the elements of `memory`, and are accessed only through `lines`.
//! let lines = unsafe { Lines::at(address) };
//!
//! assert!(!has_arrived(lines.look(1), SENTINEL));
//! lines.push(1, [5, 6]); // by the sender, to the memory of the receiver
//! assert!(has_arrived(lines.look(1), SENTINEL));
//! assert_eq!(lines.look(1), [5, 6]);
//! lines.push(1, SENTINEL); // by the receiver, for the next data
//! ```

use crate::arch::{self, Vector};

/// Size in bytes of a line.
pub const LINE_BYTES: usize = size_of::<Vector>();

/// The address of consecutive lines, in the memory of this PE or of a mapped peer.
#[derive(Clone, Copy, Debug)]
pub struct Lines(u64);

impl Lines {
    /// Returns the lines that start at `address`.
    ///
    /// # Safety
    /// `address` is a multiple of [`LINE_BYTES`]. All lines that the caller accesses through the
    /// returned value are in memory of this PE or of a mapped peer. While the caller uses them, all
    /// accesses to these lines read or write whole lines by relaxed loads and stores.
    #[inline(always)]
    pub unsafe fn at(address: u64) -> Self {
        Self(address)
    }

    /// Returns the lines at the same offset in another area of memory. `area` is the address of the
    /// area that contains the lines of `self`. `other` is the address of the other area.
    ///
    /// # Safety
    /// As for [`Self::at`], for the lines in the other area.
    #[inline(always)]
    pub unsafe fn beside(self, area: u64, other: u64) -> Self {
        Self(self.0 - area + other)
    }

    /// Returns the lines of `self` without the first `line` lines. Line 0 of the result is the line
    /// of `self` with the index `line`.
    #[inline(always)]
    pub fn from(self, line: u64) -> Self {
        Self(self.0 + line * LINE_BYTES as u64)
    }

    /// Returns the address of the first line.
    #[inline(always)]
    pub fn address(self) -> u64 {
        self.0
    }

    /// Writes the line with the index `line` by one relaxed store. On the host, two stores write
    /// the two halves of the line.
    #[inline(always)]
    pub fn push(self, line: u64, value: Vector) {
        // SAFETY: the caller of `at` guaranteed the line.
        unsafe { arch::store_line_relaxed(pointer(self.0 + line * LINE_BYTES as u64), value) };
    }

    /// Reads the line with the index `line` by one relaxed load. On the host, two loads read the
    /// two halves of the line. If the line's data has not arrived, the line holds the sentinel.
    #[inline(always)]
    pub fn look(self, line: u64) -> Vector {
        // SAFETY: the caller of `at` guaranteed the line.
        unsafe { arch::load_line_relaxed(pointer(self.0 + line * LINE_BYTES as u64)) }
    }
}

/// Returns whether the data of a line has arrived. `line` is the content of the line, and
/// `sentinel` is the content of a line whose data has not arrived.
///
/// On GPUs, one access writes a line, so the data has arrived if either half differs. On the host,
/// two accesses write the two halves, and either half may become visible first. So on the host both
/// halves must differ: neither half of the sent data may equal its half of the sentinel.
#[inline(always)]
pub fn has_arrived(line: Vector, sentinel: Vector) -> bool {
    if cfg!(target_arch = "nvptx64") {
        line[0] != sentinel[0] || line[1] != sentinel[1]
    } else {
        // Without branches, so that the compiler can vectorise a loop over many lines.
        (line[0] != sentinel[0]) & (line[1] != sentinel[1])
    }
}

#[inline(always)]
fn pointer(address: u64) -> *mut u128 {
    core::ptr::with_exposed_provenance_mut(address as usize)
}
