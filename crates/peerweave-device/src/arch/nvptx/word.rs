//! Implements [`Word`] for words in global memory of a GPU.

use crate::Word;
use crate::arch::{Access, AcqRel, Fence, Reduce, Release, Rmw, Sys};
use core::cell::UnsafeCell;

/// A 64-bit word in global memory that several PEs access. In kernels, the protocols of this crate
/// operate on such words.
///
/// Every access is one instruction with system scope.
#[derive(Debug)]
#[repr(transparent)]
pub struct Word64(UnsafeCell<u64>);

// SAFETY: the word in the cell is shared. The memory system of the GPUs synchronises the accesses:
// every access is a strong instruction of system scope, so two threads that access the word do not
// race. The tests in `tests/loom/` check the protocols on such words under loom. `cargo xtask ptx`
// checks the instruction of each access.
unsafe impl Sync for Word64 {}

impl Word64 {
    /// Returns the word at an address.
    ///
    /// # Safety
    /// `address` is the address of an aligned word of global memory that this thread can access for
    /// `'a`. During `'a` the word is accessed only by strong instructions of system scope.
    #[inline(always)]
    pub unsafe fn at<'a>(address: u64) -> &'a Self {
        // SAFETY: the caller promises an accessible word; the cell allows other threads to change
        // the word.
        unsafe { &*(address as *const Self) }
    }
}

impl Word for Word64 {
    #[inline(always)]
    fn load_relaxed(&self) -> u64 {
        // SAFETY: the reference is to an accessible, aligned word of global memory, as the caller
        // of `at` promises.
        unsafe { <u64 as Access<Sys>>::load_relaxed(self.0.get()) }
    }

    #[inline(always)]
    fn load_acquire(&self) -> u64 {
        // SAFETY: as in `load_relaxed`.
        unsafe { <u64 as Access<Sys>>::load_acquire(self.0.get()) }
    }

    #[inline(always)]
    fn store_relaxed(&self, value: u64) {
        // SAFETY: as in `load_relaxed`.
        unsafe { <u64 as Access<Sys>>::store_relaxed(self.0.get(), value) }
    }

    #[inline(always)]
    fn store_release(&self, value: u64) {
        // SAFETY: as in `load_relaxed`.
        unsafe { <u64 as Access<Sys>>::store_release(self.0.get(), value) }
    }

    #[inline(always)]
    fn add_release(&self, value: u64) {
        // SAFETY: as in `load_relaxed`.
        unsafe { <u64 as Reduce<Sys, Release>>::add(self.0.get(), value) }
    }

    #[inline(always)]
    fn fence_release() {
        <Sys as Fence>::acq_rel();
    }

    #[inline(always)]
    fn fence_acquire() {
        <Sys as Fence>::acq_rel();
    }
}
