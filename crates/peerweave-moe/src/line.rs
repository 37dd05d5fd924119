//! Lines of 16 bytes: those of operands, which one kernel reads or writes, and those that travel,
//! whose content shows that they have arrived.

use peerweave_device::gpu::{self, Vector};
use peerweave_device::prelude::*;
use peerweave_types::KernelOp;

/// Number of lines that a thread has in flight. On the host it is the number of lines for which a
/// thread reads a place once.
pub(crate) const BATCH: usize = if cfg!(target_arch = "nvptx64") { 4 } else { 16 };

#[inline(always)]
fn pointer<T>(address: u64) -> *mut T {
    core::ptr::with_exposed_provenance_mut(address as usize)
}

/// Lines that travel, at an address of this PE or of a mapped peer.
#[derive(Clone, Copy)]
pub(crate) struct Lines(u64);

impl Lines {
    /// # Safety
    /// At the address there are as many lines as the caller indexes. While the kernel runs, they
    /// are accessed only by whole lines.
    #[inline(always)]
    pub(crate) unsafe fn at(address: u64) -> Self {
        Self(address)
    }

    /// Writes a line.
    #[inline(always)]
    pub(crate) fn push(self, line: u64, value: Vector) {
        // SAFETY: the caller of `at` guaranteed the line.
        unsafe { gpu::store_line_relaxed(pointer(self.0 + 16 * line), value) };
    }

    /// Reads a line.
    #[inline(always)]
    fn look(self, line: u64) -> Vector {
        // SAFETY: the caller of `at` guaranteed the line.
        unsafe { gpu::load_line_relaxed(pointer(self.0 + 16 * line)) }
    }

    /// Waits until the lines for which `is_wanted` is true have arrived, returns their content, and
    /// puts the sentinel back. `line` returns the index of a line.
    ///
    /// # Errors
    /// At the deadline, in the name of the PE that `sender` returns for the first missing line.
    #[inline(always)]
    pub(crate) fn take<const N: usize>(
        self,
        ctx: &Context,
        sentinel: Vector,
        is_wanted: impl Fn(usize) -> bool,
        line: impl Fn(usize) -> u64,
        sender: impl Fn(usize) -> u32,
    ) -> Result<[Vector; N], Failed> {
        let look = || {
            let mut found = [[0; 2]; N];
            let mut all = true;
            for index in 0..N {
                if is_wanted(index) {
                    found[index] = self.look(line(index));
                    all &= has_arrived(found[index], sentinel);
                }
            }
            all.then_some(found)
        };
        let missing = || {
            let is_missing = |index: &usize| is_wanted(*index) && !has_arrived(self.look(line(*index)), sentinel);
            sender((0..N).find(is_missing).unwrap_or(0))
        };
        let found = ctx.poll(KernelOp::AllToAll, look, missing)?;
        for index in 0..N {
            if is_wanted(index) {
                self.push(line(index), sentinel);
            }
        }
        Ok(found)
    }
}

/// Returns whether a line has arrived.
///
/// On GPUs a line is written by one access. On the host it is written by two accesses, and either
/// may become visible first.
#[inline(always)]
fn has_arrived(line: Vector, sentinel: Vector) -> bool {
    if cfg!(target_arch = "nvptx64") {
        line[0] != sentinel[0] || line[1] != sentinel[1]
    } else {
        line[0] != sentinel[0] && line[1] != sentinel[1]
    }
}

/// Returns the halves of a line.
#[inline(always)]
pub(crate) fn halves(line: u128) -> Vector {
    [line as u64, (line >> 64) as u64]
}

/// Whole lines of an operand of this PE.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    address: u64,
    lines: u64,
}

impl Operand {
    #[inline(always)]
    pub(crate) fn new(ctx: &Context, of: SymSlice<u128>) -> Self {
        Self { address: ctx.local(of).address(), lines: of.len() as u64 }
    }

    /// Reads a line. A line behind the end is zero.
    #[inline(always)]
    pub(crate) fn read(self, line: u64) -> Vector {
        if line >= self.lines {
            return [0; 2];
        }
        let from = self.address + 16 * line;
        // SAFETY: a line of symmetric memory of this PE, which the launch keeps allocated.
        unsafe {
            if cfg!(target_arch = "nvptx64") {
                gpu::load_vector_global(pointer(from))
            } else {
                gpu::load_line_relaxed(pointer(from)) // without a turn for other threads
            }
        }
    }

    /// Writes a line. Nothing is written behind the end.
    #[inline(always)]
    pub(crate) fn write(self, line: u64, value: Vector) {
        if line >= self.lines {
            return;
        }
        let to = self.address + 16 * line;
        // SAFETY: as in `read`.
        unsafe {
            if cfg!(target_arch = "nvptx64") {
                gpu::store_vector_global(pointer(to), value);
            } else {
                gpu::store_line_relaxed(pointer(to), value);
            }
        }
    }
}
