//! Methods by which a kernel waits for integers, if the type of the integers is known only when the
//! kernel runs. Kernels that implement the waits of the host API use these methods. Kernels of
//! applications know the type of their elements, and use the methods in `wait.rs`.

use crate::api::report::Report;
use crate::api::views::address;
use crate::api::{Context, Failed};
use crate::gpu::{Access, Sys};
use crate::put_signal::Watch;
use peerweave_types::{Compare, FailureKind, KernelOp, KernelStatus, SymSlice};

/// Integers in this PE's symmetric memory for which a kernel waits, and the condition of this wait.
///
/// The functions of this type represent every integer as a `u64`: its bits, zero-extended to 64
/// bits. The same applies to the values with which the integers are compared.
#[derive(Clone, Copy, Debug)]
pub struct AwaitedWords<V, X> {
    /// The bytes of the integers. Each integer is aligned to its size.
    pub bytes: SymSlice<u8>,
    /// Size of each integer in bytes: 1, 2, 4 or 8.
    pub size: u32,
    /// The sign bit of signed integers ([`Compare::sign_bit`]); 0 for unsigned integers.
    pub sign: u64,
    /// How each integer is compared with the value that the function `value` returns for the
    /// integer's index.
    pub compare: Compare,
    /// Function that returns the value with which the integer at an index is compared.
    pub value: V,
    /// Function that returns whether the integer at an index is excluded.
    pub exclude: X,
}

impl<V, X> AwaitedWords<V, X> {
    /// Returns the number of integers in `bytes`.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.bytes.len() / self.size as usize
    }
}

impl Context {
    /// Reads the integer at an index with acquire order.
    #[inline(always)]
    fn look_at_word<V, X>(&self, of: &AwaitedWords<V, X>, index: usize) -> u64 {
        let size = u64::from(of.size);
        let at = of.bytes.offset().0 + index as u64 * size;
        assert!(
            index < of.count() && at.is_multiple_of(size),
            "the index of an awaited integer lies outside the slice, or the integer is not aligned to its size"
        );
        if size == 8 {
            let word = address::<u64>(self.my_base() + at);
            // SAFETY: the integer lies in the slice, which is memory of this PE's heap, and is
            // aligned. PEs access awaited integers only atomically.
            return unsafe { <u64 as Access<Sys>>::load_acquire(word.cast_const()) };
        }
        // A smaller integer is read as part of the aligned 4 bytes that contain it.
        let word = address::<u32>(self.my_base() + (at & !3));
        // SAFETY: as above; allocations of a heap start and end at multiples of 4 bytes.
        let bits = unsafe { <u32 as Access<Sys>>::load_acquire(word.cast_const()) };
        match size {
            4 => u64::from(bits),
            _ => u64::from(bits >> (8 * (at & 3))) & ((1 << (8 * size)) - 1),
        }
    }

    #[inline(always)]
    fn watch_words<'a, V: Fn(usize) -> u64, X: Fn(usize) -> bool>(
        &'a self,
        of: &'a AwaitedWords<V, X>,
    ) -> Watch<impl Fn(usize) -> Option<u64> + 'a, &'a X> {
        let look = |index| {
            let seen = self.look_at_word(of, index);
            of.compare.holds(seen ^ of.sign, (of.value)(index) ^ of.sign).then_some(seen)
        };
        Watch { len: of.count(), look, exclude: &of.exclude }
    }

    /// Reports a failed wait. The report contains the first integer that does not satisfy the
    /// comparison.
    #[cold]
    #[inline]
    fn fail_words<V: Fn(usize) -> u64, X: Fn(usize) -> bool>(
        &self,
        kind: FailureKind,
        operation: KernelOp,
        of: &AwaitedWords<V, X>,
    ) -> Failed {
        let (mut expected, mut found) = (0, 0);
        for index in (0..of.count()).rev().filter(|&index| !(of.exclude)(index)) {
            let seen = self.look_at_word(of, index);
            if !of.compare.holds(seen ^ of.sign, (of.value)(index) ^ of.sign) {
                (expected, found) = ((of.value)(index), seen);
            }
        }
        self.fail(kind, Report { expected, found, pe: KernelStatus::NONE, ..Report::of(operation) })
    }

    /// Waits for each integer that is not excluded, in the order of indices, until the integer
    /// satisfies the comparison. Returns the bits of the integer with the highest index; `None` if
    /// all integers are excluded.
    ///
    /// # Ordering
    /// Acquire, for each integer.
    ///
    /// # Errors
    /// As for [`Self::wait_until`].
    #[inline(always)]
    pub fn wait_words_all<V: Fn(usize) -> u64, X: Fn(usize) -> bool>(
        &self,
        of: &AwaitedWords<V, X>,
        operation: KernelOp,
    ) -> Result<Option<u64>, Failed> {
        self.watch_words(of).wait_all(&mut self.spin()).map_err(|kind| self.fail_words(kind, operation, of))
    }

    /// Waits until the comparison is true for an integer that is not excluded. Returns the index of
    /// this integer. If there are several such integers, searches from `start` to the end and then
    /// from 0, and returns the first index found. Returns `None` immediately if all integers are
    /// excluded.
    ///
    /// # Ordering
    /// Acquire, for the integer at the returned index.
    ///
    /// # Errors
    /// As for [`Self::wait_until`].
    #[inline(always)]
    pub fn wait_words_any<V: Fn(usize) -> u64, X: Fn(usize) -> bool>(
        &self,
        of: &AwaitedWords<V, X>,
        start: usize,
        operation: KernelOp,
    ) -> Result<Option<usize>, Failed> {
        let waited = self.watch_words(of).wait_any_from(start, &mut self.spin());
        waited.map_err(|kind| self.fail_words(kind, operation, of))
    }

    /// Reads every non-excluded integer once. Calls `found` with the index and the bits of each
    /// integer for which the comparison is true, in ascending order of indices. Returns the number
    /// of calls.
    ///
    /// # Ordering
    /// Acquire, for each integer that is passed to `found`.
    #[inline(always)]
    pub fn test_words<V: Fn(usize) -> u64, X: Fn(usize) -> bool>(
        &self,
        of: &AwaitedWords<V, X>,
        found: impl FnMut(usize, u64),
    ) -> usize {
        self.watch_words(of).test_some(found)
    }

    /// Like [`Self::wait_words_any`], but does not wait: reads each integer at most once. Returns
    /// `None` if the comparison is true for no integer.
    ///
    /// # Ordering
    /// Acquire, for the integer at the returned index.
    #[inline(always)]
    pub fn test_words_any<V: Fn(usize) -> u64, X: Fn(usize) -> bool>(
        &self,
        of: &AwaitedWords<V, X>,
        start: usize,
    ) -> Option<usize> {
        self.watch_words(of).test_any_from(start)
    }
}
